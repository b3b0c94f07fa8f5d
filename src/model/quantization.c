/* quantization.c - reads quantization_config, and dequantizes rows on the CPU; see quantization.h.
 *
 * A byte becomes its value by a table that fits in the first-level cache; the
 * loops over the elements of one scale have no branch.  About 1 G elements/s in
 * FP8 and 2.5 in FP4 on one core of 2023: faster than disks deliver them. */
#include "model/quantization.h"

#include "base/tensor.h"

#include <stdio.h>
#include <string.h>

/* ---- config.json ------------------------------------------------------------------ */

#define SUPPORTED "supported is \"fp8\" with fmt \"e4m3\" and scales per block of weight_block_size, or no quantization_config"

static exf_code read_block(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const exf_json *block;
    exf_code rc = exf_config_find(c, "quantization_config.weight_block_size", &block, err);
    if (rc != EXF_OK) return rc;
    q->block_rows = q->block_cols = 128;
    if (!block) return EXF_OK;
    int is_pair = exf_json_type(block) == EXF_JSON_ARRAY && exf_json_size(block) == 2;
    for (size_t i = 0; is_pair && i < 2; i++) {
        int64_t n = exf_json_type(exf_json_at(block, i)) == EXF_JSON_INT ? exf_json_int(exf_json_at(block, i)) : 0;
        if (n < 1 || n > 1 << 20) is_pair = 0;
        *(i ? &q->block_cols : &q->block_rows) = (int)n;
    }
    if (is_pair) return EXF_OK;
    return exf_fail(err, EXF_MODEL,
                    "%s: \"quantization_config.weight_block_size\" is %s of %zu, expected two integers from 1 to 1048576", c->path,
                    exf_json_type_name(block), exf_json_size(block));
}

/* DeepSeek-V4 says here how its experts are stored; the configs that say so come
 * with E8M0 scales, all others with F32. */
static exf_code read_experts(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const char *dtype;
    exf_code rc = exf_config_text_or(c, "expert_dtype", NULL, &dtype, err);
    if (rc != EXF_OK || !dtype) return rc;
    q->e8m0_scales = 1;
    q->fp4_experts = strcmp(dtype, "fp4") == 0;
    if (q->fp4_experts || strcmp(dtype, "fp8") == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: \"expert_dtype\" is \"%s\"; supported are \"fp4\" and \"fp8\"", c->path, dtype);
}

/* Refuses weights of another quantizer by its name, and by what its config says of the format. */
static exf_code refuse_method(const exf_config *c, const char *method, exf_err *err)
{
    static const struct { const char *method, *name; } known[] = {
        {"awq", "AWQ"}, {"gptq", "GPTQ"}, {"modelopt", "ModelOpt"}, {"compressed-tensors", "compressed-tensors"},
        {"bitsandbytes", "bitsandbytes"}, {"mxfp4", "MXFP4"}, {"auto-round", "AutoRound"}, {"quark", "Quark"},
    };
    const char *format;
    char packed_by[160];
    exf_code rc;
    EXF_TRY(exf_config_text_or(c, "quantization_config.quant_algo|quantization_config.format", "", &format, err));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].method, method) != 0) continue;
        snprintf(packed_by, sizeof packed_by, "%s%s%.80s%s", known[i].name, *format ? " (" : "", format, *format ? ")" : "");
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.quant_method\" is \"%s\": " EXF_QUANTIZED, c->path, method,
                        packed_by);
    }
    rc = exf_fail(err, EXF_MODEL, "%s: \"quantization_config.quant_method\" is \"%s\"; " SUPPORTED, c->path, method);
out:
    return rc;
}

exf_code exf_quantization_read(const exf_config *c, exf_quantization *q, exf_err *err)
{
    exf_code rc;
    const exf_json *given;
    const char *method, *fmt;
    memset(q, 0, sizeof *q);
    EXF_TRY(exf_config_find(c, "quantization_config", &given, err));
    if (!given) return EXF_OK;
    EXF_TRY(exf_config_text_or(c, "quantization_config.quant_method", "missing", &method, err));
    EXF_TRY(exf_config_text_or(c, "quantization_config.fmt", "e4m3", &fmt, err));
    if (strcmp(method, "fp8") != 0) return refuse_method(c, method, err);
    if (strcmp(fmt, "e4m3") != 0 && strcmp(fmt, "float8_e4m3fn") != 0)
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.fmt\" is \"%s\"; " SUPPORTED, c->path, fmt);
    EXF_TRY(read_block(c, q, err));
    EXF_TRY(read_experts(c, q, err));
    q->fp8 = q->fp4 = 1;
out:
    return rc;
}

/* ---- dequantizing ----------------------------------------------------------------- */

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

/* The row of scales that row r of c is under. */
static const float *scales_of_row(const exf_coded_rows *c, size_t r)
{
    size_t per_row = (c->cols + c->block_cols - 1) / c->block_cols;
    return c->scales + (c->row_in_block + r) / c->block_rows * per_row;
}

static void scale_bytes(float *restrict dst, const uint8_t *restrict codes, size_t n, const float *restrict table, float scale)
{
    for (size_t i = 0; i < n; i++) dst[i] = table[codes[i]] * scale;
}

void exf_dequantize_fp8(float *dst, const exf_coded_rows *c)
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

void exf_dequantize_fp4(float *dst, const exf_coded_rows *c)
{
    float table[256][2];
    size_t width = c->cols / 2;
    for (unsigned b = 0; b < 256; b++) {
        table[b][0] = exf_e2m1_to_f32(b & 15);
        table[b][1] = exf_e2m1_to_f32(b >> 4);
    }
    for (size_t r = 0; r < c->rows; r++) {
        const float *scale = scales_of_row(c, r);
        for (size_t at = 0; at < width; at += c->block_cols / 2)
            scale_pairs(dst + r * c->cols + 2 * at, c->codes + r * width + at, min_of(c->block_cols / 2, width - at),
                        (const float(*)[2])table, *scale++);
    }
}

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
