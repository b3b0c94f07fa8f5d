/* solve_facts.h - the facts of tables: those of their statistics, and by which settings they were solved. */
#ifndef EXF_SOLVE_SOLVE_FACTS_H
#define EXF_SOLVE_SOLVE_FACTS_H
#include "projector/solving.h"

/* Adds the facts to t; o has the digest of the statistics. */
exf_code exf_solve_facts(exf_tables *t, const exf_provenance *of, const exf_solve_options *o, exf_err *err) EXF_CHECKED;
#endif
