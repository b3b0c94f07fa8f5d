/* overlapped_solve.h - solves a calibration's tables from each layer's sums in memory, while later layers are computed.
 *
 * Tables whose projectors need the sums of all layers, or vectors of pairs, are solved from the file after the pass. */
#ifndef EXF_TOOL_OVERLAPPED_SOLVE_H
#define EXF_TOOL_OVERLAPPED_SOLVE_H
#include "accumulate/accumulate.h"
#include "solve/solver.h"
#include "tool/recipe.h"

/* Ownership: exf_overlapped_solve_free(). */
typedef struct {
    exf_solver *solver; /* NULL: tables are solved from the file */
    exf_err why;        /* the first failure of a layer: the statistics are written all the same */
} exf_overlapped_solve;

/* Begins the tables of a calibration, and makes b the plan's consumer, which outlives the accumulator; leaves b->solver NULL
 * where the recipe's projectors need the file. */
exf_code exf_overlapped_solve_begin(exf_overlapped_solve *b, const exf_recipe *r, exf_accumulator_plan *plan,
                                    exf_err *err) EXF_CHECKED;
/* Ends the tables, whose statistics are at `statistics` now; o: with their digest. */
exf_code exf_overlapped_solve_end(exf_overlapped_solve *b, const char *statistics, const exf_solve_options *o, exf_tables *t,
                                  exf_err *err) EXF_CHECKED;
void exf_overlapped_solve_free(exf_overlapped_solve *b); /* accepts zeroed memory */
#endif
