/* check_opt_hint.c - base/opt: what is said of an option or a key that is not taken. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "base/opt.h"

#include <string.h>

typedef struct {
    char *path;
    int64_t longest, longest_check, shortest, seed;
    int where, force;
} demo;

#define AT(field) offsetof(demo, field)
static const exf_opt table[] = {
    {"model.path", "model", 'm', EXF_OPT_TEXT, AT(path), NULL, "DIR", "Model", "checkpoint"},
    {"data.max_tokens", NULL, 0, EXF_OPT_INT, AT(longest), "8", "1..", "Data", "longest"},
    {"data.min_tokens", NULL, 0, EXF_OPT_INT, AT(shortest), "1", "1..", "Data", "shortest"},
    {"data.seed", NULL, 0, EXF_OPT_INT, AT(seed), "1", "1..", "Data", "seed"},
    {"check.max_tokens", NULL, 0, EXF_OPT_INT, AT(longest_check), "8", "1..", "Check", "longest"},
    {"run.where", "where", 'w', EXF_OPT_CHOICE, AT(where), "here", "here|there", "Run", "where it runs"},
    {NULL, "force", 'f', EXF_OPT_FLAG, AT(force), "false", NULL, "Run", "replace"},
};
enum { ROWS = sizeof table / sizeof table[0] };

static demo d;

/* The command line takes no key of run, and none of check; others take where and run.where. */
static int takes(const void *self, const exf_opt *row)
{
    ck_assert_ptr_eq(self, &d);
    return !row->key || (!exf_starts_with(row->key, "run.") && !exf_starts_with(row->key, "check."));
}

static exf_code others(const char *option, exf_text *out, exf_err *err)
{
    int known = strcmp(option, "--where") == 0 || strcmp(option, "-w") == 0 || strcmp(option, "run.where") == 0 ||
                strcmp(option, "--layers") == 0;
    if (known) exf_text_appendf(out, "a and b");
    return exf_text_end(out, err);
}

static const exf_opt_scope scope = {&d, takes, others};

static exf_opts *fresh(const exf_opt_scope *s)
{
    exf_err e;
    exf_opts *o;
    ck_ok(exf_opts_new(&o, table, ROWS, &d, &e), e);
    exf_opts_limit(o, s);
    return o;
}

static void key_says(const char *key, const char *message)
{
    exf_err e;
    exf_opts *o = fresh(NULL);
    ck_assert_int_eq(exf_opts_set(o, EXF_OPT_BY_RECIPE, key, "1", "r", &e), EXF_USAGE);
    ck_assert_str_eq(e.msg, message);
    exf_opts_free(o);
}

static exf_code give(exf_opts *o, const char *one, const char *two, exf_err *e)
{
    char *argv[] = {(char *)(uintptr_t) "x", (char *)(uintptr_t)one, (char *)(uintptr_t)two};
    const char *positional[3];
    size_t n;
    return exf_opts_argv(o, 3, argv, positional, &n, e);
}

static void argv_says(const exf_opt_scope *s, const char *one, const char *two, const char *message)
{
    exf_err e;
    exf_opts *o = fresh(s);
    ck_assert_int_eq(give(o, one, two, &e), EXF_USAGE);
    ck_assert_str_eq(e.msg, message);
    exf_opts_free(o);
}

START_TEST(a_key_is_matched_by_its_last_part_and_its_section)
{
    key_says("max_tokens", "r: unknown key \"max_tokens\"; did you mean \"data.max_tokens\" or \"check.max_tokens\"?");
    key_says("max_token", "r: unknown key \"max_token\"; did you mean \"data.max_tokens\" or \"check.max_tokens\"?");
    key_says("model.seed", "r: unknown key \"model.seed\"; did you mean \"data.seed\"?");
    key_says("model.tokenizer", "r: unknown key \"model.tokenizer\"; the section's key is model.path");
    key_says("data.quantization",
             "r: unknown key \"data.quantization\"; the section's keys are data.max_tokens, data.min_tokens, data.seed");
    key_says("elsewhere.quantization", "r: unknown key \"elsewhere.quantization\"");
}
END_TEST

START_TEST(a_flag_may_be_the_last_part_of_keys)
{
    argv_says(NULL, "--max-tokens", "3",
              "--max-tokens: unknown option; did you mean --set data.max_tokens=VALUE or --set check.max_tokens=VALUE?");
    argv_says(&scope, "--max-tokens", "3", "--max-tokens: unknown option; did you mean --set data.max_tokens=VALUE?");
    argv_says(NULL, "--path", "x", "--path: unknown option; did you mean --model?");
}
END_TEST

START_TEST(an_option_of_others_names_them)
{
    argv_says(&scope, "--where", "here", "--where: is an option of a and b; this program does not take it");
    argv_says(&scope, "-w", "here", "-w: is an option of a and b; this program does not take it");
    argv_says(&scope, "--layers", "3", "--layers: is an option of a and b; this program does not take it");
    argv_says(&scope, "--set", "run.where=here", "--set run.where: is a key of a and b; this program does not use it");
    argv_says(&scope, "--set", "check.max_tokens=3", "--set check.max_tokens: unknown key; did you mean \"data.max_tokens\"?");
    argv_says(&scope, "--wher", "here", "--wher: unknown option");
}
END_TEST

START_TEST(a_recipe_may_set_what_the_command_line_may_not)
{
    exf_err e;
    exf_opts *o = fresh(&scope);
    ck_ok(exf_opts_set(o, EXF_OPT_BY_RECIPE, "run.where", "there", "r:1", &e), e);
    ck_assert_int_eq(d.where, 1);
    ck_ok(give(o, "--set", "data.seed=7", &e), e);
    ck_assert_int_eq(d.seed, 7);
    exf_opts_free(o);
}
END_TEST

START_TEST(a_place_is_the_one_that_counts)
{
    exf_err e;
    exf_text t = {0};
    exf_opts *o = fresh(NULL);
    static const char *const keys[] = {"data.seed", "data.min_tokens", "model.path", "run.where", "no.such"};
    ck_ok(exf_opts_set(o, EXF_OPT_BY_RECIPE, "data.seed", "3", "r.yaml:4", &e), e);
    ck_ok(exf_opts_set(o, EXF_OPT_BY_RECIPE, "run.where", "here", "r.yaml:5", &e), e);
    ck_ok(give(o, "--set", "data.seed=7", &e), e);
    ck_ok(give(o, "-m", "x", &e), e);
    for (size_t i = 0; i < 5; i++) {
        ck_ok(exf_opts_place(o, keys[i], &t, &e), e);
        exf_text_append(&t, "|", 1);
    }
    ck_assert_str_eq(t.s, "--set data.seed|data.min_tokens|-m|r.yaml:5: run.where|no.such|");
    exf_text_free(&t);
    exf_opts_free(o);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_key_is_matched_by_its_last_part_and_its_section);
    tcase_add_test(t, a_flag_may_be_the_last_part_of_keys);
    tcase_add_test(t, an_option_of_others_names_them);
    tcase_add_test(t, a_recipe_may_set_what_the_command_line_may_not);
    tcase_add_test(t, a_place_is_the_one_that_counts);
}
