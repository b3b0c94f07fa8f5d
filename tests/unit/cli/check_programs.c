/* check_programs.c - cli/program, cli/help: which program takes what, and what it says of itself. */
#include "tests/support/fixtures.h"
#include "tests/support/scratch_fixtures.h"

#include "base/mem.h"
#include "cli/program.h"
#include "fold/runtime.h"
#include "format/json.h"

#include <string.h>

static exf_err e;

static const exf_program *named(const char *word)
{
    const exf_program *p;
    ck_ok(exf_program_require(word, &p, &e), e);
    return p;
}

START_TEST(a_program_is_found_by_either_name)
{
    const exf_program *p;
    ck_assert_str_eq(named("solve")->name, "exfold-solve");
    ck_assert_ptr_eq(named("exfold-solve"), named("solve"));
    ck_fails(exf_program_require("slove", &p, &e), EXF_USAGE, e, "\"slove\" ExFold");
    ck_fails(exf_program_require("slove", &p, &e), EXF_USAGE, e, "\"solve\"?");
    ck_fails(exf_program_require("", &p, &e), EXF_USAGE, e, "\"\"");
}
END_TEST

START_TEST(every_program_stands_in_a_group_and_has_its_texts)
{
    const exf_program *p;
    for (size_t i = 0; (p = exf_program_at(i)); i++) {
        const exf_program_group *g = exf_program_groups;
        while (g->name && strcmp(g->name, p->group) != 0) g++;
        ck_assert_msg(g->name != NULL, "%s: no group is called %s", p->name, p->group);
        ck_assert_uint_le(strlen(p->brief), 64);
        ck_assert(p->examples && *p->about && *p->arguments);
        ck_assert_msg(p->run || p->n_commands, "%s runs nothing", p->name);
    }
}
END_TEST

/* Every word of a program's keys is a key or a section of the recipe. */
START_TEST(keys_are_keys_of_the_recipe)
{
    size_t n_keys;
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    const exf_program *p;
    for (size_t i = 0; (p = exf_program_at(i)); i++) {
        for (const char *word = p->keys ? p->keys : ""; *word; word += strspn(word, " ")) {
            size_t n = strcspn(word, " "), found = 0;
            for (size_t k = 0; k < n_keys; k++)
                found += strncmp(rows[k].key, word, n) == 0 && (!rows[k].key[n] || rows[k].key[n] == '.');
            ck_assert_msg(found > 0, "%s: \"%.*s\" is no key", p->name, (int)n, word);
            word += n;
        }
    }
}
END_TEST

START_TEST(a_section_stands_for_its_keys_alone)
{
    exf_program p = {.name = "p", .keys = "data validate.max_tokens"};
    ck_assert(exf_program_uses(&p, "data.seed") && exf_program_uses(&p, "data"));
    ck_assert(exf_program_uses(&p, "validate.max_tokens"));
    ck_assert(!exf_program_uses(&p, "database.seed") && !exf_program_uses(&p, "dat"));
    ck_assert(!exf_program_uses(&p, "validate.manifest") && !exf_program_uses(&p, "validate"));
    p.keys = NULL;
    ck_assert(!exf_program_uses(&p, "data.seed"));
}
END_TEST

START_TEST(who_takes_an_option_is_listed)
{
    static const struct {
        const char *option, *who;
    } of[] = {
        {"--frontier", "exfold-validate"},
        {"--layers", "exfold-capture and exfold-inspect"},
        {"-l", "exfold-capture"},
        {"runtime.io", "exfold-calibrate, exfold-capture and exfold-validate"},
        {"--io", "exfold-calibrate, exfold-capture and exfold-validate"},
        {"schema", ""},
        {"--nonsense", ""},
        {"-", ""},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        exf_text t = {0};
        ck_ok(exf_programs_taking(of[i].option, &t, &e), e);
        ck_assert_str_eq(t.s ? t.s : "", of[i].who);
        exf_text_free(&t);
    }
}
END_TEST

START_TEST(rows_are_those_of_use)
{
    exf_opt *few, *all;
    size_t n_few, n_all, n_common, n_keys;
    exf_recipe_key_rows(&n_keys);
    ck_ok(exf_program_rows(named("solve"), 0, &few, &n_few, &n_common, &e), e);
    ck_ok(exf_program_rows(named("solve"), 1, &all, &n_all, NULL, &e), e);
    ck_assert_uint_eq(n_all, n_common + n_keys + named("solve")->n_rows);
    ck_assert_uint_lt(n_few, n_all);
    for (size_t i = 0; i < n_few; i++) ck_assert(!few[i].key || exf_program_uses(named("solve"), few[i].key));
    exf_mem_free(few);
    exf_mem_free(all);
    ck_ok(exf_program_rows(named("merge"), 1, &all, &n_all, NULL, &e), e);
    for (size_t i = 0; i < n_all; i++) ck_assert(!all[i].key);
    exf_mem_free(all);
}
END_TEST

static void same(const exf_json *object, const char *key, const char *text)
{
    const char *found = exf_json_string(exf_json_get(object, key), NULL);
    ck_assert_msg(text ? found && strcmp(found, text) == 0 : !found, "%s is %s, expected %s", key, found, text ? text : "null");
}

static void same_row(const exf_json *object, const exf_opt *row)
{
    const char letter[] = {row->letter, 0};
    same(object, "key", row->key);
    same(object, "flag", row->flag);
    same(object, "letter", row->letter ? letter : NULL);
    same(object, "value", exf_opt_placeholder(row));
    same(object, "default", row->fallback);
    same(object, "group", row->group);
    same(object, "help", row->help);
    ck_assert_int_eq(exf_json_true(exf_json_get(object, "is_flag")), row->type == EXF_OPT_FLAG);
}

/* Finds the row of a key. */
static const exf_json *key_of(const exf_json *keys, const char *key)
{
    for (size_t i = 0; i < exf_json_size(keys); i++)
        if (strcmp(exf_json_string(exf_json_get(exf_json_at(keys, i), "key"), NULL), key) == 0) return exf_json_at(keys, i);
    ck_abort_msg("no key %s", key);
}

START_TEST(data_of_pages_are_the_tables)
{
    exf_text t = {0};
    exf_json *doc;
    size_t n_programs = 0, n;
    ck_ok(exf_help_json(&t, &e), e);
    ck_ok(exf_json_parse(&doc, t.s, t.len, "--help-json", &e), e);
    const exf_json *programs = exf_json_get(doc, "programs"), *keys = exf_json_get(doc, "keys");
    while (exf_program_at(n_programs)) n_programs++;
    ck_assert_uint_eq(exf_json_size(programs), n_programs + 1);
    for (size_t i = 0; i <= n_programs; i++) {
        const exf_program *p = i < n_programs ? exf_program_at(i) : &exf_program_exfold;
        const exf_json *object = exf_json_at(programs, i), *options = exf_json_get(object, "options");
        exf_opt *rows;
        size_t n_common;
        ck_ok(exf_program_rows(p, 0, &rows, &n, &n_common, &e), e);
        same(object, "name", p->name);
        same(object, "arguments", p->arguments);
        same(object, "brief", p->brief);
        same(object, "about", p->about);
        same(object, "examples", p->examples);
        same(object, "keys", p->keys);
        ck_assert_uint_eq(exf_json_size(options), n);
        for (size_t k = 0; k < n; k++) {
            same_row(exf_json_at(options, k), &rows[k]);
            ck_assert_int_eq(exf_json_true(exf_json_get(exf_json_at(options, k), "is_common")), k < n_common);
        }
        ck_assert_uint_eq(exf_json_size(exf_json_get(object, "commands")), p->n_commands);
        for (size_t k = 0; k < p->n_commands; k++)
            same(exf_json_at(exf_json_get(object, "commands"), k), "name", p->commands[k].name);
        exf_mem_free(rows);
    }
    const exf_opt *rows = exf_recipe_key_rows(&n);
    ck_assert_uint_eq(exf_json_size(keys), n);
    for (size_t k = 0; k < n; k++) same_row(exf_json_at(keys, k), &rows[k]);
    same(key_of(keys, "data.max_tokens"), "limits", "1 to 1048576");
    same(key_of(keys, "model.path"), "limits", "");
    const char *runtimes = exf_json_string(exf_json_get(key_of(keys, "serve.runtime"), "help"), NULL);
    for (size_t i = 0; exf_runtime_at(i); i++) ck_assert(strstr(runtimes, exf_runtime_at(i)->name));
    exf_json_free(doc);
    exf_text_free(&t);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("programs");
    TCase *t = tcase_create("all");
    tcase_add_test(t, a_program_is_found_by_either_name);
    tcase_add_test(t, every_program_stands_in_a_group_and_has_its_texts);
    tcase_add_test(t, keys_are_keys_of_the_recipe);
    tcase_add_test(t, a_section_stands_for_its_keys_alone);
    tcase_add_test(t, who_takes_an_option_is_listed);
    tcase_add_test(t, rows_are_those_of_use);
    tcase_add_test(t, data_of_pages_are_the_tables);
    suite_add_tcase(s, t);
    return s;
}
