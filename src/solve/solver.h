/* solver.h - the solvers, one per projector.
 *
 * A drawer: one file src/solve/solver_<name>.c each. */
#ifndef EXF_SOLVE_SOLVER_H
#define EXF_SOLVE_SOLVER_H
#include "artifact/statistics.h"
#include "artifact/tables.h"
#include "solve/solve_options.h"

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
#endif
