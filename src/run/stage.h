/* stage.h - runs the stages of the pipeline for programs; each reads and writes files.
 *
 *   capture     recipe             -> DIR/capture.h5, or --export FILE
 *               FILE of hidden states -> the same, without a forward pass
 *   accumulate  DIR/capture.h5 ... -> DIR/statistics.h5; --basis-only: DIR/basis.h5
 *   merge       STATISTICS.h5 ...  -> FILE
 *   solve       DIR/statistics.h5  -> DIR/tables.h5
 *   export      DIR/tables.h5      -> DIR/<file or directory of each target>
 *   calibrate   recipe             -> all of it, capture feeding accumulate in memory; --basis-only: DIR/basis.h5
 *   validate    recipe, tables     -> DIR/validation.json, DIR/validation.md, the table on stdout;
 *                                     --frontier: DIR/frontier.json, .md, .svg
 *
 * Each prints the files it wrote, with size and digest or SHA-256, on stdout. */
#ifndef EXF_RUN_STAGE_H
#define EXF_RUN_STAGE_H
#include "recipe/recipe.h"

exf_code exf_stage_capture(exf_recipe *r, exf_err *err) EXF_CHECKED;
/* The same from r->moe_inputs (capture/capture.h). */
exf_code exf_stage_replay(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_accumulate(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_merge(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_solve(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_export(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_validate(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_stage_calibrate(exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
