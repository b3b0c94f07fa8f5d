/* exfold-calibrate - recipe in, statistics, tables and exports out. */
#include "tool/program.h"
#include "tool/stages.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
    {NULL, "dry-run", 'n', EXF_OPT_FLAG, offsetof(exf_recipe, dry_run), "false", NULL, "Run",
     "check everything, print the plan (time, memory, disk), write nothing"},
};

int main(int argc, char **argv)
{
    static const exf_program program = {
        .examples = "exfold-calibrate recipes/demo.yaml --dry-run    # time, memory and disk of the run\n"
                    "exfold-calibrate recipes/demo.yaml --output out/demo --force\n"
                    "exfold-calibrate recipe.yaml --set calibrate.ridge=1e-2 --backend cuda",
        .name = "exfold-calibrate",
        .arguments = "RECIPE.yaml",
        .about = "Runs the recipe's model over its corpus, one layer at a time, and writes\n"
                 "statistics.h5, tables.h5 and one file per export target to its output directory.",
        .wants_recipe = 1, .needs_recipe = 1,
        .rows = rows, .n_rows = sizeof rows / sizeof *rows,
        .lists_targets = 1,
        .run = exf_stage_calibrate,
    };
    return exf_program_main(&program, argc, argv);
}
