/* check_opt_words.c - base/opt: lists of words, whose options may hold commas. */
#include "tests/support/fixtures.h"

#include "base/opt.h"

#include <string.h>

typedef struct {
    exf_text_list variants, limits, unset;
} demo;

static const exf_opt table[] = {
    {"validate.variants", "variants", 'v', EXF_OPT_WORD_LIST, offsetof(demo, variants), "P4 D8:rank=energy,fold=drop", NULL,
     "Validation", "ways to run"},
    {"validate.limits", "limits", 0, EXF_OPT_WORD_LIST, offsetof(demo, limits), "[]", "\"X ...\"", "Validation", "limits"},
    {"validate.unset", NULL, 0, EXF_OPT_WORD_LIST, offsetof(demo, unset), NULL, NULL, "Validation", "nothing yet"},
};
enum { ROWS = sizeof table / sizeof *table };

static demo d;

static exf_opts *fresh(void)
{
    exf_err e;
    exf_opts *o;
    memset(&d, 0x5a, sizeof d);
    ck_ok(exf_opts_new(&o, table, ROWS, &d, &e), e);
    return o;
}

static exf_code set(exf_opts *o, const char *text, exf_err *e)
{
    return exf_opts_set(o, EXF_OPT_BY_RECIPE, "validate.variants", text, "demo.yaml:12", e);
}

/* `text` is n words and prints as `value`, which reads back as the same. */
static void good(const char *text, size_t n, const char *value)
{
    exf_err e;
    exf_opts *o = fresh();
    exf_text shown = {0};
    ck_ok(set(o, text, &e), e);
    ck_assert_uint_eq(d.variants.n, n);
    ck_ok(exf_opts_value(o, 0, &shown, &e), e);
    ck_assert_str_eq(shown.s, value);
    ck_ok(exf_opts_set(o, EXF_OPT_BY_ARGV, "validate.variants", shown.s, "again", &e), e);
    ck_assert_uint_eq(d.variants.n, n);
    shown.len = 0;
    ck_ok(exf_opts_value(o, 0, &shown, &e), e);
    ck_assert_str_eq(shown.s, value);
    exf_text_free(&shown);
    exf_opts_free(o);
}

static void bad(const char *text, const char *message)
{
    exf_err e;
    exf_opts *o = fresh();
    demo before = d;
    ck_assert_int_eq(set(o, text, &e), EXF_USAGE);
    ck_assert_str_eq(e.msg, message);
    ck_assert_mem_eq(&before, &d, sizeof d);
    ck_assert_int_eq(set(o, text, NULL), EXF_USAGE);
    exf_opts_free(o);
}

START_TEST(defaults)
{
    exf_opts *o = fresh();
    ck_assert(d.variants.n == 2 && strcmp(d.variants.item[0], "P4") == 0 &&
              strcmp(d.variants.item[1], "D8:rank=energy,fold=drop") == 0);
    ck_assert(d.limits.n == 0 && d.unset.n == 0 && d.unset.item == NULL);
    exf_opts_free(o);
    ck_assert_ptr_null(d.variants.item);
}
END_TEST

START_TEST(good_texts)
{
    good("P4", 1, "P4");
    good("P4 D8", 2, "P4 D8");
    good("  P4 \t D8\n top2:drop  ", 3, "P4 D8 top2:drop");
    good("P4,D8", 2, "P4 D8");
    good("P4, D8:fold=drop,rank=norm, P4+D8", 3, "P4 D8:fold=drop,rank=norm P4+D8");
    good("kl=0.2,ppl=7 , P4:kl=1", 3, "kl=0.2 ppl=7 P4:kl=1");
    good("[P4 D8:fold=drop,rank=energy]", 2, "P4 D8:fold=drop,rank=energy");
    good(" [ P4 ] ", 1, "P4");
    good("[]", 0, "[]");
    good(" [ \t ] ", 0, "[]");
    good("name[part] x]", 2, "name[part] x]");
    good("caf\xc3\xa9 'quoted'", 2, "caf\xc3\xa9 'quoted'");
}
END_TEST

START_TEST(bad_texts)
{
    bad("", "demo.yaml:12: validate.variants: an item of the list is empty; the empty list is []");
    bad("   ", "demo.yaml:12: validate.variants: an item of the list is empty; the empty list is []");
    bad(",", "demo.yaml:12: validate.variants: an item of the list is empty; the empty list is []");
    bad("P4,,D8", "demo.yaml:12: validate.variants: an item of the list is empty; the empty list is []");
    bad("P4:rank=score,", "demo.yaml:12: validate.variants: an item of the list is empty; the empty list is []");
    bad("[P4 D8", "demo.yaml:12: validate.variants: \"[P4 D8\" has no closing bracket");
    bad("[", "demo.yaml:12: validate.variants: \"[\" has no closing bracket");
    bad("P4 [D8]", "demo.yaml:12: validate.variants: \"[D8]\" is a list inside a list");
    bad("[P4 [D8]]", "demo.yaml:12: validate.variants: \"[D8]\" is a list inside a list");
}
END_TEST

static exf_code set_items(exf_opts *o, const char *const *item, size_t n, exf_err *e)
{
    return exf_opts_set_list(o, EXF_OPT_BY_RECIPE, "validate.limits", item, n, "demo.yaml:3", e);
}

static void bad_item(const char *item, const char *message)
{
    exf_err e;
    exf_opts *o = fresh();
    const char *const items[] = {"fine", item};
    ck_assert_msg(set_items(o, items, 2, &e) == EXF_USAGE, "\"%s\" is taken", item);
    ck_assert_str_eq(e.msg, message);
    ck_assert_uint_eq(d.limits.n, 0);
    exf_opts_free(o);
}

START_TEST(items_that_stand_apart)
{
    static const char *const items[] = {"P4:rank=score,max_loss=0.9", " D8 ", "kl=0.2"};
    exf_err e;
    exf_opts *o = fresh();
    exf_text shown = {0};
    ck_ok(set_items(o, items, 3, &e), e);
    ck_assert(d.limits.n == 3 && strcmp(d.limits.item[0], items[0]) == 0 && strcmp(d.limits.item[1], "D8") == 0);
    ck_ok(exf_opts_value(o, 1, &shown, &e), e);
    ck_assert_str_eq(shown.s, "P4:rank=score,max_loss=0.9 D8 kl=0.2");
    ck_fails(set_items(o, items, 1, &e), EXF_USAGE, e, "demo.yaml:3 validate.limits");
    exf_opts_free(o);
    exf_text_free(&shown);
    o = fresh();
    ck_ok(set_items(o, NULL, 0, &e), e);
    ck_assert_uint_eq(d.limits.n, 0);
    exf_opts_free(o);
    bad_item("a b", "demo.yaml:3: validate.limits: \"a b\" has a blank, which separates items");
    bad_item("P4,D8", "demo.yaml:3: validate.limits: \"P4,D8\" has a comma, which separates items");
    bad_item("", "demo.yaml:3: validate.limits: an item of the list is empty; the empty list is []");
    bad_item("  ", "demo.yaml:3: validate.limits: an item of the list is empty; the empty list is []");
    bad_item("[x]", "demo.yaml:3: validate.limits: \"[x]\" is a list inside a list");
}
END_TEST

START_TEST(command_line)
{
    static char set_[] = "--set", pair[] = "validate.limits=kl=0.2 P4:ppl=7", flag[] = "--variants=P1 D4:fold=drop,rank=norm",
                name[] = "program";
    static char letter[] = "-v", words[] = "P2 P3", again[] = "--variants", none[] = "[]";
    char *argv[] = {name, set_, pair, flag}, *twice[] = {name, letter, words, again, none};
    const char *positional[5];
    size_t n;
    exf_err e;
    exf_opts *o = fresh();
    ck_ok(exf_opts_argv(o, 4, argv, positional, &n, &e), e);
    ck_assert(d.variants.n == 2 && strcmp(d.variants.item[1], "D4:fold=drop,rank=norm") == 0);
    ck_assert(d.limits.n == 2 && strcmp(d.limits.item[0], "kl=0.2") == 0 && strcmp(d.limits.item[1], "P4:ppl=7") == 0);
    ck_ok(set(o, "P9", &e), e); /* outranked */
    ck_assert_uint_eq(d.variants.n, 2);
    ck_fails(set(o, "[P9", &e), EXF_USAGE, e, "demo.yaml:12 validate.variants");
    exf_opts_free(o);
    o = fresh();
    ck_fails(exf_opts_argv(o, 5, twice, positional, &n, &e), EXF_USAGE, e, "--variants -v");
    exf_opts_free(o);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, defaults);
    tcase_add_test(t, good_texts);
    tcase_add_test(t, bad_texts);
    tcase_add_test(t, items_that_stand_apart);
    tcase_add_test(t, command_line);
}
