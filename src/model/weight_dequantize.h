/* weight_dequantize.h - converts block-scaled number formats to float32; arithmetic on
 * memory only, no files.
 *
 *   FP8  one E4M3 byte per element
 *   FP4  two E2M1 nibbles per byte, the low one the even column
 *
 * value = code * scale in float32: exact with power-of-two scales inside the
 * range of float32, else rounded once, as the references do.  A NaN code or scale
 * gives NaN: exf_first_not_finite() finds it. */
#ifndef EXF_MODEL_WEIGHT_DEQUANTIZE_H
#define EXF_MODEL_WEIGHT_DEQUANTIZE_H
#include <stddef.h>
#include <stdint.h>

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
