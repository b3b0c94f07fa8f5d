/* stage.h - runs the stages of the pipeline for programs; each reads and writes files.
 *
 *   capture     recipe             -> DIR/capture.h5, or --export FILE
 *               FILE of hidden states -> the same, without a forward pass
 *   accumulate  DIR/capture.h5 ... -> DIR/statistics.h5
 *   merge       STATISTICS.h5 ...  -> FILE
 *   solve       DIR/statistics.h5  -> DIR/tables.h5
 *   export      DIR/tables.h5      -> DIR/<file or directory of each target>
 *   calibrate   recipe             -> all of it, capture feeding accumulate in memory
 *   validate    recipe, tables     -> DIR/validation.json, DIR/validation.md, the table on stdout;
 *                                     --frontier: DIR/frontier.json, .md, .svg
 *
 * Each prints the files it wrote, with size and digest or SHA-256 (a validation's with size alone), on stdout. */
#ifndef EXF_RUN_STAGE_H
#define EXF_RUN_STAGE_H
#include "accumulate/accumulate.h"
#include "recipe/recipe.h"
#include "recipe/run_directory.h"
#include "solve/solve.h"

exf_code exf_stage_capture(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_accumulate(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_merge(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_solve(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_export(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_validate(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_calibrate(exf_recipe *r, exf_err *err) EXF_CHECKED;

/* ---- solving, alone or in a calibration (stage_solve.c) ---------------------------------------------- */

/* Has a calibration's tables solved from each layer's sums in memory, while later layers are computed: makes *out, which the caller
 * frees after the accumulator, the plan's consumer.  *out is NULL after a layer that cannot be solved, of which
 * exf_solve_file() tells.  What needs the sums of all layers is solved from the file after the pass. */
exf_code exf_solve_beside(exf_solver **out, const exf_solve_options *o, exf_accumulator_plan *plan, exf_err *err) EXF_CHECKED;

/* Tables that were just made.  Ownership: exf_tables_free(). */
typedef struct {
    exf_tables tables;
    char digest[EXF_SHA256_HEX];
    exf_err lacks; /* EXF_THRESHOLD where the text is not enough to export them, as exf_coverage_gate() says */
} exf_solved;

/* Solves statistics to tables and announces the file; reports unobserved pairs on stderr.  What was made
 * from tables that these replace is removed (exf_derived_drop()).  exports: 1 if r's targets are written next.
 * statistics_digest: their payload digest, or NULL, which computes it.  solving: has the layers already; NULL: they are read
 * from the file. */
exf_code exf_solve_file(const exf_recipe *r, const char *statistics, const char *statistics_digest, const char *target, int exports,
                        exf_solver *solving, exf_solved *out, exf_err *err) EXF_CHECKED;

/* ---- whether the text was enough (stage_coverage.c) -------------------------------------------------- */

/* Reports cold experts and thin pairs, at most a line a layer on stderr (--verbose: the lists). */
exf_code exf_coverage_report(const exf_tables *t, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* EXF_THRESHOLD, with the text that would do, where that of the tables at path is not enough by coverage.fail_below: they are not
 * to be exported.  Warns where it is taken all the same, by the recipe or by model.accept. */
exf_code exf_coverage_gate(const exf_recipe *r, const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Ends a calibration: returns its gate, and else says that the text was enough, by what, and what to do next with the tables at
 * path. */
exf_code exf_coverage_conclude(const exf_solved *made, const exf_recipe *r, const char *path, exf_err *err) EXF_CHECKED;
/* Warns where the tables at path are of a part of their data (artifact/data.h). */
exf_code exf_tell_part(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;

/* ---- exporting, alone or in a calibration (stage_export.c) ------------------------------------------- */

/* Refuses, before any work, targets of r that exist and may not be replaced. */
exf_code exf_export_tables_check(const exf_recipe *r, const exf_run_directory *dir, exf_err *err) EXF_CHECKED;
/* Refuses a model that r's runtime or one of its targets cannot serve, targets without the one that the runtime loads, and
 * settings that a target lacks or that contradict the model. */
exf_code exf_export_model_check(const exf_recipe *r, const exf_model *m, exf_err *err) EXF_CHECKED;
/* Exports a tables file in the formats of r's targets and announces the files.  has_recipe: the run
 * directory has or will have an exfold_recipe.yaml.  made: the tables, if they were made just now; NULL: they are read.
 * A validation of other tables beside these is EXF_MODEL; beside tables that were just made it is left out with a warning. */
exf_code exf_export_tables(const exf_recipe *r, const exf_run_directory *dir, const char *tables, const exf_solved *made,
                           int has_recipe, exf_err *err) EXF_CHECKED;
#endif
