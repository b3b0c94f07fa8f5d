/* check_linalg.c - kernels/linalg and the search for a basis, against what is
 * known of their results. */
#include "tests/support/scratch_fixtures.h"

#include "accumulate/accumulate_internal.h"
#include "kernels/linear/linear.h"
#include "base/hash.h"

#include <math.h>

static exf_err e; /* of the last call */

static double real(uint64_t seed, size_t i)
{
    return (double)exf_rng_below(1u << 24, seed, 7, i) / (1u << 23) - 1;
}

static void fill(double *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) x[i] = real(seed, i);
}

static void ck_close(double got, double want, double tolerance, const char *what)
{
    ck_assert_msg(fabs(got - want) <= tolerance, "%s: %.17g, expected %.17g", what, got, want);
}

START_TEST(products_by_hand)
{
    const double x[6] = {1, 2, 3, 4, 5, 6}, w[6] = {1, 0, 2, 1, -1, 3}; /* [2, 3], [3, 2] */
    double y[4] = {1, 1, 1, 1}, z[4], g[4];
    exf_linalg_xw(y, 2, x, 3, w, 2, 2, 2, 3, 2, 1);
    const double want[4] = {2 * (1 + 4 - 3) + 1, 2 * (0 + 2 + 9) + 1, 2 * (4 + 10 - 6) + 1, 2 * (0 + 5 + 18) + 1};
    ck_assert_mem_eq(y, want, sizeof want);
    exf_linalg_xtw(z, 2, x, 2, w, 2, 2, 2, 3, 1, 0); /* x as [3, 2] */
    const double turned[4] = {1 + 6 - 5, 0 + 3 + 15, 2 + 8 - 6, 0 + 4 + 18};
    ck_assert_mem_eq(z, turned, sizeof turned);
    exf_linalg_xxt(g, x, 2, 3);
    const double gram[4] = {14, 32, 32, 77};
    ck_assert_mem_eq(g, gram, sizeof gram);
    exf_linalg_xw(y, 2, x, 3, w, 2, 0, 2, 3, 1, 0); /* nothing */
    ck_assert_mem_eq(y, want, sizeof want);
}
END_TEST

START_TEST(columns_become_orthonormal)
{
    enum { M = 9, N = 4 };
    double a[M * N], q[M * N];
    for (int dependent = 0; dependent < 2; dependent++) {
        fill(a, M * N, 3);
        for (int i = 0; dependent && i < M; i++) a[i * N + 2] = a[i * N] - 2 * a[i * N + 1];
        memcpy(q, a, sizeof a);
        ck_ok(exf_linalg_orthonormalize(q, M, N, &e), e);
        for (int c = 0; c < N; c++)
            for (int d = 0; d < N; d++) {
                double dot = 0;
                for (int i = 0; i < M; i++) dot += q[i * N + c] * q[i * N + d];
                ck_close(dot, c == d, 1e-14, "product of columns");
            }
        for (int c = 0; c < N; c++) /* what a spans, q spans */
            for (int i = 0; i < M; i++) {
                double x = 0;
                for (int d = 0; d < N; d++) {
                    double dot = 0;
                    for (int k = 0; k < M; k++) dot += q[k * N + d] * a[k * N + c];
                    x += dot * q[i * N + d];
                }
                ck_close(x, a[i * N + c], 1e-13, "projection");
            }
    }
}
END_TEST

START_TEST(eigenvalues_fall)
{
    enum { N = 6 };
    double a[N * N], v[N * N], w[N];
    fill(a, N * N, 4);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++) a[i * N + k] = a[k * N + i];
    memcpy(v, a, sizeof a);
    ck_ok(exf_linalg_eigen(v, w, N, &e), e);
    for (int k = 0; k < N; k++) {
        ck_assert(k == 0 || w[k] <= w[k - 1]);
        for (int i = 0; i < N; i++) {
            double x = 0;
            for (int j = 0; j < N; j++) x += a[i * N + j] * v[j * N + k];
            ck_close(x, w[k] * v[i * N + k], 1e-13, "eigenvector");
        }
    }
}
END_TEST

START_TEST(positive_systems_are_solved)
{
    enum { N = 5, M = 3 };
    double x[N * M], a[N * N], b[N * M], root[N * N];
    fill(root, N * N, 5);
    fill(x, N * M, 6);
    exf_linalg_xxt(a, root, N, N);
    for (int i = 0; i < N; i++) a[i * N + i] += 0.5;
    exf_linalg_xw(b, M, a, N, x, M, N, M, N, 1, 0);
    ck_ok(exf_linalg_solve(a, b, N, M, &e), e);
    for (int i = 0; i < N * M; i++) ck_close(b[i], x[i], 1e-12, "solution");
    memset(a, 0, sizeof a);
    ck_fails(exf_linalg_solve(a, b, N, M, &e), EXF_NUMERIC, e, "5");
}
END_TEST

/* ---- the basis -------------------------------------------------------------------------- */

enum { ROWS = 700, D = 24, R = 5 };

/* Rows with the directions k = 0, 1, ... of `axis` [D, D] at falling sizes, around a mean. */
static void make_rows(float *x, const double *axis, int directions)
{
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < D; j++) {
            double v = 3 + (double)j;
            for (int k = 0; k < directions; k++) v += real(11, i * D + (size_t)k) * pow(0.5, k) * axis[j * D + (size_t)k];
            x[i * D + j] = (float)v;
        }
}

/* The subspace of the leading R directions by eigenvectors of X'X, densely. */
static void dense(double *v, const float *x)
{
    double *c = NULL, w[D], mean[D] = {0};
    ck_ok(exf_mem_new(&c, ROWS * D, sizeof *c, "rows", &e), e);
    for (int i = 0; i < ROWS * D; i++) mean[i % D] += (double)x[i] / ROWS;
    for (int i = 0; i < ROWS * D; i++) c[i] = (double)x[i] - mean[i % D];
    exf_linalg_xtw(v, D, c, D, c, D, D, D, ROWS, 1, 0);
    ck_ok(exf_linalg_eigen(v, w, D, &e), e);
    exf_mem_free(c);
}

START_TEST(a_basis_has_the_leading_directions)
{
    double axis[D * D], q[D * R], again[D * R], v[D * D];
    float *x = NULL;
    ck_ok(exf_mem_new(&x, ROWS * D, sizeof *x, "rows", &e), e);
    fill(axis, D * D, 12);
    ck_ok(exf_linalg_orthonormalize(axis, D, D, &e), e);
    make_rows(x, axis, D);
    dense(v, x);
    ck_ok(exf_basis_find(q, R, x, ROWS, D, 1, 1, 2, 1, &e), e);
    for (int c = 0; c < R; c++) {
        double dot = 0, largest = 0;
        for (int i = 0; i < D; i++) {
            dot += q[i * R + c] * v[i * D + c];
            if (fabs(q[i * R + c]) > fabs(largest)) largest = q[i * R + c];
        }
        ck_close(fabs(dot), 1, 1e-8, "direction");
        ck_assert(largest > 0);
    }
    ck_ok(exf_basis_find(again, R, x, ROWS, D, 1, 1, 2, 3, &e), e);
    ck_assert_mem_eq(q, again, sizeof q);
    exf_mem_free(x);
}
END_TEST

/* Fewer directions than columns, and no row at all: still orthonormal columns. */
START_TEST(a_basis_is_completed)
{
    double axis[D * D] = {0}, q[D * R];
    float *x = NULL;
    ck_ok(exf_mem_new(&x, ROWS * D, sizeof *x, "rows", &e), e);
    for (int i = 0; i < D; i++) axis[i * D + i] = 1;
    make_rows(x, axis, 2);
    for (size_t n = 0; n <= ROWS; n += ROWS) {
        ck_ok(exf_basis_find(q, R, x, n, D, 1, 1, 2, 1, &e), e);
        for (int c = 0; c < R; c++)
            for (int d = 0; d < R; d++) {
                double dot = 0;
                for (int i = 0; i < D; i++) dot += q[i * R + c] * q[i * R + d];
                ck_close(dot, c == d, 1e-12, "product of columns");
            }
        if (n) { /* column 0 and 1 are the first two axes */
            ck_close(q[0], 1, 1e-2, "first axis");
            ck_close(q[0] * q[0] + q[R] * q[R], 1, 1e-9, "plane of two axes");
        }
    }
    exf_mem_free(x);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, products_by_hand);
    tcase_add_test(t, columns_become_orthonormal);
    tcase_add_test(t, eigenvalues_fall);
    tcase_add_test(t, positive_systems_are_solved);
    tcase_add_test(t, a_basis_has_the_leading_directions);
    tcase_add_test(t, a_basis_is_completed);
}
