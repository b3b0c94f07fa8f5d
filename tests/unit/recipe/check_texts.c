/* check_texts.c - recipe/recipe_texts: many names of --text, and directories of which most is no text. */
#include "tests/support/scratch_fixtures.h"

#include "base/mem.h"
#include "recipe/recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static exf_err e;

/* What --text with these names comes to. */
static exf_code make(exf_text_inputs *t, char **name, size_t n, exf_err *err)
{
    exf_recipe r = {.texts = {.item = name, .n = n}};
    return exf_text_inputs_make(t, &r, "m.yaml", err);
}

/* A name that is given twice is found among 150,000 in time that grows as their number: a search of all pairs takes minutes. */
START_TEST(many_names_are_compared_at_once)
{
    enum { N = 150000, LENGTH = 24 };
    char *names = malloc(N * LENGTH), **name = malloc(N * sizeof *name);
    exf_text_inputs t;
    for (int i = 0; i < N; i++) {
        name[i] = names + i * LENGTH;
        snprintf(name[i], LENGTH, "no-such-file-%06d", i);
    }
    name[N - 1] = name[1];
    clock_t began = clock();
    ck_fails(make(&t, name, N, &e), EXF_USAGE, e, "no-such-file-000001 is given twice");
    ck_assert_int_lt((clock() - began) / CLOCKS_PER_SEC, 60);
    exf_text_inputs_free(&t);
    free(name);
    free(names);
}
END_TEST

static void put(const char *name, const void *bytes, size_t n)
{
    exf_write_file(exf_scratch(name), bytes, n);
}

/* What is passed over is weighed by its bytes; files that are named are not. */
START_TEST(a_directory_is_mostly_text)
{
    static char table[1000] = "PAR1";
    char directory[400], file[400], *name[2] = {directory, file};
    exf_text_inputs t;
    snprintf(directory, sizeof directory, "%s", exf_scratch("texts"));
    snprintf(file, sizeof file, "%s", exf_scratch("long.txt"));
    ck_assert_int_eq(mkdir(directory, 0777), 0);
    memset(table + 4, 'x', sizeof table - 4);
    put("texts/a.txt", table + 4, 600);
    put("texts/b.parquet", table, 600);
    ck_ok(make(&t, name, 1, &e), e);
    exf_text_inputs_free(&t);
    put("texts/b.parquet", table, 601);
    put("long.txt", table + 4, 900);
    ck_fails(make(&t, name, 2, &e), EXF_MODEL, e,
             "texts: 601 B 1.2 kB a Parquet table: 1 (601 B, b.parquet) 1 of plain text (600 B)");
    exf_text_inputs_free(&t);
    put("texts/c.txt", "more", 4);
    ck_ok(make(&t, name, 2, &e), e);
    exf_text_inputs_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, many_names_are_compared_at_once);
    tcase_add_test(t, a_directory_is_mostly_text);
}
