/* exfold-validate - recipe and tables in, the quality of every variant out. */
#include "cli/program.h"
#include "run/stage.h"

#include <stddef.h>

static const exf_opt rows[] = {
    {NULL, "text", 0, EXF_OPT_FILES, offsetof(exf_recipe, texts), NULL, "FILE", "Run",
     "texts to validate on; files, directories or - for a pipe, of plain text, JSON lines, conversations or token ids, also .gz "
     "and .zst, in place of a recipe's corpus; further arguments are texts too"},
    {NULL, "text-field", 0, EXF_OPT_TEXT, offsetof(exf_recipe, text_field), NULL, "NAME", "Run",
     "member or tensor that holds the text; a+b: members that are joined; default: those by which data sets are known, the only "
     "tensor of integers"},
    {NULL, "frontier", 0, EXF_OPT_FLAG, offsetof(exf_recipe, frontier), "false", NULL, "Run",
     "sweep P and D; instead of validate.variants: mark what is worth its cost, write frontier.json, .md and .svg"},
    {NULL, "sensitivities", 0, EXF_OPT_FLAG, offsetof(exf_recipe, wants_sensitivities), "false", NULL, "Run",
     "fold each layer alone; instead of validate.variants: what K/2 experts per token there do to the model, or, with --set "
     "budget_rules=skip, what leaving out its routed experts does; write sensitivities.json, from which exfold-solve "
     "--sensitivities solves budgets, and .md"},
    {NULL, "json", 0, EXF_OPT_TEXT, offsetof(exf_recipe, json_path), NULL, "FILE", "Run",
     "where the numbers go as JSON; - for standard output, default: validation.json in the output directory, "
     "of --frontier frontier.json; with --dry-run: where the plan goes"},
    {NULL, "picture", 0, EXF_OPT_TEXT, offsetof(exf_recipe, picture_path), NULL, "FILE", "Run",
     "where the frontier's picture goes; .png, .svg or .pdf, default: frontier.svg in the output directory"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
    {NULL, "dry-run", 'n', EXF_OPT_FLAG, offsetof(exf_recipe, dry_run), "false", NULL, "Run",
     "check everything and print the plan; of time, memory and disk; write nothing"},
    {NULL, "ranks", 0, EXF_OPT_INT, offsetof(exf_recipe, plan_ranks), "0", "0..1048576", "Run",
     "with --dry-run, predict the time on so many ranks; they are of one node; by what was measured here"},
};

const exf_program exf_program_validate = {
    .name = "exfold-validate",
    .arguments = "RECIPE | --model DIR --text FILE -o DIR",
    .group = "check",
    .brief = "what tables do to the model: perplexity and KL of every variant",
    .about = "Runs the model and every variant of it in one pass over the weights; prints what\n"
             "the tables gain and what is worth its cost, writes validation.json and .md.",
    .examples = "exfold-validate --model DIR --text held-out.txt --tables out/tables.h5\n"
                "exfold-validate recipe.yaml --variants 'P4 top4:drop D8' --fail-above kl=0.2\n"
                "exfold-validate recipe.yaml --limit kl=0.05 --gpu H200    # sweep P and D, recommend a pair",
    .keys = "model data.max_tokens data.min_tokens data.seed data.bos runtime output.directory serve.runtime validate "
            "budget_rules",
    .needs_recipe = 1,
    .takes_ranks = 1,
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .run = exf_stage_validate,
};
