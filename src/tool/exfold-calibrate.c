/* exfold-calibrate - recipe in, statistics, tables and exports out. */
#include "tool/inputs.h"
#include "tool/program.h"
#include "tool/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
    {NULL, "dry-run", 'n', EXF_OPT_FLAG, offsetof(exf_recipe, dry_run), "false", NULL, "Run",
     "check everything, print the plan (time, memory, disk), write nothing"},
    {NULL, "list-inputs", 0, EXF_OPT_FLAG, offsetof(exf_recipe, list_inputs), "false", NULL, "Run",
     "print the SHA-256 of every file that the run and its validation read, and do nothing else"},
};

static exf_code run(exf_recipe *r, exf_err *err)
{
    return r->list_inputs ? exf_list_inputs(r, err) : exf_stage_calibrate(r, err);
}

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
        .run = run,
    };
    return exf_program_main(&program, argc, argv);
}
