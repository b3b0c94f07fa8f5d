/* check_terminal.c - what exfold-inspect prints of a file whose facts hold what a terminal would obey. */
#include "tests/support/inspection_fixtures.h"

#include "base/err.h"
#include "base/mem.h"
#include "cli/inspect.h"

#include <stdio.h>
#include <unistd.h>

#define HOSTILE "a\033[2Jb\x7f\xc2\x9b" "31m\nc\xe2\x80\xae" "d\xe2\x80\xa8\xc3\xa9"
#define SHOWN "a?[2Jb???31m?c???d???\xc3\xa9"

START_TEST(only_what_may_be_shown)
{
    char text[] = HOSTILE "\xff\xc3";
    exf_err err;
    exf_make_printable(text);
    ck_assert_str_eq(text, SHOWN "??");
    ck_assert_uint_eq(exf_printable_bytes("\xf0\x9f\x98\x80"), 4);
    ck_assert_uint_eq(exf_printable_bytes("\xed\xa0\x80"), 0);
    ck_assert_uint_eq(exf_printable_bytes("\xc2\xa0"), 2);
    ck_assert_int_eq(exf_fail(&err, EXF_MODEL, "%s", HOSTILE), EXF_MODEL);
    ck_assert_str_eq(err.msg, SHOWN);
}
END_TEST

/* What a command prints for the file t.h5, from the place where `key` stands. */
static const char *printed(exf_code (*command)(exf_recipe *, exf_err *), const char *second, int json, const char *key)
{
    static char text[1 << 16];
    char first[600], other[600];
    exf_err e;
    snprintf(first, sizeof first, "%s", exf_scratch("t.h5"));
    snprintf(other, sizeof other, "%s", exf_scratch(second));
    const char *paths[] = {first, other};
    exf_recipe r = {.inputs = paths, .n_inputs = command == exf_inspect_diff ? 2 : 1, .json = json};
    int kept = dup(STDOUT_FILENO);
    fflush(stdout);
    ck_assert_ptr_nonnull(freopen(exf_scratch("printed"), "w", stdout));
    exf_code rc = command(&r, &e);
    fflush(stdout);
    ck_assert_int_ge(dup2(kept, STDOUT_FILENO), 0);
    close(kept);
    ck_ok(rc, e);
    FILE *f = fopen(exf_scratch("printed"), "r");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    const char *at = strstr(text, key);
    ck_assert_msg(at != NULL, "no %s in: %s", key, text);
    ck_assert_ptr_null(memchr(text, '\033', strlen(text)));
    return at;
}

START_TEST(facts_of_a_file_are_printable)
{
    small_run run = {.l = 2, .e = 5, .k = 2, .n = 60};
    exf_err e;
    exf_tables t;
    small_files(&run, "s.h5", "u.h5");
    ck_ok(exf_tables_read(&t, exf_scratch("u.h5"), &e), e);
    add_fact(&t.provenance, "zz.note", HOSTILE);
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    exf_tables_free(&t);
    const char *line = printed(exf_inspect_summary, "t.h5", 0, "zz.note");
    ck_assert_ptr_nonnull(strstr(line, SHOWN "\n"));
    line = printed(exf_inspect_diff, "u.h5", 0, "zz.note");
    ck_assert_ptr_nonnull(strstr(line, SHOWN " -> (none)\n"));
    line = printed(exf_inspect_summary, "t.h5", 1, "zz.note");
    ck_assert_ptr_nonnull(strstr(line, "\"a\\u001B[2Jb"));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, only_what_may_be_shown);
    tcase_add_test(t, facts_of_a_file_are_printable);
}
