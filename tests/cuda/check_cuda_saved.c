/* check_cuda_saved.c - models that transformers' save_pretrained wrote (check_saved.c) on the GPU, in float32. */
#include "tests/support/saved_fixtures.h"

START_TEST(perplexity_is_that_of_transformers)
{
    exf_err err;
    const exf_backend *backend = exf_backend_cuda(&err);
    ck_assert_msg(backend != NULL, "%s", err.msg);
    saved_check(_i, backend, 1e-4);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "saved");
    saved_find();
    tcase_add_loop_test(t, perplexity_is_that_of_transformers, 0, saved_n);
}
