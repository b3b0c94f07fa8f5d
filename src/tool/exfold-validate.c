/* exfold-validate - recipe and tables in, the quality of every variant out. */
#include "tool/program.h"
#include "tool/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "frontier", 0, EXF_OPT_FLAG, offsetof(exf_recipe, frontier), "false", NULL, "Run",
     "instead of validate.variants: sweep P and D, show KL over cost, write frontier.svg"},
    {NULL, "json", 0, EXF_OPT_TEXT, offsetof(exf_recipe, json_path), NULL, "FILE", "Run",
     "where the numbers go as JSON, - for standard output; default: validation.json in the output directory"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
    {NULL, "dry-run", 'n', EXF_OPT_FLAG, offsetof(exf_recipe, dry_run), "false", NULL, "Run",
     "check everything, print the plan (time, memory, disk), write nothing"},
};

int main(int argc, char **argv)
{
    static const exf_program program = {
        .examples = "exfold-validate recipe.yaml --variants 'P4 top4:drop D8' --fail-above kl=0.2\n"
                    "exfold-validate recipe.yaml --frontier    # sweep P and D, write frontier.svg",
        .name = "exfold-validate",
        .arguments = "RECIPE.yaml",
        .about = "Runs the model and every variant of validate.variants side by side in one pass over the\n"
                 "weights, and prints perplexity, KL to the original and what each variant runs; writes\n"
                 "validation.json and validation.md to the output directory.",
        .wants_recipe = 1, .needs_recipe = 1,
        .rows = rows, .n_rows = sizeof rows / sizeof *rows,
        .run = exf_stage_validate,
    };
    return exf_program_main(&program, argc, argv);
}
