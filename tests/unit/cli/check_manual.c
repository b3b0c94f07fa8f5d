/* check_manual.c - tool/manual: pages and completions hold every row of the table. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "fold/runtime.h"
#include "cli/completion.h"
#include "cli/manual.h"
#include "cli/page.h"

#include <string.h>

static exf_err e;
static const char *const forms[] = {"man",    "recipe",    "manifest",    "variants",    "entry", "status", "bash", "zsh",
                                    "man.md", "recipe.md", "manifest.md", "variants.md", "status.md"};
enum { N_FORMS = sizeof forms / sizeof *forms };

static const exf_opt rows[] = {
    {NULL, "plain", 'p', EXF_OPT_FLAG, 0, "false", NULL, "First", "it's [a] flag: \\n"},
    {NULL, "usual", 0, EXF_OPT_FLAG, 0, "true", NULL, "First", "on unless told"},
    {"a.word", "word", 'w', EXF_OPT_CHOICE, 0, "one", "one|two", "Second", "one of two"},
    {"a.dir", "dir", 0, EXF_OPT_TEXT, 0, NULL, "DIR", "Second", ".starts with a dot"},
    {"a.file", NULL, 0, EXF_OPT_TEXT, 0, NULL, "FILE", "Second", "a-b `c` ^d ~e \"f\""},
    {"a.truth", NULL, 0, EXF_OPT_FLAG, 0, "false", NULL, "Third", "a key that is a flag"},
    {"a.count", NULL, 0, EXF_OPT_INT, 0, "3", "1..9", "Third", "how many"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const exf_program program = {
    .name = "exfold-thing",
    .arguments = "RECIPE.yaml [FILE.h5 ...] | other FILE.h5",
    .brief = "does a thing to FILE.h5",
    .about = "Does a thing\nto FILE.h5.  And more.",
    .examples = "exfold-thing it's",
    .keys = "a",
};

/* Static, freed by the next call. */
static const char *page(const char *form, const exf_program *p, const exf_opt *table, size_t n)
{
    static exf_text text;
    exf_text_free(&text);
    text = (exf_text){0};
    ck_ok(exf_manual_find(form)(p, table, n, &text, &e), e);
    return text.s;
}

static void has(const char *form, const char *part)
{
    const char *text = page(form, &program, rows, N_ROWS);
    ck_assert_msg(strstr(text, part) != NULL, "%s lacks \"%s\":\n%s", form, part, text);
}

START_TEST(a_form_is_known_or_not)
{
    for (size_t i = 0; i < N_FORMS; i++) ck_assert(exf_manual_find(forms[i]) != NULL);
    ck_assert(!exf_manual_find("fish"));
    ck_assert(!exf_manual_find(""));
    ck_assert(!exf_manual_find("true"));
}
END_TEST

START_TEST(the_manual_has_every_part)
{
    has("man", "\n.TH \"EXFOLD-THING\" 1 \"\" \"ExFold ");
    has("man", "\n.SH NAME\nexfold\\-thing \\- does a thing to FILE.h5\n.SH SYNOPSIS\n");
    has("man", "\\fBexfold\\-thing\\fR [\\fIOPTION\\fR ...] RECIPE.yaml [FILE.h5 ...]\n\\fBexfold\\-thing\\fR [\\fIOPTION\\fR ...] "
               "other FILE.h5\n.fi\n");
    has("man", ".SH OPTIONS\n.SS First\n.TP\n\\fB\\-p\\fR, \\fB\\-\\-plain\\fR\nit\\(aqs [a] flag: \\(rsn\n");
    has("man", "\\fB\\-\\-[no\\-]usual\\fR\n");
    has("man", ".SS Second\n.TP\n\\fB\\-w\\fR, \\fB\\-\\-word\\fR \\fIone|two\\fR\none of two (default one; recipe: a.word)\n");
    has("man", "\n\\&.starts with a dot (recipe: a.dir)\n");
    has("man", ".SH \"RECIPE KEYS\"\n");
    has("man",
        "\\fBa.word\\fR = \\fIone|two\\fR   or \\fB\\-w\\fR, \\fB\\-\\-word\\fR \\fIone|two\\fR\none of two (default one)\n");
    has("man", "\na\\-b \\(gac\\(ga \\(had \\(tie \\(dqf\\(dq\n");
    has("man", "\\fBa.count\\fR = \\fIN\\fR\nhow many (1 to 9; default 3)\n");
    has("man", ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nsuccess\n");
    has("man", "\\fB143\\fR\nterminated by SIGTERM or SIGHUP\n");
    has("man", "\\fItables.safetensors\\fR\n");
    has("man", ".SH EXAMPLES\n.nf\nexfold\\-thing it\\(aqs\n.fi\n");
    has("man", ".SH \"SEE ALSO\"\n");
    has("recipe", "\n.TH \"EXFOLD-RECIPE\" 5 ");
    has("recipe", ".SH KEYS\n.SS Recipe\n"); /* the keys of all programs, whatever the rows */
    has("recipe", "\\fBpools\\fR = SIZES\n");
    has("recipe", "\\fBruntime.threads\\fR = N, \\fB\\-t\\fR, \\fB\\-\\-threads\\fR\nworker threads; ");
    has("recipe", ".SS Who reads what\n");
    has("recipe", ".TP\n\\fBexfold\\-export\\fR\nmodel output serve export card\n");
    has("entry", "\\fBexfold\\-thing\\fR(1)\ndoes a thing to FILE.h5\n");
    exf_program bare = {.name = "exfold-bare", .arguments = "FILE", .brief = "HDF5 in, columns", .about = "HDF5 in,   columns"};
    const char *text = page("man", &bare, rows, 2);
    ck_assert(strstr(text, "\\- HDF5 in, columns\n") && strstr(text, ".SH DESCRIPTION\n.nf\nHDF5 in,   columns\n.fi\n"));
    ck_assert(!strstr(text, "RECIPE KEYS") && !strstr(text, "EXAMPLES"));
}
END_TEST

/* The same words on a manual page and in Markdown. */
START_TEST(a_page_has_two_forms)
{
    has("recipe.md", "\n## Runtime\n\n| key | default | meaning |\n|---|---|---|\n"
                     "| `runtime.backend` = auto\\|cpu\\|cuda, `--backend` | `auto` | where the forward pass runs; ");
    has("recipe.md",
        "| `data.max_tokens` = N | `2048` | longest sequence; longer documents are cut into pieces (1 to 1048576) |\n");
    has("recipe.md", "| `exfold-export` | model output serve export card |\n");
    for (size_t i = 0; exf_runtime_at(i); i++) has("recipe.md", exf_runtime_at(i)->name);
    has("manifest", ".TH \"EXFOLD-MANIFEST\" 5 ");
    has("manifest", ".SS Keys of a source\n.TP\n\\fBpath\\fR\nthe file, relative to the manifest\\(aqs (required)\n");
    has("manifest.md", "| `path` | required | the file, relative to the manifest's |\n");
    has("manifest.md", "| `jsonl` | a document per line, a JSON object |\n");
    has("variants", ".TH \"EXFOLD-VARIANTS\" 7 ");
    has("variants", ".SS sere4\n.PP\ndecode: ");
    has("variants.md", "| `rho=X` | 0 | ");
    has("variants.md", "`rank=norm\\|energy\\|score`");
    has("status", ".TP\n\\fB137\\fR\nkilled by SIGKILL");
    has("status", ".TP\n\\fB141\\fR\nended by SIGPIPE");
    has("status", ".TP\n\\fB143\\fR\nterminated by SIGTERM or SIGHUP\n");
    has("status.md", "| status | meaning |\n|---|---|\n| `0` | success |\n");
}
END_TEST

START_TEST(a_program_is_a_section_of_markdown)
{
    static const exf_command command = {.name = "show", .arguments = "FILE.h5", .about = "shows\nit"};
    exf_program p = program;
    p.commands = &command;
    p.n_commands = 1;
    const char *text = page("man.md", &p, rows, N_ROWS);
    ck_assert(strstr(text, "## exfold-thing\n\nDoes a thing\nto FILE.h5.  And more.\n\n```text\n"
                           "exfold-thing [OPTION ...] RECIPE.yaml [FILE.h5 ...]\nexfold-thing [OPTION ...] other FILE.h5\n```\n"));
    ck_assert(strstr(text, "| command | what it does |\n|---|---|\n| `show FILE.h5` | shows it |\n"));
    ck_assert(strstr(text, "| `-p`, `--plain` |  | it's [a] flag: \\\\n |\n"));
    ck_assert(strstr(text, "| `-w`, `--word one\\|two` | `one` | sets the recipe key [`a.word`](recipe.md#second) |\n"));
    ck_assert(!strstr(text, "`a.file`"));
}
END_TEST

START_TEST(completions_know_flags_values_and_files)
{
    has("bash", "local flags=' --plain --usual --no-usual --word --dir --set'\n");
    has("bash", "local keys=' a.word= a.dir= a.file= a.truth= a.count='\n");
    has("bash", "    --word|-w|a.word) reply='one two' ;;\n");
    has("bash", "    --dir|a.dir) reply='@directory' ;;\n");
    has("bash", "    a.file) reply='@file' ;;\n");
    has("bash", "    a.truth) reply='true false' ;;\n");
    has("bash", "    a.count) reply='@free' ;;\n");
    has("bash", "@(*.yaml|*.h5)");
    has("bash", "complete -F _exfold_thing exfold-thing\n");
    has("zsh", "#compdef exfold-thing\n");
    has("zsh", "'(-p --plain)'{-p,--plain}'[it'\\''s \\[a\\] flag\\: \\\\n]'");
    has("zsh", "'(--usual --no-usual)'{--usual,--no-usual}'[on unless told]'");
    has("zsh", "'(-w --word)'{-w+,--word=}'[one of two]:one|two:(one two)'");
    has("zsh", "'--dir=[.starts with a dot]:DIR:_files -/'");
    has("zsh", "'*:file:_files -g \"*.yaml *.h5\"'");
    has("zsh", "compadd -S = -- a.word a.dir a.file a.truth a.count\n");
    has("zsh", "    a.word) compadd -- one two ;;\n");
    has("zsh", "    a.dir) _files -/ ;;\n");
    exf_program bare = {.name = "exfold-bare", .arguments = "THING", .brief = "x", .about = "x"};
    ck_assert(strstr(page("bash", &bare, rows, 2), "@(*)"));
    ck_assert(!strstr(page("zsh", &bare, rows, 2), "--set"));
}
END_TEST

START_TEST(commands_are_listed_and_completed)
{
    static const exf_command commands[] = {
        {.name = "show", .arguments = "FILE.h5", .about = "shows\nit"},
        {.name = "draw", .arguments = "FILE.h5 -o OUT.png", .about = "draws it"},
    };
    exf_program p = {
        .name = "exfold-many", .arguments = "COMMAND", .brief = "x", .about = "x", .commands = commands, .n_commands = 2};
    ck_assert(strstr(page("man", &p, rows, 2),
                     ".SH COMMANDS\n.TP\n\\fBshow\\fR FILE.h5\nshows\nit\n.TP\n\\fBdraw\\fR FILE.h5 \\-o OUT.png\ndraws it\n"));
    ck_assert(strstr(page("bash", &p, rows, 2), "local commands='show draw'\n") &&
              strstr(page("bash", &p, rows, 2), "@(*.h5|*.png)"));
    const char *zsh = page("zsh", &p, rows, 2);
    ck_assert(strstr(
        zsh,
        "_exfold-many_first()\n{\n    _alternative 'commands:command:(show draw)' 'files:file:_files -g \"*.h5 *.png\"'\n}\n"));
    ck_assert(strstr(zsh, "        '1:command or file:_exfold-many_first' \\\n"));
    ck_assert(!strstr(page("man", &program, rows, N_ROWS), "COMMANDS"));
}
END_TEST

START_TEST(a_program_without_recipe_has_no_page_of_recipes)
{
    exf_program bare = {.name = "exfold-bare", .arguments = "THING", .brief = "x", .about = "x"};
    exf_text text = {0};
    ck_fails(exf_manual_recipe(&bare, rows, N_ROWS, &text, &e), EXF_USAGE, e, "exfold-bare");
    exf_text_free(&text);
}
END_TEST

START_TEST(a_program_of_no_rows_has_pages)
{
    exf_program bare = {.name = "exfold-bare", .arguments = "", .brief = "", .about = "", .keys = "a"};
    for (size_t i = 0; i < N_FORMS; i++) ck_assert(strlen(page(forms[i], &bare, NULL, 0)) > 0);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    static const exf_command command = {.name = "show", .arguments = "FILE.h5", .about = "shows it"};
    exf_program p = program;
    p.commands = &command;
    p.n_commands = 1;
    for (size_t f = 0; f < N_FORMS; f++) {
        exf_text first = {0};
        ck_ok(exf_manual_find(forms[f])(&p, rows, N_ROWS, &first, &e), e);
        size_t failed = 0;
        for (size_t n = 1;; n++) {
            exf_text text = {0};
            exf_mem_fail_at(n);
            exf_code rc = exf_manual_find(forms[f])(&p, rows, N_ROWS, &text, &e);
            exf_mem_fail_at(0);
            if (rc == EXF_OK)
                ck_assert_str_eq(text.s, first.s);
            else
                ck_assert_int_eq(rc, EXF_NOSPACE);
            exf_text_free(&text);
            failed += rc != EXF_OK;
            if (rc == EXF_OK) break;
        }
        ck_assert_uint_gt(failed, 0);
        exf_text_free(&first);
    }
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("manual");
    TCase *t = tcase_create("pages");
    tcase_add_test(t, a_form_is_known_or_not);
    tcase_add_test(t, the_manual_has_every_part);
    tcase_add_test(t, a_page_has_two_forms);
    tcase_add_test(t, a_program_is_a_section_of_markdown);
    tcase_add_test(t, completions_know_flags_values_and_files);
    tcase_add_test(t, commands_are_listed_and_completed);
    tcase_add_test(t, a_program_without_recipe_has_no_page_of_recipes);
    tcase_add_test(t, a_program_of_no_rows_has_pages);
    tcase_add_test(t, every_allocation_may_fail);
    suite_add_tcase(s, t);
    return s;
}
