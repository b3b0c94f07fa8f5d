/* check_delta_rule.c - the gated delta rule and the causal convolution against
 * known answers and against plain recurrences in double. */
#include "base/hash.h"
#include "base/mem.h"
#include "kernels/recurrent/delta_rule.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <string.h>

static float *fresh(size_t n)
{
    float *p;
    exf_err err;
    ck_ok(exf_mem_new(&p, n, sizeof *p, "test", &err), err);
    return p;
}

/* Uniform in [-1, 1). */
static float *noise(size_t n, uint64_t stream)
{
    float *p = fresh(n);
    for (size_t i = 0; i < n; i++) p[i] = (float)((double)exf_rng_below(1 << 20, 7, stream, i) / (1 << 19) - 1);
    return p;
}

static void run(float *out, const float *q, const float *k, const float *v, const float *decay, const float *beta,
                const exf_delta_shape *s)
{
    float *workspace = fresh(exf_delta_rule_workspace_cpu(s));
    exf_delta_rule_cpu(NULL, out, q, k, v, decay, beta, s, workspace);
    exf_mem_free(workspace);
}

/* ---- known answers: one head, widths 2, three tokens --------------------------- */

static void near(const float *seen, const double *want, int n, double limit, const char *what)
{
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabs((double)seen[i] - want[i]) <= limit, "%s[%d] is %.9g, expected %.9g", what, i, (double)seen[i], want[i]);
}

/* Two more tokens that neither fade nor write: q = e_i reads row i of the state. */
START_TEST(known_answers)
{
    static const double want_g[] = {-0.98616428, -0.66474141, -2.04631679}, want_beta[] = {0.57444252, 0.45016600, 0.88079708};
    static const double want_o[] = {0.39187931, -0.39187931, -0.19051430, -0.06113599, 1.20024422, -0.05270968};
    static const double want_state[] = {-1.04218681, 0.09050797, 2.43317787, 0.04227676};
    float q[10] = {1, 2, 0.5f, -1, -1, 0.3f}, k[10] = {0.2f, 1, 1, 1, -0.4f, 0.9f}, v[10] = {1, -1, 0.5f, 2, 3, 0};
    float a[5] = {0.1f, -0.4f, 1.2f}, b[5] = {0.3f, -0.2f, 2.0f}, a_log = 0.5f, dt_bias = -0.3f, out[10], g[3];
    exf_delta_gates_cpu(NULL, a, b, &a_log, &dt_bias, 3, 1);
    for (int t = 0; t < 3; t++) g[t] = logf(a[t]);
    near(g, want_g, 3, 1e-6, "g");
    near(b, want_beta, 3, 1e-6, "beta");
    exf_l2norm_heads_cpu(NULL, q, 2, 3, 1, 2, 1e-6, sqrt(0.5));
    exf_l2norm_heads_cpu(NULL, k, 2, 3, 1, 2, 1e-6, 1);
    a[3] = a[4] = q[6] = q[9] = 1;
    exf_delta_shape s = {
        .n_tokens = 5, .n_key_heads = 1, .n_value_heads = 1, .key_dim = 2, .value_dim = 2, .ldq = 2, .ldk = 2, .ldv = 2, .ldo = 2};
    run(out, q, k, v, a, b, &s);
    near(out, want_o, 6, 1e-6, "o");
    near(out + 6, want_state, 4, 1e-6, "state");
}
END_TEST

START_TEST(gates_at_the_ends)
{
    float a[] = {-100, 0, 30, 100}, b[] = {-200, 0, 20, 200}, a_log[] = {0}, dt_bias[] = {0};
    exf_delta_gates_cpu(NULL, a, b, a_log, dt_bias, 4, 1);
    ck_assert(a[0] == 1 && a[3] == expf(-100) && fabsf(a[1] - 0.5f) < 1e-7f && fabs((double)a[2] - exp(-30)) < 1e-19);
    ck_assert(b[0] >= 0 && b[0] < 1e-30f && b[1] == 0.5f && b[3] == 1);
}
END_TEST

/* A head of zeros stays zero: the epsilon is inside the root. */
START_TEST(l2_norm_of_heads)
{
    float x[] = {3, 4, 99, 0, 0, 99, 1e-3f, 0, 99};
    exf_l2norm_heads_cpu(NULL, x, 3, 3, 1, 2, 1e-6, 2);
    const double want[] = {2 * 3 / sqrt(25 + 1e-6), 2 * 4 / sqrt(25 + 1e-6), 99, 0, 0, 99, 2e-3 / sqrt(2e-6), 0, 99};
    near(x, want, 9, 1e-6, "l2");
}
END_TEST

/* ---- against a plain recurrence in double ---------------------------------------- */

typedef struct {
    exf_delta_shape s;
    float *q, *k, *v, *decay, *beta;
} problem;

/* Rows have a gap after them where gap is set. */
static problem new_problem(int n_tokens, int n_key_heads, int n_value_heads, int key_dim, int value_dim, int gap)
{
    int ldq = n_key_heads * key_dim + gap, ldv = n_value_heads * value_dim + gap;
    size_t t = (size_t)n_tokens, gates = t * (size_t)n_value_heads;
    problem p = {.s = {n_tokens, n_key_heads, n_value_heads, key_dim, value_dim, ldq, ldq, ldv, ldv}};
    p.q = noise(t * (size_t)ldq, 1);
    p.k = noise(t * (size_t)ldq, 2);
    p.v = noise(t * (size_t)ldv, 3);
    p.decay = noise(gates, 4);
    p.beta = noise(gates, 5);
    exf_l2norm_heads_cpu(NULL, p.q, ldq, n_tokens, n_key_heads, key_dim, 1e-6, 1 / sqrt((double)key_dim));
    exf_l2norm_heads_cpu(NULL, p.k, ldq, n_tokens, n_key_heads, key_dim, 1e-6, 1);
    for (size_t i = 0; i < gates; i++) p.decay[i] = fabsf(p.decay[i]);
    for (size_t i = 0; i < gates; i++) p.beta[i] = fabsf(p.beta[i]);
    return p;
}

static void free_problem(problem *p)
{
    exf_mem_free(p->q);
    exf_mem_free(p->k);
    exf_mem_free(p->v);
    exf_mem_free(p->decay);
    exf_mem_free(p->beta);
}

/* One token on column j of a state, as the definition reads; returns o[j]. */
static double naive_step(double *state, int ld, int j, const float *q, const float *k, double v, double decay, double beta,
                         int key_dim)
{
    double known = 0, o = 0;
    for (int i = 0; i < key_dim; i++) state[i * ld + j] *= decay;
    for (int i = 0; i < key_dim; i++) known += state[i * ld + j] * (double)k[i];
    for (int i = 0; i < key_dim; i++) state[i * ld + j] += (double)k[i] * beta * (v - known);
    for (int i = 0; i < key_dim; i++) o += state[i * ld + j] * (double)q[i];
    return o;
}

static void naive(double *out, const problem *p)
{
    const exf_delta_shape *s = &p->s;
    exf_err err;
    double *state;
    ck_ok(exf_mem_new(&state, (size_t)(s->key_dim * s->value_dim), sizeof *state, "test", &err), err);
    for (int h = 0; h < s->n_value_heads; h++) {
        int key = h / (s->n_value_heads / s->n_key_heads) * s->key_dim;
        memset(state, 0, (size_t)(s->key_dim * s->value_dim) * sizeof *state);
        for (int t = 0; t < s->n_tokens; t++)
            for (int j = 0; j < s->value_dim; j++) {
                int gate = t * s->n_value_heads + h, at = h * s->value_dim + j;
                out[t * s->ldo + at] =
                    naive_step(state, s->value_dim, j, p->q + t * s->ldq + key, p->k + t * s->ldk + key,
                               (double)p->v[t * s->ldv + at], (double)p->decay[gate], (double)p->beta[gate], s->key_dim);
            }
    }
    exf_mem_free(state);
}

static const struct { int n_tokens, n_key_heads, n_value_heads, key_dim, value_dim, gap; } sizes[] = {
    {1, 1, 1, 1, 1, 0},    {1, 2, 4, 16, 16, 0},   {7, 1, 1, 2, 2, 0},     {130, 2, 4, 16, 16, 3}, {33, 1, 3, 24, 40, 5},
    {65, 2, 2, 128, 128, 0}, {20, 3, 3, 5, 65, 1}, {20, 1, 2, 67, 3, 7}, {9, 4, 8, 130, 64, 0},
};

START_TEST(agrees_with_a_naive_recurrence)
{
    problem p = new_problem(sizes[_i].n_tokens, sizes[_i].n_key_heads, sizes[_i].n_value_heads, sizes[_i].key_dim,
                            sizes[_i].value_dim, sizes[_i].gap);
    size_t n = (size_t)p.s.n_tokens * (size_t)p.s.ldo;
    float *out = fresh(n);
    double *want, size = 0, off = 0;
    exf_err err;
    ck_ok(exf_mem_new(&want, n, sizeof *want, "test", &err), err);
    run(out, p.q, p.k, p.v, p.decay, p.beta, &p.s);
    naive(want, &p);
    for (size_t i = 0; i < n; i++) {
        off += ((double)out[i] - want[i]) * ((double)out[i] - want[i]);
        size += want[i] * want[i];
        if ((int)(i % (size_t)p.s.ldo) >= p.s.n_value_heads * p.s.value_dim)
            ck_assert_msg(out[i] == 0, "the gap at %zu was written", i);
    }
    ck_assert_msg(sqrt(off / size) < 1e-6, "%.2e from the naive recurrence", sqrt(off / size));
    exf_mem_free(want);
    exf_mem_free(out);
    free_problem(&p);
}
END_TEST

/* A second sequence in the same workspace knows nothing of the first, and a
 * prefix gives the bits of the whole. */
START_TEST(sequences_are_independent)
{
    problem p = new_problem(50, 2, 4, 20, 36, 0);
    size_t n = 50 * (size_t)p.s.ldo;
    float *first = fresh(n), *second = fresh(n), *prefix = fresh(n), *workspace = fresh(exf_delta_rule_workspace_cpu(&p.s));
    exf_delta_rule_cpu(NULL, first, p.q, p.k, p.v, p.decay, p.beta, &p.s, workspace);
    exf_delta_rule_cpu(NULL, second, p.q, p.k, p.v, p.decay, p.beta, &p.s, workspace);
    ck_assert(memcmp(first, second, n * sizeof *first) == 0);
    p.s.n_tokens = 13;
    exf_delta_rule_cpu(NULL, prefix, p.q, p.k, p.v, p.decay, p.beta, &p.s, workspace);
    ck_assert(memcmp(first, prefix, 13 * (size_t)p.s.ldo * sizeof *first) == 0);
    exf_mem_free(first);
    exf_mem_free(second);
    exf_mem_free(prefix);
    exf_mem_free(workspace);
    free_problem(&p);
}
END_TEST

/* ---- the convolution ---------------------------------------------------------------- */

static double naive_conv(const float *x, int ldx, const float *w, int t, int c, int width)
{
    double sum = 0;
    for (int j = 0; j < width; j++) {
        int from = t - width + 1 + j;
        if (from >= 0) sum += (double)w[c * width + j] * (double)x[from * ldx + c];
    }
    return sum / (1 + exp(-sum));
}

START_TEST(convolution_agrees_with_a_naive_one)
{
    static const int tokens[] = {1, 2, 3, 4, 70}, channels[] = {1, 31, 32, 33, 128}, widths[] = {1, 2, 4, 7};
    int n_tokens = tokens[_i % 5], n = channels[_i / 5 % 5], width = widths[_i / 25], ldx = n + _i % 3;
    size_t count = (size_t)n_tokens * (size_t)ldx;
    float *x = noise(count, 8), *y = noise(count, 8), *w = noise((size_t)(n * width), 9);
    float *workspace = fresh(exf_causal_conv_workspace_cpu(n, width));
    exf_causal_conv_silu_cpu(NULL, y, ldx, w, n_tokens, n, width, workspace);
    for (int t = 0; t < n_tokens; t++)
        for (int c = 0; c < ldx; c++) {
            double want = c < n ? naive_conv(x, ldx, w, t, c, width) : (double)x[t * ldx + c];
            double seen = (double)y[t * ldx + c];
            ck_assert_msg(fabs(seen - want) < 1e-6, "token %d, channel %d: %.9g, expected %.9g", t, c, seen, want);
        }
    exf_mem_free(x);
    exf_mem_free(y);
    exf_mem_free(w);
    exf_mem_free(workspace);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, known_answers);
    tcase_add_test(t, gates_at_the_ends);
    tcase_add_test(t, l2_norm_of_heads);
    tcase_add_loop_test(t, agrees_with_a_naive_recurrence, 0, sizeof sizes / sizeof *sizes);
    tcase_add_test(t, sequences_are_independent);
    tcase_add_loop_test(t, convolution_agrees_with_a_naive_one, 0, 100);
}
