/* check_inputs.c - recipe/inputs: which files a recipe reads. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "recipe/recipe.h"

#include <stdio.h>
#include <string.h>

#define BASE "tests/bad/base/"
static exf_err e;

static exf_recipe recipe(const char *validate_manifest)
{
    return (exf_recipe){.recipe_file = BASE "recipe.yaml",
                        .model_path = (char *)(uintptr_t)(BASE "model"),
                        .manifest = (char *)(uintptr_t)(BASE "manifest.yaml"),
                        .validate_manifest = (char *)(uintptr_t)validate_manifest,
                        .min_tokens = 1,
                        .max_tokens = 32};
}

/* The roles alone, "recipe manifest ... "; every line is ROLE, 64 digits, PATH. */
static const char *roles(const char *text)
{
    static char out[256];
    char role[32], digest[80], path[200];
    int n;
    out[0] = 0;
    for (; sscanf(text, "%31s %79s %199s\n%n", role, digest, path, &n) == 3; text += n) {
        ck_assert_uint_eq(strlen(digest), 64);
        ck_assert(strncmp(path, BASE, strlen(BASE)) == 0);
        strcat(strcat(out, role), " ");
    }
    ck_assert_str_eq(text, "");
    return out;
}

START_TEST(every_file_stands_once_in_each_role)
{
    static const struct {
        const char *manifest, *validate, *roles;
    } run[] = {
        {BASE "manifest.yaml", NULL, "recipe manifest source config weights weights tokenizer "},
        {BASE "tokens.yaml", NULL, "recipe manifest source config weights weights "},
        {BASE "tokens.yaml", BASE "manifest.yaml",
         "recipe manifest source validation-manifest validation-source config weights weights tokenizer "},
        {BASE "manifest.yaml", BASE "manifest.yaml",
         "recipe manifest source validation-manifest validation-source config weights weights tokenizer "},
    };
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        exf_recipe r = recipe(run[i].validate);
        exf_text text = {0};
        r.manifest = (char *)(uintptr_t)run[i].manifest;
        ck_ok(exf_inputs_text(&r, &text, &e), e);
        ck_assert_str_eq(roles(text.s), run[i].roles);
        exf_text_free(&text);
    }
}
END_TEST

START_TEST(what_is_missing_is_named)
{
    exf_recipe r = recipe(NULL);
    exf_text text = {0};
    r.manifest = NULL;
    ck_fails(exf_inputs_text(&r, &text, &e), EXF_USAGE, e, "data.manifest --text FILE");
    r = recipe(BASE "nowhere.yaml");
    ck_fails(exf_inputs_text(&r, &text, &e), EXF_IO, e, "nowhere.yaml");
    r = recipe(NULL);
    r.model_path = (char *)(uintptr_t) "tests/configs/qwen3-30b-a3b";
    ck_fails(exf_inputs_text(&r, &text, &e), EXF_MODEL, e, "tests/configs/qwen3-30b-a3b");
    ck_assert_uint_eq(text.len, 0);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "files");
    tcase_add_test(t, every_file_stands_once_in_each_role);
    tcase_add_test(t, what_is_missing_is_named);
}
