/* h5_internal.h - what h5_fail.c (failures), h5_made.c (the record of a file that is created), h5_object.c (objects), h5_data.c
 * (datasets), h5_elements.c (their elements as bytes), h5_digest.c (the digest) and h5.c (files) share; only they include libhdf5's
 * header. */
#ifndef EXF_FORMAT_H5_INTERNAL_H
#define EXF_FORMAT_H5_INTERNAL_H
#include "format/h5.h"

#include "base/file.h"
#include "base/worker.h"

#include <hdf5.h>

enum { EXF_H5I_DEPTH_MAX = 32 /* groups within groups that have a digest */, EXF_H5I_KEPT = 4 };

/* A group that is kept open for the next walk, since most objects lie in few groups. */
typedef struct {
    hid_t group; /* H5I_INVALID_HID: none */
    size_t len;  /* of its path; 0: the root */
    char path[128];
} exf_h5i_kept;

/* How objects are made. */
typedef struct {
    int made;
    hid_t link, dataset, attr; /* property lists */
    hid_t scalar;              /* the space of an attribute */
} exf_h5i_lists;

/* A dataset of which rows are being written or read. */
typedef struct {
    char *path;
    exf_tensor shape;    /* dtype, rank and shape */
    uint64_t at, bytes;  /* where its elements are in the file */
    int anew;            /* of a continued file: all its rows must be written before the commit */
    int64_t next;        /* read: the row that comes next; written: the number of rows so far */
    uint32_t crc;        /* read: of the rows so far; written: of all elements as they are, zeros where none came */
    uint32_t crc_stored; /* what elements that are read must have */
} exf_h5i_rows;

/* The value of an attribute. */
typedef enum { EXF_H5I_OTHER, EXF_H5I_TEXT, EXF_H5I_I64 } exf_h5i_attr_kind;
typedef struct {
    exf_h5i_attr_kind kind; /* OTHER: nothing was read */
    int64_t i64;
    char *text; /* caller frees; NULL unless TEXT */
} exf_h5i_attr_value;

/* An object of a file that is created, and an attribute of it. */
typedef struct {
    char *name;
    exf_h5i_attr_value value;
} exf_h5i_made_attr;
typedef struct {
    exf_h5 *h;
    char *path;              /* "" is the root */
    int is_dataset, given;   /* 1: it was given to be hashed */
    exf_h5i_rows r;          /* of a dataset */
    exf_h5i_made_attr *attr; /* by name */
    size_t n_attrs, cap_attrs;
    exf_job job;             /* its hashing */
} exf_h5i_made;

struct exf_h5 {
    char *path;
    hid_t file;          /* H5I_INVALID_HID: closed */
    exf_file *in;        /* of a file that is read */
    exf_output_file *out; /* of one that is written */
    exf_code broken;     /* the first failure of a write; `why` is its message.  libhdf5 1.10 cannot close such a file: its ids,
                          * and what libhdf5 holds for them, are given up */
    exf_err why;
    exf_h5i_rows *rows;
    size_t n_rows, cap_rows;
    exf_h5i_made **made; /* [n_made] the objects in the digest's order; none: the file was not created here */
    size_t n_made, cap_made;
    size_t n_given;      /* the first of them, which were given to be hashed */
    char *hashed;        /* the last object until which they were; NULL: none was */
    exf_hash *hash;      /* of a digest that has begun, which the worker adds to; NULL: none has */
    exf_worker hashing;
    exf_h5i_kept kept[EXF_H5I_KEPT];
    int next_kept;       /* the one that the next group replaces */
    exf_h5i_lists lists; /* of a file that is written */
};

/* ---- before and after a call of libhdf5 (h5_fail.c) ------------------------------ */

/* Keeps libhdf5 from printing its errors, which it does unless each thread says otherwise. */
void exf_h5i_quiet(void);
/* Before every call of libhdf5 that may fail: memory for its own needs, and quiet for this thread. */
exf_code exf_h5i_enter(exf_err *err) EXF_CHECKED;
/* Fills err after a failed call: "FILE: <fmt>: <HDF5's innermost message>", or the system's message, or the earlier failure. */
exf_code exf_h5i_fail(exf_h5 *h, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4);
/* Notes that a write failed with *err; returns its code. */
exf_code exf_h5i_break(exf_h5 *h, const exf_err *err);
/* The code for a mismatch: EXF_FORMAT for a file that is read, EXF_INTERNAL for one we write. */
exf_code exf_h5i_blame(const exf_h5 *h);
/* Refuses a file that is open for reading, and one in which a write failed. */
exf_code exf_h5i_writable(const exf_h5 *h, exf_err *err) EXF_CHECKED;

/* ---- the record of the objects that were made (h5_made.c) -------------------------- */

/* Notes an object at the first `len` bytes of a path, a dataset with its rows, NULL: a group; an attribute.  Only what is made in a
 * file that is created is noted. */
exf_code exf_h5i_note_made(exf_h5 *h, const char *path, int len, const exf_h5i_rows *r, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_note_attr(exf_h5 *h, const char *object, const char *name, const exf_h5i_attr_value *v, exf_err *err) EXF_CHECKED;
/* Finds a noted object; NULL: the file's objects are not noted. */
exf_h5i_made *exf_h5i_find_made(const exf_h5 *h, const char *path);
/* Returns whether the first n characters of a path lead to another object or within it. */
int exf_h5i_is_within(const char *path, size_t n, const char *other);
/* Returns whether the digest's walk comes by that object until it leaves `through`. */
int exf_h5i_is_through(const char *path, size_t n, const char *through);
/* Returns whether the digest covers an attribute. */
int exf_h5i_in_digest(const char *object, const char *attr);
/* Ends the worker, and frees the list. */
void exf_h5i_end_made(exf_h5 *h);

/* ---- objects (h5_object.c) ---------------------------------------------------------- */

/* Keeps links and attributes in their object's header, which has a checksum; an index of them outside it has crashed
 * libhdf5 1.10 when it was damaged. */
void exf_h5i_keep_compact(hid_t creation_list);
/* Closes the groups that are kept open. */
void exf_h5i_drop_kept(exf_h5 *h);
/* Opens an object that must be there; the caller closes it with H5Oclose. */
exf_code exf_h5i_open(exf_h5 *h, const char *path, hid_t *object, exf_err *err) EXF_CHECKED;
/* Opens the group of the object at a path, or makes it, and keeps it; the caller closes it too. */
exf_code exf_h5i_open_parent(exf_h5 *h, const char *path, hid_t *group, exf_err *err) EXF_CHECKED;

/* exf_h5_put_text and exf_h5_get_text of an open object; `object` is its path.  put: called after exf_h5i_writable(). */
exf_code exf_h5i_put_text(exf_h5 *h, hid_t o, const char *object, const char *name, const char *value, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_get_text(exf_h5 *h, hid_t o, const char *object, const char *name, char **value, exf_err *err) EXF_CHECKED;
/* Lists an open object's attributes; reads one of any kind, whose v->text is the caller's to free, also after an error. */
exf_code exf_h5i_visit_attrs(exf_h5 *h, hid_t o, const char *object, exf_h5_visit visit, void *self, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_read_attr(exf_h5 *h, hid_t o, const char *object, const char *name, exf_h5i_attr_value *v,
                           exf_err *err) EXF_CHECKED;
const char *exf_h5i_kind_name(exf_h5i_attr_kind kind);

/* ---- elements as bytes (h5_elements.c) ------------------------------------------------ */

/* Returns the CRC-32 of n bytes of zeros; of bytes that have `crc` and of n more, which may be none; and the remainder of a CRC
 * register after n more bytes of zeros. */
uint32_t exf_h5i_crc_of_zeros(uint64_t n);
uint32_t exf_h5i_add_to_crc(uint32_t crc, const void *bytes, size_t n);
uint32_t exf_h5i_shift_crc(uint32_t crc, uint64_t n);
/* Writes and reads the checksum of an open dataset; refuses elements whose checksum is another than r->crc_stored. */
exf_code exf_h5i_put_checksum(exf_h5 *h, hid_t dataset, const char *path, uint32_t crc, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_get_checksum(exf_h5 *h, hid_t dataset, const char *path, uint32_t *crc, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_compare_crc(const exf_h5 *h, const char *path, const exf_h5i_rows *r, uint32_t crc, exf_err *err) EXF_CHECKED;
/* Reads n bytes of the elements from `from` on, of a file that is read or, before it is committed, written; concurrent. */
exf_code exf_h5i_read_bytes(exf_h5 *h, const exf_h5i_rows *r, uint64_t from, void *to, size_t n, exf_err *err) EXF_CHECKED;
/* Writes a large dataset's elements from `from`, or, with from NULL, reads them, into `to` unless it is NULL; several pieces at
 * once.  *crc becomes their checksum; a hash gets the digests of the pieces (exf_h5_digest). */
exf_code exf_h5i_do_pieces(exf_h5 *h, const exf_h5i_rows *r, const void *from, void *to, uint32_t *crc, exf_hash *hash,
                           exf_err *err) EXF_CHECKED;
/* Reads all elements a piece at a time, into the hash unless it is NULL, and compares their checksum. */
exf_code exf_h5i_check_elements(exf_h5 *h, const char *path, const exf_h5i_rows *r, exf_hash *hash, exf_err *err) EXF_CHECKED;

/* ---- datasets (h5_data.c) ------------------------------------------------------------ */

/* Returns the rows of a dataset that was defined, or is read row by row; NULL: it was not. */
exf_h5i_rows *exf_h5i_find_rows(exf_h5 *h, const char *path);
/* Adds checksums to all defined datasets. */
exf_code exf_h5i_put_checksums(exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Looks where an open dataset's elements are and which checksum they should have (crc_stored). */
exf_code exf_h5i_find_elements(exf_h5 *h, const char *path, hid_t dataset, exf_h5i_rows *r, exf_err *err) EXF_CHECKED;
#endif
