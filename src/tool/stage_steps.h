/* stage_steps.h - inside src/tool: steps that a stage over files and the whole pipeline share. */
#ifndef EXF_TOOL_STAGE_STEPS_H
#define EXF_TOOL_STAGE_STEPS_H
#include "tool/recipe.h"
#include "tool/session.h"

/* The layer of least coverage. */
typedef struct {
    int layer;
    double observed; /* share of its ordered pairs; 1 where there are none */
} exf_worst_coverage;

/* Statistics to tables, announced; what was not observed goes to stderr. */
exf_code exf_solve_file(const exf_recipe *r, const char *statistics, const char *target, exf_worst_coverage *worst, exf_err *err) EXF_CHECKED;
/* Tables to every target of the recipe, announced. */
exf_code exf_export_file(const exf_recipe *r, const exf_output_dir *dir, const char *tables, exf_err *err) EXF_CHECKED;

/* At most one line per layer on stderr (--verbose: the lists) for cold experts and thin pairs. */
exf_code exf_coverage_report(const exf_tables *t, const exf_recipe *r, exf_worst_coverage *worst, exf_err *err) EXF_CHECKED;
/* EXF_THRESHOLD below coverage.fail_below; for when everything is written. */
exf_code exf_coverage_gate(const exf_recipe *r, const exf_worst_coverage *worst, exf_err *err) EXF_CHECKED;
#endif
