/* h5.h - reads and writes HDF5 files; the only wrapper of libhdf5.
 *
 * Deterministic: object times are off, the file format is fixed (that of HDF5
 * 1.8, the oldest with attributes over 64 KiB), so equal calls in equal order
 * give equal bytes with the same libhdf5 and zlib.
 * Writing is atomic (base/file.h): everything goes to a temporary beside the
 * target, which appears on commit or not at all.  Objects and attributes are
 * written once; a second write to the same name is EXF_INTERNAL.  After a write
 * that the system refused, every call on the file fails with that message.
 * Datasets are little-endian standard types (H5T_IEEE_F32LE, H5T_STD_U64LE...),
 * dense row-major; compressed ones are chunked by rows of the first axis (as
 * many as fill 1 MiB; a longer row is cut) with shuffle and deflate level 4.
 * Text attributes are fixed-length UTF-8 strings of at most 16 MiB, NUL-padded,
 * without a NUL inside.
 * Every dataset has a text attribute crc32, "ROWS CRC CRC ...": the CRC-32s, in hexadecimal, of the little-endian
 * elements of ROWS rows of the first axis each.  Whatever reads elements compares them; a difference is EXF_FORMAT.
 * A reader trusts no file: soft and external links, virtual datasets, elements
 * kept in other files, other filters than ours, and more bytes of elements than the
 * stored ones explain (h5_limits.c) are EXF_FORMAT, filters are never
 * loaded from disk, and shapes are compared before anything is read.
 * HDF5's own error printing is off; its innermost message goes into ours.
 * Not thread-safe: the caller serialises.  Paths are absolute ("/layers/3/dot").
 * Supported dtypes: U8 I8 I32 I64 U64 F32 F64. */
#ifndef EXF_FORMAT_H5_H
#define EXF_FORMAT_H5_H
#include "base/hash.h"
#include "base/tensor.h"

typedef struct exf_h5 exf_h5;
enum { EXF_H5_TEXT_MAX = 16 << 20 }; /* bytes of a text attribute */

exf_code exf_h5_create(exf_h5 **out, const char *target, int force, exf_err *err) EXF_CHECKED;
/* The same in a temporary of that path, beside the target, which stays there unless it is committed.  goes_on: it holds
 * what the same calls wrote before, and exf_h5_define() keeps the elements that are there. */
exf_code exf_h5_create_at(exf_h5 **out, const char *target, int force, const char *temporary, int goes_on,
                          exf_err *err) EXF_CHECKED;
/* Closes the file and renames it to its target; frees h, also on failure. */
exf_code exf_h5_commit(exf_h5 *h, exf_err *err) EXF_CHECKED;

/* Read only.  EXF_FORMAT naming the file if it is no HDF5 file. */
exf_code exf_h5_open(exf_h5 **out, const char *path, exf_err *err) EXF_CHECKED;
/* Closes a file open for reading; removes a file that is being written.  NULL is allowed. */
void exf_h5_close(exf_h5 *h);
const char *exf_h5_path(const exf_h5 *h); /* the target's path, for messages */

/* ---- groups and attributes; group "/" is the root ---------------------- */
exf_code exf_h5_group(exf_h5 *h, const char *group, exf_err *err) EXF_CHECKED; /* parents are made */
/* Refuses datasets without checksums from now on; until then those of earlier versions are read. */
void exf_h5_expect_checksums(exf_h5 *h);
/* *found = 1 if there is a group or dataset of that path, 0 if there is none; an error where that cannot be told. */
exf_code exf_h5_exists(exf_h5 *h, const char *path, int *found, exf_err *err) EXF_CHECKED;
/* The object must exist; value must be valid UTF-8. */
exf_code exf_h5_put_text(exf_h5 *h, const char *object, const char *name, const char *value, exf_err *err) EXF_CHECKED;
exf_code exf_h5_put_i64(exf_h5 *h, const char *object, const char *name, int64_t value, exf_err *err) EXF_CHECKED;
exf_code exf_h5_put_f64(exf_h5 *h, const char *object, const char *name, double value, exf_err *err) EXF_CHECKED;
/* EXF_FORMAT naming file, object and attribute if it is absent or of another type.  (In
 * these and the following functions: EXF_INTERNAL while the file is being written, since
 * the mismatch is then between two parts of ExFold.) */
exf_code exf_h5_get_text(exf_h5 *h, const char *object, const char *name, char **value,
                         exf_err *err) EXF_CHECKED; /* caller frees */
exf_code exf_h5_get_i64(exf_h5 *h, const char *object, const char *name, int64_t *value, exf_err *err) EXF_CHECKED;
exf_code exf_h5_get_f64(exf_h5 *h, const char *object, const char *name, double *value, exf_err *err) EXF_CHECKED;
/* *has = 1 or 0; an error where the object is absent or unreadable. */
exf_code exf_h5_has_attr(exf_h5 *h, const char *object, const char *name, int *has, exf_err *err) EXF_CHECKED;

/* Names of a group's members or an object's attributes, sorted by name.
 * visit returning anything but EXF_OK stops and is returned. */
typedef exf_code (*exf_h5_visit)(void *self, const char *name, exf_err *err);
exf_code exf_h5_members(exf_h5 *h, const char *group, exf_h5_visit visit, void *self, exf_err *err) EXF_CHECKED;
exf_code exf_h5_attrs(exf_h5 *h, const char *object, exf_h5_visit visit, void *self, exf_err *err) EXF_CHECKED;

/* ---- datasets ----------------------------------------------------------
 * t->name is the absolute path; parents are made. */
#define EXF_H5_CHECKSUM "crc32" /* the attribute */
enum { EXF_H5_PLAIN = 0, EXF_H5_COMPRESS = 1 };
/* The whole array from t->data. */
exf_code exf_h5_write(exf_h5 *h, const exf_tensor *t, int flags, exf_err *err) EXF_CHECKED;
/* n compressed datasets of at least one element each, as so many exf_h5_write() would
 * write them, but filtered side by side on all threads. */
exf_code exf_h5_write_all(exf_h5 *h, const exf_tensor *t, size_t n, exf_err *err) EXF_CHECKED;
/* Creates a dataset (t->data is ignored) whose rows of the first axis are written later,
 * in any order, each at most once; rows never written read as zero.  A plain dataset is allocated on disk at
 * once, so that a full disk is an error of this call. */
exf_code exf_h5_define(exf_h5 *h, const exf_tensor *t, int flags, exf_err *err) EXF_CHECKED;
exf_code exf_h5_write_rows(exf_h5 *h, const char *path, int64_t row, int64_t n_rows, const void *data, exf_err *err) EXF_CHECKED;

/* Hands rows that were written so far to the system; what is unfinished stays so. */
exf_code exf_h5_settle(exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Returns once they are on the disk.  Thread-safe beside other calls on the file. */
exf_code exf_h5_sync(const exf_h5 *h, exf_err *err) EXF_CHECKED;
/* The CRC-32s of a dataset that exf_h5_define() made, as rows so far change them: h's own, [*n]; NULL: no such dataset. */
uint32_t *exf_h5_checksums(exf_h5 *h, const char *path, size_t *n);
/* Compares the elements of a dataset that exf_h5_define() made with those; EXF_FORMAT if they differ. */
exf_code exf_h5_check_kept(exf_h5 *h, const char *path, exf_err *err) EXF_CHECKED;

/* dtype, rank and shape of a dataset (data stays NULL, name is the caller's path). */
exf_code exf_h5_describe(exf_h5 *h, const char *path, exf_tensor *t, exf_err *err) EXF_CHECKED;
/* Rows of a dataset that must have exactly this dtype; EXF_FORMAT naming file,
 * path and both dtypes, or both row counts, if it does not. */
exf_code exf_h5_read_rows(exf_h5 *h, const char *path, exf_dtype dtype, int64_t row, int64_t n_rows, void *data,
                          exf_err *err) EXF_CHECKED;
/* EXF_FORMAT unless the dataset has this dtype and shape and its file's size explains them: before memory is
 * taken for it. */
exf_code exf_h5_expect(exf_h5 *h, const exf_tensor *expected, exf_err *err) EXF_CHECKED;
/* The whole dataset, which must have exactly this dtype and shape. */
exf_code exf_h5_read(exf_h5 *h, const exf_tensor *expected, void *data, exf_err *err) EXF_CHECKED;

/* The root group that lists the parts from which a file was added up.  It is not part of
 * the payload: no digest covers it. */
#define EXF_H5_ORIGIN "origin"

/* SHA-256 over the payload, independent of HDF5's own bookkeeping: all objects but /origin
 * depth first in order of name; for each its path and kind, its attributes but crc32 in
 * order of name (name, type, value), and for datasets dtype, shape and little
 * endian elements.  Independent of chunks and compression; reads at most 16 MiB
 * at once.  Works on files open for reading; EXF_FORMAT for what it cannot
 * cover: an attribute that is neither a text nor one I64, U64 or F64, an object
 * with two names, groups nested more than 32 deep. */
exf_code exf_h5_digest(exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;

/* The same digest, computed while the file is written.  A run completes the members of one group of the root one after the
 * other, and each is hashed as soon as the order of names allows: of layers 0 to 12, layer 10 comes after layer 1.  Members
 * are read back from the file, and compared with their checksums.  Members of the root whose names are before the
 * group's, and the root's attributes, are complete when the first member is; the others when the digest is ended. */
typedef struct exf_h5_running exf_h5_running;

/* Begins the digest of a file whose root has `group`, with n members of different names, which are copied. */
exf_code exf_h5_running_new(exf_h5_running **out, const char *group, const char *const *names, size_t n, exf_err *err) EXF_CHECKED;
/* Hashes a member that is complete, or notes it for later; EXF_INTERNAL for an unknown or repeated name. */
exf_code exf_h5_running_add(exf_h5_running *r, exf_h5 *h, const char *name, exf_err *err) EXF_CHECKED;
/* Hashes the rest of a file to which nothing but exf_h5_commit() will come; EXF_INTERNAL if members were not added. */
exf_code exf_h5_running_end(exf_h5_running *r, exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
void exf_h5_running_free(exf_h5_running *r); /* NULL is allowed */
#endif
