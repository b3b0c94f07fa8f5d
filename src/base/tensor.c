/* tensor.c - see tensor.h.  Multi-byte elements are little endian in every
 * format we read; the host is required to be (checked at compile time). */
#include "base/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "ExFold reads and writes little-endian files and runs on little-endian hosts only"
#endif

static const struct { const char *name; unsigned bits; } info[EXF_DT_COUNT] = {
#define X(name, bits) {#name, bits},
    EXF_DTYPES(X)
#undef X
};

const char *exf_dtype_name(exf_dtype t)
{
    return (unsigned)t < EXF_DT_COUNT ? info[t].name : "?";
}

unsigned exf_dtype_bits(exf_dtype t)
{
    return info[t].bits;
}

int exf_dtype_parse(const char *name, exf_dtype *out)
{
    for (int i = 0; i < EXF_DT_COUNT; i++)
        if (strcmp(name, info[i].name) == 0) {
            *out = (exf_dtype)i;
            return 1;
        }
    return 0;
}

float exf_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float exf_f16_to_f32(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY) : e == 0 ? ldexpf((float)m, -24) : ldexpf((float)(1024 + m), e - 25);
    return h & 0x8000 ? -v : v;
}

float exf_e4m3_to_f32(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    float v = (b & 0x7f) == 0x7f ? NAN : e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(8 + m), e - 10);
    return b & 0x80 ? -v : v;
}

float exf_e8m0_to_f32(uint8_t b)
{
    return b == 255 ? NAN : ldexpf(1.0f, (int)b - 127);
}

/* One loop per format: T is the stored type, expr the value of element v. */
#define DECODE(T, out_t, expr)                       \
    for (size_t i = 0; i < n; i++) {                 \
        T v;                                         \
        memcpy(&v, bytes + i * sizeof v, sizeof v);  \
        dst[i] = (out_t)(expr);                      \
    }                                                \
    return 1

int exf_dtype_to_f32(float *dst, const void *src, size_t n, exf_dtype t)
{
    const char *bytes = src;
    switch (t) {
    case EXF_DT_F32: memcpy(dst, src, n * sizeof *dst); return 1;
    case EXF_DT_BF16: DECODE(uint16_t, float, exf_bf16_to_f32(v));
    case EXF_DT_F16: DECODE(uint16_t, float, exf_f16_to_f32(v));
    case EXF_DT_F64: DECODE(double, float, v);
    case EXF_DT_F8_E4M3: DECODE(uint8_t, float, exf_e4m3_to_f32(v));
    case EXF_DT_F8_E5M2: DECODE(uint8_t, float, exf_f16_to_f32((uint16_t)(v << 8)));
    case EXF_DT_F8_E8M0: DECODE(uint8_t, float, exf_e8m0_to_f32(v));
    case EXF_DT_I8: DECODE(int8_t, float, v);
    case EXF_DT_U8: DECODE(uint8_t, float, v);
    case EXF_DT_I32: DECODE(int32_t, float, v);
    case EXF_DT_I64: DECODE(int64_t, float, v);
    default: return 0;
    }
}

int exf_dtype_to_i64(int64_t *dst, const void *src, size_t n, exf_dtype t)
{
    const char *bytes = src;
    switch (t) {
    case EXF_DT_I8: DECODE(int8_t, int64_t, v);
    case EXF_DT_U8: DECODE(uint8_t, int64_t, v);
    case EXF_DT_I16: DECODE(int16_t, int64_t, v);
    case EXF_DT_U16: DECODE(uint16_t, int64_t, v);
    case EXF_DT_I32: DECODE(int32_t, int64_t, v);
    case EXF_DT_U32: DECODE(uint32_t, int64_t, v);
    case EXF_DT_I64: DECODE(int64_t, int64_t, v);
    default: return 0;
    }
}

int exf_dtype_is_integer(exf_dtype t)
{
    switch (t) {
    case EXF_DT_I8: case EXF_DT_U8: case EXF_DT_I16: case EXF_DT_U16:
    case EXF_DT_I32: case EXF_DT_U32: case EXF_DT_I64: case EXF_DT_U64: return 1;
    default: return 0;
    }
}

/* ---- tensor ------------------------------------------------------------------------------------ */

int64_t exf_tensor_count(const exf_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

size_t exf_tensor_bytes(const exf_tensor *t)
{
    return (size_t)exf_tensor_count(t) * exf_dtype_bits(t->dtype) / 8;
}

const char *exf_shape_text(char *buf, size_t buf_len, const int64_t *shape, int rank)
{
    size_t at = (size_t)snprintf(buf, buf_len, "[");
    for (int i = 0; i < rank && at < buf_len; i++)
        at += (size_t)snprintf(buf + at, buf_len - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (at < buf_len) snprintf(buf + at, buf_len - at, "]");
    return buf;
}
