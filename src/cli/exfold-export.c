/* exfold-export - tables in, files for runtimes out. */
#include "cli/program.h"
#include "run/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
};

const exf_program exf_program_export = {
    .name = "exfold-export",
    .arguments = "[RECIPE.yaml] [TABLES.h5]",
    .group = "steps",
    .brief = "tables to files for runtimes",
    .about = "Writes tables (default: tables.h5 in the output directory) in the formats of\n"
             "output.targets, a file or a folder each, to the output directory.",
    .examples = "exfold-export recipe.yaml    # tables.h5 of the output directory\n"
                "exfold-export --output out out/tables.h5 --set output.targets=safetensors\n"
                "exfold-export --model models/Qwen3-30B-A3B --output out out/tables.h5 --set output.targets=reap-checkpoint \\\n"
                "    --set export.experts=96   # a checkpoint with 96 of 128 experts",
    .keys = "model coverage output serve export card",
    .max_inputs = 1,
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .run = exf_stage_export,
};
