/* solve_beside.h - solves a calibration's tables from each layer's sums in memory, while later layers are still computed.
 *
 * Tables whose projectors need the sums of all layers, or vectors of pairs, are solved from the file behind the pass. */
#ifndef EXF_TOOL_SOLVE_BESIDE_H
#define EXF_TOOL_SOLVE_BESIDE_H
#include "accumulate/accumulate.h"
#include "solve/solver.h"
#include "tool/recipe.h"

/* Ownership: exf_solve_beside_free(). */
typedef struct {
    exf_solver *solver; /* NULL: tables are solved from the file */
    exf_err why;        /* the first failure of a layer: the statistics are written all the same */
} exf_solve_beside;

/* Begins, or leaves b->solver NULL where the recipe's projectors need the file. */
exf_code exf_solve_beside_begin(exf_solve_beside *b, const exf_recipe *r, const exf_solver_head *head, exf_err *err) EXF_CHECKED;
/* Returns what the accumulator gives layers to; b outlives it. */
exf_layer_taker exf_solve_beside_taker(exf_solve_beside *b);
/* Ends the tables, whose statistics are at `statistics` now; o: with their digest. */
exf_code exf_solve_beside_end(exf_solve_beside *b, const char *statistics, const exf_solve_options *o, exf_tables *t,
                              exf_err *err) EXF_CHECKED;
void exf_solve_beside_free(exf_solve_beside *b); /* accepts zeroed memory */
#endif
