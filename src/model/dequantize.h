/* dequantize.h - functions that decode number formats whose elements share scales, on the CPU.
 *
 *   FP8   an E4M3 byte an element, a scale per block of block_rows x block_cols
 *   FP4   two E2M1 nibbles a byte, the low one the even column, a scale per block_cols columns of a row
 *   INT4  eight nibbles a little-endian 32-bit word, which are columns of a row: the lowest is the first
 *   GPTQ  the same, but the words of eight columns of all rows lie together: [cols / 8, rows]
 *   AWQ   words of eight rows of a column, [cols, rows / 8], whose nibbles are rows 0 2 4 6 1 3 5 7
 *
 * FP8 and FP4: value = code * scale in float32: exact with power-of-two scales inside the range of float32, else rounded once,
 * as the references do.  The other three: value = (code - zero) * scale in float32, which is exact for scales of bfloat16 and
 * float16; a group of block_cols columns shares scale and zero, or those columns that `groups` gives one number.  A NaN code or
 * scale gives NaN: exf_first_not_finite() finds it. */
#ifndef EXF_MODEL_DEQUANTIZE_H
#define EXF_MODEL_DEQUANTIZE_H
#include <stddef.h>
#include <stdint.h>

typedef enum { EXF_CODED_PLAIN, EXF_CODED_FP8, EXF_CODED_FP4, EXF_CODED_INT4, EXF_CODED_GPTQ, EXF_CODED_AWQ } exf_coding;

/* Rows of a coded matrix and what covers them. */
typedef struct {
    const uint8_t *codes; /* FP8 [rows, cols]; FP4 [rows, cols / 2], cols is even; INT4 words [rows, ceil(cols / 8)]; GPTQ and AWQ
                           * the words of all rows */
    const float *scales;  /* FP8, FP4, INT4 [.., ceil(cols / block_cols)], from the block row that row 0 lies in; GPTQ and AWQ
                           * [groups, all_rows] */
    size_t rows, cols;
    size_t row_in_block;  /* of row 0: where it lies in the rows that scales, zeros and (GPTQ, AWQ) codes begin with */
    size_t block_rows, block_cols; /* block_cols is even in FP4 */
    size_t step;          /* FP4: from one row to the next, in rows of codes and scales; more than 1 only if block_rows is 1 */
    const uint8_t *zeros; /* words of eight rows a group: INT4 [.., groups], GPTQ and AWQ [groups, ceil(all_rows / 8)], in AWQ's
                           * order there; NULL: all zeros are 8 */
    unsigned zero_add;    /* what is added to a stored zero, modulo 16 */
    int zero_carries;     /* 1: it is added to the eight zeros of a word as one number, so that a 15 carries into the next */
    const uint8_t *groups; /* little-endian int32 [cols], each below the number of groups; NULL: column / block_cols */
    size_t all_rows;      /* GPTQ, AWQ: of the tensor */
} exf_coded_rows;

/* dst [rows, cols]. */
void exf_dequantize(float *dst, exf_coding coding, const exf_coded_rows *c);

/* The column of scales that element (.., col) is under. */
size_t exf_coded_group(const exf_coded_rows *c, size_t col);
/* The scale of a row in a column of scales, row counted in stored rows from row 0. */
float exf_coded_scale(exf_coding coding, const exf_coded_rows *c, size_t row, size_t group);
/* The value of one E2M1 nibble, 0 to 15. */
float exf_e2m1_to_f32(unsigned nibble);
/* Index of the first NaN or infinity, n if there is none. */
size_t exf_first_not_finite(const float *v, size_t n);
#endif
