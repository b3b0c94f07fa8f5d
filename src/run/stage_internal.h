/* stage_internal.h - inside src/run: steps that a stage over files and the whole pipeline share. */
#ifndef EXF_RUN_STAGE_INTERNAL_H
#define EXF_RUN_STAGE_INTERNAL_H
#include "accumulate/accumulate.h"
#include "solve/solve.h"
#include "recipe/recipe.h"
#include "recipe/run_directory.h"
#include "run/session.h"

/* Solves a calibration's tables from each layer's sums in memory, while later layers are computed.
 *
 * Tables whose projectors need the sums of all layers, or vectors of pairs, are solved from the file after the pass. */

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

/* The layer of least coverage. */
typedef struct {
    int layer;
    double observed; /* share of its ordered pairs; 1 where there are none */
} exf_worst_coverage;

/* Tables that were just made.  Ownership: exf_tables_free(). */
typedef struct {
    exf_tables tables;
    char digest[EXF_SHA256_HEX];
    exf_worst_coverage worst;
} exf_solved;

/* Solves statistics to tables and prints the file; reports unobserved pairs on stderr.  What was made
 * from tables that these replace is dropped (derived_files.h).  exports: 1 if r's targets are written next.
 * statistics_digest: their payload digest, or NULL, which computes it.  solving: has the layers already; NULL, or without a
 * solver: they are read from the file. */
exf_code exf_solve_file(const exf_recipe *r, const char *statistics, const char *statistics_digest, const char *target, int exports,
                        exf_overlapped_solve *solving, exf_solved *out, exf_err *err) EXF_CHECKED;
/* Refuses, before any work, targets of r that exist and may not be replaced, or without the one that its runtime loads. */
exf_code exf_export_tables_check(const exf_recipe *r, const exf_run_directory *dir, exf_err *err) EXF_CHECKED;
/* Refuses a model that one of r's targets cannot serve. */
exf_code exf_export_model_check(const exf_recipe *r, const exf_model *m, exf_err *err) EXF_CHECKED;
/* Exports a tables file in the formats of r's targets and prints the files.  has_recipe: the run
 * directory has or will have an exfold_recipe.yaml.  made: the tables, if they were made just now; NULL: they are read.
 * A validation of other tables beside these is EXF_MODEL; beside tables that were just made it is left out with a warning. */
exf_code exf_export_tables(const exf_recipe *r, const exf_run_directory *dir, const char *tables, const exf_solved *made,
                           int has_recipe, exf_err *err) EXF_CHECKED;

/* Warns where the tables at path are of a part of their data (artifact/shards.h). */
exf_code exf_tell_part(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Prints at most one line per layer on stderr (--verbose: the lists) for cold experts and thin pairs. */
exf_code exf_coverage_report(const exf_tables *t, const exf_recipe *r, exf_worst_coverage *worst, exf_err *err) EXF_CHECKED;
/* EXF_THRESHOLD below coverage.fail_below; called when all files are written. */
exf_code exf_coverage_gate(const exf_recipe *r, const exf_worst_coverage *worst, exf_err *err) EXF_CHECKED;
#endif
