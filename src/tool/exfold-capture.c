/* exfold-capture - recipe in, routed expert outputs of chosen layers out. */
#include "tool/program.h"
#include "tool/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "layers", 'l', EXF_OPT_TEXT, offsetof(exf_recipe, layers), "all", "LIST", "Run",
     "MoE layers to capture: all, or numbers like 0,3,8-11"},
    {NULL, "export", 'x', EXF_OPT_TEXT, offsetof(exf_recipe, export_path), NULL, "FILE", "Run",
     "write one .safetensors with all that a layer shows, instead of capture.h5"},
    {NULL, "logits", 0, EXF_OPT_FLAG, offsetof(exf_recipe, logits), "false", NULL, "Run", "with --export: the model's logits too"},
    {NULL, "moe-inputs", 'i', EXF_OPT_TEXT, offsetof(exf_recipe, moe_inputs), NULL, "FILE", "Run",
     "hidden states recorded elsewhere (.safetensors) instead of the recipe's corpus; only routers and experts are read"},
    {NULL, "pin-manifest", 0, EXF_OPT_FLAG, offsetof(exf_recipe, pin_manifest), "false", NULL, "Run",
     "write the checksums of the corpus' files into the manifest, where it says sha256: unpinned, and do nothing else"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
    {NULL, "dry-run", 'n', EXF_OPT_FLAG, offsetof(exf_recipe, dry_run), "false", NULL, "Run",
     "check everything, print the plan (time, memory, disk), write nothing"},
};

int main(int argc, char **argv)
{
    static const exf_program program = {
        .examples = "exfold-capture recipe.yaml --layers 0,3,8-11\n"
                    "exfold-capture recipe.yaml --export layers.safetensors --logits\n"
                    "exfold-capture recipe.yaml --pin-manifest    # checksums into the manifest",
        .name = "exfold-capture",
        .arguments = "RECIPE.yaml",
        .about = "Runs the recipe's model over its corpus and writes what the experts of the chosen\n"
                 "layers gave to capture.h5 in its output directory, for exfold-accumulate.",
        .wants_recipe = 1, .needs_recipe = 1,
        .rows = rows, .n_rows = sizeof rows / sizeof *rows,
        .run = exf_stage_capture,
    };
    return exf_program_main(&program, argc, argv);
}
