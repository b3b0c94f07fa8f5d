/* check_rope.c - rotary embedding: known frequencies, tables, and the rotation
 * against a plain double version in every layout. */
#include "base/mem.h"
#include "kernels/attention/attention.h"
#include "kernels/rows/rows.h"
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include <math.h>
#include <string.h>

/* ---- frequencies ---------------------------------------------------------- */

/* Computed in double precision from the formula in attention.h, d = 64. */
enum { D = 64, N_SHOWN = 6 };
static const int shown[N_SHOWN] = {0, 10, 11, 16, 20, 31};
typedef struct {
    const char *model;
    double theta;
    exf_yarn yarn;
    double low, high, inverse[N_SHOWN];
} yarn_row;
static const yarn_row yarn_rows[] = {
    {"DeepSeek-V2 and V3", 1e4, {40, 32, 1, 4096, 1}, 10, 23,
     {1, 0.0562341325, 0.0390069266, 0.0055, 7.90569415e-4, 3.33380358e-6}},
    {"DeepSeek-V4", 1.6e5, {16, 32, 1, 65536, 1}, 15, 25,
     {1, 0.0236435402, 0.0162586228, 0.002265625, 2.96977778e-4, 5.68052904e-7}},
    {"gpt-oss", 1.5e5, {32, 32, 1, 4096, 0}, 8.0927791, 17.3980245,
     {1, 0.0193350011, 0.0115920493, 4.56483919e-4, 1.81883367e-5, 3.02351143e-7}},
    {"Kimi-K2", 5e4, {32, 1, 1, 4096, 1}, 19, 20, {1, 0.0340072782, 0.024250967, 0.00447213595, 3.61404677e-5, 8.76441291e-7}},
};

START_TEST(yarn_frequencies_are_the_known_ones)
{
    const yarn_row *m = &yarn_rows[_i];
    float inverse[D / 2];
    exf_rope_yarn_frequencies(inverse, D, m->theta, &m->yarn);
    for (int i = 0; i < N_SHOWN; i++) {
        double seen = (double)inverse[shown[i]], off = fabs(seen / m->inverse[i] - 1);
        ck_assert_msg(off < 1e-6, "%s: frequency %d is %.9g, expected %.9g", m->model, shown[i], seen, m->inverse[i]);
    }
}
END_TEST

/* The correction range is inside the kernel; every frequency tells where on the
 * ramp its dimension is, to the rounding of the frequency (2^-24 / (1 - 1/factor)). */
START_TEST(yarn_ramps_between_low_and_high)
{
    const yarn_row *m = &yarn_rows[_i];
    float inverse[D / 2];
    exf_rope_yarn_frequencies(inverse, D, m->theta, &m->yarn);
    for (int i = 0; i < D / 2; i++) {
        double plain = pow(m->theta, -2.0 * i / D);
        double seen = (1 - (double)inverse[i] / plain) / (1 - 1 / m->yarn.factor);
        double want = fmin(fmax((i - m->low) / (m->high - m->low), 0), 1);
        ck_assert_msg(fabs(seen - want) < 1e-7, "%s: dimension %d is at %.9g of the ramp, expected %.9g", m->model, i, seen, want);
    }
}
END_TEST

/* Both ends fall outside: low = 0 and high = d - 1, so ramp_i = i / 7 and, with a
 * factor of 8, frequency_i = f_i (1 - i / 8). */
START_TEST(the_correction_range_stays_within_the_dimensions)
{
    float inverse[4];
    exf_yarn y = {8, 1e9, 1, 1e6, 1};
    exf_rope_yarn_frequencies(inverse, 8, 4, &y);
    for (int i = 0; i < 4; i++) ck_assert_float_eq_tol(inverse[i], (float)(pow(4, -i / 4.0) * (1 - i / 8.0)), 1e-7f);
}
END_TEST

/* Both ends round to 0: a step after dimension 0 instead of 0 / 0. */
START_TEST(an_empty_correction_range_is_a_step)
{
    float inverse[4];
    exf_yarn y = {8, 2, 1, 3.14159, 1};
    exf_rope_yarn_frequencies(inverse, 8, 1e4, &y);
    for (int i = 0; i < 4; i++) ck_assert_float_eq_tol(inverse[i], (float)(pow(10, -i) / (i ? 8 : 1)), 1e-7f);
}
END_TEST

START_TEST(plain_frequencies_are_powers_of_theta)
{
    float inverse[D / 2], one;
    exf_rope_frequencies(inverse, D, 1e4);
    for (int i = 0; i < D / 2; i++) ck_assert_float_eq(inverse[i], (float)pow(1e4, -i / 32.0));
    exf_rope_frequencies(&one, 2, 5e6);
    ck_assert_float_eq(one, 1.0f);
}
END_TEST

/* ---- tables ------------------------------------------------------------------ */

START_TEST(tables_hold_the_rounded_angle)
{
    enum { POSITIONS = 3000, HALF = 5 };
    static float cosine[POSITIONS * HALF], sine[POSITIONS * HALF];
    float inverse[HALF];
    double amplitude = _i ? 1.3465735903 : 1;
    exf_rope_frequencies(inverse, 2 * HALF, 1e4);
    exf_rope_table(cosine, sine, inverse, 2 * HALF, POSITIONS, amplitude);
    for (int t = 0; t < POSITIONS; t++)
        for (int i = 0; i < HALF; i++) {
            float angle =
                (float)t * inverse[i]; /* in float, as the reference has it: at position 3000 that is up to 1.2e-4 of a radian */
            ck_assert_float_eq(cosine[t * HALF + i], (float)(cos((double)angle) * amplitude));
            ck_assert_float_eq(sine[t * HALF + i], (float)(sin((double)angle) * amplitude));
        }
    ck_assert_float_eq(cosine[0], (float)amplitude);
    ck_assert_float_eq(sine[0], 0.0f);
}
END_TEST

/* ---- rotation ------------------------------------------------------------------ */

enum { POSITIONS = 40, MAX_HALF = 32 };
static float cosine[POSITIONS * MAX_HALF], sine[POSITIONS * MAX_HALF];

static void make_tables(int d)
{
    float inverse[MAX_HALF];
    exf_rope_frequencies(inverse, d, 100);
    exf_rope_table(cosine, sine, inverse, d, POSITIONS, 1);
}

static const exf_rope_shape layouts[] = {
    {.n_tokens = 13, .n_heads = 3, .head_dim = 16, .ld = 48, .d = 16, .step = 1},
    {.n_tokens = 13, .n_heads = 3, .head_dim = 16, .ld = 48, .d = 16, .step = 1, .interleaved = 1},
    {.n_tokens = 1, .n_heads = 1, .head_dim = 2, .ld = 2, .d = 2, .step = 1},
    {.n_tokens = 2, .n_heads = 1, .head_dim = 2, .ld = 2, .d = 2, .step = 1, .interleaved = 1},
    {.n_tokens = 7, .n_heads = 2, .head_dim = 24, .ld = 48, .d = 8, .step = 1},                                 /* the first part */
    {.n_tokens = 7, .n_heads = 2, .head_dim = 24, .ld = 48, .d = 8, .offset = 16, .step = 1, .interleaved = 1}, /* the last part */
    {.n_tokens = 7, .n_heads = 1, .head_dim = 40, .ld = 40, .d = 6, .offset = 33, .step = 1},                   /* odd places */
    {.n_tokens = 9, .n_heads = 5, .head_dim = 10, .ld = 61, .d = 10, .step = 1, .interleaved = 1}, /* rows with more after */
    {.n_tokens = 10, .n_heads = 1, .head_dim = 64, .ld = 64, .d = 64, .step = 4},                  /* every fourth position */
    {.n_tokens = 10, .n_heads = 2, .head_dim = 12, .ld = 24, .d = 4, .offset = 8, .step = 3, .interleaved = 1, .inverse = 1},
    {.n_tokens = 5, .n_heads = 2, .head_dim = 14, .ld = 28, .d = 14, .step = 1, .inverse = 1},
    {.n_tokens = 0, .n_heads = 2, .head_dim = 14, .ld = 28, .d = 14, .step = 1},
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

static int is_rotated(const exf_rope_shape *s, int at)
{
    int in_row = at % s->ld, in_head = in_row % s->head_dim - s->offset;
    return in_row < s->n_heads * s->head_dim && in_head >= 0 && in_head < s->d;
}

/* Two rounded products and a rounded sum: 2 * 2^-24 (|a| + |b|), and |a|, |b| < 1. */
static const double rounding = 0x1p-22;

START_TEST(rotates_like_the_formula)
{
    const exf_rope_shape *s = &layouts[_i];
    size_t n = (size_t)s->n_tokens * (size_t)s->ld;
    float *x = naive_numbers(n, 1, 1), *before = naive_numbers(n, 1, 1);
    double *want = naive_widened(x, n);
    make_tables(s->d);
    exf_rope_apply_cpu(NULL, x, s, cosine, sine);
    naive_rotate(want, s, cosine, sine);
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)x[i] - want[i]);
        if (is_rotated(s, (int)i))
            ck_assert_msg(off <= rounding, "layout %d: float %zu is off by %g", _i, i, off);
        else
            ck_assert_msg(x[i] == before[i], "layout %d: float %zu is outside and changed", _i, i);
    }
    exf_mem_free(x);
    exf_mem_free(before);
    exf_mem_free(want);
}
END_TEST

START_TEST(inverse_undoes)
{
    exf_rope_shape s = layouts[_i];
    size_t n = (size_t)s.n_tokens * (size_t)s.ld;
    float *x = naive_numbers(n, 2, 1), *before = naive_numbers(n, 2, 1);
    make_tables(s.d);
    exf_rope_apply_cpu(NULL, x, &s, cosine, sine);
    s.inverse = !s.inverse;
    exf_rope_apply_cpu(NULL, x, &s, cosine, sine);
    for (size_t i = 0; i < n; i++) ck_assert_float_eq_tol(x[i], before[i], 4 * (float)rounding);
    exf_mem_free(x);
    exf_mem_free(before);
}
END_TEST

START_TEST(turns_the_first_axis_towards_the_second)
{
    float x[4] = {0, 0, 1, 0};
    exf_rope_shape s = {.n_tokens = 2, .n_heads = 1, .head_dim = 2, .ld = 2, .d = 2, .step = 1};
    make_tables(2);
    exf_rope_apply_cpu(NULL, x, &s, cosine, sine);
    ck_assert_float_eq(x[2], (float)cos(1));
    ck_assert_float_eq(x[3], (float)sin(1));
}
END_TEST

/* Interleaved pairs sorted into (evens | odds) are half-rotation pairs: released code
 * permutes and half-rotates where ours rotates in place, and the bits agree. */
START_TEST(layouts_are_permutations_of_each_other)
{
    enum { TOKENS = 6, WIDTH = 12 };
    float x[TOKENS * WIDTH], sorted[TOKENS * WIDTH];
    exf_rope_shape s = {.n_tokens = TOKENS, .n_heads = 1, .head_dim = WIDTH, .ld = WIDTH, .d = WIDTH, .step = 1};
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        int row = i / WIDTH * WIDTH, at = i % WIDTH;
        x[i] = naive_number(3, (uint64_t)i);
        sorted[row + at / 2 + at % 2 * (WIDTH / 2)] = x[i];
    }
    make_tables(WIDTH);
    exf_rope_apply_cpu(NULL, sorted, &s, cosine, sine);
    s.interleaved = 1;
    exf_rope_apply_cpu(NULL, x, &s, cosine, sine);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        ck_assert_float_eq(x[i], sorted[i / WIDTH * WIDTH + i % WIDTH / 2 + i % 2 * (WIDTH / 2)]);
}
END_TEST

/* Scores depend on distances alone, or it would not be a position embedding. */
START_TEST(scores_depend_on_the_distance_only)
{
    enum { TOKENS = 20, WIDTH = 8 };
    float q[TOKENS * WIDTH], k[TOKENS * WIDTH];
    exf_rope_shape s = {.n_tokens = TOKENS, .n_heads = 1, .head_dim = WIDTH, .ld = WIDTH, .d = WIDTH, .step = 1, .interleaved = _i};
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        q[i] = naive_number(4, (uint64_t)(i % WIDTH));
        k[i] = naive_number(5, (uint64_t)(i % WIDTH));
    }
    make_tables(WIDTH);
    exf_rope_apply_cpu(NULL, q, &s, cosine, sine);
    exf_rope_apply_cpu(NULL, k, &s, cosine, sine);
    for (int t = 3; t < TOKENS; t++) {
        double shifted = 0, first = 0;
        for (int i = 0; i < WIDTH; i++) {
            shifted += (double)q[t * WIDTH + i] * (double)k[(t - 3) * WIDTH + i];
            first += (double)q[3 * WIDTH + i] * (double)k[i];
        }
        ck_assert_double_eq_tol(shifted, first, 1e-5); /* angles up to 20 carry 20 * 2^-24 each */
    }
}
END_TEST

/* ---- with a norm ------------------------------------------------------------------------- */

/* Rotated by layout _i after the first floats of each head are normed: the bits of rmsnorm and of a rotation after it. */
static void check_norm(exf_rope_shape s, int normed, const float *norm)
{
    size_t n = (size_t)s.n_tokens * (size_t)s.ld;
    float *x = naive_numbers(n, 6, 2), *apart = naive_numbers(n, 6, 2);
    make_tables(s.d);
    for (int t = 0; t < s.n_tokens; t++) {
        float *row = apart + (size_t)t * (size_t)s.ld;
        exf_rmsnorm_cpu(NULL, row, s.head_dim, row, s.head_dim, norm, s.n_heads, normed, 1e-3);
    }
    exf_rope_apply_cpu(NULL, apart, &s, cosine, sine);
    s.normed = normed;
    s.norm = norm;
    s.eps = 1e-3;
    exf_rope_apply_cpu(NULL, x, &s, cosine, sine);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(&x[i], &apart[i], sizeof *x) == 0, "norm of %d: float %zu is %.9g, %.9g by two operations", normed, i,
                      (double)x[i], (double)apart[i]);
    exf_mem_free(x);
    exf_mem_free(apart);
}

START_TEST(a_norm_comes_before_the_rotation)
{
    const exf_rope_shape *s = &layouts[_i];
    float *norm = naive_numbers((size_t)s->head_dim, 7, 1);
    check_norm(*s, s->head_dim, norm);
    check_norm(*s, s->head_dim, NULL);
    check_norm(*s, s->head_dim / 2, norm);
    exf_mem_free(norm);
}
END_TEST

/* 3 and 4 have a root mean square of 5 / sqrt(2); position 1 turns by one radian. */
START_TEST(a_norm_and_a_rotation_by_hand)
{
    float x[4] = {3, 4, 3, 4}, norm[2] = {1, 2};
    double a = 3 * sqrt(2) / 5, b = 8 * sqrt(2) / 5;
    exf_rope_shape s = {.n_tokens = 2, .n_heads = 1, .head_dim = 2, .ld = 2, .d = 2, .step = 1, .normed = 2, .norm = norm};
    make_tables(2);
    exf_rope_apply_cpu(NULL, x, &s, cosine, sine);
    ck_assert_double_eq_tol((double)x[0], a, 1e-6);
    ck_assert_double_eq_tol((double)x[1], b, 1e-6);
    ck_assert_double_eq_tol((double)x[2], a * cos(1) - b * sin(1), 1e-6);
    ck_assert_double_eq_tol((double)x[3], b * cos(1) + a * sin(1), 1e-6);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, yarn_frequencies_are_the_known_ones, 0, sizeof yarn_rows / sizeof *yarn_rows);
    tcase_add_loop_test(t, yarn_ramps_between_low_and_high, 0, sizeof yarn_rows / sizeof *yarn_rows);
    tcase_add_test(t, the_correction_range_stays_within_the_dimensions);
    tcase_add_test(t, an_empty_correction_range_is_a_step);
    tcase_add_test(t, plain_frequencies_are_powers_of_theta);
    tcase_add_loop_test(t, tables_hold_the_rounded_angle, 0, 2);
    tcase_add_loop_test(t, rotates_like_the_formula, 0, N_LAYOUTS);
    tcase_add_loop_test(t, inverse_undoes, 0, N_LAYOUTS);
    tcase_add_test(t, turns_the_first_axis_towards_the_second);
    tcase_add_test(t, layouts_are_permutations_of_each_other);
    tcase_add_loop_test(t, scores_depend_on_the_distance_only, 0, 2);
    tcase_add_loop_test(t, a_norm_comes_before_the_rotation, 0, N_LAYOUTS);
    tcase_add_test(t, a_norm_and_a_rotation_by_hand);
}
