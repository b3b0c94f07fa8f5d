/* exfold-accumulate - capture files in, statistics out. */
#include "cli/program.h"
#include "run/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "partial", 0, EXF_OPT_FLAG, offsetof(exf_recipe, partial), "false", NULL, "Run",
     "add up captures of shards though others of their corpus are missing; the statistics say so"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
};

const exf_program exf_program_accumulate = {
    .name = "exfold-accumulate",
    .arguments = "[RECIPE.yaml] [CAPTURE.h5 ...]",
    .group = "steps",
    .brief = "capture files to statistics",
    .about = "Adds up the statistics of capture files (default: capture.h5 in the output\n"
             "directory) into statistics.h5 there.  Several files must hold different data of one model;\n"
             "of the shards of a corpus all are needed.",
    .examples = "exfold-accumulate recipe.yaml    # capture.h5 of the output directory\n"
                "exfold-accumulate --output out out/shard-*-of-3/capture.h5",
    .keys = "calibrate.pairs calibrate.observer_tokens calibrate.weighting calibrate.ridge calibrate.clip "
            "calibrate.projectors calibrate.ranks calibrate.vector_pairs calibrate.samples calibrate.seed "
            "calibrate.norm_head calibrate.route_sample runtime.threads output.directory",
    .max_inputs = 4096,
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .run = exf_stage_accumulate,
};
