/* solve.h - from statistics to tables: closed forms in double, deterministic.
 *
 * A drawer: one file src/solve/solver_<name>.c per projector. */
#ifndef EXF_SOLVE_SOLVE_H
#define EXF_SOLVE_SOLVE_H
#include "artifact/statistics.h"
#include "artifact/tables.h"

typedef struct {
    double ridge;                /* lambda >= 0 */
    int clip;                    /* 0: scalars are not clipped */
    double clip_min, clip_max;
    const char *const *projectors; /* names of solvers */
    size_t n_projectors;
    const int64_t *pools; /* sizes D of static pools */
    size_t n_pools;
} exf_solve_options;

typedef struct {
    const char *name;
    /* Fills layer index l of the tables from that layer's statistics. */
    exf_code (*layer)(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err);
} exf_solver;

const exf_solver *exf_solver_find(const char *name); /* NULL: unknown */
const exf_solver *exf_solver_at(size_t i);           /* in order of name; NULL: past the end */
/* EXF_USAGE naming an unknown projector and the known ones. */
exf_code exf_solve_check(const exf_solve_options *o, exf_err *err) EXF_CHECKED;

/* Solves a whole statistics file.  Caller frees t with exf_tables_free(). */
exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;

/* Expert norms h of layer l: norm_sum / norm_count; a cold expert gets the lower
 * median of the observed ones, or 1 when none was observed. */
exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Static pools of layer l, from its norms, coefficients and losses (method,
 * section 3): the D experts of largest h, ties to the lower number; everyone
 * else goes to the member of least loss, ties to the earlier member. */
void exf_solve_pools(int l, exf_tables *t);
#endif
