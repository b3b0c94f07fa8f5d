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

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_program_is_found_by_either_name);
    tcase_add_test(t, keys_are_keys_of_the_recipe);
    tcase_add_test(t, a_section_stands_for_its_keys_alone);
    tcase_add_test(t, who_takes_an_option_is_listed);
}
