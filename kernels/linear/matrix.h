/* matrix.h - exf_matrix is the operand of a product: a pointer and the type of its numbers.
 *
 * Activations are float32 everywhere; the matrices of linear layers, and the
 * activations that only products read, are bfloat16 where the queue computes in
 * bfloat16.  Where a device's queue computes in float32, matrices are bfloat16 if that
 * holds exactly what the checkpoint stores.  A view: owns nothing. */
#ifndef EXF_KERNELS_MATRIX_H
#define EXF_KERNELS_MATRIX_H
#include <stddef.h>
#include <stdint.h>

typedef enum { EXF_NUMBER_F32, EXF_NUMBER_BF16 } exf_number;

typedef struct {
    const void *p; /* NULL: no such matrix */
    exf_number number;
} exf_matrix;

static inline exf_matrix exf_f32(const float *p)
{
    exf_matrix o = {p, EXF_NUMBER_F32};
    return o;
}

static inline exf_matrix exf_bf16(const uint16_t *p)
{
    exf_matrix o = {p, EXF_NUMBER_BF16};
    return o;
}

static inline size_t exf_number_bytes(exf_number n)
{
    return n == EXF_NUMBER_BF16 ? 2 : 4;
}

/* Products side by side: the i-th has its y and x i steps of columns further right in the
 * same rows (x = 0: they share it), and its w i steps of elements further on. */
typedef struct {
    int count, y, x;
    size_t w;
} exf_product_steps;

/* The operand that starts `elements` elements later. */
static inline exf_matrix exf_matrix_at(exf_matrix o, size_t elements)
{
    o.p = (const char *)o.p + elements * exf_number_bytes(o.number);
    return o;
}
#endif
