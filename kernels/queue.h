/* queue.h - exf_queue runs the operations that one thread queues, in order (backend.h).  Each
 * backend defines its own struct exf_queue; the CUDA one is in device/cuda_queue.cuh. */
#ifndef EXF_KERNELS_QUEUE_H
#define EXF_KERNELS_QUEUE_H

typedef struct exf_queue exf_queue;

/* Arithmetic of matrix products; everything else is float32 with wider sums.
 *   F32   float32 operands and accumulation; a device keeps weights that are stored in a
 *         format that bfloat16 holds exactly in bfloat16, and multiplies a float32 by
 *         them without rounding it (gemm.h)
 *   BF16  the weights of linear layers live as bfloat16, and what they are
 *         multiplied by is rounded to it; float32 accumulation (tensor cores).
 *         A product with a float32 weight (the router's) stays one of float32. */
typedef enum { EXF_COMPUTE_F32, EXF_COMPUTE_BF16 } exf_compute;

static inline const char *exf_compute_name(exf_compute c)
{
    return c == EXF_COMPUTE_BF16 ? "bf16" : "f32";
}
#endif
