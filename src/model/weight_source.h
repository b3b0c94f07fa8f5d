/* weight_source.h - exf_weight_source is one expected tensor in the checkpoint and its
 * coding: plain, or quantised with a second tensor of scales.
 *
 *   coding  X.weight           scales                                  grid
 *   FP8     F8_E4M3 [out, in]  X.weight_scale_inv F32 or BF16 (they
 *                              multiply, whatever the name says), or
 *                              X.scale F8_E8M0                         one per weight_block_size block
 *   FP4     I8 [out, in / 2]   X.scale F8_E8M0                         one per 32 columns of a row
 *
 * The last block may be smaller: there are ceil(out / rows) x ceil(in / columns) scales.
 * Tensors are dequantized some rows at a time; no stored copy of a whole tensor is kept. */
#ifndef EXF_MODEL_WEIGHT_SOURCE_H
#define EXF_MODEL_WEIGHT_SOURCE_H
#include "model/family.h"
#include "model/quantization.h"
#include "model/weight_identity.h"

typedef enum { EXF_CODED_PLAIN, EXF_CODED_FP8, EXF_CODED_FP4 } exf_coding;

typedef struct {
    exf_coding coding;
    const exf_stored_tensor *stored, *scale; /* scale: NULL when plain */
    int block_rows, block_cols;       /* elements of the weight that share a scale */
    unsigned how;                     /* of the tensor's rule */
    exf_weight_identity *identity;    /* what is read is hashed into; NULL: it is not */
    int part;                         /* of the identity */
} exf_weight_source;

/* Finds tensor `name` and checks it against the shape that the config expects
 * (rank axes) and the dtypes its rule allows; only a matrix whose rule says
 * EXF_LINEAR may be quantised.  EXF_MODEL naming file, tensor and both values; a
 * missing tensor is named with what says it must be there. */
exf_code exf_weight_source_find(exf_weight_source *w, const exf_checkpoint *c, const exf_quantization *q, const char *config_path,
                                const char *name, const int64_t *shape, int rank, unsigned how, exf_err *err) EXF_CHECKED;

/* Rows of a piece: at most EXF_WEIGHT_CHUNK_BYTES as stored, unless one row or one block of rows is larger.
 * Weights are hashed, and copied to a device, in such pieces. */
enum { EXF_WEIGHT_CHUNK_BYTES = 4 << 20 };
size_t exf_weight_piece_rows(const exf_weight_source *w, size_t cols);

/* Rows [row, row + n_rows) of the tensor seen as a matrix [rows, cols], as float32.
 * EXF_NUMERIC naming file, tensor and place at the first that is not finite. */
exf_code exf_weight_source_read(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, float *dst,
                                exf_err *err) EXF_CHECKED;
/* Reads the same rows as they are stored, for a device that dequantizes them: the codes and
 * the scales of their blocks; `row` is the first of a block.  out points into codes_buffer and
 * scales_buffer, of exf_file_aligned_size() of their bytes each (exf_file_read_aligned());
 * scales are NULL if the tensor is plain.  The rows are one piece of the weights' identity. */
typedef struct {
    const void *codes, *scales;
    char code_digest[EXF_XXH3_HEX], scale_digest[EXF_XXH3_HEX]; /* as hashed for the identity; "" without one */
} exf_raw_rows;
size_t exf_weight_source_code_bytes(const exf_weight_source *w, size_t n_rows, size_t cols);
size_t exf_weight_source_scale_bytes(const exf_weight_source *w, size_t n_rows, size_t cols);
exf_code exf_weight_source_raw(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, void *codes_buffer,
                               void *scales_buffer, exf_raw_rows *out, exf_err *err) EXF_CHECKED;
/* Converts raw rows, which begin at a block, to float32 [n_rows, cols]: the same values, and messages, as
 * exf_weight_source_read(). */
exf_code exf_weight_source_decode(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                                  float *dst, exf_err *err) EXF_CHECKED;
/* Records rows that another process read, with their digests, as if exf_weight_source_raw() had read them here. */
exf_code exf_weight_source_took(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, const exf_raw_rows *rows,
                                exf_err *err) EXF_CHECKED;
/* 1 if bfloat16 holds every finite value of the tensor exactly: it is stored so, or its codes of
 * at most 4 significant bits are scaled by powers of two (F8_E8M0).  An FP8 value under a scale
 * below 2^-124 is the exception: of what lies below 2^-133, bfloat16 keeps the nearest multiple of that. */
int exf_weight_source_fits_bf16(const exf_weight_source *w);
/* Bytes on disk, scales included. */
uint64_t exf_weight_source_bytes(const exf_weight_source *w);
#endif
