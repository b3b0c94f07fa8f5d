/* check_cuda_golden.c - every family's forward on the GPU against the reference's
 * float32 answers.  Check must not fork here: CUDA does not survive it. */
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include <string.h>

START_TEST(cuda_forward_matches_the_reference)
{
    golden_case c;
    golden_seen s;
    exf_err err;
    golden_open(&c, golden_families[_i]);
    golden_forward(&s, c.model, &c.batch, exf_backend_cuda(&err), EXF_COMPUTE_F32, 0);
    golden_compare(&c, &s, 1e-4, 1e-6f);
    golden_free(&s);
    golden_close(&c);
}
END_TEST

START_TEST(two_cuda_runs_give_the_same_bits)
{
    golden_case c;
    golden_seen one, two;
    exf_err err;
    golden_open(&c, golden_families[_i]);
    golden_forward(&one, c.model, &c.batch, exf_backend_cuda(&err), EXF_COMPUTE_F32, 0);
    golden_forward(&two, c.model, &c.batch, exf_backend_cuda(&err), EXF_COMPUTE_F32, 0);
    ck_assert(memcmp(one.logits, two.logits, one.n_rows * (size_t)one.vocab * sizeof(float)) == 0);
    golden_free(&one);
    golden_free(&two);
    golden_close(&c);
}
END_TEST

START_TEST(bfloat16_stays_near_the_reference)
{
    golden_case c;
    golden_seen s;
    exf_err err;
    golden_open(&c, golden_families[_i]);
    golden_forward(&s, c.model, &c.batch, exf_backend_cuda(&err), EXF_COMPUTE_BF16, 0);
    golden_compare_rounded(&c, &s, 4e-2, 0.85); /* operands of 8 bits; a toy model's scores are close */
    golden_free(&s);
    golden_close(&c);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_golden");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, cuda_forward_matches_the_reference, 0, golden_n_families());
    tcase_add_loop_test(t, two_cuda_runs_give_the_same_bits, 0, golden_n_families());
    tcase_add_loop_test(t, bfloat16_stays_near_the_reference, 0, golden_n_families());
    suite_add_tcase(s, t);
    return s;
}
