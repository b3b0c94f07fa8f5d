/* quantization.h - block-scaled number formats: what config.json says of them, and their arithmetic.
 *
 *   FP8  one E4M3 byte per element, a scale per block of weight_block_size
 *   FP4  two E2M1 nibbles per byte, the low one the even column, a scale per 32 columns of a row
 *
 * value = code * scale in float32: exact with power-of-two scales inside the
 * range of float32, else rounded once, as the references do.  A NaN code or scale
 * gives NaN: exf_first_not_finite() finds it. */
#ifndef EXF_MODEL_QUANTIZATION_H
#define EXF_MODEL_QUANTIZATION_H
#include "model/config.h"

#include <stddef.h>
#include <stdint.h>

/* What config.json's quantization_config says. */
typedef struct {
    int fp8;                    /* E4M3 weights with a scale per block may occur */
    int block_rows, block_cols; /* of that block */
    int fp4;                    /* packed E2M1 weights with a scale per 32 columns may occur */
    /* For planning only; what is read is told by its dtype. */
    int fp4_experts;            /* the routed experts' matrices are FP4 */
    int e8m0_scales;            /* scales of FP8 weights are F8_E8M0, else F32 */
} exf_quantization;

/* What is said of weights in a format that is not read, after the file and what it says; %s: by what they were quantized. */
#define EXF_QUANTIZED                                                                                                     \
    "the weights are packed by %s, which is not read; calibrate on the release that they were made from (BF16, or FP8 in " \
    "blocks) and serve its tables with these weights: docs/quantized.md"

/* quant_method "fp8" with fmt "e4m3" (or "float8_e4m3fn", as MiniMax-M2 calls it), weight_block_size (default [128, 128]) and
 * anything in activation_scheme, scale_fmt and modules_to_not_convert; no
 * quantization_config.  EXF_MODEL saying what is supported for anything else. */
exf_code exf_quantization_read(const exf_config *c, exf_quantization *q, exf_err *err) EXF_CHECKED;

enum { EXF_FP4_BLOCK = 32 }; /* columns that share a scale */

/* Rows of a coded matrix and the scales that cover them. */
typedef struct {
    const uint8_t *codes; /* [rows, cols] bytes, or [rows, cols / 2] in FP4 (cols is even there) */
    const float *scales;  /* [.., ceil(cols / block_cols)], from the block row that row 0 lies in */
    size_t rows, cols;
    size_t row_in_block;  /* of row 0: the first scale row ends after block_rows - row_in_block rows */
    size_t block_rows, block_cols; /* block_cols is even in FP4 */
} exf_coded_rows;

/* dst [rows, cols]. */
void exf_dequantize_fp8(float *dst, const exf_coded_rows *c);
void exf_dequantize_fp4(float *dst, const exf_coded_rows *c);

/* The value of one nibble, 0 to 15. */
float exf_e2m1_to_f32(unsigned nibble);
/* Index of the first NaN or infinity, n if there is none. */
size_t exf_first_not_finite(const float *v, size_t n);
#endif
