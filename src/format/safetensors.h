/* safetensors.h - reads and writes .safetensors files; format facts:
 *
 *   u64 N (little endian) | N bytes of JSON, space padded | tensor data
 *   JSON: {"__metadata__": {string: string}, "<tensor>": {"dtype": "BF16",
 *          "shape": [..], "data_offsets": [begin, end]}, ...}
 *
 * Offsets count from byte 8+N.  Refused (EXF_FORMAT) with file, tensor and both
 * values: N > 100,000,000 or beyond the file, a header that is no JSON object or
 * starts with anything but '{', duplicate names, names over 512 bytes or with
 * control characters, unknown dtypes, rank > EXF_MAX_RANK, negative or
 * overflowing shapes (a zero among them excuses nothing), shapes that are no
 * whole number of bytes, spans that differ from shape x dtype, overlaps, holes,
 * data that ends before or after the file does, metadata that is no map of text
 * to text (a NUL inside is refused).  Unknown members of a tensor's entry are
 * ignored, as the reference reader does.
 *
 * Reading is positioned, in the way that exf_file_use() chose (base/file.h; pread
 * unless asked): a file is never copied whole.  Reads are thread-safe.
 * Ownership: names and shapes borrowed from the open file. */
#ifndef EXF_FORMAT_SAFETENSORS_H
#define EXF_FORMAT_SAFETENSORS_H
#include "base/file.h"
#include "base/hash.h"
#include "base/tensor.h"
#include "base/text.h"

enum { EXF_ST_MAX_HEADER = 100000000, EXF_ST_MAX_NAME = 512 }; /* bytes */

typedef struct {
    exf_tensor view;  /* view.data is NULL: the bytes are in the file */
    uint64_t offset;  /* absolute, bytes */
    uint64_t nbytes;
} exf_st_tensor;

typedef struct { const char *key, *value; } exf_st_meta;

/* An open file: read by all, changed by none. */
typedef struct {
    exf_file *file;
    exf_st_tensor *tensor; /* [n_tensors] in order of name (strcmp) */
    size_t n_tensors;
    exf_st_meta *meta;     /* [n_meta] in order of key */
    size_t n_meta;
    char *header;      /* 8+N bytes; once parsed, it is overwritten with the strings that are kept */
    size_t header_len; /* 8+N: where the data starts */
    size_t kept;       /* bytes of header taken by kept strings */
} exf_st_file;

/* Returns 1 if the file begins as a .safetensors file does; one that cannot be read does not. */
int exf_st_is_one(const char *path);
exf_code exf_st_open(exf_st_file **out, const char *path, exf_err *err) EXF_CHECKED;
/* The same of an open file, which it closes, also on failure. */
exf_code exf_st_open_file(exf_st_file **out, exf_file *file, exf_err *err) EXF_CHECKED;
void exf_st_close(exf_st_file *f); /* NULL is allowed */
const char *exf_st_path(const exf_st_file *f);
const exf_st_tensor *exf_st_find(const exf_st_file *f, const char *name);    /* NULL if absent */
/* Metadata value or NULL. */
const char *exf_st_metadata(const exf_st_file *f, const char *key);

/* Raw bytes [begin, begin+n) of a tensor of f into buf; EXF_INTERNAL if it has fewer. */
exf_code exf_st_read(const exf_st_file *f, const exf_st_tensor *t, uint64_t begin, void *buf, size_t n, exf_err *err) EXF_CHECKED;
/* Reads the same bytes to some place in a buffer of exf_file_aligned_size(n) bytes, as exf_file_read_aligned(). */
exf_code exf_st_read_aligned(const exf_st_file *f, const exf_st_tensor *t, uint64_t begin, void *buffer, size_t n, const void **at,
                          exf_err *err) EXF_CHECKED;

/* Checks a tensor's name and shape for the reader and the writer and computes its size
 * in bytes; EXF_FORMAT naming path, tensor and value. */
exf_code exf_st_check(const char *path, const exf_tensor *t, uint64_t *nbytes, exf_err *err) EXF_CHECKED;

/* ---- writing: equal inputs give equal bytes ---------------------------
 * Tensors are laid out as the reference writer does (wider dtypes first, then by
 * name), the header is padded to 8 bytes, metadata keys are sorted.  All tensors
 * are announced first (names and shapes are copied); begin refuses (EXF_FORMAT)
 * what the reader would refuse.  Their bytes may then come in any order, from
 * any thread, each byte once; commit refuses (EXF_INTERNAL) when the number of
 * bytes that came for a tensor is not its size.
 * A target that exists is refused unless force; nothing stays after abort. */
typedef struct exf_st_writer exf_st_writer;

exf_code exf_st_writer_begin(exf_st_writer **out, const char *target, int force, const exf_tensor *tensors, size_t n_tensors,
                             const exf_st_meta *meta, size_t n_meta, exf_err *err) EXF_CHECKED;
/* Bytes [begin, begin+n) of tensor i (index in the announced list). */
exf_code exf_st_writer_put(exf_st_writer *w, size_t i, uint64_t begin, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_st_writer_commit(exf_st_writer *w, exf_err *err) EXF_CHECKED; /* frees w, also on failure */
void exf_st_writer_abort(exf_st_writer *w);                                /* NULL is allowed */

/* Appends to header what comes before the data in a file of these tensors, for a caller who writes the file himself:
 * the data of tensors[order[0]], tensors[order[1]], ... follow it without a gap.  order: [n_tensors].  target names
 * the file in messages; refuses what exf_st_writer_begin() refuses. */
exf_code exf_st_header(exf_text *header, size_t *order, const char *target, const exf_tensor *tensors, size_t n_tensors,
                       const exf_st_meta *meta, size_t n_meta, exf_err *err) EXF_CHECKED;

/* All at once, from tensors[i].data.  sha256: gets that of the file, hashed beside the writing; NULL: nobody wants it. */
exf_code exf_st_write(const char *target, int force, const exf_tensor *tensors, size_t n_tensors, const exf_st_meta *meta,
                      size_t n_meta, char sha256[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
#endif
