/* reuse_outputs.h - which expert outputs of new routes the same token has already run
 * under its old routes.
 *
 * For every slot of `wanted` [T, K]:
 *   source   the token's slot of `ran` [T, K] that holds the same id, the first one;
 *            EXF_SOURCE_OTHER where none does, EXF_SOURCE_NONE where the id is -1 (moe_sum.h)
 *   missing  the id where source is EXF_SOURCE_OTHER, else -1: `experts` with shape.keep = 1
 *            and these ids computes the rest
 *   to       optional: the row [H] of the source copied from `from`; zero where the id is -1;
 *            left as it is where the id is missing */
#ifndef EXF_KERNELS_REUSE_OUTPUTS_H
#define EXF_KERNELS_REUSE_OUTPUTS_H
#include "kernels/linear/matrix.h"
#include "kernels/moe/moe_sum.h"

/* Arrays lie in the backend's memory; to and from are of one number type. */
typedef struct {
    int n_tokens, top_k, d_model;
    exf_matrix to;   /* [T, K, H]; p NULL: nothing is copied */
    exf_matrix from; /* [T, K, H] */
    const int32_t *wanted, *ran;
    int32_t *source, *missing;
} exf_reuse_call;

#ifdef __cplusplus
extern "C" {
#endif
void exf_reuse_outputs_cpu(const exf_reuse_call *c);
void exf_reuse_outputs_cuda(struct exf_queue *q, const exf_reuse_call *c);
#ifdef __cplusplus
}
#endif
#endif
