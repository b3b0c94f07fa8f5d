/* solve.h - solves tables from statistics: closed forms in double, deterministic.
 * Each projector has its own closed form (artifact/projector.h). */
#ifndef EXF_SOLVE_SOLVE_H
#define EXF_SOLVE_SOLVE_H
#include "solve/solver.h"

/* Solves a whole statistics file.  EXF_MODEL if shards of its corpus are missing (artifact/shards.h), unless o->partial: then
 * the tables have the fact data.part.  The caller frees t with exf_tables_free(). */
exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;

/* Solves tables from their statistics with the settings that the tables record,
 * so that tables can be checked number by number. */

/* Solves the statistics with the settings of t's provenance (solve.*) and the sizes of its pools;
 * path names t in messages.  EXF_FORMAT if a setting is missing or malformed.  The caller frees
 * out with exf_tables_free(). */
exf_code exf_solve_again(const exf_tables *t, const char *path, const char *statistics, exf_tables *out, exf_err *err) EXF_CHECKED;
#endif
