/* check_residual.c - hyper-connections: known answers of their coefficients, and
 * opening, closing and collapsing against naive double versions. */
#include "tests/support/fixtures.h"

#include "pass/residual.h"
#include "base/hash.h"
#include "kernels/residual/hyper_connections.h"

#include <math.h>
#include <string.h>

enum { S = 4, MIX = (2 + S) * S };

START_TEST(coefficients_known_answers)
{
    static const double want[MIX] = {
        0.37754167, 0.53494395, 0.50250098, 0.57444352, 1.11449571, 0.75978714, 1.27752635, 0.92514031,
        0.19188570, 0.36018887, 0.24202960, 0.20589484, 0.24802672, 0.17299610, 0.31284158, 0.26613459,
        0.23040221, 0.30476975, 0.29061137, 0.17421568, 0.32968438, 0.16204428, 0.15451645, 0.35375389};
    static const float scale[3] = {0.7f, 1.3f, 0.9f};
    double mix[MIX];
    float base[MIX];
    for (int i = 0; i < MIX; i++) {
        mix[i] = 0.1 * ((7 * i) % 11 - 5);
        base[i] = 0.05f * (float)((3 * i) % 7 - 3);
    }
    exf_hyper_coefficients_cpu(mix, base, scale, S, 20, 1e-6);
    for (int i = 0; i < MIX; i++) ck_assert_double_eq_tol(mix[i], want[i], 1e-7);
}
END_TEST

START_TEST(rows_and_columns_sum_to_nearly_one)
{
    double mix[MIX] = {0};
    float base[MIX] = {0};
    static const float scale[3] = {1, 1, 1};
    for (int i = 0; i < MIX; i++) mix[i] = 3 * sin(i);
    exf_hyper_coefficients_cpu(mix, base, scale, S, 200, 1e-6);
    for (int j = 0; j < S; j++) {
        double row = 0, column = 0;
        for (int k = 0; k < S; k++) {
            row += mix[2 * S + j * S + k];
            column += mix[2 * S + k * S + j];
        }
        ck_assert_double_eq_tol(row, 1, 2e-6);
        ck_assert_double_eq_tol(column, 1, 2e-6);
    }
}
END_TEST

/* Uniform in [-scale, scale). */
static void noise(float *x, size_t n, double scale, uint64_t stream)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * (double)(int64_t)exf_rng_u64(3, stream, i) * 0x1p-63);
}

enum { T = 11, H_MAX = 130 }; /* more than the few tokens that go together */

typedef struct {
    exf_architecture a;
    exf_residual_site site;
    float fn[MIX * S * H_MAX], base[MIX], scale[3], hidden[T * S * H_MAX], v[T * H_MAX], u[T * H_MAX], mixing[T * MIX];
} residual_case;

static void make_case(residual_case *c, int h)
{
    memset(c, 0, sizeof *c);
    c->a.d_model = h;
    c->a.norm_eps = 1e-6;
    c->a.residual = (exf_residual_spec){.streams = S, .sinkhorn_iterations = 20, .eps = 1e-6};
    noise(c->fn, (size_t)(MIX * S * h), 0.3, 0);
    noise(c->base, MIX, 1, 1);
    noise(c->scale, 3, 1, 2);
    noise(c->hidden, (size_t)(T * S * h), 2, 3);
    noise(c->v, (size_t)(T * h), 2, 4);
    c->site = (exf_residual_site){c->fn, c->base, c->scale};
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* r (fn f) for rows of fn. */
static void naive_mix(double *mix, const residual_case *c, const float *x, int n_mix)
{
    int n = S * c->a.d_model;
    double square = 0;
    for (int i = 0; i < n; i++) square += (double)x[i] * (double)x[i];
    for (int m = 0; m < n_mix; m++) {
        mix[m] = 0;
        for (int i = 0; i < n; i++) mix[m] += (double)c->fn[m * n + i] * (double)x[i];
        mix[m] /= sqrt(square / n + c->a.norm_eps);
    }
}

static void divide_by_sum(double *c, int line, int step)
{
    for (int i = 0; i < S; i++) {
        double sum = 1e-6;
        for (int k = 0; k < S; k++) sum += c[i * line + k * step];
        for (int k = 0; k < S; k++) c[i * line + k * step] /= sum;
    }
}

static void naive_coefficients(double *mix, const residual_case *c)
{
    double *m = mix + 2 * S;
    for (int j = 0; j < S; j++) mix[j] = sigmoid(mix[j] * (double)c->scale[0] + (double)c->base[j]) + 1e-6;
    for (int j = S; j < 2 * S; j++) mix[j] = 2 * sigmoid(mix[j] * (double)c->scale[1] + (double)c->base[j]);
    for (int j = 0; j < S * S; j++) m[j] = exp(m[j] * (double)c->scale[2] + (double)c->base[2 * S + j]);
    for (int j = 0; j < S; j++) {
        double sum = m[j * S] + m[j * S + 1] + m[j * S + 2] + m[j * S + 3];
        for (int k = 0; k < S; k++) m[j * S + k] = m[j * S + k] / sum + 1e-6;
    }
    divide_by_sum(m, 1, S);
    for (int i = 1; i < 20; i++) {
        divide_by_sum(m, S, 1);
        divide_by_sum(m, 1, S);
    }
}

static const int widths[] = {1, 7, 64, 65, 130};

START_TEST(open_and_close_match_naive)
{
    static residual_case c;
    static float before[T * S * H_MAX], again[T * H_MAX];
    int h = widths[_i];
    make_case(&c, h);
    memcpy(before, c.hidden, sizeof before);
    ck_assert_int_eq(exf_residual_mixing(&c.a), MIX);
    ck_assert_ptr_eq(exf_residual_read(&exf_backend_cpu, NULL, &c.a, &c.site, c.hidden, T, c.u, c.mixing), c.u);
    exf_residual_read_again(&exf_backend_cpu, NULL, &c.a, &c.site, c.hidden, T, again, c.mixing);
    ck_assert_mem_eq(again, c.u, (size_t)(T * h) * sizeof *again);
    exf_residual_update(&exf_backend_cpu, NULL, &c.a, c.hidden, c.v, T, c.mixing);
    for (int t = 0; t < T; t++) {
        const float *x = before + t * S * h;
        double mix[MIX];
        naive_mix(mix, &c, x, MIX);
        naive_coefficients(mix, &c);
        for (int i = 0; i < h; i++) {
            double u = 0;
            for (int j = 0; j < S; j++) u += mix[j] * (double)x[j * h + i];
            ck_assert_double_eq_tol((double)c.u[t * h + i], u, 2e-6);
            for (int k = 0; k < S; k++) {
                double y = mix[S + k] * (double)c.v[t * h + i];
                for (int j = 0; j < S; j++) y += mix[2 * S + j * S + k] * (double)x[j * h + i];
                ck_assert_double_eq_tol((double)c.hidden[(t * S + k) * h + i], y, 2e-6);
            }
        }
    }
}
END_TEST

START_TEST(collapse_matches_naive)
{
    static residual_case c;
    int h = widths[_i];
    make_case(&c, h);
    ck_assert_ptr_eq(exf_residual_collapse(&exf_backend_cpu, NULL, &c.a, &c.site, c.hidden, T, c.u), c.u);
    for (int t = 0; t < T; t++) {
        double mix[S];
        naive_mix(mix, &c, c.hidden + t * S * h, S);
        for (int i = 0; i < h; i++) {
            double u = 0;
            for (int j = 0; j < S; j++)
                u += (sigmoid(mix[j] * (double)c.scale[0] + (double)c.base[j]) + 1e-6) * (double)c.hidden[(t * S + j) * h + i];
            ck_assert_double_eq_tol((double)c.u[t * h + i], u, 2e-6);
        }
    }
}
END_TEST

/* Common input opens rows of a sequence that the router opened all at once. */
START_TEST(bits_do_not_depend_on_the_block)
{
    static residual_case c;
    static float u[H_MAX], mixing[MIX];
    make_case(&c, 130);
    exf_residual_read(&exf_backend_cpu, NULL, &c.a, &c.site, c.hidden, T, c.u, c.mixing);
    for (int t = 0; t < T; t++) {
        exf_residual_read(&exf_backend_cpu, NULL, &c.a, &c.site, c.hidden + t * S * 130, 1, u, mixing);
        ck_assert_mem_eq(u, c.u + t * 130, 130 * sizeof *u);
        ck_assert_mem_eq(mixing, c.mixing + t * MIX, sizeof mixing);
    }
}
END_TEST

START_TEST(one_stream_is_a_plain_sum)
{
    exf_architecture a = {.d_model = 3, .residual = {.streams = 1}};
    exf_residual_site none = {NULL, NULL, NULL};
    float hidden[6] = {1, 2, 3, 4, 5, 6}, v[6] = {10, 20, 30, 40, 50, 60};
    ck_assert_int_eq(exf_residual_mixing(&a), 0);
    ck_assert_ptr_eq(exf_residual_read(&exf_backend_cpu, NULL, &a, &none, hidden, 2, NULL, NULL), hidden);
    ck_assert_ptr_eq(exf_residual_collapse(&exf_backend_cpu, NULL, &a, &none, hidden, 2, NULL), hidden);
    exf_residual_update(&exf_backend_cpu, NULL, &a, hidden, v, 2, NULL);
    for (int i = 0; i < 6; i++) ck_assert_float_eq(hidden[i], 11.0f * (float)(i + 1));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    int n = sizeof widths / sizeof *widths;
    tcase_add_test(t, coefficients_known_answers);
    tcase_add_test(t, rows_and_columns_sum_to_nearly_one);
    tcase_add_loop_test(t, open_and_close_match_naive, 0, n);
    tcase_add_loop_test(t, collapse_matches_naive, 0, n);
    tcase_add_test(t, bits_do_not_depend_on_the_block);
    tcase_add_test(t, one_stream_is_a_plain_sum);
}
