/* moe_internal.cuh - the steps of the CUDA experts operation: slots sorted by expert (moe_experts_cuda.cu), products on
 * Hopper's tensor cores (grouped_gemm_cuda.cu), on those of others (grouped_mma_cuda.cu) and on any GPU
 * (grouped_any_cuda.cu); see moe.h. */
#ifndef EXF_KERNELS_MOE_INTERNAL_CUH
#define EXF_KERNELS_MOE_INTERNAL_CUH
#include "kernels/device/cuda_queue.cuh"
#include "kernels/moe/moe.h"

enum { EXF_TILE_ROWS = 128, EXF_BUCKET_CHUNK = 1024 };
/* The most experts whose bounds fit into the shared memory of the kernels on tensor cores. */
enum { EXF_TENSOR_CORE_EXPERTS = 4096 };

/* Slots sorted by expert, in device memory: rows [first[e], first[e + 1]) of the sorted order
 * are expert e's, in order of slot, and are cut into tiles of EXF_TILE_ROWS rows, numbered
 * [tile[e], tile[e + 1]). */
typedef struct {
    int32_t *first, *tile; /* [E + 1] */
    int32_t *slot;         /* [T K] the slot of a sorted row */
    int32_t *counts;       /* [chunks, E] scratch */
} exf_buckets;

/* Compute the two products of all experts on Hopper's tensor cores.  Activations are planes of
 * bfloat16: one, or three that add up to float32 (rows.h).
 *   act [planes, T K, I] in sorted order = silu(x gate^T) * (x up^T), x [planes, T, H]
 *   out[slot[row]] [H] = act down^T, bfloat16 with one plane, float32 with three */
void exf_grouped_swiglu_cuda(exf_queue *q, uint16_t *act, const uint16_t *x, int planes, const exf_expert_matrices *m,
                             const exf_buckets *b, const exf_expert_shape *s);
void exf_grouped_down_cuda(exf_queue *q, void *out, const uint16_t *act, int planes, const exf_expert_matrices *m,
                           const exf_buckets *b, const exf_expert_shape *s);

/* The same on the tensor cores of any GPU since compute capability 8.0 (grouped_mma_cuda.cu). */
void exf_grouped_swiglu_mma_cuda(exf_queue *q, uint16_t *act, const uint16_t *x, int planes, const exf_expert_matrices *m,
                                 const exf_buckets *b, const exf_expert_shape *s);
void exf_grouped_down_mma_cuda(exf_queue *q, void *out, const uint16_t *act, int planes, const exf_expert_matrices *m,
                               const exf_buckets *b, const exf_expert_shape *s);

/* Compute the same products on any GPU and for any shape; act [T K, I] has x's number type. */
void exf_grouped_swiglu_any_cuda(exf_queue *q, void *act, exf_matrix x, const exf_expert_matrices *m, const exf_buckets *b,
                                 const exf_expert_shape *s);
void exf_grouped_down_any_cuda(exf_queue *q, exf_matrix out, const void *act, const exf_expert_matrices *m, const exf_buckets *b,
                               const exf_expert_shape *s);
#endif
