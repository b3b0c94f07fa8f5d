/* h5.h - reads and writes our HDF5 files: groups, attributes, and arrays that lie in the file as plain bytes.
 *
 * libhdf5 keeps the structure: groups, attributes, shapes, and where an array begins.  Every dataset is contiguous,
 * unfiltered and little endian (H5T_IEEE_F32LE, H5T_STD_U64LE...), dense row-major, so its elements are the bytes
 * from H5Dget_offset() on, which we read and write ourselves, on any thread and in any order of rows.
 *
 * Each dataset has a text attribute crc32, the CRC-32 of its elements in 8 hexadecimal digits; superblock and object
 * headers have checksums of libhdf5 (the file format is that of HDF5 1.10).  Whatever reads elements compares them; a
 * difference is EXF_FORMAT.  What we do not write is refused before any element is read: chunks, filters, compact,
 * external and virtual storage, soft and external links, indexed groups, other element types, attributes that are
 * neither a text nor one I64, elements beyond the end of the file.
 *
 * Deterministic: object times are off, so equal calls in equal order give equal bytes with the same libhdf5.
 * Writing is atomic (base/file.h): everything goes to a temporary beside the target, which appears on commit or not at
 * all.  Objects and attributes are written once; a second write to the same name is EXF_INTERNAL.  After a write that
 * the system refused every call on the file fails with that message.
 * Text attributes are fixed-length UTF-8 strings of at most 16 MiB, NUL-padded, without a NUL inside.
 * HDF5's own error printing is off; its innermost message goes into ours.
 * A mismatch in a file that is being written is EXF_INTERNAL: it is then between two parts of ExFold.
 * Not thread-safe but for exf_h5_sync(): the caller serialises.  Paths are absolute ("/layers/3/dot"), without empty names. */
#ifndef EXF_FORMAT_H5_H
#define EXF_FORMAT_H5_H
#include "base/hash.h"
#include "base/tensor.h"

typedef struct exf_h5 exf_h5;
enum { EXF_H5_TEXT_MAX = 16 << 20 }; /* bytes of a text attribute */

/* Starts a file.  temporary: NULL, or the name of the temporary of a run that may be stopped, see below. */
exf_code exf_h5_create(exf_h5 **out, const char *target, int force, const char *temporary, exf_err *err) EXF_CHECKED;
/* Closes the file and renames it to its target; frees h, also on failure. */
exf_code exf_h5_commit(exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Opens a file for reading.  EXF_FORMAT naming the file if it is no HDF5 file. */
exf_code exf_h5_open(exf_h5 **out, const char *path, exf_err *err) EXF_CHECKED;
/* Closes a file open for reading; removes a file that is being written.  NULL is allowed. */
void exf_h5_close(exf_h5 *h);
const char *exf_h5_path(const exf_h5 *h); /* the target's path, for messages */

/* ---- groups and attributes; group "/" is the root ---------------------- */
exf_code exf_h5_group(exf_h5 *h, const char *group, exf_err *err) EXF_CHECKED; /* parents are made */
/* *found = 1 if there is a group or dataset of that path, 0 if there is none; an error where that cannot be told. */
exf_code exf_h5_exists(exf_h5 *h, const char *path, int *found, exf_err *err) EXF_CHECKED;
/* The object must exist; value must be valid UTF-8. */
exf_code exf_h5_put_text(exf_h5 *h, const char *object, const char *name, const char *value, exf_err *err) EXF_CHECKED;
exf_code exf_h5_put_i64(exf_h5 *h, const char *object, const char *name, int64_t value, exf_err *err) EXF_CHECKED;
/* EXF_FORMAT naming file, object and attribute if it is absent or of another type.  The caller frees a text. */
exf_code exf_h5_get_text(exf_h5 *h, const char *object, const char *name, char **value, exf_err *err) EXF_CHECKED;
exf_code exf_h5_get_i64(exf_h5 *h, const char *object, const char *name, int64_t *value, exf_err *err) EXF_CHECKED;
/* *has = 1 or 0; an error where the object is absent or unreadable. */
exf_code exf_h5_has_attr(exf_h5 *h, const char *object, const char *name, int *has, exf_err *err) EXF_CHECKED;

/* Names of a group's members or an object's attributes, sorted by name.
 * visit returning anything but EXF_OK stops and is returned. */
typedef exf_code (*exf_h5_visit)(void *self, const char *name, exf_err *err);
exf_code exf_h5_members(exf_h5 *h, const char *group, exf_h5_visit visit, void *self, exf_err *err) EXF_CHECKED;
exf_code exf_h5_attrs(exf_h5 *h, const char *object, exf_h5_visit visit, void *self, exf_err *err) EXF_CHECKED;

/* ---- datasets: U8 I8 I32 I64 U64 F32 F64, at most EXF_MAX_RANK axes ----
 * t->name is the absolute path; parents are made. */
#define EXF_H5_CHECKSUM "crc32" /* the attribute */
/* The whole array from t->data. */
exf_code exf_h5_write(exf_h5 *h, const exf_tensor *t, exf_err *err) EXF_CHECKED;
/* Makes the elements of array i, on the thread that writes them next. */
typedef void (*exf_h5_fill)(void *self, size_t i);
/* The same of n arrays, whose elements are made, unless fill is NULL, and written by several threads. */
exf_code exf_h5_write_all(exf_h5 *h, const exf_tensor *t, size_t n, exf_h5_fill fill, void *self, exf_err *err) EXF_CHECKED;
/* dtype, rank and shape of a dataset (data stays NULL, name is the caller's path). */
exf_code exf_h5_describe(exf_h5 *h, const char *path, exf_tensor *t, exf_err *err) EXF_CHECKED;
/* EXF_FORMAT unless the dataset has this dtype and shape: before memory is taken for it. */
exf_code exf_h5_expect(exf_h5 *h, const exf_tensor *expected, exf_err *err) EXF_CHECKED;
/* The whole dataset, which must have exactly this dtype and shape. */
exf_code exf_h5_read(exf_h5 *h, const exf_tensor *expected, void *data, exf_err *err) EXF_CHECKED;
/* Rows of a dataset that must have exactly this dtype: from row 0 on, in order, as often as one likes.  The call that
 * takes the last row compares the checksum of all, so that nothing may be published before it.  EXF_INTERNAL for rows
 * that do not follow those of the call before. */
exf_code exf_h5_read_rows(exf_h5 *h, const char *path, exf_dtype dtype, int64_t row, int64_t n_rows, void *data,
                          exf_err *err) EXF_CHECKED;
/* Reads all elements of a dataset and compares their checksum: EXF_FORMAT if they are damaged. */
exf_code exf_h5_verify(exf_h5 *h, const char *path, exf_err *err) EXF_CHECKED;

/* ---- datasets whose rows come later, in any order --------------------------
 * Takes disk space for a dataset (t->data is ignored), at once, so that a full disk is an error of this call; rows never
 * written read as zero. */
exf_code exf_h5_define(exf_h5 *h, const exf_tensor *t, exf_err *err) EXF_CHECKED;
/* Writes rows of the first axis, each at most once. */
exf_code exf_h5_write_rows(exf_h5 *h, const char *path, int64_t row, int64_t n_rows, const void *data, exf_err *err) EXF_CHECKED;
/* Returns once all rows so far are on the disk.  Thread-safe beside other calls on the file. */
exf_code exf_h5_sync(const exf_h5 *h, exf_err *err) EXF_CHECKED;
/* The CRC-32 of a defined dataset, of the bytes as they were written. */
exf_code exf_h5_checksum(exf_h5 *h, const char *path, uint32_t *crc, exf_err *err) EXF_CHECKED;

/* ---- files that a later run goes on with -----------------------------------
 * A run that may be stopped writes to a temporary of a name that it chose, which stays there unless it is committed.
 * Its structure, the bytes between the defined datasets, is the caller's to keep: a run that goes on puts it back, whatever
 * was written there since, and takes the rows that are there. */
typedef struct {
    int64_t *extent; /* [n, 2] offset and number of bytes, ascending; the last one ends where the file does */
    size_t n;
    unsigned char *bytes; /* [n_bytes] all of them, one after the other */
    size_t n_bytes;
} exf_h5_structure;
/* Ends the definitions: the structure is on the disk.  Every writer of such a file calls it, also one that nobody goes on
 * from, since libhdf5 lays out what comes later by what was open before: equal bytes, resumed or not. */
exf_code exf_h5_end_definitions(exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the structure, after the definitions ended.  The caller frees *out. */
exf_code exf_h5_keep_structure(exf_h5 *h, exf_h5_structure *out, exf_err *err) EXF_CHECKED;
void exf_h5_structure_free(exf_h5_structure *s);
/* EXF_FORMAT if the temporary was cut. */
exf_code exf_h5_continue_at(exf_h5 **out, const char *target, int force, const char *temporary, const exf_h5_structure *s,
                            exf_err *err) EXF_CHECKED;
/* Takes a dataset of a continued file as one that was defined.  rows_crc: the CRC-32 of its elements, which are compared
 * (EXF_FORMAT); NULL: it is zeroed, to be written anew. */
exf_code exf_h5_take(exf_h5 *h, const exf_tensor *t, const uint32_t *rows_crc, exf_err *err) EXF_CHECKED;

/* ---- the digest --------------------------------------------------------------
 * The root group that lists the parts from which a file was added up.  It is not part of
 * the payload: no digest covers it. */
#define EXF_H5_ORIGIN "origin"
#define EXF_H5_CONTAINER "exfold_container" /* attribute of the root: the version of what this header describes; no payload */

/* SHA-256 over the payload, independent of HDF5's own bookkeeping: all objects but /origin
 * depth first in order of name; for each its path and kind, its attributes but crc32 and exfold_container in
 * order of name (name, type, value), and for datasets dtype, shape and little
 * endian elements, of which EXF_H5_LARGE bytes or more are given as the word "pieces", 4 MiB, and the SHA-256 in hexadecimal of
 * each 4 MiB, hashed on several threads: files of earlier programs with such datasets had another digest.  Elements are
 * compared with their checksums, unless they were just written.  Works on files that are
 * read, and on files to which nothing but exf_h5_commit() will come; EXF_FORMAT for what it cannot
 * cover: an object with two names, groups nested more than 32 deep. */
enum { EXF_H5_LARGE = 64 << 20 };
exf_code exf_h5_digest(exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* Starts to hash, on a thread of its own, a file that exf_h5_create() began: from where the last call ended through the object at
 * `path`.  Other calls may use the file meanwhile; the next exf_h5_digest() waits and goes on from there.
 * What was hashed may not change any more: EXF_INTERNAL.  Calls come in the order of the walk.  Returns the failure of what was
 * hashed since the call before. */
exf_code exf_h5_digest_through(exf_h5 *h, const char *path, exf_err *err) EXF_CHECKED;
#endif
