/* check_divergence.c - kernels/divergence against the formulas in double. */
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include "base/mem.h"
#include "kernels/statistics/divergence.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { MOST = 1000 };

static const int sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 1000};
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef struct {
    double log_p[MOST], p[MOST], log_sum;
    int top;
} naive_row;

static naive_row naive_softmax(const float *x, int n)
{
    naive_row r = {.top = 0};
    double sum = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[r.top]) r.top = i;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - (double)x[r.top]);
    r.log_sum = (double)x[r.top] + log(sum);
    for (int i = 0; i < n; i++) {
        r.log_p[i] = (double)x[i] - r.log_sum;
        r.p[i] = exp(r.log_p[i]);
    }
    return r;
}

static double naive_kl(const naive_row *p, const naive_row *q, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += p->p[i] * (p->log_p[i] - q->log_p[i]);
    return sum;
}

/* What float32 keeps of a number of this size. */
static double ulp(double x)
{
    return fabs(x) * FLT_EPSILON + FLT_MIN;
}

typedef struct {
    float log_p[MOST], p[MOST];
    int top;
} row;

static row row_of(const float *x, int n)
{
    row r;
    exf_log_softmax_cpu(r.log_p, r.p, x, n, &r.top);
    return r;
}

START_TEST(log_softmax_is_that)
{
    for (int s = 0; s < SIZES; s++)
        for (int scale = -2; scale <= 2; scale++) {
            int n = sizes[s];
            float *x = naive_numbers((size_t)n, 100 + (uint64_t)s, (float)pow(10, scale));
            naive_row want = naive_softmax(x, n);
            row got = row_of(x, n);
            double sum = 0;
            ck_assert_int_eq(got.top, want.top);
            for (int i = 0; i < n; i++) {
                ck_assert_msg(fabs((double)got.log_p[i] - want.log_p[i]) <= 4 * ulp(fabs(want.log_p[i]) + fabs(want.log_sum) + 1),
                              "n %d, element %d: log p %.9g, expected %.9g", n, i, (double)got.log_p[i], want.log_p[i]);
                ck_assert_msg(fabs((double)got.p[i] - want.p[i]) <=
                                  want.p[i] * 8 * ulp(fabs(want.log_p[i]) + fabs(want.log_sum) + 1) + 2e-38, /* below e^-87: 0 */
                              "n %d, element %d: p %.9g, expected %.9g", n, i, (double)got.p[i], want.p[i]);
                sum += (double)got.p[i];
            }
            ck_assert(fabs(sum - 1) <= 1e-4);
            exf_mem_free(x);
        }
}
END_TEST

START_TEST(divergence_is_that)
{
    for (int s = 0; s < SIZES; s++)
        for (int gap = 0; gap < 4; gap++) {
            int n = sizes[s], top;
            double log_sum;
            float *x = naive_numbers((size_t)n, 200 + (uint64_t)s, 6),
                  *y = naive_numbers((size_t)n, 300 + (uint64_t)s, (float)pow(10, gap - 2));
            for (int i = 0; i < n; i++) y[i] += x[i];
            naive_row p = naive_softmax(x, n), q = naive_softmax(y, n);
            row first = row_of(x, n);
            double got = exf_divergence_cpu(first.log_p, first.p, y, n, &log_sum, &top), want = naive_kl(&p, &q, n);
            ck_assert_msg(fabs(got - want) <= 1e-5 * want + 3e-6, "n %d, gap %d: KL %.9g, expected %.9g", n, gap, got, want);
            ck_assert_msg(fabs(log_sum - q.log_sum) <= 1e-6 * (1 + fabs(q.log_sum)), "n %d: log sum %.12g, expected %.12g", n,
                          log_sum, q.log_sum);
            ck_assert_int_eq(top, q.top);
            exf_mem_free(x);
            exf_mem_free(y);
        }
}
END_TEST

START_TEST(equal_rows_give_exactly_nothing)
{
    for (int s = 0; s < SIZES; s++)
        for (int scale = 0; scale <= 4; scale++) {
            int n = sizes[s], top;
            double log_sum;
            float *x = naive_numbers((size_t)n, 400 + (uint64_t)s, (float)pow(10, scale));
            row first = row_of(x, n);
            ck_assert(exf_divergence_cpu(first.log_p, first.p, x, n, &log_sum, &top) == 0);
            ck_assert_int_eq(top, first.top);
            ck_assert((float)((double)x[n / 2] - log_sum) == first.log_p[n / 2] ||
                      fabsf(first.log_p[n / 2] - (float)((double)x[n / 2] - log_sum)) <= (float)ulp(log_sum + 1e4));
            exf_mem_free(x);
        }
}
END_TEST

START_TEST(ties_go_to_the_lower_number)
{
    float x[17];
    for (int n = 1; n <= 17; n++)
        for (int a = 0; a < n; a++)
            for (int b = a; b < n; b++) {
                double log_sum;
                int top;
                for (int i = 0; i < n; i++) x[i] = -1.5f;
                x[a] = x[b] = 2;
                row r = row_of(x, n);
                ck_assert_int_eq(r.top, a);
                exf_divergence_cpu(r.log_p, r.p, x, n, &log_sum, &top);
                ck_assert_int_eq(top, a);
            }
    for (int i = 0; i < 17; i++) x[i] = -3;
    ck_assert_int_eq(row_of(x, 17).top, 0);
}
END_TEST

/* One token certain, another at +-1e4: no overflow, no NaN, and the number is right. */
START_TEST(large_logits)
{
    for (int s = 0; s < SIZES; s++) {
        int n = sizes[s], top;
        float x[MOST] = {0}, y[MOST] = {0};
        double log_sum;
        for (int i = 0; i < n; i++) {
            x[i] = i % 2 ? -1e4f : 0;
            y[i] = i % 2 ? 0 : -1e4f;
        }
        x[0] = y[n - 1] = 1e4f;
        row first = row_of(x, n);
        naive_row p = naive_softmax(x, n), q = naive_softmax(y, n);
        double got = exf_divergence_cpu(first.log_p, first.p, y, n, &log_sum, &top), want = naive_kl(&p, &q, n);
        ck_assert_int_eq(top, n - 1);
        ck_assert_msg(fabs(got - want) <= 1e-6 * fabs(want), "n %d: KL %.9g, expected %.9g", n, got, want);
        for (int i = 0; i < n; i++) ck_assert(isfinite(first.log_p[i]) && first.p[i] >= 0 && first.p[i] <= 1);
    }
}
END_TEST

START_TEST(one_token_is_certain)
{
    static const float values[] = {0, 1e4f, -1e4f, 3.25f};
    for (int i = 0; i < 4; i++) {
        double log_sum;
        int top;
        row r = row_of(&values[i], 1);
        ck_assert(r.log_p[0] == 0 && r.p[0] == 1 && r.top == 0);
        ck_assert(exf_divergence_cpu(r.log_p, r.p, &values[3 - i], 1, &log_sum, &top) == 0);
        ck_assert(log_sum == (double)values[3 - i] && top == 0);
    }
}
END_TEST

/* Wherever it stands, in either row: it is told, not lost. */
START_TEST(nan_stays_nan)
{
    for (int s = 0; s < SIZES - 1; s++)
        for (int at = 0; at < sizes[s]; at++) {
            int n = sizes[s], top;
            double log_sum;
            float x[MOST], y[MOST];
            for (int i = 0; i < n; i++) x[i] = y[i] = (float)(i % 5);
            y[at] = NAN;
            row good = row_of(x, n), bad = row_of(y, n);
            ck_assert_msg(isnan(exf_divergence_cpu(good.log_p, good.p, y, n, &log_sum, &top)), "n %d, NaN at %d", n, at);
            ck_assert_msg(isnan(log_sum) || n == 1, "n %d, NaN at %d: log sum %g", n, at, log_sum);
            ck_assert(top >= 0 && top < n);
            ck_assert_msg(isnan(bad.log_p[(at + 1) % n]), "n %d, NaN at %d: another token's log p is %g", n, at,
                          (double)bad.log_p[(at + 1) % n]);
            ck_assert(bad.top >= 0 && bad.top < n);
        }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, log_softmax_is_that);
    tcase_add_test(t, divergence_is_that);
    tcase_add_test(t, equal_rows_give_exactly_nothing);
    tcase_add_test(t, ties_go_to_the_lower_number);
    tcase_add_test(t, large_logits);
    tcase_add_test(t, one_token_is_certain);
    tcase_add_test(t, nan_stays_nan);
}
