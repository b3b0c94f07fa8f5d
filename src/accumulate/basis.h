/* basis.h - computes the leading right singular vectors of a tall matrix by randomised subspace
 * iteration (Halko, Martinsson, Tropp: Finding structure with randomness, SIAM Review
 * 53, 2011, algorithm 4.4, on the side of the rows' space, with a Rayleigh-Ritz step). */
#ifndef EXF_ACCUMULATE_BASIS_H
#define EXF_ACCUMULATE_BASIS_H
#include "artifact/vector_sums.h"
#include "base/err.h"
#include "kernels/statistics/layer_sums.h"
#include "pass/forward.h"

#include <stddef.h>
#include <stdint.h>

/* Computes q [d, r], r <= d: orthonormal columns, by falling singular value, of the rows x [n, d]
 * less their mean; each column's largest element (the first of equals) is positive.
 * Columns beyond the rank of x complete the others.  Computes in double over fixed parts of
 * the rows in order: equal x gives equal bits for any number of helping threads (at least 1). */
exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, uint64_t seed, uint64_t stream, int helpers,
                        exf_err *err) EXF_CHECKED;
/* Returns the bytes of working memory. */
uint64_t exf_basis_bytes(int r, int d, int helpers);

/* Computes one block's vector sums of a pair and adds them to the layer's. */

/* Locks that all workers share; a lock guards many pairs. */
typedef struct exf_pair_locks exf_pair_locks;
exf_code exf_pair_locks_new(exf_pair_locks **out, exf_err *err) EXF_CHECKED;
void exf_pair_locks_free(exf_pair_locks *l); /* NULL is allowed */

typedef struct {
    int32_t token, source, target; /* slots */
} exf_pair_entry;

/* Lists which tokens of a block belong to which pair.  Zeroed before the first block. */
typedef struct {
    exf_pair_entry *entry; /* by pair, then token */
    int64_t *first;        /* [n_pairs + 1] */
    double *weight;        /* [T, K] */
    size_t cap_entry, cap_first, cap_weight;
} exf_pair_block;

/* Buffers for one pair of a block.  Zeroed before the first. */
typedef struct {
    double *u, *v; /* [n, H] a pair's outputs, times sqrt(w) */
    double *z;     /* [n, R] */
    double *total; /* [R, H] or [2, H]: totals of this block */
    size_t cap_u, cap_v, cap_z, cap_total;
} exf_pair_buffers;

/* Sorts a block's slot pairs. index [E, E]: a pair's number, -1: it has no vectors. */
exf_code exf_pair_block_sort(exf_pair_block *s, const exf_moe_block *b, const int32_t *index, exf_weighting weighting,
                             int64_t n_pairs, exf_err *err) EXF_CHECKED;
/* Adds pair p's terms of the sorted block; concurrent for different buffers. */
exf_code exf_pair_block_add(const exf_pair_block *s, exf_pair_buffers *m, const exf_moe_block *b, int64_t p,
                            const exf_vector_sums *sums, exf_pair_locks *locks, exf_err *err) EXF_CHECKED;
void exf_pair_block_free(exf_pair_block *s);
void exf_pair_buffers_free(exf_pair_buffers *m);
#endif
