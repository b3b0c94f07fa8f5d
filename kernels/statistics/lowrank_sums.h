/* lowrank_sums.h - the sums of low-rank projectors on a device (accumulate/vector_sums.h; docs/method.md, section 1): of pairs'
 * tokens in the coordinates of a basis, and before that the second moments of sampled residuals from which the basis is made.
 *
 * Both depend on no cut of the run into calls and on no order of tokens.  A pair's sums are integers in units of its grids, to
 * which the term of each token is rounded once.  The moments are those of fixed parts of the samples, added up in order. */
#ifndef EXF_KERNELS_LOWRANK_SUMS_H
#define EXF_KERNELS_LOWRANK_SUMS_H
#include "base/err.h"
#include "kernels/operation.h"
#include "kernels/statistics/layer_sums.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sums of pairs in a basis ------------------------------------------------------------------
 *
 *   zz[p] += w z'z [R, R],  zu[p] += w z'u [R, H],  zv[p] += w z'v [R, H]    z = v Q
 *
 * of the tokens that chose both of pair p's experts, with u, v and w as in layer_sums.h.  z is a product in double, in order of
 * columns; a term w z u is a product in double, rounded to the grid, ties to even. */

/* The sums of a layer; all arrays are in device memory. */
typedef struct {
    int64_t *zz, *zu, *zv; /* [P, R, R], [P, R, H], [P, R, H] */
    const int32_t *pair;   /* [P, 2] source, target */
    const int32_t *grid;   /* [P, 2] exponents of the units of zu; of zv and zz */
    const double *basis;   /* [H, R] */
    int n_pairs, rank;     /* P; R, at most 32 */
    int tokens;            /* tokens that the scratch arrays hold; calls may have more */
    exf_pair_slots *slots; /* [P, tokens] scratch */
    int32_t *found;        /* [P] scratch */
    double *weight;        /* [tokens, K] scratch */
    double *z;             /* [tokens, K, R] scratch */
    exf_sums_fault *bad;   /* of the smallest row with a weight that has no root: expert, slot and weight */
} exf_lowrank_sums;

typedef struct {
    int top_k, d_model, n_tokens;
    exf_matrix outputs;   /* [T, K, H] finite where a slot has an expert */
    const int32_t *ids;   /* [T, K] distinct within a token; -1: an empty slot */
    const float *weights; /* [T, K] */
    exf_weighting weighting;
    int64_t row;          /* of the first token, for messages */
} exf_lowrank_call;

void exf_lowrank_add_cuda(exf_queue *q, const exf_lowrank_sums *to, const exf_lowrank_call *c);

/* ---- second moments of residuals, and of rows ----------------------------------------------------
 *
 *   x_i = float(u_i - s_i v_i),  gram = sum x_i' x_i [H, H],  sum = sum x_i [H]
 *
 * Without a target x_i is the row u_i, of which the source may have two parts: hidden states that rmsnorm_split() wrote (rows.h).
 * A product of EXF_RESIDUAL_ROWS samples accumulates in float32 (cuBLAS); such products, and the sums of columns, are added in
 * double. */
enum { EXF_RESIDUAL_ROWS = 2048 };

typedef struct {
    exf_matrix source, target; /* [rows, H]; target.p NULL: source [rows, parts, H] alone */
    int parts;                 /* of a row without a target: 1, or 2 whose sum it is */
    const int32_t *place;      /* [n] the row in both of sample i; -1, with a target: it is left out */
    const double *scalar;      /* [n] s, with a target */
    int n, d_model;
    float *rows;               /* [EXF_RESIDUAL_ROWS, H] scratch */
    float *product;            /* [H, H] scratch */
    double *gram, *sum;        /* overwritten; sum NULL: it is not wanted */
} exf_residual_call;

void exf_residual_moments_cuda(exf_queue *q, const exf_residual_call *c);

#ifdef __cplusplus
}
#endif
#endif
