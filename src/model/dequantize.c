/* dequantize.c - decodes FP8, FP4 and 4-bit integers on the CPU; see dequantize.h.
 *
 * A byte of FP8 or FP4 becomes its value by a table that fits in the first-level cache; the
 * loops over the elements of one scale have no branch.  About 1 G elements/s in
 * FP8 and 2.5 in FP4 on one core of 2023: faster than disks deliver them.  Integers have 0.8 G
 * elements/s, GPTQ's 0.7 (0.27 where each column has a group of its own), AWQ's 0.35. */
#include "model/dequantize.h"

#include "base/tensor.h"

#include <string.h>

float exf_e2m1_to_f32(unsigned nibble)
{
    static const float magnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float v = magnitude[nibble & 7];
    return nibble & 8 ? -v : v;
}

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t groups_of(const exf_coded_rows *c)
{
    return (c->cols + c->block_cols - 1) / c->block_cols;
}

/* ---- FP8 and FP4 ------------------------------------------------------------------- */

/* The row of scales that row r of c is under. */
static const float *scales_of_row(const exf_coded_rows *c, size_t r)
{
    return c->scales + (c->row_in_block + r) / c->block_rows * groups_of(c);
}

static void scale_bytes(float *restrict dst, const uint8_t *restrict codes, size_t n, const float *restrict table, float scale)
{
    for (size_t i = 0; i < n; i++) dst[i] = table[codes[i]] * scale;
}

static void dequantize_fp8(float *dst, const exf_coded_rows *c)
{
    float table[256];
    for (unsigned b = 0; b < 256; b++) table[b] = exf_e4m3_to_f32((uint8_t)b);
    for (size_t r = 0; r < c->rows; r++) {
        const float *scale = scales_of_row(c, r);
        for (size_t at = 0; at < c->cols; at += c->block_cols)
            scale_bytes(dst + r * c->cols + at, c->codes + r * c->cols + at, min_of(c->block_cols, c->cols - at), table, *scale++);
    }
}

static void scale_pairs(float *restrict dst, const uint8_t *restrict codes, size_t n_bytes, const float (*restrict table)[2],
                        float scale)
{
    for (size_t i = 0; i < n_bytes; i++) {
        dst[2 * i] = table[codes[i]][0] * scale;
        dst[2 * i + 1] = table[codes[i]][1] * scale;
    }
}

static void dequantize_fp4(float *dst, const exf_coded_rows *c)
{
    float table[256][2];
    size_t width = c->cols / 2;
    for (unsigned b = 0; b < 256; b++) {
        table[b][0] = exf_e2m1_to_f32(b & 15);
        table[b][1] = exf_e2m1_to_f32(b >> 4);
    }
    for (size_t r = 0; r < c->rows; r++) {
        const float *scale = scales_of_row(c, r * c->step);
        for (size_t at = 0; at < width; at += c->block_cols / 2)
            scale_pairs(dst + r * c->cols + 2 * at, c->codes + r * c->step * width + at, min_of(c->block_cols / 2, width - at),
                        (const float(*)[2])table, *scale++);
    }
}

/* ---- 4-bit integers ---------------------------------------------------------------- */

/* Shift of the nibble that AWQ has for row (.., i) of its words of eight rows. */
static const unsigned char awq_shift[8] = {0, 16, 4, 20, 8, 24, 12, 28};

static uint32_t word_at(const uint8_t *words, size_t i)
{
    const uint8_t *b = words + 4 * i;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Eight codes of a row from column 8 `octet` on, the first in the low nibble. */
static uint32_t eight_codes(exf_coding coding, const exf_coded_rows *c, size_t row, size_t octet)
{
    if (coding == EXF_CODED_INT4) return word_at(c->codes, row * ((c->cols + 7) / 8) + octet);
    row += c->row_in_block;
    if (coding == EXF_CODED_GPTQ) return word_at(c->codes, octet * c->all_rows + row);
    uint32_t eight = 0;
    for (size_t k = 0; k < 8 && 8 * octet + k < c->cols; k++)
        eight |= (word_at(c->codes, (8 * octet + k) * (c->all_rows / 8) + row / 8) >> awq_shift[row % 8] & 15) << 4 * k;
    return eight;
}

static int zero_at(exf_coding coding, const exf_coded_rows *c, size_t row, size_t group)
{
    if (!c->zeros) return 8;
    row += c->row_in_block;
    size_t word = coding == EXF_CODED_INT4 ? row / 8 * groups_of(c) + group : group * ((c->all_rows + 7) / 8) + row / 8;
    unsigned shift = coding == EXF_CODED_AWQ ? awq_shift[row % 8] : 4 * (unsigned)(row % 8);
    uint32_t eight = word_at(c->zeros, word) + (c->zero_carries ? 0x11111111u * c->zero_add : 0);
    return (int)(((eight >> shift) + (c->zero_carries ? 0 : c->zero_add)) & 15);
}

float exf_coded_scale(exf_coding coding, const exf_coded_rows *c, size_t row, size_t group)
{
    if (coding == EXF_CODED_GPTQ || coding == EXF_CODED_AWQ) return c->scales[group * c->all_rows + c->row_in_block + row];
    return c->scales[(coding == EXF_CODED_INT4 ? row : (c->row_in_block + row) / c->block_rows) * groups_of(c) + group];
}

size_t exf_coded_group(const exf_coded_rows *c, size_t col)
{
    return c->groups ? word_at(c->groups, col) : col / c->block_cols;
}

static void dequantize_int4(float *dst, exf_coding coding, const exf_coded_rows *c)
{
    for (size_t r = 0; r < c->rows; r++, dst += c->cols) {
        size_t group = 0, next = 0; /* the group of the column before, and the first column that may have another */
        float scale = 0;
        int zero = 0;
        for (size_t at = 0; at < c->cols; at += 8) {
            uint32_t codes = eight_codes(coding, c, r, at / 8);
            for (size_t col = at; col < min_of(at + 8, c->cols); col++, codes >>= 4) {
                if (col == next) {
                    group = exf_coded_group(c, col);
                    scale = exf_coded_scale(coding, c, r, group);
                    zero = zero_at(coding, c, r, group);
                    next = c->groups ? col + 1 : next + c->block_cols;
                }
                dst[col] = (float)((int)(codes & 15) - zero) * scale;
            }
        }
    }
}

void exf_dequantize(float *dst, exf_coding coding, const exf_coded_rows *c)
{
    switch (coding) {
    case EXF_CODED_FP8: dequantize_fp8(dst, c); break;
    case EXF_CODED_FP4: dequantize_fp4(dst, c); break;
    default: dequantize_int4(dst, coding, c); break;
    }
}

/* ---- what is no number ------------------------------------------------------------- */

/* 1 if any of n values has all exponent bits set. */
static int has_not_finite(const float *v, size_t n)
{
    uint32_t found = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, v + i, sizeof u);
        found |= (u & 0x7f800000u) + 0x00800000u; /* only a full exponent carries into the top bit */
    }
    return found >> 31 != 0;
}

size_t exf_first_not_finite(const float *v, size_t n)
{
    enum { CHUNK = 4096 };
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = min_of(CHUNK, n - at);
        if (!has_not_finite(v + at, m)) continue;
        for (size_t i = at; i < at + m; i++)
            if (has_not_finite(v + i, 1)) return i;
    }
    return n;
}
