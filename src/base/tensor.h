/* tensor.h - a view of a row-major n-dimensional array.  Owns nothing. */
#ifndef EXF_BASE_TENSOR_H
#define EXF_BASE_TENSOR_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The number formats that occur in checkpoints and artifacts.
 *
 * Decoding to float32 is exact for every format here but F64 and the wide
 * integers.  Block-scaled formats (FP8 with scales, packed FP4) need their
 * scale tensor and are decoded by src/model; this file knows single elements. */

#ifdef __cplusplus
extern "C" {
#endif

/* name as in safetensors headers, bits per element */
#define EXF_DTYPES(X)                                                               \
    X(BOOL, 8) X(F4, 4) X(F6_E2M3, 6) X(F6_E3M2, 6) X(U8, 8) X(I8, 8) X(F8_E5M2, 8) \
    X(F8_E4M3, 8) X(F8_E8M0, 8) X(F8_E4M3FNUZ, 8) X(F8_E5M2FNUZ, 8) X(I16, 16)      \
    X(U16, 16) X(F16, 16) X(BF16, 16) X(I32, 32) X(U32, 32) X(F32, 32) X(C64, 64)   \
    X(F64, 64) X(I64, 64) X(U64, 64)

typedef enum {
#define X(name, bits) EXF_DT_##name,
    EXF_DTYPES(X)
#undef X
    EXF_DT_COUNT
} exf_dtype;

const char *exf_dtype_name(exf_dtype t);
int exf_dtype_parse(const char *name, exf_dtype *out); /* 1 if known */
unsigned exf_dtype_bits(exf_dtype t);
int exf_dtype_is_integer(exf_dtype t); /* signed or not; BOOL is none */

/* Single elements. */
float exf_f16_to_f32(uint16_t h);
float exf_bf16_to_f32(uint16_t h);
float exf_e4m3_to_f32(uint8_t b); /* E4M3FN: 0x7f, 0xff are NaN, no infinities */
float exf_e8m0_to_f32(uint8_t b); /* 2^(b-127), 255 is NaN */

/* n elements of src (dtype t, any alignment) to float32.  0 for a dtype that
 * is no plain number format (complex, F4, F6, FNUZ, BOOL), else 1. */
int exf_dtype_to_f32(float *dst, const void *src, size_t n, exf_dtype t);
/* The same to int64 for I8 U8 I16 U16 I32 U32 I64; 0 for anything else. */
int exf_dtype_to_i64(int64_t *dst, const void *src, size_t n, exf_dtype t);

#ifdef __cplusplus
}
#endif

enum { EXF_MAX_RANK = 8 };

typedef struct {
    const char *name; /* for messages; owned by whoever made the view */
    exf_dtype dtype;
    int rank; /* 0: a scalar, one element */
    int64_t shape[EXF_MAX_RANK];
    const void *data; /* dense, row-major, little endian; NULL in a pure description */
} exf_tensor;

int64_t exf_tensor_count(const exf_tensor *t); /* product of the shape */
size_t exf_tensor_bytes(const exf_tensor *t);  /* count x bits / 8 */
/* "[128, 96]" into buf; returns buf. */
const char *exf_shape_text(char *buf, size_t buf_len, const int64_t *shape, int rank);
#endif
