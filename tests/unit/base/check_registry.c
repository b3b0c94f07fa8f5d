/* check_registry.c - registries: finding by name, the message for an unknown one. */
#include "base/registry.h"
#include "tests/support/fixtures.h"

#include "base/mem.h"

#include <string.h>

typedef struct {
    const char *name;
    int hidden;
} exf_fruit;

static const exf_fruit apple = {"apple", 0}, pear = {"pear", 0}, quince = {"quince", 1};

exf_code exf_fruit_require(const char *name, const exf_fruit **out, exf_err *err);
const exf_fruit *exf_fruit_at(size_t i);
const exf_fruit *exf_fruit_find(const char *name);

EXF_REGISTRY_BEGIN
&apple, &pear, &quince,
EXF_REGISTRY_END(fruit)
EXF_REGISTRY_FIND(fruit)
EXF_REGISTRY_REQUIRE(fruit, "basket")

static int counts(const void *entry)
{
    return !((const exf_fruit *)entry)->hidden;
}

static const exf_registry counted = {entries, 3, counts};

START_TEST(entries_are_found_by_name)
{
    exf_err e;
    const exf_fruit *f;
    for (size_t i = 0; i < 3; i++) ck_assert_ptr_eq(exf_fruit_find(exf_fruit_at(i)->name), exf_fruit_at(i));
    ck_assert_ptr_null(exf_fruit_at(3));
    ck_assert_ptr_null(exf_fruit_find("plum"));
    ck_ok(exf_fruit_require("pear", &f, &e), e);
    ck_assert_ptr_eq(f, &pear);
}
END_TEST

START_TEST(an_unknown_name_is_told_the_known_and_the_nearest)
{
    exf_err e;
    const exf_fruit *f = &pear;
    ck_fails(exf_fruit_require("peer", &f, &e), EXF_USAGE, e,
             "\"peer\" \"pear\"?");
    ck_assert_ptr_null(f);
    ck_assert_int_eq(exf_fruit_require("banana", &f, &e), EXF_USAGE);
    ck_assert_str_eq(e.msg, "basket: \"banana\" is not known (known: apple, pear, quince)");
}
END_TEST

START_TEST(what_does_not_count_is_unknown)
{
    exf_err e;
    const void *f;
    ck_assert_ptr_eq(exf_registry_find(&counted, "apple"), &apple);
    ck_assert_ptr_null(exf_registry_find(&counted, "quince"));
    ck_assert_int_eq(exf_registry_require(&f, &counted, "basket", "quince", &e), EXF_USAGE);
    ck_assert_str_eq(e.msg, "basket: \"quince\" is not known (known: apple, pear)");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, entries_are_found_by_name);
    tcase_add_test(t, an_unknown_name_is_told_the_known_and_the_nearest);
    tcase_add_test(t, what_does_not_count_is_unknown);
}
