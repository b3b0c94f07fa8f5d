/* check_opt_table.c - base/opt: tables with a mistake in them, and help of unusual shape. */
#include "tests/support/fixtures.h"

#include "base/opt.h"

#include <string.h>

START_TEST(a_table_with_a_mistake_is_internal)
{
    static const struct { exf_opt a, b; const char *message; } wrong[] = {
        {{.key = "k", .type = EXF_OPT_INT, .fallback = "x"}, {.key = "z"},
         "option table: default of k: \"x\" is no 64-bit integer"},
        {{.key = "k", .type = EXF_OPT_INT, .fallback = "0", .values = "1.."}, {.key = "z"},
         "option table: default of k: 0 is out of range, expected at least 1"},
        {{.type = EXF_OPT_INT}, {.key = "z"}, "option table: ? has neither key nor flag"},
        {{.key = "k", .letter = 'k'}, {.key = "z"}, "option table: k has a letter and no flag"},
        {{.flag = "set"}, {.key = "z"}, "option table: set takes the flag --set, which is built in"},
        {{.key = "k", .type = EXF_OPT_INT, .values = "1-2"}, {.key = "z"}, "option table: k has a range that is not min..max"},
        {{.key = "k", .type = EXF_OPT_REAL, .values = "a..2"}, {.key = "z"}, "option table: k has a range that is not min..max"},
        {{.key = "k", .type = EXF_OPT_INT, .values = "0.5.."}, {.key = "z"}, "option table: k has a range that is not min..max"},
        {{.key = "k", .type = EXF_OPT_CHOICE}, {.key = "z"}, "option table: k is a choice of nothing"},
        {{.key = "k", .type = (exf_opt_type)99}, {.key = "z"}, "option table: k has no known type"},
        {{.key = "k"}, {.key = "k"}, "option table: key k stands twice"},
        {{.flag = "f"}, {.flag = "f"}, "option table: flag --f stands twice"},
        {{.flag = "f", .letter = 'x'}, {.flag = "g", .letter = 'x'}, "option table: letter -x stands twice"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        exf_err e;
        exf_opts *o;
        uint64_t field[4];
        exf_opt rows[2] = {wrong[i].a, wrong[i].b};
        ck_assert_int_eq(exf_opts_new(&o, rows, 2, field, &e), EXF_INTERNAL);
        ck_assert_str_eq(e.msg, wrong[i].message);
        ck_assert_int_eq(e.code, EXF_INTERNAL);
        ck_assert_ptr_null(o);
        ck_assert_int_eq(exf_opts_new(&o, rows, 2, field, NULL), EXF_INTERNAL);
    }
    exf_err e;
    exf_opts *o;
    char *field;
    exf_opt torn[3] = {{.key = "a", .group = "G"}, {.key = "b", .group = "H"}, {.key = "c", .group = "G"}};
    ck_fails(exf_opts_new(&o, torn, 3, &field, &e), EXF_INTERNAL, e, "\"G\"");
}
END_TEST

START_TEST(help_stays_within_80)
{
    static const exf_opt wide[] = {
        {.key = "a.very.long.section.name.with.a.very.long.key", .type = EXF_OPT_TEXT, .help = "short"},
        {.key = "t.p", .flag = "path", .type = EXF_OPT_TEXT, .help = "where",
         .fallback = "/a/path/without/any/blank/that/is/far/longer/than/one/line/of/the/column/can/ever/hold/in/its/whole/width/"
                     "so/it/must/be/cut"},
        {.flag = "kind", .type = EXF_OPT_CHOICE, .values = "north|south|east|west|up|down|in|out",
         .help = "\xc3\xa9\xc3\xa9 which; not in the short text"},
        {.flag = "bare", .type = EXF_OPT_FLAG},
    };
    exf_err e;
    exf_text t = {0};
    ck_ok(exf_opts_help(wide, 4, &t, &e), e);
    ck_ok(exf_opts_help_keys(wide, 4, &t, &e), e);
    ck_ok(exf_opts_help_flags(wide, 4, &t, &e), e);
    ck_assert(strstr(t.s, "\nOptions:\n") != NULL);
    ck_assert(strstr(t.s, "not in the short text") == NULL);
    ck_assert(strstr(t.s, "--kind WORD") && strstr(t.s, "(one of north, south, east, west, up, down, in,"));
    ck_assert(strstr(t.s, "      --bare\n"));
    size_t chars = 0;
    for (const char *p = t.s; *p; p++) {
        chars = *p == '\n' ? 0 : chars + ((*p & 0xc0) != 0x80);
        ck_assert_uint_le(chars, 80);
        ck_assert(!(*p == ' ' && p[1] == '\n'));
    }
    ck_assert_uint_eq(exf_utf8_valid(t.s, t.len), t.len);
    exf_text_free(&t);
    ck_ok(exf_opts_help_keys(&wide[2], 2, &t, &e), e);
    ck_assert(t.s == NULL); /* no keys */
    exf_text_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_table_with_a_mistake_is_internal);
    tcase_add_test(t, help_stays_within_80);
}
