/* check_recipe_path.c - paths stay true in a recipe of another directory. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "tests/support/scratch_fixtures.h"

#include "base/mem.h"
#include "recipe/recipe.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

static exf_err e;
static char top[PATH_MAX]; /* the scratch directory without links */

static void setup(void)
{
    start_empty();
    ck_assert_ptr_nonnull(realpath(exf_scratch(""), top));
    static const char *const made[] = {"out", "out/held", "outer"};
    for (size_t i = 0; i < 3; i++) ck_assert(mkdir(exf_scratch(made[i]), 0777) == 0 || errno == EEXIST);
    exf_write_file(exf_scratch("data"), "x", 1);
    exf_write_file(exf_scratch("out/held/data"), "x", 1);
    ck_assert(symlink("out", exf_scratch("link")) == 0 || errno == EEXIST);
    ck_assert(symlink("../data", exf_scratch("outer/name")) == 0 || errno == EEXIST);
}

static const char *scratch_copy(const char *name)
{
    static char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", exf_scratch(name));
    return copy;
}

/* want: top, or below it, if empty or with a '/' in front, else as it stands. */
static void ck_path(const char *path, const char *directory, const char *want)
{
    char *got, full[2 * PATH_MAX];
    ck_ok(exf_recipe_path(&got, scratch_copy(path), exf_scratch(directory), &e), e);
    snprintf(full, sizeof full, "%s%s", *want == '/' || !*want ? top : "", want);
    ck_assert_str_eq(got, full);
    exf_mem_free(got);
}

START_TEST(what_lies_below_is_relative)
{
    ck_path("out", "out", ".");
    ck_path("out/", "out", ".");
    ck_path("link", "out", ".");
    ck_path("out", "link", ".");
    ck_path("outer/../out/held/..", "out", ".");
    ck_path("out/held/data", "out", "held/data");
    ck_path("link/held/data", "out", "held/data");
    ck_path("out/not there yet", "link", "not there yet");
}
END_TEST

START_TEST(all_else_is_absolute)
{
    ck_path("data", "out", "/data");
    ck_path("outer", "out", "/outer"); /* no part of out, though it begins like it */
    ck_path("out/..", "out", "");
    ck_path("link/../data", "out", "/data");
    ck_path("outer/name", "out", "/outer/name"); /* a link is known by its name */
}
END_TEST

START_TEST(what_is_nowhere_is_joined_to_the_working_directory)
{
    char here[PATH_MAX], want[PATH_MAX + 32], *got;
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    snprintf(want, sizeof want, "%s/no such/thing", here);
    ck_ok(exf_recipe_path(&got, "no such/thing", exf_scratch("out"), &e), e);
    ck_assert_str_eq(got, want);
    exf_mem_free(got);
    ck_ok(exf_recipe_path(&got, "/no such/thing", exf_scratch("nowhere"), &e), e);
    ck_assert_str_eq(got, "/no such/thing");
    exf_mem_free(got);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "recipe_path");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, what_lies_below_is_relative);
    tcase_add_test(t, all_else_is_absolute);
    tcase_add_test(t, what_is_nowhere_is_joined_to_the_working_directory);
}
