/* check_complete.c - cli/complete: what may follow on a command line, of a made-up program and of the real ones. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "cli/program.h"

#include <stdio.h>
#include <string.h>

static exf_err e;

static const exf_opt rows[] = {
    {NULL, "plain", 'p', EXF_OPT_FLAG, 0, "false", NULL, "First", "it's [a] flag: \\n"},
    {NULL, "usual", 0, EXF_OPT_FLAG, 0, "true", NULL, "First", "on unless told"},
    {"a.word", "word", 'w', EXF_OPT_CHOICE, 0, "one", "one|two", "Second", "one of two"},
    {"a.dir", "dir", 0, EXF_OPT_TEXT, 0, NULL, "DIR", "Second", NULL},
    {"a.file", NULL, 0, EXF_OPT_TEXT, 0, NULL, "FILE", "Second", "a file"},
    {"a.truth", NULL, 0, EXF_OPT_FLAG, 0, "false", NULL, "Third", "a key that is a flag"},
    {"a.count", "count", 0, EXF_OPT_INT, 0, "3", "1..9", "Third", "how many"},
    {NULL, "text", 0, EXF_OPT_FILES, 0, NULL, "FILE", "Third", "texts"},
};

static const exf_command commands[] = {
    {.name = "show", .arguments = "FILE.h5 [MORE.h5]", .about = "shows\nit"},
    {.name = "draw", .arguments = "FILE.h5 -o OUT.png ...", .about = "draws it"},
};

static const exf_program program = {
    .name = "exfold-thing", .arguments = "RECIPE.yaml [FILE.h5 ...] | other FILE.h5", .brief = "x", .about = "x", .keys = "a",
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
};
static const exf_program of_commands = {
    .name = "exfold-many", .arguments = "COMMAND", .brief = "x", .about = "x", .commands = commands, .n_commands = 2,
};
static const exf_program bare = {
    .name = "exfold-bare", .arguments = "THING", .brief = "x", .about = "x", .rows = rows, .n_rows = 2,
};

enum { MOST = 8 };

/* What is offered in the place of the last of some words, with blanks between.  Static, freed by the next call. */
static const char *complete(const exf_program *p, const char *line)
{
    static exf_text text;
    static char copy[256];
    const char *words[MOST] = {copy};
    size_t n = 1;
    exf_text_free(&text);
    snprintf(copy, sizeof copy, "%s", line);
    for (char *blank = copy; (blank = strchr(blank, ' ')); *blank++ = 0) words[n++] = blank + 1;
    ck_ok(exf_complete(p, words, n, &text, &e), e);
    return text.s ? text.s : "";
}

static void offers(const exf_program *p, const char *line, const char *expected)
{
    ck_assert_str_eq(complete(p, line), expected);
}

START_TEST(options_are_offered_with_their_meaning)
{
    offers(&program, "--pl", "--plain\tit's [a] flag: \\n\n");
    offers(&program, "x.yaml --w", "--word\tone of two\n");
    offers(&program, "--usual", "--usual\ton unless told\n");
    offers(&program, "--no", "--no-usual\ton unless told\n");
    offers(&program, "--d", "--dir\n");
    offers(&program, "--s", "--set\tset a recipe key from the command line\n");
    offers(&program, "--plain --nothing", "");
    offers(&program, "--plainer", "");
    offers(&program, "--nothing=x", "");
    ck_assert(strstr(complete(&program, "-"), "--plain\t") && strstr(complete(&program, "-"), "--count\t"));
    offers(&bare, "--s", ""); /* it reads no recipe */
    ck_assert(strstr(complete(&bare, "--"), "--quiet\t"));
}
END_TEST

START_TEST(values_are_words_or_files)
{
    offers(&program, "--word ", "one\ntwo\n");
    offers(&program, "-w t", "two\n");
    offers(&program, "--word=", "--word=one\n--word=two\n");
    offers(&program, "--word=o", "--word=one\n");
    offers(&program, "--word=onerous", "");
    offers(&program, "--dir x", "@file */ \n");
    offers(&program, "--dir=x", "@file */ --dir=\n");
    offers(&program, "--text x", "@file * \n");
    offers(&program, "--count 1", "");
    offers(&program, "--count --p", "");
    offers(&program, "--plain x", "@file *.yaml|*.h5 \n"); /* takes no value */
}
END_TEST

START_TEST(keys_are_set_to_values)
{
    offers(&program, "--set a.c", "a.count=\thow many\n@nospace\n");
    offers(&program, "--set=a.c", "--set=a.count=\thow many\n@nospace\n");
    offers(&program, "--set a.word=", "a.word=one\na.word=two\n");
    offers(&program, "--set=a.word=t", "--set=a.word=two\n");
    offers(&program, "--set a.truth=", "a.truth=true\na.truth=false\n");
    offers(&program, "--set a.file=some", "@file * a.file=\n");
    offers(&program, "--set a.dir=", "@file */ a.dir=\n");
    offers(&program, "--set a.count=", "");
    offers(&program, "--set a.nothing=", "");
    offers(&program, "--set b", "@nospace\n");
    offers(&program, "--set a.file=x=y", "@file * a.file=\n");
}
END_TEST

START_TEST(arguments_are_commands_and_files)
{
    offers(&program, "some", "@file *.yaml|*.h5 \n");
    offers(&of_commands, "", "show\ndraw\n@file *.h5|*.png \n");
    offers(&of_commands, "s", "show\n@file *.h5|*.png \n");
    offers(&of_commands, "show s", "@file *.h5|*.png \n");
    offers(&bare, "x", "@file * \n");
}
END_TEST

START_TEST(exfold_completes_as_the_program_that_it_runs)
{
    const exf_program *p = &exf_program_exfold;
    ck_assert(strstr(complete(p, "ca"), "calibrate\trecipe to ") && strstr(complete(p, "ca"), "\ncapture\t"));
    offers(p, "he", "help\texplains a program\n");
    offers(p, "--v", "--version\tprint the version and exit\n");
    ck_assert(strstr(complete(p, "help "), "calibrate\t") && !strstr(complete(p, "help "), "help\t"));
    offers(p, "help x y", "");
    offers(p, "calibrate --backend c", "cpu\ncuda\n");
    offers(p, "exfold-calibrate --backend c", "cpu\ncuda\n");
    offers(p, "nonsense some", "");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "words");
    tcase_add_test(t, options_are_offered_with_their_meaning);
    tcase_add_test(t, values_are_words_or_files);
    tcase_add_test(t, keys_are_set_to_values);
    tcase_add_test(t, arguments_are_commands_and_files);
    tcase_add_test(t, exfold_completes_as_the_program_that_it_runs);
}
