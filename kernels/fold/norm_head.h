/* norm_head.h - norms of routes that a layer's norm head predicts on a device, before any expert runs (exfold/fold.h;
 * docs/method.md, section 13): n = exp(theta[e] . phi), phi = [1, V'x, z[e] - mean(z), log max(w, 1e-6), log max(||x||, 1e-10)]. */
#ifndef EXF_KERNELS_NORM_HEAD_H
#define EXF_KERNELS_NORM_HEAD_H
#include "base/err.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Directions at most: V'x of 16 tokens is in the shared memory of a block. */
enum { EXF_NORM_HEAD_MOST = 256 };

/* Tokens of one layer; all arrays are in device memory. */
typedef struct {
    int n_tokens, n_experts, top_k, d_model, directions; /* T, E, K, H, q */
    const void *x;        /* [T, H] float32; with `split` [T, 2, H] bfloat16, whose sum it is */
    int split;
    const uint16_t *basis; /* V [H, q] in bfloat16 terms (split_rows of kernels/rows/rows.h), */
    size_t apart;          /* which are so many elements apart: a multiple of 8 */
    const float *theta;   /* [E, q + 4] */
    const float *logits;  /* [T, E] z */
    const int32_t *ids;   /* [T, K] as the router chose; -1: an empty slot */
    const float *weights; /* [T, K] */
    float *norms;         /* [T, K] n; of an expert that a token has twice its first slot's; undefined in empty slots */
    int32_t *routed;      /* [T, K] a copy of ids */
    uint64_t *bad;        /* becomes the smallest row of which a norm is not finite and above 0, if that is smaller than it was */
    uint64_t row;         /* of the first token */
} exf_norm_head_call;

/* V'x is a product of bfloat16 terms, two of each operand with `split`, else three: 16 and 22 significant bits of x and V at least.
 * It is summed in float32 over 512 columns, and in double over these. */
void exf_predict_norms_cuda(exf_queue *q, const exf_norm_head_call *c);

#ifdef __cplusplus
}
#endif
#endif
