/* check_saved.c - models that transformers' save_pretrained wrote, each in a layout of names and of config.json: their perplexity
 * is that of transformers' own forward. */
#include "tests/support/saved_fixtures.h"

START_TEST(perplexity_is_that_of_transformers)
{
    saved_check(_i, &exf_backend_cpu, SAVED_LIMIT);
}
END_TEST

START_TEST(models_are_there)
{
    int chosen;
    saved_root(&chosen);
    ck_assert_int_ge(saved_n, chosen ? 1 : 13);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "saved");
    saved_find();
    tcase_add_test(t, models_are_there);
    tcase_add_loop_test(t, perplexity_is_that_of_transformers, 0, saved_n);
}
