/* exfold-capture - recipe in, routed expert outputs of chosen layers out. */
#include "cli/program.h"
#include "run/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "layers", 'l', EXF_OPT_TEXT, offsetof(exf_recipe, layers), "all", "LIST", "Run",
     "MoE layers to capture; all, or numbers like 0,3,8-11"},
    {NULL, "export", 'x', EXF_OPT_TEXT, offsetof(exf_recipe, export_path), NULL, "FILE", "Run",
     "write one .safetensors with all that a layer shows; instead of capture.h5"},
    {NULL, "logits", 0, EXF_OPT_FLAG, offsetof(exf_recipe, logits), "false", NULL, "Run", "with --export: the model's logits too"},
    {NULL, "shard", 0, EXF_OPT_TEXT, offsetof(exf_recipe, shard_text), NULL, "I/N", "Run",
     "only shard I of the data; of N that divide it by tokens: to shard-I-of-N of the output directory; exfold-accumulate "
     "takes all N captures"},
    {NULL, "pin-manifest", 0, EXF_OPT_FLAG, offsetof(exf_recipe, pin_manifest), "false", NULL, "Run",
     "write the checksums of the corpus' unpinned files into the manifest; and do nothing else"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
    {NULL, "dry-run", 'n', EXF_OPT_FLAG, offsetof(exf_recipe, dry_run), "false", NULL, "Run",
     "check everything and print the plan; of time, memory and disk; write nothing"},
    {NULL, "json", 0, EXF_OPT_TEXT, offsetof(exf_recipe, json_path), NULL, "FILE", "Run",
     "with --dry-run, write the plan as JSON; to FILE, - for standard output"},
};

const exf_program exf_program_capture = {
    .name = "exfold-capture",
    .arguments = "RECIPE.yaml",
    .group = "steps",
    .brief = "recipe to the routed outputs of chosen layers' experts",
    .about = "Runs the recipe's model over its corpus and writes what the experts of the chosen\n"
             "layers gave to capture.h5 in its output directory, for exfold-accumulate.",
    .examples = "exfold-capture recipe.yaml --layers 0,3,8-11\n"
                "exfold-capture recipe.yaml --export layers.safetensors --logits\n"
                "exfold-capture recipe.yaml --pin-manifest    # checksums into the manifest",
    .keys = "model.path data runtime output.directory",
    .needs_recipe = 1,
    .takes_ranks = 1,
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .run = exf_stage_capture,
};
