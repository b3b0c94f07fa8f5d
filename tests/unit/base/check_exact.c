/* check_exact.c - exact sums: known values, order, rounding, range. */
#include "tests/support/fixtures.h"

#include "base/exact.h"
#include "base/hash.h"

#include <math.h>
#include <string.h>

static double around(double x)
{
    exf_exact t = exf_exact_from(x);
    return exf_exact_value(&t);
}

START_TEST(doubles_on_the_grid_survive)
{
    static const double cases[] = {0, 1, -1, 0.1, -0.1, 1e15, -1e18, 1e-13, 3.5e-9, 18446744073709549568.0, 0x1p-96, -0x1p-44};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) ck_assert_double_eq(around(cases[i]), cases[i]);
}
END_TEST

START_TEST(below_the_grid_rounds_half_to_even)
{
    ck_assert_double_eq(around(0x1p-97), 0);
    ck_assert_double_eq(around(0x1.8p-96), 0x1p-95);
    ck_assert_double_eq(around(0x1.4p-95), 0x1p-95);
    ck_assert_double_eq(around(-0x1.cp-95), -0x1p-94);
    ck_assert_double_eq(around(0x1p-300), 0);
    ck_assert_double_eq(around(5e-324), 0);
}
END_TEST

START_TEST(range_is_stated)
{
    ck_assert(exf_exact_fits(1.8e19) && exf_exact_fits(-1.8e19) && exf_exact_fits(0));
    ck_assert(!exf_exact_fits(18446744073709551616.0) && !exf_exact_fits(INFINITY) && !exf_exact_fits(NAN));
}
END_TEST

START_TEST(order_does_not_matter)
{
    enum { N = 5000 };
    exf_exact forward = {{0}}, backward = {{0}}, split[3] = {{{0}}};
    double x[N];
    for (uint64_t i = 0; i < N; i++) {
        double u = (double)(int64_t)exf_rng_u64(1, 0, i) * 0x1p-63;
        x[i] = ldexp(u, (int)exf_rng_below(120, 1, 1, i) - 60);
    }
    for (int i = 0; i < N; i++) exf_exact_add(&forward, x[i]);
    for (int i = N - 1; i >= 0; i--) exf_exact_add(&backward, x[i]);
    for (int i = 0; i < N; i++) exf_exact_add(&split[i % 3], x[i]);
    exf_exact_merge(&split[0], &split[2]);
    exf_exact_merge(&split[0], &split[1]);
    ck_assert_mem_eq(&forward, &backward, sizeof forward);
    ck_assert_mem_eq(&forward, &split[0], sizeof forward);
}
END_TEST

/* Powers of two of either sign, in the top word: 2^95 is the sign. */
START_TEST(a_sum_beyond_the_range_is_told)
{
    static const struct { uint64_t a, b; int wraps; } sum[] = {
        {(uint64_t)1 << 62, (uint64_t)1 << 62, 1},          {(uint64_t)3 << 62, (uint64_t)3 << 62, 0}, /* -2^94 twice is -2^95 */
        {(uint64_t)1 << 63, (uint64_t)3 << 62, 1},          {(uint64_t)1 << 63, (uint64_t)1 << 62, 0},
        {((uint64_t)1 << 63) - 1, (uint64_t)1 << 63, 0},    {((uint64_t)1 << 63) - 1, 0, 0},
        {(uint64_t)1 << 63, (uint64_t)1 << 63, 1},          {((uint64_t)1 << 63) - 1, 1, 1},
    };
    for (int i = 0; i < COUNT(sum); i++) {
        exf_exact a = {{0, 0, sum[i].a}}, b = {{0, 0, sum[i].b}};
        ck_assert_int_eq(exf_exact_merge(&a, &b), sum[i].wraps);
        ck_assert_uint_eq(a.limb[2], sum[i].a + sum[i].b);
    }
    exf_exact low = {{UINT64_MAX, UINT64_MAX, UINT64_MAX >> 1}}, one = {{1, 0, 0}}; /* by a carry */
    ck_assert_int_eq(exf_exact_merge(&low, &one), 1);
}
END_TEST

START_TEST(cancellation_is_exact)
{
    exf_exact s = {{0}};
    exf_exact_add(&s, 1e18);
    exf_exact_add(&s, 0x1p-90);
    exf_exact_add(&s, -1e18);
    ck_assert_double_eq(exf_exact_value(&s), 0x1p-90);
    exf_exact_add(&s, -0x1p-90);
    ck_assert_double_eq(exf_exact_value(&s), 0);
}
END_TEST

START_TEST(value_rounds_to_nearest)
{
    exf_exact s = {{0}};
    exf_exact_add(&s, 0x1p53);
    exf_exact_add(&s, 1.0); /* halfway: to even */
    ck_assert_double_eq(exf_exact_value(&s), 0x1p53);
    exf_exact_add(&s, 0x1p-60); /* just above half */
    ck_assert_double_eq(exf_exact_value(&s), 0x1p53 + 2);
    exf_exact_negate(&s);
    ck_assert_double_eq(exf_exact_value(&s), -(0x1p53 + 2));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, doubles_on_the_grid_survive);
    tcase_add_test(t, below_the_grid_rounds_half_to_even);
    tcase_add_test(t, range_is_stated);
    tcase_add_test(t, order_does_not_matter);
    tcase_add_test(t, a_sum_beyond_the_range_is_told);
    tcase_add_test(t, cancellation_is_exact);
    tcase_add_test(t, value_rounds_to_nearest);
}
