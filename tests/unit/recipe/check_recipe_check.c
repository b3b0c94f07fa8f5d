/* check_recipe_check.c - recipe/recipe_check: a message names the place that set the value. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "recipe/recipe.h"

#include <string.h>

static exf_err e;
static exf_recipe r;

/* A recipe with pools of a file's line 7 and data.max_tokens of the command line. */
static void set_up(void)
{
    static char set[] = "--set", pair[] = "data.max_tokens=3", name[] = "x";
    static char *argv[] = {name, set, pair};
    const char *positional[3];
    size_t n, n_keys;
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    memset(&r, 0, sizeof r);
    r.recipe_file = "r.yaml";
    ck_ok(exf_opts_new(&r.opts, rows, n_keys, &r, &e), e);
    ck_ok(exf_opts_set(r.opts, EXF_OPT_BY_RECIPE, "pools", "8,8", "r.yaml:7", &e), e);
    ck_ok(exf_opts_set(r.opts, EXF_OPT_BY_RECIPE, "data.min_tokens", "4", "r.yaml:4", &e), e);
    ck_ok(exf_opts_set(r.opts, EXF_OPT_BY_RECIPE, "data.manifest", "m.yaml", "r.yaml:4", &e), e);
    ck_ok(exf_opts_argv(r.opts, 3, argv, positional, &n, &e), e);
}

static void tear_down(void)
{
    exf_recipe_free(&r);
}

START_TEST(the_place_that_set_it_is_blamed)
{
    exf_solve_options o;
    ck_fails(exf_recipe_solve_options(&r, &o, &e), EXF_USAGE, e, "r.yaml:7 8");
    ck_fails(exf_recipe_check_shape(&r, &(exf_run_shape){4, 2, 8, 1, 1}, &e), EXF_USAGE, e, "r.yaml:7 8 4");
    ck_fails(exf_recipe_check_data(&r, &e), EXF_USAGE, e, "--set data.max_tokens 3 data.min_tokens 4");
    ck_fails(exf_recipe_check_model(&r, &e), EXF_USAGE, e, "r.yaml model.path --model DIR");
    r.recipe_file = NULL;
    ck_fails(exf_recipe_check_output(&r, &e), EXF_USAGE, e, "output.directory --output DIR");
}
END_TEST

/* A size alone is a pool by every criterion; of one that is named too there are not two. */
START_TEST(a_size_is_a_pool_by_every_criterion)
{
    static const struct {
        int64_t size;
        const char *by;
        int implied;
    } want[] = {{8, "norm", 1}, {8, "reap", 1}, {8, "energy", 0}, {4, "reap", 0}, {2, "norm", 1}, {2, "reap", 1}, {2, "energy", 1}};
    exf_solve_options o;
    exf_opts_free(r.opts);
    size_t n_keys, n = sizeof want / sizeof *want;
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    memset(&r, 0, sizeof r);
    ck_ok(exf_opts_new(&r.opts, rows, n_keys, &r, &e), e);
    ck_ok(exf_opts_set(r.opts, EXF_OPT_BY_RECIPE, "pools", "8,8:energy,4:reap,2", "r.yaml:7", &e), e);
    ck_ok(exf_recipe_solve_options(&r, &o, &e), e);
    ck_assert_uint_eq(o.n_pools_by, n);
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(o.pool_by[i].size, want[i].size);
        ck_assert_str_eq(o.pool_by[i].by, want[i].by);
        ck_assert_int_eq(o.pool_by[i].implied, want[i].implied);
    }
}
END_TEST

START_TEST(a_message_without_a_key_stays)
{
    ck_assert_int_eq(exf_recipe_blame(&r, exf_fail(&e, EXF_IO, "no colon here"), &e), EXF_IO);
    ck_assert_str_eq(e.msg, "no colon here");
    ck_assert_int_eq(exf_recipe_blame(&r, exf_fail(&e, EXF_IO, "what: else"), &e), EXF_IO);
    ck_assert_str_eq(e.msg, "what: else");
    ck_assert_int_eq(exf_recipe_blame(&r, exf_fail(&e, EXF_DEVICE, "calibrate.ridge: by default"), &e), EXF_DEVICE);
    ck_assert_str_eq(e.msg, "calibrate.ridge: by default");
    ck_assert_int_eq(exf_recipe_blame(&r, EXF_OK, &e), EXF_OK);
    ck_assert_int_eq(exf_recipe_blame(&r, EXF_IO, NULL), EXF_IO);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, the_place_that_set_it_is_blamed);
    tcase_add_test(t, a_size_is_a_pool_by_every_criterion);
    tcase_add_test(t, a_message_without_a_key_stays);
}
