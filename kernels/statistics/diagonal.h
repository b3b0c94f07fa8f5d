/* diagonal.h - adds up, on a device, the element-wise products of pairs of routed outputs that
 * the diagonal projector needs (artifact/vector_sums.h):
 *
 *   vu[p] += w v*u, vv[p] += w v*v    [H], of the tokens that chose both of pair p's experts
 *
 * with u, v and w as in layer_sums.h.  Terms are double (w from a double norm), added up in
 * order of tokens over a unit, which is the caller's: as many calls as it likes, the first
 * of which begins it and the last ends it.  A unit's total is then added exactly
 * (base/exact.h), so only what a unit is matters, not how the run is cut into calls. */
#ifndef EXF_KERNELS_DIAGONAL_H
#define EXF_KERNELS_DIAGONAL_H
#include "base/exact.h"
#include "kernels/linear/matrix.h"
#include "kernels/statistics/layer_sums.h"

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

/* The sums of a layer; all arrays are in device memory. */
typedef struct {
    exf_exact *vu, *vv;  /* [P, H] */
    double *open;        /* [P, 2, H] totals of a unit that later calls continue */
    const int32_t *pair; /* [P, 2] source, target */
    int n_pairs;
    exf_sums_fault *bad; /* of the smallest first row of a call whose sums left the range: pair, column and sum */
} exf_diagonal_sums;

typedef struct {
    int top_k, d_model, n_tokens;
    exf_matrix outputs;   /* [T, K, H] */
    const int32_t *ids;   /* [T, K] distinct within a token; -1: an empty slot */
    const float *weights; /* [T, K] */
    exf_weighting weighting;
    double *root;         /* [T, K] scratch */
    int begins, ends;     /* 1: the unit's first, last call */
    int64_t row;          /* of the first token, for messages */
} exf_diagonal_call;

void exf_diagonal_add_cuda(struct exf_queue *q, const exf_diagonal_sums *to, const exf_diagonal_call *c);
#ifdef __cplusplus
}
#endif
#endif
