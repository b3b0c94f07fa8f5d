/* run_ranks.h - joins a program to a job that mpirun or srun started (ranks/ranks.h), and ends it with the job. */
#ifndef EXF_CLI_RUN_RANKS_H
#define EXF_CLI_RUN_RANKS_H
#include "ranks/ranks.h"
#include "cli/command.h"

/* Joins the job; *out is NULL for a plain start.  EXF_USAGE for several ranks of a program that runs as one process.
 * Ranks other than 0 are silent on standard output from here on.  Each rank takes its share of the processors, and of
 * several GPUs that of its number on the node. */
exf_code exf_run_ranks_open(exf_ranks **out, const exf_program *p, exf_err *err) EXF_CHECKED;
/* Ends the program with its result: tells an error, on one rank of a job, and returns the exit status. */
int exf_run_ranks_end(exf_ranks *ranks, exf_code rc, exf_err *err);
#endif
