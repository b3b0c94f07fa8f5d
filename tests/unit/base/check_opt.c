/* check_opt.c - base/opt: every type's good and bad texts, precedence, argv, help. */
#include "tests/support/fixtures.h"

#include "base/opt.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    char *recipe, *out, *note;
    int64_t threads, free_int;
    double ridge, clip;
    uint64_t memory;
    int force, colour, backend, help;
    exf_text_list domains;
    exf_int_list layers, pools;
} demo;

#define AT(field) offsetof(demo, field)
static const exf_opt table[] = {
    {NULL, "recipe", 'r', EXF_OPT_TEXT, AT(recipe), NULL, "FILE", "Input", "the recipe to follow"},
    {"data.domains", "domains", 0, EXF_OPT_TEXT_LIST, AT(domains), "all", NULL, "Input", "domains of the manifest to use"},
    {"model.layers", NULL, 0, EXF_OPT_INT_LIST, AT(layers), NULL, NULL, "Input", "layers to calibrate, in any order"},
    {"calibrate.ridge", NULL, 0, EXF_OPT_REAL, AT(ridge), "1e-3", "0..1", "Calibration",
     "strength of the penalty that keeps a badly determined expert from being moved far away from where it is"},
    {"calibrate.clip", "clip", 0, EXF_OPT_REAL, AT(clip), NULL, "..4", "Calibration", "largest factor by which an output may grow"},
    {"calibrate.pools", NULL, 0, EXF_OPT_INT_LIST, AT(pools), "[8, 4]", NULL, "Calibration", "experts kept in memory per pool"},
    {"run.threads", "threads", 't', EXF_OPT_INT, AT(threads), "1", "1..", "Run", "processor threads"},
    {"run.free", NULL, 0, EXF_OPT_INT, AT(free_int), NULL, NULL, "Run", "any integer"},
    {"run.memory", "max-memory", 0, EXF_OPT_BYTES, AT(memory), "8GiB", NULL, "Run", "memory that may be used"},
    {"run.backend", "backend", 0, EXF_OPT_CHOICE, AT(backend), "auto", "auto|cpu|cuda", "Run", "where the arithmetic runs"},
    {"output.directory", "output", 'o', EXF_OPT_TEXT, AT(out), "out", "DIR", "Output", "where results go"},
    {"output.force", "force", 'f', EXF_OPT_FLAG, AT(force), "false", NULL, "Output", "replace an existing output"},
    {"output.note", NULL, 0, EXF_OPT_TEXT, AT(note), NULL, NULL, "Output", "kept in the output's header"},
    {NULL, "colour", 0, EXF_OPT_FLAG, AT(colour), "true", NULL, "Output", "colour on a terminal"},
    {NULL, "help", 'h', EXF_OPT_FLAG, AT(help), NULL, NULL, "Output", "this text"},
};
enum { ROWS = sizeof table / sizeof table[0] };

static demo d;

static exf_opts *fresh(void)
{
    exf_err e;
    exf_opts *o;
    memset(&d, 0x5a, sizeof d);
    ck_ok(exf_opts_new(&o, table, ROWS, &d, &e), e);
    return o;
}

static exf_code set(exf_opts *o, const char *key, const char *text, exf_err *e)
{
    return exf_opts_set(o, EXF_OPT_BY_RECIPE, key, text, "demo.yaml:12", e);
}

static void good(const char *key, const char *text, const char *value)
{
    exf_err e;
    exf_opts *o = fresh();
    exf_text shown = {0};
    size_t i = 0;
    ck_ok(set(o, key, text, &e), e);
    while (strcmp(table[i].key ? table[i].key : "", key) != 0) i++;
    ck_ok(exf_opts_value(o, i, &shown, &e), e);
    ck_assert_str_eq(shown.s, value);
    ck_ok(exf_opts_set(o, EXF_OPT_BY_ARGV, key, shown.s, "again", &e), e); /* the text form reads back */
    shown.len = 0;
    ck_ok(exf_opts_value(o, i, &shown, &e), e);
    ck_assert_str_eq(shown.s, value);
    exf_text_free(&shown);
    exf_opts_free(o);
}

/* Refused, with exactly this message, and nothing changed. */
static void bad(const char *key, const char *text, const char *message)
{
    exf_err e;
    exf_opts *o = fresh();
    demo before = d;
    ck_assert_int_eq(set(o, key, text, &e), EXF_USAGE);
    ck_assert_str_eq(e.msg, message);
    ck_assert_int_eq(e.code, EXF_USAGE);
    ck_assert_mem_eq(&before, &d, sizeof d);
    ck_assert_int_eq(set(o, key, text, NULL), EXF_USAGE);
    exf_opts_free(o);
}

enum { ARGS = 12 };

static exf_code argv_of(exf_opts *o, const char *const *args, const char **positional, size_t *n, exf_err *e)
{
    static char room[ARGS + 1][80];
    static char *argv[ARGS + 1];
    int argc = 1;
    argv[0] = room[0];
    for (; args[argc - 1]; argc++) {
        snprintf(room[argc], sizeof room[0], "%s", args[argc - 1]);
        argv[argc] = room[argc];
    }
    return exf_opts_argv(o, argc, argv, positional, n, e);
}
#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})

static void argv_good(exf_opts *o, const char *const *args, size_t want_positional, const char **positional)
{
    exf_err e;
    size_t n = 99;
    ck_ok(argv_of(o, args, positional, &n, &e), e);
    ck_assert_uint_eq(n, want_positional);
}

static void argv_bad(const char *const *args, const char *message)
{
    exf_err e;
    const char *positional[ARGS + 1];
    size_t n;
    exf_opts *o = fresh();
    ck_assert_int_eq(argv_of(o, args, positional, &n, &e), EXF_USAGE);
    ck_assert_str_eq(e.msg, message);
    exf_opts_free(o);
    o = fresh();
    ck_assert_int_eq(argv_of(o, args, positional, &n, NULL), EXF_USAGE);
    exf_opts_free(o);
}

START_TEST(defaults_fill_the_struct)
{
    exf_opts *o = fresh();
    ck_assert_ptr_null(d.recipe);
    ck_assert_str_eq(d.out, "out");
    ck_assert_double_eq(d.ridge, 1e-3);
    ck_assert_double_eq(d.clip, 0);
    ck_assert_int_eq(d.threads, 1);
    ck_assert_uint_eq(d.memory, 8589934592u);
    ck_assert(d.force == 0 && d.colour == 1 && d.backend == 0 && d.help == 0);
    ck_assert_uint_eq(d.domains.n, 1);
    ck_assert_str_eq(d.domains.item[0], "all");
    ck_assert(d.pools.n == 2 && d.pools.item[0] == 8 && d.pools.item[1] == 4);
    ck_assert(d.layers.n == 0 && d.layers.item == NULL);
    exf_opts_free(o);
    ck_assert_ptr_null(d.out);
    ck_assert_ptr_null(d.pools.item);
    exf_opts_free(NULL);
}
END_TEST

START_TEST(good_texts)
{
    good("output.note", "", "");
    good("output.note", " as, it [is] ", " as, it [is] ");
    good("run.free", "-12", "-12");
    good("run.free", "9223372036854775807", "9223372036854775807");
    good("run.threads", "1", "1");
    good("calibrate.ridge", "0", "0");
    good("calibrate.ridge", "1", "1");
    good("calibrate.ridge", "1.0e-3", "0.001");
    good("calibrate.clip", "-60", "-60");
    good("calibrate.clip", "-300000", "-300000");
    good("calibrate.clip", "-1000000", "-1e+06");
    good("calibrate.clip", "0.1", "0.1");
    good("calibrate.clip", "-1e300", "-1e+300");
    good("calibrate.clip", "0.30000000000000004", "0.30000000000000004");
    good("run.memory", "4096", "4KiB");
    good("run.memory", "1000", "1000");
    good("run.memory", "80GB", "78125000KiB");
    good("run.memory", "0", "0");
    good("output.force", "true", "true");
    good("output.force", "false", "false");
    good("run.backend", "cuda", "cuda");
    good("data.domains", "code", "code");
    good("data.domains", " code , my prose ", "code,my prose");
    good("data.domains", " code\tprose ", "code,prose");
    good("data.domains", "[code, prose]", "code,prose");
    good("data.domains", "name[part]", "name[part]");
    good("data.domains", "[]", "[]");
    good("data.domains", " [ ] ", "[]");
    good("model.layers", "[8, 4]", "8,4");
    good("model.layers", "8,-4", "8,-4");
    good("model.layers", "8  4", "8,4");
    good("model.layers", "[]", "[]");
}
END_TEST

START_TEST(bad_texts)
{
    bad("calibrate.ridge", "abc", "demo.yaml:12: calibrate.ridge: \"abc\" is no number");
    bad("calibrate.ridge", "", "demo.yaml:12: calibrate.ridge: \"\" is no number");
    bad("calibrate.ridge", "nan", "demo.yaml:12: calibrate.ridge: \"nan\" is no number");
    bad("calibrate.ridge", "1 ", "demo.yaml:12: calibrate.ridge: \"1 \" is no number");
    bad("calibrate.ridge", "1.5", "demo.yaml:12: calibrate.ridge: 1.5 is out of range, expected 0 to 1");
    bad("calibrate.ridge", "-1e-9", "demo.yaml:12: calibrate.ridge: -1e-9 is out of range, expected 0 to 1");
    bad("calibrate.clip", "4.01", "demo.yaml:12: calibrate.clip: 4.01 is out of range, expected at most 4");
    bad("run.threads", "0", "demo.yaml:12: run.threads: 0 is out of range, expected at least 1");
    bad("run.threads", "1.5", "demo.yaml:12: run.threads: \"1.5\" is no 64-bit integer");
    bad("run.free", "99999999999999999999", "demo.yaml:12: run.free: \"99999999999999999999\" is no 64-bit integer");
    bad("run.memory", "8 GiB", "demo.yaml:12: run.memory: \"8 GiB\" is no size such as 8GiB, 512MB or 4096");
    bad("run.memory", "-1", "demo.yaml:12: run.memory: \"-1\" is no size such as 8GiB, 512MB or 4096");
    bad("output.force", "yes", "demo.yaml:12: output.force: \"yes\" is neither true nor false");
    bad("output.force", "", "demo.yaml:12: output.force: \"\" is neither true nor false");
    bad("run.backend", "cudaa", "demo.yaml:12: run.backend: \"cudaa\" is none of auto, cpu, cuda; did you mean \"cuda\"?");
    bad("run.backend", "tensor", "demo.yaml:12: run.backend: \"tensor\" is none of auto, cpu, cuda");
    bad("run.backend", "auto|cpu", "demo.yaml:12: run.backend: \"auto|cpu\" is none of auto, cpu, cuda");
    bad("data.domains", "", "demo.yaml:12: data.domains: an item of the list is empty; the empty list is []");
    bad("data.domains", "a,,b", "demo.yaml:12: data.domains: an item of the list is empty; the empty list is []");
    bad("data.domains", "a,b,", "demo.yaml:12: data.domains: an item of the list is empty; the empty list is []");
    bad("data.domains", "[a,b", "demo.yaml:12: data.domains: \"[a,b\" has no closing bracket");
    bad("data.domains", "[", "demo.yaml:12: data.domains: \"[\" has no closing bracket");
    bad("data.domains", "[a,[b]]", "demo.yaml:12: data.domains: \"[b]\" is a list inside a list");
    bad("model.layers", "8,x", "demo.yaml:12: model.layers: \"x\" is no 64-bit integer");
}
END_TEST

START_TEST(unknown_keys_get_the_help_they_need)
{
    bad("calibrate.rigde", "1", "demo.yaml:12: unknown key \"calibrate.rigde\"; did you mean \"calibrate.ridge\"?");
    bad("solve.ridge", "1", "demo.yaml:12: unknown key \"solve.ridge\"; did you mean \"calibrate.ridge\"?");
    bad("ridge", "1", "demo.yaml:12: unknown key \"ridge\"; did you mean \"calibrate.ridge\"?");
    bad("something.else", "1", "demo.yaml:12: unknown key \"something.else\"");
    bad("", "1", "demo.yaml:12: unknown key \"\"");
    bad("calibrate", "3",
        "demo.yaml:12: unknown key \"calibrate\"; it is a section, not a value: its keys are calibrate.ridge, calibrate.clip, "
        "calibrate.pools");
    bad("calibrate.ridge.lambda", "1",
        "demo.yaml:12: unknown key \"calibrate.ridge.lambda\"; \"calibrate.ridge\" is one value, not a section");
    exf_err e;
    exf_opts *o;
    int64_t field;
    exf_opt many[6] = {{.key = "s.a"}, {.key = "s.b"}, {.key = "s.c"}, {.key = "s.d"}, {.key = "s.e"}, {.flag = "s"}};
    ck_ok(exf_opts_new(&o, many, 6, &field, &e), e);
    ck_fails(set(o, "s", "1", &e), EXF_USAGE, e, "s.a s.b s.c s.d");
    exf_opts_free(o);
}
END_TEST

START_TEST(lists_whose_items_stand_apart)
{
    static const char *const words[] = {"code", " my prose "}, *const numbers[] = {"8", "4"}, *const comma[] = {"a", "b,c"},
                            *const letters[] = {"1", "x"}, *const empty[] = {""}, *const nested[] = {"[1]"};
    exf_err e;
    exf_opts *o = fresh();
    ck_ok(exf_opts_set_list(o, EXF_OPT_BY_RECIPE, "data.domains", words, 2, "demo.yaml:3", &e), e);
    ck_assert(d.domains.n == 2 && strcmp(d.domains.item[1], "my prose") == 0);
    ck_ok(exf_opts_set_list(o, EXF_OPT_BY_RECIPE, "model.layers", numbers, 2, "demo.yaml:4", &e), e);
    ck_assert(d.layers.n == 2 && d.layers.item[0] == 8);
    ck_ok(exf_opts_set_list(o, EXF_OPT_BY_RECIPE, "calibrate.pools", NULL, 0, "demo.yaml:5", &e), e);
    ck_assert_uint_eq(d.pools.n, 0);
    ck_fails(exf_opts_set_list(o, EXF_OPT_BY_RECIPE, "calibrate.pools", numbers, 2, "demo.yaml:6", &e), EXF_USAGE, e,
             "demo.yaml:6 calibrate.pools demo.yaml:5");
    ck_fails(exf_opts_set_list(o, EXF_OPT_BY_ARGV, "data.domains", comma, 2, "x", &e), EXF_USAGE, e,
             "data.domains \"b,c\"");
    ck_fails(exf_opts_set_list(o, EXF_OPT_BY_ARGV, "data.domains", empty, 1, "x", &e), EXF_USAGE, e, "data.domains []");
    ck_fails(exf_opts_set_list(o, EXF_OPT_BY_ARGV, "data.domains", nested, 1, "x", &e), EXF_USAGE, e, "data.domains \"[1]\"");
    ck_fails(exf_opts_set_list(o, EXF_OPT_BY_ARGV, "model.layers", letters, 2, "x", &e), EXF_USAGE, e,
             "model.layers \"x\" 64-bit");
    ck_fails(exf_opts_set_list(o, EXF_OPT_BY_ARGV, "output.directory", words, 2, "x", &e), EXF_USAGE, e,
             "output.directory 2");
    ck_fails(exf_opts_set_list(o, EXF_OPT_BY_ARGV, "data.domain", words, 2, "x", &e), EXF_USAGE, e,
             "\"data.domain\" \"data.domains\"?");
    exf_opts_free(o);
}
END_TEST

START_TEST(command_line_beats_recipe_beats_default)
{
    exf_err e;
    const char *positional[ARGS + 1];
    exf_opts *o = fresh();
    ck_assert(exf_opts_given(o, "run.threads", EXF_OPT_BY_DEFAULT) && !exf_opts_given(o, "run.threads", EXF_OPT_BY_RECIPE));
    ck_assert(!exf_opts_given(o, "run.free", EXF_OPT_BY_DEFAULT));
    ck_ok(set(o, "run.threads", "2", &e), e);
    ck_assert_int_eq(d.threads, 2);
    ck_assert(exf_opts_given(o, "run.threads", EXF_OPT_BY_RECIPE) && !exf_opts_given(o, "run.threads", EXF_OPT_BY_ARGV));
    argv_good(o, ARGV("--threads", "3", "--output=here", "--recipe", "r.yaml"), 0, positional);
    ck_assert_int_eq(d.threads, 3);
    ck_assert(exf_opts_given(o, "run.threads", EXF_OPT_BY_ARGV) && exf_opts_given(o, "recipe", EXF_OPT_BY_ARGV));
    ck_assert(!exf_opts_given(o, "threads", EXF_OPT_BY_DEFAULT)); /* a row with a key goes by its key */
    ck_ok(set(o, "output.directory", "there", &e), e);            /* the recipe read after argv */
    ck_assert_str_eq(d.out, "here");
    ck_assert(exf_opts_given(o, "output.directory", EXF_OPT_BY_ARGV));
    ck_fails(set(o, "output.force", "maybe", &e), EXF_USAGE, e, "demo.yaml:12 output.force");
    exf_opts_free(o);
    o = fresh();
    argv_good(o, ARGV("--force"), 0, positional);
    ck_fails(set(o, "output.force", "maybe", &e), EXF_USAGE, e, "demo.yaml:12 output.force"); /* outranked, still checked */
    exf_opts_free(o);
}
END_TEST

START_TEST(twice_at_one_rank_is_refused)
{
    exf_err e;
    exf_opts *o = fresh();
    ck_ok(exf_opts_set(o, EXF_OPT_BY_RECIPE, "run.threads", "2", "demo.yaml:9", &e), e);
    ck_fails(set(o, "run.threads", "3", &e), EXF_USAGE, e, "demo.yaml:12 run.threads demo.yaml:9");
    ck_assert_int_eq(d.threads, 2);
    ck_fails(exf_opts_set(o, EXF_OPT_BY_DEFAULT, "run.threads", "3", "main", &e), EXF_USAGE, e, "run.threads");
    ck_ok(exf_opts_set(o, EXF_OPT_BY_DEFAULT, "run.free", "3", "main", &e), e);
    ck_assert_int_eq(d.free_int, 3);
    exf_opts_free(o);
    argv_bad(ARGV("--threads", "2", "--threads=3"), "--threads: given twice");
    argv_bad(ARGV("-t", "2", "--threads=3"), "--threads: given twice, first by -t");
    argv_bad(ARGV("--threads", "2", "--set", "run.threads=3"), "--set run.threads: given twice, first by --threads");
    argv_bad(ARGV("--force", "--no-force"), "--no-force: given twice, first by --force");
    argv_bad(ARGV("-f", "-f"), "-f: given twice");
}
END_TEST

START_TEST(argv_forms)
{
    const char *positional[ARGS + 1];
    exf_opts *o = fresh();
    argv_good(o, ARGV("a", "--threads=4", "-o", "dir", "-", "--no-colour", "--force=true", "--set", "calibrate.ridge=0.5", "--",
                      "--help", "-x"), 4, positional);
    ck_assert_str_eq(positional[0], "a");
    ck_assert_str_eq(positional[1], "-");
    ck_assert_str_eq(positional[2], "--help");
    ck_assert_str_eq(positional[3], "-x");
    ck_assert_int_eq(d.threads, 4);
    ck_assert_str_eq(d.out, "dir");
    ck_assert(d.colour == 0 && d.force == 1 && d.help == 0);
    ck_assert_double_eq(d.ridge, 0.5);
    exf_opts_free(o);
    o = fresh();
    argv_good(o,
              ARGV("--set=run.free=-7", "--set", "output.note=a=b", "--output=", "--clip", "-2.5", "-h", "--set", "run.threads=5",
                   "--domains", "[a, b]", ""),
              1, positional);
    ck_assert_int_eq(d.free_int, -7);
    ck_assert_str_eq(d.note, "a=b");
    ck_assert_str_eq(d.out, "");
    ck_assert_double_eq(d.clip, -2.5);
    ck_assert(d.help == 1 && d.threads == 5 && d.domains.n == 2);
    exf_opts_free(o);
    o = fresh();
    argv_good(o, ARGV("--output=--force"), 0, positional);
    ck_assert_str_eq(d.out, "--force");
    exf_opts_free(o);
    o = fresh();
    exf_err e;
    size_t n;
    char *none[1] = {NULL};
    ck_ok(exf_opts_argv(o, 0, none, positional, &n, &e), e);
    ck_assert_uint_eq(n, 0);
    exf_opts_free(o);
}
END_TEST

START_TEST(argv_mistakes)
{
    argv_bad(ARGV("--treads", "4"), "--treads: unknown option; did you mean --threads?");
    argv_bad(ARGV("--treads=4"), "--treads: unknown option; did you mean --threads?");
    argv_bad(ARGV("--sat", "a=b"), "--sat: unknown option; did you mean --set?");
    argv_bad(ARGV("--no-colur"), "--no-colur: unknown option; did you mean --no-colour?");
    argv_bad(ARGV("--ridge=1"), "--ridge: unknown option; did you mean --set calibrate.ridge=VALUE?");
    argv_bad(ARGV("--calibrate.ridge", "1"), "--calibrate.ridge: unknown option; did you mean --set calibrate.ridge=VALUE?");
    argv_bad(ARGV("--directory=x"), "--directory: unknown option; did you mean --output?");
    argv_bad(ARGV("--temperature"), "--temperature: unknown option");
    argv_bad(ARGV("--=3"), "--: unknown option");
    argv_bad(ARGV("-x"), "-x: unknown option");
    argv_bad(ARGV("-3"), "-3: unknown option");
    argv_bad(ARGV("-odir"), "-odir: unknown option; a blank is needed after -o");
    argv_bad(ARGV("--threads"), "--threads: needs a value");
    argv_bad(ARGV("-o"), "-o: needs a value");
    argv_bad(ARGV("--output", "--force"), "--output: needs a value, but --force follows");
    argv_bad(ARGV("--output", "--"), "--output: needs a value, but -- follows");
    argv_bad(ARGV("--threads", "many"), "--threads: \"many\" is no 64-bit integer");
    argv_bad(ARGV("-t", "0"), "-t: 0 is out of range, expected at least 1");
    argv_bad(ARGV("--backend=gpu"), "--backend: \"gpu\" is none of auto, cpu, cuda; did you mean \"cpu\"?");
    argv_bad(ARGV("--force=1"), "--force: \"1\" is neither true nor false");
    argv_bad(ARGV("--no-force=true"), "--no-force: takes no value, \"true\" was given");
    argv_bad(ARGV("--no-threads"), "--no-threads: --threads takes a value and has no --no- form");
    argv_bad(ARGV("--set"), "--set: needs a value");
    argv_bad(ARGV("--set", "run.threads"), "--set run.threads: expected KEY=VALUE");
    argv_bad(ARGV("--set", "=3"), "--set =3: expected KEY=VALUE");
    argv_bad(ARGV("--set", "something.else=3"), "--set something.else: unknown key");
    argv_bad(ARGV("--set", "calibrate.rigde=3"), "--set calibrate.rigde: unknown key; did you mean \"calibrate.ridge\"?");
    argv_bad(ARGV("--set", "data=3"), "--set data: unknown key; it is a section, not a value: its keys are data.domains");
    argv_bad(ARGV("--set", "calibrate.ridge=abc"), "--set calibrate.ridge: \"abc\" is no number");
}
END_TEST

START_TEST(values_as_text)
{
    exf_err e;
    exf_text t = {0};
    exf_opts *o = fresh();
    for (size_t i = 0; i < ROWS; i++) {
        exf_text_appendf(&t, "|");
        ck_ok(exf_opts_value(o, i, &t, &e), e);
    }
    ck_assert_str_eq(t.s, "||all||0.001||8,4|1||8GiB|auto|out|false||true|");
    exf_text_free(&t);
    ck_ok(exf_opts_value(o, 0, &t, &e), e);
    ck_assert_str_eq(t.s, "");
    ck_fails(exf_opts_value(o, ROWS, &t, &e), EXF_INTERNAL, e, "15 15");
    d.backend = 7; /* a program that writes nonsense into its own struct */
    ck_fails(exf_opts_value(o, 9, &t, &e), EXF_INTERNAL, e, "run.backend 7 auto|cpu|cuda");
    exf_text_free(&t);
    exf_opts_free(o);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, defaults_fill_the_struct);
    tcase_add_test(t, good_texts);
    tcase_add_test(t, bad_texts);
    tcase_add_test(t, unknown_keys_get_the_help_they_need);
    tcase_add_test(t, lists_whose_items_stand_apart);
    tcase_add_test(t, command_line_beats_recipe_beats_default);
    tcase_add_test(t, twice_at_one_rank_is_refused);
    tcase_add_test(t, argv_forms);
    tcase_add_test(t, argv_mistakes);
    tcase_add_test(t, values_as_text);
}
