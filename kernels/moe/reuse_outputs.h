/* reuse_outputs.h - expert outputs of new routes, as far as the same token ran the same
 * expert under its old routes.
 *
 * For every slot of `wanted` [T, K] the outputs row [H] is
 *   copied from the token's slot of `ran` [T, K] that holds the same id (the first one), or
 *   zero where the id is -1, or
 *   left as it is, for the caller to compute.
 * missing [T, K] becomes the id in the last case and -1 in the others, so that
 * `experts` with shape.keep = 1 and these ids computes the rest. */
#ifndef EXF_KERNELS_REUSE_OUTPUTS_H
#define EXF_KERNELS_REUSE_OUTPUTS_H
#include "kernels/linear/matrix.h"

/* Arrays lie in the backend's memory; to and from are of one number type. */
typedef struct {
    int n_tokens, top_k, d_model;
    exf_matrix to, from; /* [T, K, H] */
    const int32_t *wanted, *ran;
    int32_t *missing;
} exf_reuse_call;

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif
void exf_reuse_outputs_cpu(const exf_reuse_call *c);
void exf_reuse_outputs_cuda(struct exf_queue *q, const exf_reuse_call *c);
#ifdef __cplusplus
}
#endif
#endif
