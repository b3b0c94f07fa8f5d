/* h5_internal.h - what h5.c (the structure) and h5_data.c (elements and the digest) share; only they include libhdf5's header. */
#ifndef EXF_FORMAT_H5_INTERNAL_H
#define EXF_FORMAT_H5_INTERNAL_H
#include "format/h5.h"

#include "base/file.h"

#include <hdf5.h>

/* A dataset of which rows are being written or read. */
typedef struct {
    char *path;
    exf_tensor shape;    /* dtype, rank and shape */
    uint64_t at, bytes;  /* where its elements are in the file */
    int defined;         /* 1: its rows are written, and crc is of all its elements as they are, zeros where none came; 2: so, and
                          * all its rows must come */
    int64_t next;        /* the row that a reader takes next, crc is of those before; rows that were written */
    uint32_t crc, crc_stored; /* crc_stored: what the file says, of a dataset that is read */
} exf_h5i_rows;

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
};

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
/* Opens an object to which hard links alone lead; the caller closes it with H5Oclose. */
exf_code exf_h5i_open(exf_h5 *h, const char *path, hid_t *object, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_make_parents(exf_h5 *h, const char *path, exf_err *err) EXF_CHECKED;
/* A file to write, without its structure if it goes on. */
exf_code exf_h5i_new_output(exf_h5 **out, const char *target, int force, const char *temporary, int goes_on,
                            exf_err *err) EXF_CHECKED;
/* Makes the structure of a file that is written, or opens that which it has; closes it, so that the disk has all of it. */
exf_code exf_h5i_open_structure(exf_h5 *h, int makes, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_close_structure(exf_h5 *h, exf_err *err) EXF_CHECKED;
/* A link creation list for UTF-8 names. */
hid_t exf_h5i_utf8_links(void);
/* Adds checksums to all defined datasets. */
exf_code exf_h5i_put_checksums(exf_h5 *h, exf_err *err) EXF_CHECKED;

/* Looks where a dataset's elements are: all of them, plain, in one piece, within the file. */
exf_code exf_h5i_look(exf_h5 *h, const char *path, exf_h5i_rows *r, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_expect(const exf_h5 *h, const exf_tensor *expected, const exf_tensor *t, exf_err *err) EXF_CHECKED;
exf_h5i_rows *exf_h5i_rows_of(exf_h5 *h, const char *path); /* NULL: none are written or read */
exf_code exf_h5i_add_rows(exf_h5 *h, const char *path, const exf_h5i_rows *r, exf_h5i_rows **out, exf_err *err) EXF_CHECKED;
uint32_t exf_h5i_crc_of_zeros(uint64_t n);
exf_code exf_h5i_get_checksum(exf_h5 *h, const char *path, uint32_t *crc, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_compare(const exf_h5 *h, const char *path, uint64_t bytes, uint32_t is, uint32_t should, exf_err *err) EXF_CHECKED;
/* Reads all elements a piece at a time into the CRC-32 and, unless it is NULL, the hash. */
exf_code exf_h5i_read_all(exf_h5 *h, const exf_h5i_rows *r, uint32_t *crc, exf_hash *hash, exf_err *err) EXF_CHECKED;

typedef enum { EXF_H5I_OTHER, EXF_H5I_TEXT, EXF_H5I_I64, EXF_H5I_U64, EXF_H5I_F64 } exf_h5i_kind;
const char *exf_h5i_kind_name(exf_h5i_kind kind);
typedef struct {
    exf_h5i_kind kind; /* OTHER: nothing was read */
    union {
        int64_t i64;
        uint64_t u64;
        double f64;
    } number;
    char *text; /* caller frees; NULL unless TEXT */
} exf_h5i_value;
exf_code exf_h5i_attr(exf_h5 *h, const char *object, const char *name, exf_h5i_value *v, exf_err *err) EXF_CHECKED;
#endif
