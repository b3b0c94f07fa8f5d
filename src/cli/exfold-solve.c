/* exfold-solve - statistics in, tables out. */
#include "cli/program.h"
#include "run/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "sensitivities", 0, EXF_OPT_TEXT, offsetof(exf_recipe, sensitivities), NULL, "FILE", "Run",
     "solve budgets by measured too; from the file that exfold-validate --sensitivities wrote"},
    {NULL, "partial", 0, EXF_OPT_FLAG, offsetof(exf_recipe, partial), "false", NULL, "Run",
     "solve statistics though shards of their corpus are missing; the tables and all that is made from them say so"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
};

const exf_program exf_program_solve = {
    .name = "exfold-solve",
    .arguments = "[RECIPE.yaml] [STATISTICS.h5]",
    .group = "steps",
    .brief = "statistics to tables",
    .about = "Solves the closed forms over statistics (default: statistics.h5 in the output\n"
             "directory) and writes tables.h5 there.  Without a recipe the settings are those of the\n"
             "run that made the statistics, which keep them.",
    .examples = "exfold-solve recipe.yaml --set calibrate.clip=none --force\n"
                "exfold-solve --output out statistics.h5 --set pools=8,4\n"
                "exfold-solve --output out --set budgets=4,2 --sensitivities out/sensitivities.json --force",
    .keys = "calibrate.ridge calibrate.clip calibrate.projectors calibrate.ranks "
            "calibrate.min_pair_tokens coverage pools budgets budget_rules model.accept output.directory",
    .max_inputs = 1,
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .run = exf_stage_solve,
};
