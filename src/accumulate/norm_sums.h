/* norm_sums.h - the sums of one layer from which its norm head is solved: what predicts the norm of an expert's output on a token
 * before the expert runs (docs/method.md, section 13).
 *
 * With x the hidden state that router and experts read, z the router's logits, w an expert's router weight and u its output, the
 * features of a routed slot (artifact/tables.h) are
 *   phi = [1, V'x (q), z[e] less the mean of z, log max(w, 1e-6), log ||x||]   (F = q + 4), and y = log ||u||
 * and, each of them rounded to a multiple of 2^-12, over the slots of each expert
 *   pp = sum phi phi'   [F (F + 1) / 2] the lower triangle, row by row; its first element counts the slots
 *   py = sum phi y      [F]
 *   yy = sum y y
 * all of them exact, so that order, threads, shards and ranks do not matter.  V [H, q] has the
 * principal directions of the layer's inputs, not centred, of a sample of tokens; sums over one V add. */
#ifndef EXF_ACCUMULATE_NORM_SUMS_H
#define EXF_ACCUMULATE_NORM_SUMS_H
#include "accumulate/sum_arrays.h"
#include "artifact/tables.h"
#include "base/exact.h"
#include "base/hash.h"

#include <stddef.h>
#include <stdint.h>

/* The fact of statistics that says how many directions q they have. */
#define EXF_NORM_HEAD_FACT "accumulate.norm_head"

typedef struct {
    int n_experts, d_model;
    int q;          /* directions; 0: there are no sums, and all else is NULL */
    int known;      /* 1: basis is set */
    double *basis;  /* [H, q] V, orthonormal columns */
    exf_exact *pp, *py, *yy; /* [E, F (F + 1) / 2], [E, F], [E] */
} exf_norm_sums;

/* Returns the elements of pp of an expert. */
static inline size_t exf_norm_products(int q)
{
    return exf_norm_features(q) * (exf_norm_features(q) + 1) / 2;
}

exf_code exf_norm_sums_new(exf_norm_sums *s, int n_experts, int d_model, int q, exf_err *err) EXF_CHECKED;
void exf_norm_sums_zero(exf_norm_sums *s); /* the basis is then not known */
void exf_norm_sums_free(exf_norm_sums *s); /* accepts zeroed memory */
void exf_norm_sums_set_basis(exf_norm_sums *s, const double *basis);
/* Adds `from`, which are over the same directions, to `to`.  EXF_FORMAT where a sum would wrap. */
exf_code exf_norm_sums_merge(exf_norm_sums *to, const exf_norm_sums *from, exf_err *err) EXF_CHECKED;

/* ---- in files of kind statistics -------------------------------------
 * One group per layer, in files with the fact accumulate.norm_head:
 *   /layers/<l>/norms/basis  F64 [H, q]
 *   /layers/<l>/norms/pp     U64 [E, F (F + 1) / 2, 3]  exact; so are the next
 *   /layers/<l>/norms/py     U64 [E, F, 3]
 *   /layers/<l>/norms/yy     U64 [E, 3] */
/* Lists its arrays, and returns how many. */
size_t exf_norm_sums_list(const exf_norm_sums *s, exf_sum_array out[EXF_MOST_SUM_ARRAYS]);
/* Reads a layer's sums; nothing (q 0) where it has no group.  EXF_FORMAT for a basis of no unit vectors, and
 * for sums whose counts are not norm_count [E].  The caller frees s; sums of the same size are read in place. */
exf_code exf_norm_sums_read(exf_norm_sums *s, exf_h5 *h, const exf_run_shape *shape, int layer, const uint64_t *norm_count,
                            exf_err *err) EXF_CHECKED;
#endif
