/* pair_block.h - computes one block's vector sums of a pair and adds them to the layer's. */
#ifndef EXF_ACCUMULATE_PAIR_BLOCK_H
#define EXF_ACCUMULATE_PAIR_BLOCK_H
#include "artifact/vector_sums.h"
#include "pass/forward.h"
#include "kernels/statistics/layer_sums.h"

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
