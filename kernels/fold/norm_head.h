/* norm_head.h - norms of routes that a layer's norm head predicts on a device, before any expert runs (exfold/fold.h;
 * docs/method.md, section 13): n = exp(theta[e] . phi), phi = [1, V'x, z[e] - mean(z), log max(w, 1e-6), log max(||x||, 1e-10)]. */
#ifndef EXF_KERNELS_NORM_HEAD_H
#define EXF_KERNELS_NORM_HEAD_H
#include "base/err.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Directions at most: V'x of 4 tokens is in the shared memory of a block. */
enum { EXF_NORM_HEAD_MOST = 256 };
/* Elements that exf_norm_head_rows_cuda() writes for each element of V. */
enum { EXF_NORM_HEAD_ROWS = 4 };

/* Writes V of each layer, basis [n_layers, H, q], as rows for a product with x in two bfloat16 terms: rows [n_layers, 2 q, 2 H], of
 * which the first q have V' rounded twice side by side, and the others its remainder before zeros. */
void exf_norm_head_rows_cuda(exf_queue *q, uint16_t *rows, const float *basis, int n_layers, int d_model, int directions);

/* Tokens of one layer; all arrays are in device memory. */
typedef struct {
    int n_tokens, n_experts, top_k, d_model, directions; /* T, E, K, H, q */
    const void *x;        /* [T, H] float32; with `split` [T, 2, H] bfloat16, whose sum it is */
    int split;
    const float *squares; /* [T] ||x||^2; with `split` only, else they are computed from x */
    const float *basis;   /* [H, q] V; without `split` */
    const uint16_t *rows; /* of exf_norm_head_rows_cuda(); with `split` */
    const float *theta;   /* [E, q + 4] */
    const float *logits;  /* [T, E] z */
    const int32_t *ids;   /* [T, K] as the router chose; -1: an empty slot */
    const float *weights; /* [T, K] */
    float *norms;         /* [T, K] n; of an expert that a token has twice its first slot's; undefined in empty slots */
    int32_t *routed;      /* [T, K] a copy of ids */
    uint64_t *bad;        /* becomes the smallest row of which a norm is not finite and above 0, if that is smaller than it was */
    uint64_t row;         /* of the first token */
} exf_norm_head_call;

/* Predicts the norms of all slots.  V'x is a product in float32; with `split` its operands have 16 significant bits each, and its
 * sums are float32. */
void exf_predict_norms_cuda(exf_queue *q, const exf_norm_head_call *c);

#ifdef __cplusplus
}
#endif
#endif
