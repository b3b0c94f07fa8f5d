/* operation.h - what every operation takes: the queue that runs it, and matrices of either number type.
 *
 * An exf_queue runs the operations that one thread queues, in order (backend.h).  Each backend defines its own
 * struct exf_queue; the CUDA one is in device/cuda_queue.cuh.
 *
 * An operation that both backends have is declared as a function type, exf_NAME_op, in the header of its subject, which gives its
 * shapes and numerics; exf_NAME_cpu and exf_NAME_cuda have that type, and so has its member of exf_backend.  On the CPU it is done
 * when the call returns, and its queue may be NULL. */
#ifndef EXF_KERNELS_OPERATION_H
#define EXF_KERNELS_OPERATION_H
#include <stddef.h>
#include <stdint.h>

typedef struct exf_queue exf_queue;

/* The arithmetic of matrix products; everything else is float32 with wider sums.
 *   F32   float32 operands and accumulation; a device keeps weights in bfloat16 if that holds exactly what the
 *         checkpoint stores, and multiplies a float32 by them without rounding it (linear.h)
 *   BF16  the weights of linear layers are bfloat16, and what they are multiplied by is rounded to it; float32
 *         accumulation (tensor cores).  A product with a float32 weight (the router's) stays one of float32. */
typedef enum { EXF_COMPUTE_F32, EXF_COMPUTE_BF16 } exf_compute;

static inline const char *exf_compute_name(exf_compute c)
{
    return c == EXF_COMPUTE_BF16 ? "bf16" : "f32";
}

/* The instructions by which a GPU's own kernels multiply: of a warpgroup (wgmma, Hopper), of a warp (mma.sync, since compute
 * capability 8.0).  AUTO: wgmma where the GPU has it, else mma where it has that, else units of float32.  Either is
 * deterministic; they differ in the last bits. */
typedef enum { EXF_TENSOR_CORES_AUTO, EXF_TENSOR_CORES_WGMMA, EXF_TENSOR_CORES_MMA } exf_tensor_cores;

/* Activations are float32 everywhere; the matrices of linear layers, and the activations that only products read,
 * are bfloat16 where the queue computes in bfloat16. */
typedef enum { EXF_NUMBER_F32, EXF_NUMBER_BF16 } exf_number;

/* A matrix that somebody else owns. */
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

/* The matrix that starts `elements` elements later. */
static inline exf_matrix exf_matrix_at(exf_matrix o, size_t elements)
{
    o.p = (const char *)o.p + elements * exf_number_bytes(o.number);
    return o;
}

/* Several products of one shape: the i-th has its y and x i steps of columns further right in the same rows (x = 0:
 * they share it), and its w i steps of elements further on. */
typedef struct {
    int count, y, x;
    size_t w;
} exf_product_steps;
#endif
