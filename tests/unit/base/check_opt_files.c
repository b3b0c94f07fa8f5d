/* check_opt_files.c - base/opt: a flag that is given several times and adds a file each time. */
#include "tests/support/fixtures.h"

#include "base/opt.h"

#include <string.h>

typedef struct {
    exf_text_list files;
} demo;

static const exf_opt table[] = {
    {NULL, "text", 't', EXF_OPT_FILES, offsetof(demo, files), NULL, "FILE", "Data", "files of text"},
};

static demo d;

/* Reads argv [n] after the program's name. */
static exf_code read_argv(exf_opts **o, int n, const char *const *arg, exf_err *e)
{
    char room[8][64] = {"program"}, *argv[8] = {room[0]};
    const char *positional[8];
    size_t n_positional;
    for (int i = 0; i < n; i++) argv[i + 1] = strcpy(room[i + 1], arg[i]);
    exf_code rc = exf_opts_new(o, table, 1, &d, e);
    return rc == EXF_OK ? exf_opts_argv(*o, n + 1, argv, positional, &n_positional, e) : rc;
}

START_TEST(each_adds_one)
{
    static const char *const arg[] = {"--text", "a, b.txt", "-t", "[c]", "--text= d", "--text", "a, b.txt"};
    exf_err e;
    exf_opts *o;
    exf_text shown = {0};
    ck_ok(read_argv(&o, 7, arg, &e), e);
    ck_assert_uint_eq(d.files.n, 4);
    ck_assert_str_eq(d.files.item[0], "a, b.txt");
    ck_assert_str_eq(d.files.item[1], "[c]");
    ck_assert_str_eq(d.files.item[2], " d");
    ck_assert_str_eq(d.files.item[3], "a, b.txt");
    ck_ok(exf_opts_value(o, 0, &shown, &e), e);
    ck_assert_str_eq(shown.s, "a, b.txt [c]  d a, b.txt");
    ck_assert(exf_opts_given(o, "text", EXF_OPT_BY_ARGV));
    exf_text_free(&shown);
    exf_opts_free(o);
}
END_TEST

START_TEST(none_is_none)
{
    exf_err e;
    exf_opts *o;
    ck_ok(read_argv(&o, 0, NULL, &e), e);
    ck_assert_uint_eq(d.files.n, 0);
    ck_assert(!exf_opts_given(o, "text", EXF_OPT_BY_ARGV));
    exf_opts_free(o);
}
END_TEST

START_TEST(what_is_refused)
{
    static const char *const empty[] = {"--text="}, *const missing[] = {"--text"};
    static const exf_opt keyed = {"data.text", "text", 0, EXF_OPT_FILES, 0, NULL, "FILE", "Data", "files"};
    exf_err e;
    exf_opts *o;
    ck_fails(read_argv(&o, 1, empty, &e), EXF_USAGE, e, "--text");
    exf_opts_free(o);
    ck_fails(read_argv(&o, 1, missing, &e), EXF_USAGE, e, "--text");
    exf_opts_free(o);
    ck_fails(exf_opts_new(&o, &keyed, 1, &d, &e), EXF_INTERNAL, e, "data.text");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, each_adds_one);
    tcase_add_test(t, none_is_none);
    tcase_add_test(t, what_is_refused);
}
