/* exfold-solve - statistics in, tables out. */
#include "tool/program.h"
#include "tool/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
};

int main(int argc, char **argv)
{
    static const exf_program program = {
        .examples = "exfold-solve recipe.yaml --set calibrate.clip=none --force\n"
                    "exfold-solve --output out statistics.h5 --set pools=8,4",
        .name = "exfold-solve",
        .arguments = "[RECIPE.yaml] [STATISTICS.h5]",
        .about = "Solves the closed forms over statistics (default: statistics.h5 in the output\n"
                 "directory) and writes tables.h5 there.",
        .wants_recipe = 1, .max_inputs = 1,
        .rows = rows, .n_rows = sizeof rows / sizeof *rows,
        .run = exf_stage_solve,
    };
    return exf_program_main(&program, argc, argv);
}
