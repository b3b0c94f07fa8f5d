/* exfold-merge - statistics of different data in, their sum out. */
#include "cli/program.h"
#include "run/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "output", 'o', EXF_OPT_TEXT, offsetof(exf_recipe, export_path), NULL, "FILE", "Run", "statistics file to write"},
    {NULL, "partial", 0, EXF_OPT_FLAG, offsetof(exf_recipe, partial), "false", NULL, "Run",
     "add up shards of a corpus though some are missing; the rest can be added later, and exfold-solve --partial makes tables "
     "of what is there"},
    {NULL, "accept", 0, EXF_OPT_CHOICE, offsetof(exf_recipe, accept), "nothing", "nothing|other-weights", "Run",
     "what may be that is refused otherwise; other-weights: digests of weights that differ, as those of a checkpoint do that was "
     "saved anew in other types; the architecture must be the same, and the sum says which parts"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
};

const exf_program exf_program_merge = {
    .name = "exfold-merge",
    .arguments = "STATISTICS.h5 ... -o OUT.h5",
    .group = "steps",
    .brief = "statistics of different data to their sum",
    .about = "Adds up statistics of different data, made with one model and one set of options: the\n"
             "same sums, and the same digest, as one run over all of the data.",
    .examples = "exfold-merge monday/statistics.h5 tuesday/statistics.h5 -o statistics.h5\n"
                "exfold-merge out/shard-*/statistics.h5 -o out/statistics.h5    # of --shard",
    .min_inputs = 1, .max_inputs = 4096,
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .run = exf_stage_merge,
};
