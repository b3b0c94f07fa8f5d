/* vector_sums.h - the sums of one layer from which vectors are solved, for the pairs that have
 * them (docs/method.md, section 1; paper, "diagonal" and "scalar-plus-low-rank projector").
 *
 * With u, v, w of a token of the pair as in kernels/statistics/layer_sums.h, Q the layer's basis and
 * z = sqrt(w) v Q:
 *   vu = sum w v*u, vv = sum w v*v          [H], element by element, exact (base/exact.h)
 *   zz = sum z'z [R, R], zu = sum z' sqrt(w) u [R, H], zv = sum z' sqrt(w) v [R, H]
 * zz, zu and zv are integers in units of 2^grid of their pair, chosen from the pair's scalar
 * sums so that none can overflow: |zu| <= sqrt(target_sq source_sq), |zz|, |zv| <= target_sq
 * (Cauchy-Schwarz), and the unit is 2^-61 of that bound's next power of two.  Adding them is
 * integer adding, so order, threads and shards do not matter; a block's term is rounded once. */
#ifndef EXF_ACCUMULATE_VECTOR_SUMS_H
#define EXF_ACCUMULATE_VECTOR_SUMS_H
#include "accumulate/sum_arrays.h"
#include "base/exact.h"

#include <stddef.h>
#include <stdint.h>

/* Sums that a projector may need beside those of every pair (exf_projector.observes), and their names
 * in accumulate.vectors of the provenance. */
enum { EXF_OBSERVES_ELEMENTS = 1 /* vu, vv */, EXF_OBSERVES_BASIS = 2 /* basis, zz, zu, zv */, EXF_N_OBSERVED = 2 };
extern const char *const exf_observed_name[EXF_N_OBSERVED];

enum { EXF_BASIS_RANK = 32 }; /* columns of a basis, and the largest rank of a correction on it */

/* Returns the columns of the basis of a model of width H: never more than H. */
static inline int exf_basis_rank(int d_model)
{
    return d_model < EXF_BASIS_RANK ? d_model : EXF_BASIS_RANK;
}

/* The fact of statistics that says for how many columns their basis was made; without it EXF_BASIS_RANK. */
#define EXF_RANK_FACT "accumulate.rank"

enum { EXF_GRID_ZU, EXF_GRID_ZV, EXF_N_GRIDS }; /* zz has the grid of zv */

typedef struct {
    int64_t n_pairs;   /* P; 0: the layer has none, and all else is NULL */
    int d_model, rank; /* H; R, 0: no low-rank sums */
    int32_t *pair;     /* [P, 2] source, target; ascending */
    exf_exact *vu, *vv;        /* [P, H] NULL: no diagonal sums */
    double *basis;             /* [H, R] orthonormal columns */
    int32_t *grid;             /* [P, EXF_N_GRIDS] */
    int64_t *zz, *zu, *zv;     /* [P, R, R], [P, R, H], [P, R, H] */
    int borrowed;              /* 1: vu, vv, zz, zu and zv are in another owner's memory */
} exf_vector_sums;

exf_code exf_vector_sums_new(exf_vector_sums *v, int64_t n_pairs, int d_model, int diagonal, int rank, exf_err *err) EXF_CHECKED;
/* Allocates pairs, basis and grids alone: what sums are added up over. */
exf_code exf_vector_sums_new_choice(exf_vector_sums *v, int64_t n_pairs, int d_model, int rank, exf_err *err) EXF_CHECKED;
void exf_vector_sums_free(exf_vector_sums *v);
/* Chooses both grids of a pair from its scalar sums, a little coarser than Cauchy-Schwarz requires,
 * to allow for rounding; larger sums never give a finer grid. */
void exf_grid_for_pair(int32_t grid[EXF_N_GRIDS], double source_sq, double target_sq);
/* Adds x[i] to sum[i] on the grid, ties to even. */
void exf_grid_add(int64_t *sum, const double *x, size_t n, int grid);
/* Computes out[i] = sum[i] * 2^grid. */
void exf_grid_value(double *out, const int64_t *sum, size_t n, int grid);

/* The fact of statistics with vector sums or those of a norm head that says what these were added up over: the SHA-256 over, layer
 * by layer in rising order, the layer's number, P, H and R (u64), then the elements of pair, basis and grid and, with a norm head,
 * q (u64) and its directions, all little endian. */
#define EXF_BASIS_FACT "accumulate.basis_digest"
/* Adds one layer to the running digest. */
exf_code exf_vector_sums_hash_basis(exf_hash *h, int layer_number, const exf_vector_sums *v, exf_err *err) EXF_CHECKED;

/* ---- in files of kind statistics -----------------------------------
 * One group per layer that has any:
 *   /layers/<l>/vectors/pair   I32 [P, 2]      source, target; ascending
 *   /layers/<l>/vectors/vu, vv U64 [P, H, 3]   exact
 *   /layers/<l>/vectors/basis  F64 [H, R]
 *   /layers/<l>/vectors/grid   I32 [P, 2]      exponents of the units of zu; of zv and zz
 *   /layers/<l>/vectors/zz     I64 [P, R, R]   value = integer times 2^grid
 *   /layers/<l>/vectors/zu, zv I64 [P, R, H] */
/* Lists the arrays of these sums, and returns how many; diagonal, lowrank: with theirs. */
size_t exf_vector_sums_list(const exf_vector_sums *v, int diagonal, int lowrank, exf_sum_array out[EXF_MOST_SUM_ARRAYS]);
exf_code exf_vector_sums_write(const exf_vector_sums *v, exf_h5 *h, int layer, exf_err *err) EXF_CHECKED;
typedef enum {
    EXF_VECTORS_PAIRS, /* pair alone */
    EXF_VECTORS_SUMS   /* all */
} exf_vectors_what;
/* Reads what a layer has of these, and nothing (n_pairs 0) where it has no group.  The caller frees v.  EXF_FORMAT for pairs
 * that do not ascend, a basis of no unit vectors, grids that are no exponents. */
exf_code exf_vector_sums_read(exf_vector_sums *v, exf_vectors_what what, exf_h5 *h, const exf_run_shape *shape, int layer,
                              exf_err *err) EXF_CHECKED;
#endif
