/* solver.h - solves tables layer by layer: from a file (exf_solve), or while a pass is still adding up later layers. */
#ifndef EXF_SOLVE_SOLVER_H
#define EXF_SOLVE_SOLVER_H
#include "solve/solving.h"

typedef struct exf_solver exf_solver;

/* The facts of statistics that are known before their sums. */
typedef struct {
    const char *path; /* of their file, for messages */
    exf_run_shape shape;
    const int32_t *layer_number; /* [n_layers] */
    int n_layers;
    int by_sequence;  /* 1: they have sums over sequences */
    int has_energies; /* 1: they have energy_sum */
} exf_solver_head;

/* Checks the options: EXF_USAGE names an unknown projector and the known ones, or an impossible rank. */
exf_code exf_solve_check(const exf_solve_options *o, exf_err *err) EXF_CHECKED;

/* Returns 1 if a projector needs the sums of all layers, or vectors of pairs, before it solves one: then there must be a file. */
int exf_solver_reads_file(const exf_solve_options *o);
/* Returns 1 if layers must come with their vector sums. */
int exf_solver_wants_vectors(const exf_solve_options *o);
/* Returns the bytes of the tables of pairs, which a solver holds from its first layer on. */
uint64_t exf_solver_memory(const exf_run_shape *shape, int n_layers);
/* Allocates tables and solves what comes before any layer.  r: the file; NULL where there is none yet.  What o borrows stays
 * the caller's.  EXF_USAGE as exf_solve_check(). */
exf_code exf_solver_new(exf_solver **out, const exf_solver_head *head, const exf_solve_options *o, exf_statistics_reader *r,
                        exf_err *err) EXF_CHECKED;
/* Solves layer index l; each once, in any order, from one thread at a time. */
exf_code exf_solver_layer(exf_solver *s, int l, const exf_layer_statistics *sums, exf_err *err) EXF_CHECKED;
/* Solves what needs all layers, and gives the tables to the caller, who frees them.  o: the options as before, with the
 * digest of the statistics and measured sensitivities, which may have become known since.  of: the facts of the statistics. */
exf_code exf_solver_end(exf_solver *s, const exf_solve_options *o, const exf_provenance *of, exf_tables *t,
                        exf_err *err) EXF_CHECKED;
void exf_solver_free(exf_solver *s); /* NULL is allowed */

/* The facts of tables: those of their statistics, and by which settings they were solved. */

/* Adds the facts to t; o has the digest of the statistics. */
exf_code exf_solve_facts(exf_tables *t, const exf_provenance *of, const exf_solve_options *o, exf_err *err) EXF_CHECKED;
#endif
