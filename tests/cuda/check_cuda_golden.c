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
    /* Operands of 8 bits; a toy model's scores are close, and so are those by which an indexer chooses what a token sees. */
    golden_compare_rounded(&c, &s, c.model->arch.mla.index_heads ? 1.5e-1 : 4e-2, 0.85);
    golden_free(&s);
    golden_close(&c);
}
END_TEST

static void choose(exf_tensor_cores by)
{
    exf_err err;
    ck_ok(exf_backend_cuda(&err)->gpu->choose_tensor_cores(by, &err), err);
}

static void choose_auto(void)
{
    choose(EXF_TENSOR_CORES_AUTO);
}

static void choose_mma(void)
{
    choose(EXF_TENSOR_CORES_MMA);
}

/* On a name depends what statistics say of the device that made them. */
START_TEST(the_device_says_how_it_multiplies)
{
    exf_err err;
    const exf_backend *b = exf_backend_cuda(&err);
    choose_mma();
    ck_assert_ptr_nonnull(strstr(b->device(), ", mma.sync"));
    exf_code rc = b->gpu->choose_tensor_cores(EXF_TENSOR_CORES_WGMMA, &err);
    if (rc == EXF_OK)
        ck_assert_ptr_null(strstr(b->device(), "mma.sync"));
    else
        ck_fails(rc, EXF_DEVICE, err, "wgmma");
    choose_auto();
    ck_assert_int_eq(strstr(b->device(), "mma.sync") == NULL, rc == EXF_OK);
}
END_TEST

static TCase *add_cases(Suite *s, const char *name, void (*setup)(void))
{
    TCase *t = exf_case(s, name);
    tcase_add_checked_fixture(t, setup, choose_auto);
    tcase_add_loop_test(t, cuda_forward_matches_the_reference, 0, golden_n_families());
    tcase_add_loop_test(t, two_cuda_runs_give_the_same_bits, 0, golden_n_families());
    tcase_add_loop_test(t, bfloat16_stays_near_the_reference, 0, golden_n_families());
    return t;
}

void exf_suite(Suite *s)
{
    TCase *t = add_cases(s, "all", choose_auto);
    tcase_add_test(t, the_device_says_how_it_multiplies);
    add_cases(s, "mma", choose_mma);
}
