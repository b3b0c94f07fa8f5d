/* h5_internal.h - types and functions shared by h5*.c; only this file includes libhdf5's header.
 *
 * h5.c       opening, closing, finding objects, groups
 * h5_sink.c  the file driver under a file being written
 * h5_attr.c  attributes
 * h5_data.c  datasets
 * h5_checksum.c  checksums of their elements
 * h5_inflate.c  reading compressed datasets on several threads
 * h5_exact.c  chunks that decode to another size than their elements'
 * h5_limits.c  what a dataset may take of memory and time
 * h5_digest.c  listing, the payload's hash
 * h5_running.c  the same hash of a file that is being written
 * The function that opens an HDF5 id closes it; exf_h5i_dataset's id is borrowed. */
#ifndef EXF_FORMAT_H5_INTERNAL_H
#define EXF_FORMAT_H5_INTERNAL_H
#include "format/h5.h"

#include "base/file.h"

#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h> /* H5FD_class_t moved here */
#endif

/* The driver's view of a file being written.  HDF5 casts between H5FD_t and
 * this, so pub stays first. */
typedef struct {
    H5FD_t pub;
    const char *path; /* the target's, for messages */
    exf_output_file *out;
    haddr_t eoa, eof; /* end of what HDF5 allocated, of what was written */
    exf_code broken;  /* code of the first failure; `why` is its message */
    exf_err why;
    int deaf; /* 1: the file is being discarded, further failures are ignored */
    int goes_on; /* 1: the file was there, and may be longer than what is written now */
    int keep; /* 1: elements that are in the file stay, those that HDF5 writes are dropped */
} exf_h5i_sink;

/* CRC-32s of the blocks of rows of a dataset (h5_checksum.c). */
typedef struct {
    int64_t n_rows, block_rows; /* of the dataset; of a block, the last of which may have fewer */
    size_t row_bytes, n;        /* of a row; blocks */
    uint32_t *crc;              /* [n]; NULL: a dataset of an earlier version, which has none */
    size_t block, done;         /* that is compared now, and its bytes so far */
    uint32_t running;           /* their CRC-32 */
} exf_h5i_sums;

typedef struct {
    char *path;
    exf_h5i_sums sums;
} exf_h5i_defined;

struct exf_h5 {
    char *path;
    hid_t file;
    int writing;
    int goes_on; /* the elements of datasets whose rows are written later are in the file */
    exf_h5i_sink sink;
    /* The dataset used last stays open, so that writing or reading it row by
     * row does not empty the chunk cache, and deflate again, at every call. */
    char *last_path;
    hid_t last;
    int64_t exact_from, exact_to; /* its rows whose chunks were found to decode to their size (h5_exact.c) */
    uint64_t bytes; /* of a file that is read */
    int checksums; /* a dataset without them is an error */
    exf_h5i_defined *defined; /* datasets whose rows are being written */
    size_t n_defined, cap_defined, at_defined;
};

enum {
    EXF_H5I_CHUNK_BYTES = 1 << 20, /* of the chunks we write */
    EXF_H5I_PART_BYTES = 1 << 16,  /* of those that are filtered side by side: many, for many threads */
    EXF_H5I_IN_PARTS = 1 << 8,     /* flag of exf_h5i_make(): chunks of that size */
    EXF_H5I_DEFLATE_LEVEL = 4,
    EXF_H5I_STEP_BYTES = 16 << 20, /* read at once by the digest; the chunk cache */
    EXF_H5I_DEPTH_MAX = 32         /* groups within groups */
};

/* The place of a digest's walk in a file (h5_digest.c). */
typedef struct {
    exf_h5 *h;
    exf_hash *hash;
    const char *path;
    int depth; /* 0: the root */
} exf_h5i_walk;

/* ---- h5_sink.c --------------------------------------------------------- */
/* Makes fapl open files through the sink. */
exf_code exf_h5i_sink_use(exf_h5i_sink *sink, hid_t fapl, exf_err *err) EXF_CHECKED;

/* ---- h5.c -------------------------------------------------------------- */
/* Turns libhdf5's printing off for this thread, whose setting it is: before a thread's first call. */
void exf_h5i_quiet(void);
/* The same, behind exf_mem_reserve(): before every call that may fail. */
exf_code exf_h5i_enter(exf_err *err) EXF_CHECKED;
/* Fills err after a failed HDF5 call: "FILE: <fmt>: <HDF5's innermost message>", or the
 * system's message, or the earlier failure that broke the file. */
exf_code exf_h5i_fail(const exf_h5 *h, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4);
/* The code for a mismatch: EXF_FORMAT for a file that is read, EXF_INTERNAL for one we write. */
exf_code exf_h5i_blame(const exf_h5 *h);
/* Refuses a file that is open for reading, and one in which a write failed. */
exf_code exf_h5i_writable(const exf_h5 *h, exf_err *err) EXF_CHECKED;
/* *found = 1 if path leads, through hard links only, to an object. */
exf_code exf_h5i_find(const exf_h5 *h, const char *path, int *found, exf_err *err) EXF_CHECKED;
exf_code exf_h5i_open(const exf_h5 *h, const char *path, hid_t *object, exf_err *err) EXF_CHECKED; /* caller: H5Oclose */
exf_code exf_h5i_make_parents(exf_h5 *h, const char *path, exf_err *err) EXF_CHECKED;
/* A link creation list for UTF-8 names; negative on failure. */
hid_t exf_h5i_utf8_links(void);

/* ---- h5_attr.c --------------------------------------------------------- */
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
exf_code exf_h5i_attr(const exf_h5 *h, const char *object, const char *name, exf_h5i_value *v, exf_err *err) EXF_CHECKED;

/* ---- h5_data.c --------------------------------------------------------- */
exf_code exf_h5i_dataset(exf_h5 *h, const char *path, hid_t *dataset, exf_err *err) EXF_CHECKED; /* borrowed */
exf_code exf_h5i_forget(exf_h5 *h, exf_err *err) EXF_CHECKED; /* closes the dataset used last */
/* Makes a dataset whose every element will be written. */
exf_code exf_h5i_make(exf_h5 *h, const exf_tensor *t, int flags, exf_err *err) EXF_CHECKED;
/* HDF5's name of a dtype: an immutable id; negative for those not stored. */
hid_t exf_h5i_type(exf_dtype t);
/* block[] = the longest run of whole trailing axes within `limit` bytes:
 * [1, .., 1, k, full, ..].  In lexicographic order such blocks follow each
 * other as the elements do in memory.  Every axis is >= 1. */
void exf_h5i_block(const exf_tensor *t, size_t limit, hsize_t *block);
/* Moves `at` on to the next block of a shape, of a dataset's chunks too; returns 0 behind the last. */
int exf_h5i_next_block(hsize_t *at, const hsize_t *block, const int64_t *shape, int rank);
/* The stored bytes of the chunk at `at`; 0: it is absent, which is an error for HDF5, and zeros for a reader. */
hsize_t exf_h5i_stored_bytes(hid_t dataset, const hsize_t *at);
/* Returns filter i of a dataset's chunks. */
H5Z_filter_t exf_h5i_filter(hid_t creation_list, int i);
/* Reads or writes the box of `count` elements at `start` of an open dataset. */
herr_t exf_h5i_box(hid_t dataset, hid_t type, int rank, const hsize_t *start, const hsize_t *count, void *to, const void *from);
/* Rows [row, row + n_rows) of t, the dataset that was opened last, not compared with their checksums. */
exf_code exf_h5i_get_rows(exf_h5 *h, const exf_tensor *t, int64_t row, int64_t n_rows, void *to, exf_err *err) EXF_CHECKED;
/* Group or file creation list: links and attributes compact. */
void exf_h5i_compact(hid_t creation_list);

/* ---- h5_inflate.c ------------------------------------------------------ */
/* Reads rows of t, which `dataset` holds, into `to`; *done is 0 where that is left to H5Dread(). */
exf_code exf_h5i_inflate(hid_t dataset, const exf_tensor *t, int64_t row, int64_t n_rows, void *to, int *done,
                         exf_err *err) EXF_CHECKED;

/* ---- h5_exact.c -------------------------------------------------------- */
/* Refuses chunks with rows [row, row + n_rows) of t, the dataset that was opened last, that do not decode to exactly
 * their elements: to be asked before H5Dread() is. */
exf_code exf_h5i_check_chunks(exf_h5 *h, const exf_tensor *t, int64_t row, int64_t n_rows, exf_err *err) EXF_CHECKED;

/* ---- h5_digest.c ------------------------------------------------------- */
/* Adds what a digest has of an object before its members or elements: path, kind and attributes. */
exf_code exf_h5i_hash_head(exf_h5i_walk *w, int *is_group, exf_err *err) EXF_CHECKED;
/* Adds a member of the group at `self`, an exf_h5i_walk, with all that is in it. */
exf_code exf_h5i_hash_member(void *self, const char *name, exf_err *err) EXF_CHECKED;

/* ---- h5_limits.c ------------------------------------------------------- */
/* Refuses an open dataset whose shape, chunks or filters would take more memory or time than its stored bytes and
 * those of its file explain, or that stores fewer bytes than its elements have. */
exf_code exf_h5i_check_storage(const exf_h5 *h, const char *path, hid_t dataset, uint64_t file_bytes, exf_err *err) EXF_CHECKED;

/* ---- h5_checksum.c ----------------------------------------------------- */
/* The checksums of t while it holds zeros. */
exf_code exf_h5i_sums_new(exf_h5i_sums *s, const exf_tensor *t, exf_err *err) EXF_CHECKED;
void exf_h5i_sums_free(exf_h5i_sums *s);
/* Takes in rows, each at most once, in any order. */
void exf_h5i_sums_add(exf_h5i_sums *s, int64_t row, int64_t n_rows, const void *data);
exf_code exf_h5i_sums_put(exf_h5 *h, const char *path, const exf_h5i_sums *s, exf_err *err) EXF_CHECKED;
/* Reads the checksums of t; s->crc stays NULL where the file may lack them.  The caller frees s. */
exf_code exf_h5i_sums_get(exf_h5 *h, const exf_tensor *t, exf_h5i_sums *s, exf_err *err) EXF_CHECKED;
/* Compares the next n bytes of the elements; those before were given to earlier calls. */
exf_code exf_h5i_sums_check(exf_h5 *h, const char *path, exf_h5i_sums *s, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
/* Compares rows of t that were read; reads the others of their blocks. */
exf_code exf_h5i_check_rows(exf_h5 *h, const exf_tensor *t, int64_t row, int64_t n_rows, const void *data,
                            exf_err *err) EXF_CHECKED;
/* The datasets whose rows are written by several calls: their checksums follow at commit. */
exf_code exf_h5i_defined_add(exf_h5 *h, const exf_tensor *t, exf_err *err) EXF_CHECKED;
exf_h5i_sums *exf_h5i_defined_find(exf_h5 *h, const char *path); /* NULL: none */
exf_code exf_h5i_defined_put(exf_h5 *h, exf_err *err) EXF_CHECKED;
void exf_h5i_defined_free(exf_h5 *h);
#endif
