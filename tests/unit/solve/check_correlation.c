/* check_correlation.c - the matrices that joint weights go by: valid whatever the means, and what readers are told of them. */
#include "solve/solve_internal.h"

#include "artifact/tables.h"
#include "kernels/linear/symmetric.h"
#include "tests/support/fixtures.h"

#include <math.h>

enum { E = 3 };
static exf_err e;

/* Tables and sums of one layer of E experts whose pairs share `count` tokens with that cosine; 0 tokens: unobserved. */
typedef struct {
    exf_tables t;
    exf_layer_statistics s;
} layer;

static void begin(layer *x)
{
    static const int32_t number = 4;
    exf_run_shape shape = {E, 2, 8, 1, 64};
    x->t = (exf_tables){.cosine = NULL};
    ck_ok(exf_tables_new(&x->t, &shape, &number, 1, NULL, 0, &e), e);
    ck_ok(exf_measures_new(0, &x->t, &e), e);
    ck_ok(exf_tables_add_correlations(&x->t, &e), e);
    ck_ok(exf_layer_statistics_new(&x->s, E, &e), e);
    for (int i = 0; i < E; i++) x->t.rms[i] = 1;
    for (int i = 0; i < E * E; i++) x->t.loss[i] = EXF_LOSS_NEVER;
}

/* Adds tokens of a pair, on which the outputs have these mean squares. */
static void pair(layer *x, int a, int b, uint64_t count, double cosine, double sq_a, double sq_b)
{
    int at[] = {a * E + b, b * E + a};
    for (int i = 0; i < 2; i++) {
        x->t.loss[at[i]] = 0.5f;
        x->s.count[at[i]] = count;
        exf_exact_add(&x->s.cosine_sum[at[i]], cosine * (double)count);
        exf_exact_add(&x->s.sq0[at[i]], (i ? sq_b : sq_a) * (double)count);
    }
}

static void end(layer *x)
{
    exf_layer_statistics_free(&x->s);
    exf_tables_free(&x->t);
}

static double least_eigenvalue_of(const float *c)
{
    double a[E * E], value;
    for (int i = 0; i < E * E; i++) a[i] = (double)c[i];
    ck_ok(exf_symmetric_least(&value, a, E, &e), e);
    return value;
}

/* 1 and 2 are 0's copies, and each other's opposite: the means' eigenvalues are 2, 2 and -1. */
START_TEST(an_eigenvalue_of_minus_1_is_raised)
{
    layer x;
    begin(&x);
    pair(&x, 0, 1, 10, 1, 1, 1);
    pair(&x, 0, 2, 10, 1, 1, 1);
    pair(&x, 1, 2, 20, -1, 1, 1);
    ck_ok(exf_correlations_solve(&x.s, 0, 1, &x.t, &e), e);
    ck_assert_double_eq_tol((double)x.t.least_eigenvalue[0], -1, 1e-6);
    double kept = (1 - 1.02 / 3) / (1 + 1.02 / 3); /* 1.02 v v' is added, v = (-1, 1, 1) / sqrt 3 */
    ck_assert_double_eq_tol((double)x.t.cosine[0 * E + 1], kept, 1e-6);
    ck_assert_double_eq_tol((double)x.t.cosine[2 * E + 0], kept, 1e-6);
    ck_assert_double_eq_tol((double)x.t.cosine[1 * E + 2], -kept, 1e-6);
    for (int i = 0; i < E; i++) ck_assert_float_eq(x.t.cosine[i * E + i], 1);
    ck_assert_double_eq_tol(least_eigenvalue_of(x.t.cosine), 0.02 / (1 + 1.02 / 3), 1e-6);
    ck_assert_float_eq(x.t.near_copies[0], 1);
    end(&x);
}
END_TEST

START_TEST(a_valid_matrix_keeps_its_bits)
{
    layer x;
    begin(&x);
    pair(&x, 0, 1, 8, 0.3, 1, 1);
    pair(&x, 1, 2, 8, 0.25, 1, 1);
    ck_ok(exf_correlations_solve(&x.s, 0, 1, &x.t, &e), e);
    ck_assert_float_eq(x.t.cosine[0 * E + 1], 0.3f);
    ck_assert_float_eq(x.t.cosine[2 * E + 1], 0.25f);
    ck_assert_float_eq(x.t.cosine[0 * E + 2], 0); /* unobserved, and nothing follows from the others */
    end(&x);
}
END_TEST

/* 0 is like 1, and 1 like 2, so that 0 and 2 cannot be what they are without a token: unlike. */
START_TEST(an_unobserved_pair_has_what_follows_from_the_others)
{
    layer x;
    begin(&x);
    pair(&x, 0, 1, 8, 0.95, 1, 1);
    pair(&x, 1, 2, 8, 0.95, 1, 1);
    ck_ok(exf_correlations_solve(&x.s, 0, 1, &x.t, &e), e);
    ck_assert(x.t.cosine[0 * E + 2] > 0.08f && x.t.cosine[0 * E + 2] == x.t.cosine[2 * E + 0]);
    ck_assert(x.t.loss[0 * E + 2] >= EXF_LOSS_NEVER); /* it is unobserved as before */
    ck_assert(least_eigenvalue_of(x.t.cosine) > 0.005);
    end(&x);
}
END_TEST

/* Copies that run on different tokens: by rms one is nine times the other, on the tokens that they share they are equal. */
START_TEST(relative_norms_are_those_on_shared_tokens)
{
    layer x;
    begin(&x);
    x.t.rms[0] = 9;
    pair(&x, 0, 1, 100, 0.5, 4, 4);
    pair(&x, 1, 2, 100, 0.5, 4, 16);
    pair(&x, 0, 2, 7, 0.5, 400, 1); /* too few to say anything */
    ck_ok(exf_correlations_solve(&x.s, 0, 1, &x.t, &e), e);
    const float *n = x.t.relative_norms;
    ck_assert_double_eq_tol((double)(n[1] / n[0]), 1, 1e-6);
    ck_assert_double_eq_tol((double)(n[2] / n[1]), 2, 1e-6);
    ck_assert_double_eq_tol((double)n[0] * (double)n[1] * (double)n[2], 9, 1e-5); /* rms' geometric mean */
    end(&x);
}
END_TEST

START_TEST(experts_without_shared_tokens_keep_their_rms)
{
    layer x;
    begin(&x);
    x.t.rms[0] = 5;
    x.t.rms[2] = 0; /* its outputs are 0 */
    ck_ok(exf_correlations_solve(&x.s, 0, 1, &x.t, &e), e);
    ck_assert_float_eq_tol(x.t.relative_norms[0] / x.t.relative_norms[1], 5, 1e-4f);
    ck_assert_float_eq(x.t.relative_norms[2], 0);
    ck_assert_float_eq(x.t.median_cosine_sq[0], 0);
    ck_assert_float_eq(x.t.near_copies[0], 0);
    end(&x);
}
END_TEST

START_TEST(near_copies_are_counted_by_tokens)
{
    layer x;
    begin(&x);
    pair(&x, 0, 1, 30, 0.96, 1, 1);
    pair(&x, 1, 2, 50, 0.5, 1, 1);
    pair(&x, 0, 2, 20, 0.4, 1, 1);
    ck_ok(exf_correlations_solve(&x.s, 0, 1, &x.t, &e), e);
    ck_assert_float_eq_tol(x.t.near_copies[0], 0.3f, 1e-6f);
    ck_assert_float_eq_tol(x.t.median_cosine_sq[0], 0.25f, 1e-6f);
    end(&x);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, an_eigenvalue_of_minus_1_is_raised);
    tcase_add_test(t, a_valid_matrix_keeps_its_bits);
    tcase_add_test(t, an_unobserved_pair_has_what_follows_from_the_others);
    tcase_add_test(t, relative_norms_are_those_on_shared_tokens);
    tcase_add_test(t, experts_without_shared_tokens_keep_their_rms);
    tcase_add_test(t, near_copies_are_counted_by_tokens);
}
