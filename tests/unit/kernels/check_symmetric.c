/* check_symmetric.c - eigenvalues of symmetric matrices, held to LAPACK's, and a solve. */
#include "kernels/linear/symmetric.h"

#include "kernels/linear/linear.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <string.h>

enum { MOST = 130 };
static exf_err e;
static uint64_t state;

static double next_number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-52 - 1;
}

/* A matrix of numbers in [-1, 1] with 1 on the diagonal; kind 1: most of it 0; kind 2: diagonal alone, with ties. */
static void make(double *a, int n, int kind)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double v = next_number();
            if (kind == 1 && next_number() < 0.8) v = 0;
            if (kind == 2) v = 0;
            a[i * n + j] = a[j * n + i] = i == j ? kind == 2 ? (double)(i % 3) : 1 : v;
        }
}

static const int sizes[] = {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, MOST};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

START_TEST(the_least_eigenvalue_is_that_of_lapack)
{
    static double a[MOST * MOST], copy[MOST * MOST], w[MOST];
    for (int i = 0; i < N_SIZES; i++)
        for (int kind = 0; kind < 3; kind++) {
            int n = sizes[i];
            double least;
            make(a, n, kind);
            memcpy(copy, a, sizeof a);
            ck_ok(exf_symmetric_least(&least, a, n, &e), e);
            ck_assert(memcmp(a, copy, sizeof a) == 0);
            ck_ok(exf_linalg_eigen(copy, w, n, &e), e);
            ck_assert_double_eq_tol(least, w[n - 1], 1e-13 * n * (fabs(w[0]) + 1));
        }
}
END_TEST

START_TEST(raising_moves_the_eigenvalues_below_alone)
{
    static double a[MOST * MOST], before[MOST * MOST], w[MOST], raised[MOST];
    for (int i = 0; i < N_SIZES; i++)
        for (int kind = 0; kind < 3; kind++) {
            int n = sizes[i];
            double least;
            make(a, n, kind);
            memcpy(before, a, sizeof a);
            ck_ok(exf_symmetric_raise(a, n, 0.5, &least, &e), e);
            for (int k = 0; k < n * n; k++) ck_assert_double_eq(a[k], a[k % n * n + k / n]);
            if (least >= 0.5) ck_assert(memcmp(a, before, (size_t)(n * n) * sizeof *a) == 0);
            ck_ok(exf_linalg_eigen(before, w, n, &e), e);
            ck_ok(exf_linalg_eigen(a, raised, n, &e), e);
            for (int k = 0; k < n; k++)
                ck_assert_double_eq_tol(raised[k], w[k] < 0.5 ? 0.5 : w[k], 1e-13 * n * (fabs(w[0]) + 1));
        }
}
END_TEST

START_TEST(a_solve_is_exact_to_rounding_and_refuses_what_is_not_definite)
{
    static double a[MOST * MOST], kept[MOST * MOST], b[MOST], x[MOST];
    for (int i = 0; i < N_SIZES; i++) {
        int n = sizes[i];
        make(a, n, 0);
        for (int k = 0; k < n; k++) a[k * n + k] = n; /* dominant */
        memcpy(kept, a, sizeof a);
        for (int k = 0; k < n; k++) b[k] = x[k] = next_number();
        ck_ok(exf_symmetric_solve(a, x, n, &e), e);
        for (int k = 0; k < n; k++) {
            double sum = 0;
            for (int j = 0; j < n; j++) sum += kept[k * n + j] * x[j];
            ck_assert_double_eq_tol(sum, b[k], 1e-12);
        }
    }
    double not_definite[] = {1, 2, 2, 1}, some[] = {1, 1};
    ck_fails(exf_symmetric_solve(not_definite, some, 2, &e), EXF_NUMERIC, e, "not positive definite");
}
END_TEST

START_TEST(a_number_that_is_not_finite_is_refused)
{
    double a[] = {1, NAN, NAN, 1}, least;
    ck_fails(exf_symmetric_least(&least, a, 2, &e), EXF_NUMERIC, e, "row 0, column 1");
    ck_fails(exf_symmetric_raise(a, 2, 0.1, &least, &e), EXF_NUMERIC, e, "row 0, column 1");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, the_least_eigenvalue_is_that_of_lapack);
    tcase_add_test(t, raising_moves_the_eigenvalues_below_alone);
    tcase_add_test(t, a_solve_is_exact_to_rounding_and_refuses_what_is_not_definite);
    tcase_add_test(t, a_number_that_is_not_finite_is_refused);
}
