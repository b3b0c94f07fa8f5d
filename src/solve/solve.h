/* solve.h - from statistics to tables: closed forms in double, deterministic.
 *
 * A registry: one file src/solve/solver_<name>.c per projector. */
#ifndef EXF_SOLVE_SOLVE_H
#define EXF_SOLVE_SOLVE_H
#include "artifact/statistics.h"
#include "artifact/tables.h"
#include "kernels/statistics/pair_scalar.h"

typedef struct {
    exf_scalar_rule rule;          /* of the pair's scalar */
    uint64_t min_pair_tokens;      /* a pair with fewer counts as unobserved; 0 is 1 */
    const char *const *projectors; /* names of solvers beside "pair", which is always solved */
    size_t n_projectors;
    const int64_t *ranks; /* of "lowrank" */
    size_t n_ranks;
    const int64_t *pools; /* sizes D of static pools */
    size_t n_pools;
} exf_solve_options;

typedef struct {
    const char *name;
    int vectors; /* layer() needs s->vectors */
    /* Before any layer: room in the tables, sums over layers; NULL: nothing to do. */
    exf_code (*begin)(exf_statistics_reader *r, const exf_solve_options *o, exf_tables *t, exf_err *err);
    /* Fills layer index l of the tables from that layer's statistics; "pair" has filled it before any other. */
    exf_code (*layer)(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err);
} exf_solver;

extern const exf_solver exf_solver_pair; /* the base of all others */
const exf_solver *exf_solver_find(const char *name); /* NULL: unknown */
const exf_solver *exf_solver_at(size_t i);           /* in order of name; NULL: past the end */
/* EXF_USAGE naming an unknown projector and the known ones, or an impossible rank. */
exf_code exf_solve_check(const exf_solve_options *o, exf_err *err) EXF_CHECKED;

/* Solves a whole statistics file.  Caller frees t with exf_tables_free(). */
exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;

/* Whether pair i = s * E + t of a layer has the tokens that it takes. */
int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i);
/* max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq; a source whose output was 0
 * on every token loses nothing wherever it goes. */
double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq);
/* x[e] of cold experts becomes the lower median of the others, or 1 when all are cold. */
exf_code exf_solve_fill_cold(double *x, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
/* Expert norms h of layer l: norm_sum / norm_count, cold experts filled. */
exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Static pools of layer l, from its norms, coefficients and losses (method,
 * section 3): the D experts of largest h, ties to the lower number; everyone
 * else goes to the member of least loss, ties to the earlier member. */
void exf_solve_pools(int l, exf_tables *t);
#endif
