/* weight_source.h - exf_weight_source is one expected tensor in the checkpoint and its
 * coding: plain, or quantised with other tensors beside it, found under the names that its quantizer gives them.
 *
 *   quant_method        format  codes                            scales                                 one per
 *   fp8                 FP8     X.weight F8_E4M3 [out, in]       X.weight_scale_inv F32 or BF16 (they
 *                                                                multiply, whatever the name says), or
 *                                                                that or X.scale F8_E8M0; with
 *                                                                scale_fmt "ue8m0" that in U8           weight_block_size block
 *   fp8                 FP4     X.weight I8 [out, in / 2]        X.scale F8_E8M0                        32 columns of a row
 *                       NVFP4   of routed experts, where moe_quant_algo says so: as modelopt's, below
 *   compressed-tensors  FP8     X.weight F8_E4M3 [out, in]       X.weight_scale                         matrix, row or block
 *                       INT4    X.weight_packed I32              X.weight_scale, X.weight_zero_point    group of a row
 *                               [out, in / 8], X.weight_shape    I32 [out / 8, groups], X.weight_g_idx
 *                       NVFP4   X.weight_packed U8 [out, in / 2] X.weight_scale F8_E4M3 divided by
 *                                                                X.weight_global_scale F32              16 columns of a row
 *                       MXFP4   X.weight_packed U8               X.weight_scale U8, an E8M0             32 columns of a row
 *                       MXFP8   X.weight F8_E4M3 [out, in]       X.weight_scale U8, an E8M0             32 columns of a row
 *   modelopt            FP8     X.weight F8_E4M3                 X.weight_scale F32                     matrix, row
 *                       NVFP4   X.weight U8 [out, in / 2]        X.weight_scale F8_E4M3 times
 *                                                                X.weight_scale_2 F32                   16 columns of a row
 *                       MXFP8   X.weight F8_E4M3 [out, in]       X.weight_scale U8, an E8M0             32 columns of a row
 *   mxfp8               MXFP8   X.weight F8_E4M3 [out, in]       X.weight_scale_inv or X.weight_scale
 *                                                                U8, an E8M0                            32 columns of a row
 *   mxfp4               FP4     X_blocks U8 [E, out, in/32, 16]  X_scales U8 [E, out, in / 32], an E8M0 32 columns of a row
 *   awq                 AWQ     X.qweight I32 [in, out / 8]      X.scales, X.qzeros I32                 group of a column
 *   gptq                GPTQ    X.qweight I32 [in / 8, out]      X.scales, X.qzeros, X.g_idx I32 [in]   group of a column
 *
 * The last block may be smaller: there are ceil(out / rows) x ceil(in / columns) scales.  Which of a checkpoint's matrices are
 * coded is told by the tensors that are there: those that a quantizer left alone are plain.
 * Tensors are dequantized some rows at a time; no stored copy of a whole tensor is kept, but of AWQ's and GPTQ's, which lie the
 * other way round. */
#ifndef EXF_MODEL_WEIGHT_SOURCE_H
#define EXF_MODEL_WEIGHT_SOURCE_H
#include "model/dequantize.h"
#include "model/family.h"
#include "model/quantization.h"
#include "model/weight_identity.h"

/* What the tensors of one weight hold. */
typedef enum {
    EXF_STORED_CODES,  /* or the elements of a plain one */
    EXF_STORED_SCALES,
    EXF_STORED_ZEROS,  /* of groups, packed */
    EXF_STORED_GROUPS, /* the group of each column */
    EXF_STORED_FACTOR, /* of all scales: one number */
    EXF_STORED_KINDS
} exf_stored_kind;

typedef struct {
    exf_coding coding;
    const exf_stored_tensor *of[EXF_STORED_KINDS]; /* NULL: the format has none */
    exf_dtype scale_dtype;            /* what the bytes of scales are */
    int divides;                      /* 1: scales are divided by the factor; 0: multiplied */
    unsigned zero_add;                /* exf_coded_rows */
    int zero_carries;
    int zeros_are_8;                  /* exf_quantization: a zero point that is not 8 is refused, */
    exf_column_order order;           /* and a group number of another column than the order's */
    const exf_stored_tensor *shape;   /* which says rows and columns again, and is not hashed; NULL: there is none */
    size_t rows;                      /* of the tensor, if it is coded */
    int block_rows, block_cols;       /* elements of the weight that share a scale */
    int piece_block;                  /* pieces have a multiple of so many rows, but for the last */
    unsigned how;                     /* of the tensor's rule */
    size_t each;                      /* EXF_TRANSPOSED: rows of one expert, which are read together; else 0 */
    exf_weight_identity *identity;    /* what is read is hashed into; NULL: it is not */
    exf_weight_place place;           /* of it in the model, but for kind and first byte */
    size_t first_row;                 /* of the expert's matrix, or of the run, in the tensor */
} exf_weight_source;

/* The dtype of its codes, or of a plain tensor. */
static inline exf_dtype exf_weight_source_dtype(const exf_weight_source *w)
{
    return w->of[EXF_STORED_CODES]->tensor->view.dtype;
}

/* Finds tensor `name` and checks it against the shape that the config expects
 * (rank axes) and the dtypes its rule allows; only a matrix may be quantised, by fp8 only one whose rule says
 * EXF_LINEAR.  EXF_MODEL naming file, tensor and both values; a
 * missing tensor is named with what says it must be there. */
exf_code exf_weight_source_find(exf_weight_source *w, const exf_checkpoint *c, const exf_quantization *q, const char *config_path,
                                const char *name, const int64_t *shape, int rank, unsigned how, exf_err *err) EXF_CHECKED;

/* 1 if the checkpoint has a tensor of that name, or its codes under another. */
int exf_weight_source_present(const exf_checkpoint *c, const char *name);
/* 1 for a tensor beside the weights that decoding does not need: scales of activations and of the key-value cache. */
int exf_weight_source_ignores(const exf_quantization *q, const char *name);

/* Rows of a piece: at most EXF_WEIGHT_CHUNK_BYTES as stored, unless one row, one block of rows, one
 * expert's (EXF_TRANSPOSED) or the tensor (AWQ, GPTQ) is larger; where two roles' rows take turns, as float32, too.  Weights are
 * hashed, and copied to a device, in such pieces. */
enum { EXF_WEIGHT_CHUNK_BYTES = 4 << 20 };
size_t exf_weight_piece_rows(const exf_weight_source *w, size_t cols);

/* Rows [row, row + n_rows) of the tensor seen as a matrix [rows, cols], as float32.
 * EXF_NUMERIC naming file, tensor and place at the first that is not finite. */
exf_code exf_weight_source_read(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, float *dst,
                                exf_err *err) EXF_CHECKED;

/* The same rows as they are stored, for a device that dequantizes them; NULL where the format has no such tensor. */
typedef struct {
    const void *of[EXF_STORED_KINDS];
    char digest[EXF_STORED_KINDS][EXF_XXH3_HEX]; /* as hashed for the identity; "" without one */
} exf_raw_rows;
/* Bytes of one of the tensors that those rows need: of scales and zeros, their blocks. */
size_t exf_weight_source_stored_bytes(const exf_weight_source *w, exf_stored_kind kind, size_t row, size_t n_rows, size_t cols);
/* Bytes of the buffer for exf_weight_source_raw(), a multiple of EXF_FILE_ALIGN. */
size_t exf_weight_source_room(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols);
/* Reads them; out points into the buffer.  EXF_MODEL if a group's number, a zero point or the shape is not what the config says,
 * EXF_NUMERIC if a factor is none.  A piece from
 * the first row on, or from the first of any other piece, is one of the weights' identity. */
exf_code exf_weight_source_raw(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, void *buffer, exf_raw_rows *out,
                               exf_err *err) EXF_CHECKED;
/* Rows of a plain tensor in slices, which come in order: n bytes from byte `from` of the rows on.  The buffer is as large as for
 * exf_weight_source_raw(), and *at points into it.  exf_piece_hash_end() ends the piece. */
exf_piece_hash exf_weight_source_piece(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols);
exf_code exf_weight_source_slice(const exf_weight_source *w, exf_piece_hash *piece, size_t from, size_t n, void *buffer,
                                 const void **at, exf_err *err) EXF_CHECKED;
/* Converts raw rows to float32 [n_rows, cols]: the same values, and messages, as exf_weight_source_read(). */
exf_code exf_weight_source_decode(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                                  float *dst, exf_err *err) EXF_CHECKED;
/* Records rows that another process read, with their digests, as if exf_weight_source_raw() had read them here. */
exf_code exf_weight_source_took(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, const exf_raw_rows *rows,
                                exf_err *err) EXF_CHECKED;
/* 1 if bfloat16 holds every finite value of the tensor exactly: it is stored so, or its codes of
 * at most 4 significant bits are scaled by powers of two (F8_E8M0).  An FP8 value under a scale
 * below 2^-124 is the exception: of what lies below 2^-133, bfloat16 keeps the nearest multiple of that. */
int exf_weight_source_fits_bf16(const exf_weight_source *w);
/* Bytes on disk, of all its tensors. */
uint64_t exf_weight_source_bytes(const exf_weight_source *w);
#endif
