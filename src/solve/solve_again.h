/* solve_again.h - solves tables from their statistics with the settings that the tables record,
 * so that tables can be checked number by number. */
#ifndef EXF_SOLVE_SOLVE_AGAIN_H
#define EXF_SOLVE_SOLVE_AGAIN_H
#include "solve/solve.h"

/* Solves the statistics with the settings of t's provenance (solve.*) and the sizes of its pools;
 * path names t in messages.  EXF_FORMAT if a setting is missing or malformed.  The caller frees
 * out with exf_tables_free(). */
exf_code exf_solve_again(const exf_tables *t, const char *path, const char *statistics, exf_tables *out, exf_err *err) EXF_CHECKED;
#endif
