/* fuzz_recipe.c - libFuzzer target: any bytes are read as a recipe into the table of
 * options and checked across keys, or refused once with a message.  What was read is
 * told as a recipe that, read in turn, tells the same.
 *   make fuzz FUZZ=recipe SECONDS=60 */
#include "base/mem.h"
#include "tests/fuzz/scratch.h"
#include "recipe/recipe.h"

static exf_opt rows[96];
static size_t n_rows;

static void join_rows(void)
{
    size_t n_common, n_keys;
    const exf_opt *common = exf_recipe_global_rows(&n_common), *keys = exf_recipe_key_rows(&n_keys);
    n_rows = n_common + n_keys;
    must(n_rows <= sizeof rows / sizeof *rows);
    memcpy(rows, common, n_common * sizeof *rows);
    memcpy(rows + n_common, keys, n_keys * sizeof *rows);
}

static void refused_well(exf_code rc, const exf_err *err)
{
    must(rc == EXF_OK || ((rc == EXF_USAGE || rc == EXF_FORMAT) && err->code == rc && err->msg[0]));
}

static void check(const exf_recipe *r)
{
    exf_err err = {EXF_OK, ""};
    exf_solve_options solve;
    exf_accumulate_options accumulate;
    refused_well(exf_recipe_check_data(r, &err), &err);
    refused_well(exf_recipe_check_model(r, &err), &err);
    refused_well(exf_recipe_check_output(r, &err), &err);
    refused_well(exf_recipe_check_targets(r, &err), &err);
    exf_code rc = exf_recipe_solve_options(r, &solve, &err);
    refused_well(rc, &err);
    if (rc == EXF_OK) refused_well(exf_recipe_check_shape(r, &(exf_run_shape){128, 8, 2048, 1, 1}, &err), &err);
    refused_well(exf_recipe_accumulate_options(r, &accumulate, &err), &err);
}

/* The recipe's resolved text, NULL where it is refused. */
static char *read_recipe(const void *bytes, size_t size, exf_err *err)
{
    exf_recipe r = {0};
    exf_text text = {0};
    const char *path = put_input("r.yaml", bytes, size);
    must(exf_opts_new(&r.opts, rows, n_rows, &r, err) == EXF_OK);
    r.recipe_file = path;
    exf_code rc = exf_recipe_read(&r, path, err);
    refused_well(rc, err);
    if (rc == EXF_OK) {
        check(&r);
        must(exf_recipe_text(&r, scratch_dir, &text, err) == EXF_OK && text.s);
    }
    exf_recipe_free(&r);
    return text.s;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_err err = {EXF_OK, ""};
    if (!n_rows) join_rows();
    char *told = read_recipe(bytes, size, &err);
    if (!told) return 0;
    char *again = read_recipe(told, strlen(told), &err);
    if (!again || strcmp(told, again) != 0) {
        fprintf(stderr, "told:\n%s\nread again (%s):\n%s\n", told, err.msg, again ? again : "");
        abort();
    }
    exf_mem_free(told);
    exf_mem_free(again);
    return 0;
}
