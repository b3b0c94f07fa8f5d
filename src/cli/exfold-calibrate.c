/* exfold-calibrate - recipe in, statistics, tables and exports out. */
#include "cli/program.h"
#include "recipe/recipe.h"
#include "run/stage.h"

#include <stddef.h>
#include <stdio.h>

static const exf_opt rows[] = {
    {NULL, "text", 0, EXF_OPT_FILES, offsetof(exf_recipe, texts), NULL, "FILE", "Run",
     "file or directory of texts to calibrate on, - for a pipe; plain text, JSON lines, conversations or token ids, also .gz "
     "and .zst; in place of a recipe's corpus; further arguments are texts too"},
    {NULL, "text-field", 0, EXF_OPT_TEXT, offsetof(exf_recipe, text_field), NULL, "NAME", "Run",
     "member or tensor that holds the text; a+b: members that are joined; default: those by which data sets are known, the only "
     "tensor of integers"},
    {NULL, "show-text", 0, EXF_OPT_INT, offsetof(exf_recipe, show_text), "0", "0..1000000", "Run",
     "print the first samples as they will be run, and do nothing else; domain, text of the ids, the ids, what goes before a "
     "document, and what of the text is left out"},
    {NULL, "ids", 0, EXF_OPT_TEXT, offsetof(exf_recipe, ids_path), NULL, "FILE", "Run",
     "write the samples' token ids, do nothing else; a .safetensors file, for exfold_record: of the model only the tokenizer is "
     "read, so that any family will do"},
    {NULL, "init", 0, EXF_OPT_TEXT, offsetof(exf_recipe, init_path), NULL, "FILE", "Run",
     "write a recipe to edit, and its manifest; for --model and --text, or a released model's own data; and do nothing else"},
    {NULL, "shard", 0, EXF_OPT_TEXT, offsetof(exf_recipe, shard_text), NULL, "I/N", "Run",
     "only the statistics of shard I; of N that divide the data by tokens: to shard-I-of-N of the output directory; "
     "exfold-merge adds them up, exfold-solve makes the tables"},
    {NULL, "force", 'f', EXF_OPT_FLAG, offsetof(exf_recipe, force), "false", NULL, "Run", "replace outputs that exist"},
    {NULL, "dry-run", 'n', EXF_OPT_FLAG, offsetof(exf_recipe, dry_run), "false", NULL, "Run",
     "check everything and print the plan; of time, memory and disk; write nothing"},
    {NULL, "json", 0, EXF_OPT_TEXT, offsetof(exf_recipe, json_path), NULL, "FILE", "Run",
     "with --dry-run, write the plan as JSON; to FILE, - for standard output"},
    {NULL, "ranks", 0, EXF_OPT_INT, offsetof(exf_recipe, plan_ranks), "0", "0..1048576", "Run",
     "with --dry-run, predict the time on so many ranks; by what was measured here: a rank is a GPU, or a share of a node's cores"},
    {NULL, "nodes", 0, EXF_OPT_INT, offsetof(exf_recipe, plan_nodes), "0", "0..1048576", "Run",
     "with --ranks, how many nodes they are on; 0: one"},
    {NULL, "rates", 0, EXF_OPT_TEXT_LIST, offsetof(exf_recipe, plan_rates), "[]", "LIST", "Run",
     "with --ranks, rates in place of measured ones; compute=X FLOP/s of a rank, read=X bytes/s of a node, copy=X bytes/s to a "
     "GPU, network=X bytes/s of a node (else 12.5G is assumed), write=X bytes/s to a file (else 1.25G), such as "
     "compute=400T,read=50G"},
    {NULL, "list-inputs", 0, EXF_OPT_FLAG, offsetof(exf_recipe, list_inputs), "false", NULL, "Run",
     "print the SHA-256 of every file that a run reads; of its validation's too, and do nothing else"},
};

static exf_code run_calibrate(exf_recipe *r, exf_err *err)
{
    exf_text inputs = {0};
    if (r->init_path) return exf_init_recipe(r, err);
    if (!r->list_inputs) return exf_stage_calibrate(r, err);
    exf_code rc = exf_inputs_text(r, &inputs, err);
    if (rc == EXF_OK) fputs(inputs.s, stdout);
    exf_text_free(&inputs);
    return rc;
}

const exf_program exf_program_calibrate = {
    .name = "exfold-calibrate",
    .arguments = "RECIPE | --model DIR --text FILE -o DIR",
    .group = "make",
    .brief = "recipe to statistics, tables and exports",
    .about = "Runs the recipe's model over its corpus, one layer at a time, and writes\n"
             "statistics.h5, tables.h5 and one file per export target to its output directory.",
    .examples = "exfold-calibrate --model DIR --text texts -o out    # no recipe\n"
                "exfold-calibrate recipes/demo.yaml --dry-run    # time, memory and disk\n"
                "exfold-calibrate recipe.yaml --dry-run --ranks 64 --nodes 8    # predicted time\n"
                "exfold-calibrate --init recipe.yaml --model DIR --text texts    # a recipe to edit\n"
                "exfold-calibrate recipes/demo.yaml --output out/demo --force\n"
                "exfold-calibrate recipe.yaml --shard 2/8    # out/shard-2-of-8/statistics.h5\n"
                "exfold-calibrate recipe.yaml --set calibrate.ridge=1e-2 --backend cuda",
    .keys = "model.path data calibrate coverage pools budgets budget_rules runtime output serve export card validate.manifest",
    .needs_recipe = 1,
    .takes_ranks = 1,
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .run = run_calibrate,
};
