/* check_attention.c - attention and the element-wise kernels around it against
 * plain double versions, and the exponential they stand on against libm. */
#include "base/mem.h"
#include "kernels/attention/attention.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/simd.h"
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include <math.h>
#include <string.h>

/* ---- attention --------------------------------------------------------------- */

static const int lengths[] = {1, 2, 127, 128, 129, 300};
static const exf_attention_shape shapes[] = {
    {.n_heads = 1, .n_kv = 1, .d = 16, .dv = 16, .ldq = 16, .ldk = 16, .ldv = 16, .ldo = 16, .scale = 0.25f},
    {.n_heads = 4, .n_kv = 2, .d = 8, .dv = 8, .ldq = 32, .ldk = 16, .ldv = 16, .ldo = 32, .scale = 0.35f},
    {.n_heads = 6, .n_kv = 1, .d = 12, .dv = 12, .ldq = 72, .ldk = 12, .ldv = 12, .ldo = 72, .scale = 0.3f},
    {.n_heads = 2, .n_kv = 2, .d = 24, .dv = 10, .ldq = 48, .ldk = 48, .ldv = 20, .ldo = 20, .scale = 0.2f}, /* d > dv */
    {.n_heads = 2, .n_kv = 1, .d = 3, .dv = 17, .ldq = 6, .ldk = 3, .ldv = 17, .ldo = 34, .scale = 0.6f},    /* d < dv */
    {.n_heads = 3, .n_kv = 3, .d = 8, .dv = 4, .ldq = 31, .ldk = 25, .ldv = 19, .ldo = 13, .scale = -0.35f}, /* rows with more
                                                                                                                after */
    {.n_heads = 1, .n_kv = 1, .d = 1, .dv = 1, .ldq = 1, .ldk = 1, .ldv = 1, .ldo = 1, .scale = 1},
    {.n_heads = 2, .n_kv = 2, .d = 8, .dv = 8, .ldq = 16, .ldk = 16, .ldv = 16, .ldo = 16, .scale = 200}, /* nearly one key each */
};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths, N_SHAPES = sizeof shapes / sizeof *shapes, GUARD = 32 };

/* Worst case for numbers within (-1, 1), u = 2^-24.  A score is a sum of d products, so off by at most
 * s = (d + 2) u scale d; that changes a probability by a factor within e^(2s).  The exponential and the
 * normalisation add 8 u, the sum over T keys T u.  Values are at most 1, probabilities add up to 1. */
static double allowed(const exf_attention_shape *s)
{
    double u = 0x1p-24, of_score = (s->d + 2) * u * fabs((double)s->scale) * s->d;
    return expm1(2 * of_score) + (8 + s->n_tokens) * u;
}

typedef struct {
    exf_attention_shape s;
    size_t nq, nk, nv, no, n_scores;
    float *q, *k, *v, *out, *scores;
} attention_case;

static void open_attention(attention_case *c, int i)
{
    c->s = shapes[i % N_SHAPES];
    c->s.n_tokens = lengths[i / N_SHAPES];
    size_t t = (size_t)c->s.n_tokens;
    c->nq = t * (size_t)c->s.ldq;
    c->nk = t * (size_t)c->s.ldk;
    c->nv = t * (size_t)c->s.ldv;
    c->no = t * (size_t)c->s.ldo;
    c->n_scores = exf_attention_workspace_cpu(&c->s);
    c->q = naive_numbers(c->nq, 1, 1);
    c->k = naive_numbers(c->nk, 2, 1);
    c->v = naive_numbers(c->nv, 3, 1);
    c->out = naive_numbers(c->no, 4, 1);
    c->scores = naive_numbers(c->n_scores + GUARD, 5, 1);
}

static void close_attention(attention_case *c)
{
    exf_mem_free(c->q);
    exf_mem_free(c->k);
    exf_mem_free(c->v);
    exf_mem_free(c->out);
    exf_mem_free(c->scores);
}

/* Compares a call, and what lies around its output, with the formula. */
static void ck_formula(attention_case *c, int i)
{
    float *before = naive_numbers(c->no, 4, 1);
    double *q = naive_widened(c->q, c->nq), *k = naive_widened(c->k, c->nk), *v = naive_widened(c->v, c->nv),
           *want = naive_widened(c->out, c->no);
    exf_attention_cpu(NULL, c->out, c->q, c->k, c->v, &c->s, c->scores);
    naive_attention(want, q, k, v, &c->s);
    for (size_t n = 0; n < c->no; n++) {
        double off = fabs((double)c->out[n] - want[n]);
        if ((int)n % c->s.ldo < c->s.n_heads * c->s.dv)
            ck_assert_msg(off <= allowed(&c->s), "shape %d, %d tokens, window %d: float %zu is off by %.2e, allowed %.2e",
                          i % N_SHAPES, c->s.n_tokens, c->s.window, n, off, allowed(&c->s));
        else
            ck_assert_msg(c->out[n] == before[n], "shape %d: float %zu is outside and changed", i % N_SHAPES, n);
    }
    for (size_t n = 0; n < GUARD; n++) ck_assert_float_eq(c->scores[c->n_scores + n], naive_number(5, c->n_scores + n));
    exf_mem_free(before);
    exf_mem_free(q);
    exf_mem_free(k);
    exf_mem_free(v);
    exf_mem_free(want);
}

START_TEST(attends_like_the_formula)
{
    attention_case c;
    open_attention(&c, _i);
    ck_formula(&c, _i);
    close_attention(&c);
}
END_TEST

/* Windows of one token, of some, of a block of rows and one more, of more tokens than there are. */
START_TEST(windows_and_sinks_are_those_of_the_formula)
{
    static const int windows[] = {0, 1, 7, 128, 129, 1000};
    const float sinks[] = {0.5f, -2, 3, 0, -80, 40};
    attention_case c;
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
        for (int with = 0; with < 2; with++) {
            open_attention(&c, _i);
            c.s.window = windows[w];
            c.s.sinks = with ? sinks : NULL;
            ck_formula(&c, _i);
            close_attention(&c);
        }
}
END_TEST

/* Every token chooses itself and some of those before it, within a window too; what later columns hold does not count. */
START_TEST(chosen_tokens_are_those_of_the_formula)
{
    static const int windows[] = {0, 130};
    attention_case c;
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        open_attention(&c, _i);
        unsigned char *chosen;
        exf_err e;
        ck_ok(exf_mem_new(&chosen, (size_t)c.s.n_tokens * (size_t)c.s.n_tokens, 1, "choices", &e), e);
        for (int t = 0; t < c.s.n_tokens; t++)
            for (int j = 0; j < c.s.n_tokens; j++) chosen[t * c.s.n_tokens + j] = j == t || (t * 7 + j * 5) % 3 == 0;
        c.s.window = windows[w];
        c.s.chosen = chosen;
        ck_formula(&c, _i);
        exf_mem_free(chosen);
        close_attention(&c);
    }
}
END_TEST

/* Later tokens leave no trace: with other ones, the earlier rows keep their bits. */
START_TEST(later_tokens_are_not_seen)
{
    attention_case c;
    open_attention(&c, (N_LENGTHS - 1) * N_SHAPES + 1);
    size_t cut = 200, kept = cut * (size_t)c.s.ldo;
    float *first = naive_floats(c.no);
    exf_attention_cpu(NULL, first, c.q, c.k, c.v, &c.s, c.scores);
    for (size_t i = cut * (size_t)c.s.ldk; i < c.nk; i++) c.k[i] = 30 * naive_number(6, i);
    for (size_t i = cut * (size_t)c.s.ldv; i < c.nv; i++) c.v[i] = 1e6f * naive_number(7, i);
    exf_attention_cpu(NULL, c.out, c.q, c.k, c.v, &c.s, c.scores);
    ck_assert_mem_eq(c.out, first, kept * sizeof(float));
    ck_assert_float_ne(c.out[kept], first[kept]);
    exf_mem_free(first);
    close_attention(&c);
}
END_TEST

START_TEST(huge_scores_do_not_overflow)
{
    enum { T = 3 };
    const float q[T] = {1, 1, 1}, k[T] = {1e30f, -1e30f, 2e30f}, v[T] = {1, 2, 4};
    float out[T], scores[EXF_ATTENTION_ROWS * T];
    exf_attention_shape s = {
        .n_tokens = T, .n_heads = 1, .n_kv = 1, .d = 1, .dv = 1, .ldq = 1, .ldk = 1, .ldv = 1, .ldo = 1, .scale = 1};
    exf_attention_cpu(NULL, out, q, k, v, &s, scores);
    ck_assert_float_eq(out[0], 1);
    ck_assert_float_eq(out[1], 1);
    ck_assert_float_eq(out[2], 4);
}
END_TEST

/* ---- the exponential -------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Every 499th float of [-87, 88].  Of every 61st, the worst is 0.97 ulp (at -16.94)
 * and 8.1e-8 relative; simd.h promises 2 ulp. */
START_TEST(exponential_is_within_its_bound)
{
    double worst = 0;
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t bits = 0; float_of(bits) <= (sign ? 87.0f : 88.0f); bits += 499) {
            float x = float_of(bits | sign << 31), near;
            double want = exp((double)x);
            near = (float)want;
            worst = fmax(worst, fabs((double)exf_expf(x) - want) / ((double)nextafterf(near, INFINITY) - (double)near));
        }
    ck_assert_msg(worst < 1, "the exponential is off by %.3f ulp", worst);
}
END_TEST

START_TEST(exponential_at_its_ends)
{
    ck_assert_float_eq(exf_expf(0.0f), 1.0f);
    ck_assert_float_eq(exf_expf(-0.0f), 1.0f);
    ck_assert_float_gt(exf_expf(-87.0f), 0.0f);
    ck_assert_float_eq(exf_expf(nextafterf(-87.0f, -INFINITY)), 0.0f);
    ck_assert_float_eq(exf_expf(-INFINITY), 0.0f);
    ck_assert_float_eq(exf_expf(1000.0f), exf_expf(88.0f));
    ck_assert_float_eq(exf_expf(INFINITY), exf_expf(88.0f));
    ck_assert(isfinite(exf_expf(88.0f)));
    ck_assert_float_nan(exf_expf(NAN)); /* or non-finite hidden states would go unnoticed */
}
END_TEST

/* ---- norm ---------------------------------------------------------------------------- */

/* Widths around the eight lanes, rows with more after; 3 roundings in float. */
START_TEST(rmsnorm_is_the_formula)
{
    static const int widths[] = {1, 7, 8, 9, 64, 333};
    enum { ROWS = 5 };
    int n = widths[_i], ldx = n + 3, ldy = n + 1;
    float *x = naive_numbers((size_t)(ROWS * ldx), 8, 30), *w = naive_numbers((size_t)n, 9, 2),
          *y = naive_floats((size_t)(ROWS * ldy));
    double *want = naive_widened(x, (size_t)(ROWS * ldx));
    exf_rmsnorm_cpu(NULL, y, ldy, x, ldx, w, ROWS, n, 1e-6);
    naive_rmsnorm(want, ldx, w, ROWS, n, 1e-6);
    exf_rmsnorm_cpu(NULL, x, ldx, x, ldx, w, ROWS, n, 1e-6); /* in place */
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < n; i++) {
            double truth = want[r * ldx + i];
            ck_assert_double_le(fabs((double)y[r * ldy + i] - truth), 3 * 0x1p-24 * fabs(truth));
            ck_assert_float_eq(x[r * ldx + i], y[r * ldy + i]);
        }
    for (int r = 0; r < ROWS; r++) ck_assert_float_eq(y[r * ldy + n], 0);
    exf_mem_free(x);
    exf_mem_free(w);
    exf_mem_free(y);
    exf_mem_free(want);
}
END_TEST

/* eps counts where a row is small, and keeps a row of zeros at zero. */
START_TEST(rmsnorm_of_small_rows)
{
    float x[8] = {1e-3f, -1e-3f, 1e-3f, 1e-3f, 0, 0, 0, 0}, y[8];
    const float w[4] = {1, 2, 3, 4};
    exf_rmsnorm_cpu(NULL, y, 4, x, 4, w, 2, 4, 1e-6);
    ck_assert_float_eq_tol(y[0], (float)sqrt(0.5), 1e-6f);
    ck_assert_float_eq_tol(y[1], -(float)sqrt(2), 1e-6f);
    for (int i = 4; i < 8; i++) ck_assert_float_eq(y[i], 0);
}
END_TEST

/* Rows far from 0, and a row of one value, which becomes the bias. */
START_TEST(layernorm_is_the_formula)
{
    static const int widths[] = {1, 7, 8, 9, 64, 333};
    enum { ROWS = 5 };
    int n = widths[_i];
    float *y = naive_numbers((size_t)(ROWS * n), 8, 30), *w = naive_numbers((size_t)n, 9, 2),
          *bias = naive_numbers((size_t)n, 10, 2);
    for (int i = 0; i < n; i++) {
        y[n + i] += 1000;
        y[2 * n + i] = 3.25f;
    }
    double *x = naive_widened(y, (size_t)(ROWS * n));
    exf_layernorm_cpu(NULL, y, w, bias, ROWS, n, 1e-6);
    for (int r = 0; r < ROWS; r++) {
        double mean = 0, square = 0;
        for (int i = 0; i < n; i++) mean += x[r * n + i] / n;
        for (int i = 0; i < n; i++) square += (x[r * n + i] - mean) * (x[r * n + i] - mean) / n;
        for (int i = 0; i < n; i++) {
            double product = (double)w[i] * (x[r * n + i] - mean) / sqrt(square + 1e-6), want = product + (double)bias[i];
            ck_assert_double_le(fabs((double)y[r * n + i] - want), 4 * 0x1p-24 * (fabs(product) + fabs(want)) + 1e-12);
            if (r == 2) ck_assert_float_eq(y[r * n + i], bias[i]);
        }
    }
    exf_mem_free(x);
    exf_mem_free(y);
    exf_mem_free(w);
    exf_mem_free(bias);
}
END_TEST

/* ---- gates ----------------------------------------------------------------------------- */

/* exf_expf (1 ulp) inside 1 + e^-x, a division, a product: 5 roundings; a gate
 * below -88 is held at e^88, where silu is below 1e-36 anyway. */
static void assert_gated(float seen, double want, const char *what)
{
    ck_assert_msg(fabs((double)seen - want) <= 5 * 0x1p-24 * fabs(want) + 1e-35, "%s: %.9g, expected %.9g", what, (double)seen,
                  want);
}

static double silu(double x)
{
    return x * naive_sigmoid(x);
}

START_TEST(swiglu_with_and_without_limit)
{
    enum { N = 1003 };
    float limit = _i ? 7.0f : 0.0f;
    float *g = naive_numbers(N, 10, 120), *u = naive_numbers(N, 11, 12), *y = naive_numbers(N, 10, 120);
    for (int i = 0; i < 60; i++) g[i] = y[i] = (float)i / 4 - 7.5f; /* around 0 and the limit */
    exf_swiglu_cpu(NULL, y, u, N, limit);
    for (int i = 0; i < N; i++) {
        double a = (double)g[i], b = (double)u[i];
        if (limit > 0) {
            a = fmin(a, 7); /* the gate is cut from above only */
            b = fmax(fmin(b, 7), -7);
        }
        assert_gated(y[i], silu(a) * b, "swiglu");
    }
    exf_mem_free(g);
    exf_mem_free(u);
    exf_mem_free(y);
}
END_TEST

/* The scaled form, and that slope 1 and shift 0 are the plain one. */
START_TEST(scaled_swiglu)
{
    enum { N = 1003 };
    exf_swiglu_form form = {_i & 1 ? 7.0f : 0.0f, 1.702f, 1}, plain = {_i & 1 ? 7.0f : 0.0f, 1, 0};
    float *g = naive_numbers(N, 10, 50), *u = naive_numbers(N, 11, 12), *y = naive_numbers(N, 10, 50),
          *z = naive_numbers(N, 10, 50);
    for (int i = 0; i < 60; i++) g[i] = y[i] = z[i] = (float)i / 4 - 7.5f;
    exf_swiglu_scaled_cpu(y, u, N, &form);
    for (int i = 0; i < N; i++) {
        double a = (double)g[i], b = (double)u[i];
        if (form.limit > 0) {
            a = fmin(a, 7);
            b = fmax(fmin(b, 7), -7);
        }
        double want = a * naive_sigmoid((double)1.702f * a) * (b + 1), off = fabs((double)y[i] - want);
        ck_assert_msg(off <= 0x1p-24 * fabs(want) * (6 + 2 * fabs(a)) + 0x1p-23 * fabs(a) + 1e-35, "%d: %.9g, expected %.9g", i,
                      (double)y[i], want); /* the exponent is rounded, and the sum with the shift */
    }
    exf_swiglu_scaled_cpu(z, u, N, &plain);
    exf_swiglu_cpu(NULL, g, u, N, plain.limit);
    ck_assert_mem_eq(z, g, N * sizeof *g);
    exf_mem_free(g);
    exf_mem_free(u);
    exf_mem_free(y);
    exf_mem_free(z);
}
END_TEST

START_TEST(scales_and_caps)
{
    enum { N = 1003 };
    const float by = 0.7f;
    float *before = naive_numbers(N, 14, 40), *scaled = naive_numbers(N, 14, 40), *both = naive_numbers(N, 14, 40),
          *capped = naive_numbers(N, 14, 40);
    exf_scale_cpu(NULL, scaled, N, 2.5f, NULL);
    exf_scale_cpu(NULL, both, N, 2.5f, &by);
    exf_soft_cap_cpu(NULL, capped, N, 30);
    for (int i = 0; i < N; i++) {
        double want = 30 * tanh((double)before[i] / 30);
        ck_assert(scaled[i] == before[i] * 2.5f && both[i] == before[i] * (2.5f * by));
        ck_assert_msg(fabs((double)capped[i] - want) <= 4 * 0x1p-24 * fabs(want), "%.9g: %.9g, expected %.9g", (double)before[i],
                      (double)capped[i], want);
    }
    float *all[] = {before, scaled, both, capped};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
}
END_TEST

START_TEST(sigmoid_gates_heads)
{
    enum { ROWS = 7, D = 5, STRIDE = 11 };
    float *gate = naive_numbers(ROWS * STRIDE, 12, 20), *before = naive_numbers(ROWS * D, 13, 3),
          *y = naive_numbers(ROWS * D, 13, 3);
    exf_sigmoid_gate_cpu(NULL, y, gate, ROWS, D, STRIDE);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < D; i++)
            assert_gated(y[r * D + i], (double)before[r * D + i] * naive_sigmoid((double)gate[r * STRIDE + i]), "sigmoid gate");
    exf_mem_free(gate);
    exf_mem_free(before);
    exf_mem_free(y);
}
END_TEST

START_TEST(bias_and_gathering)
{
    enum { ROWS = 3, N = 5, STRIDE = 8 };
    float y[ROWS * N] = {0}, out[ROWS * N], x[ROWS * STRIDE];
    const float bias[N] = {1, 2, 3, 4, 5};
    for (int i = 0; i < ROWS * STRIDE; i++) x[i] = (float)i;
    exf_copy_columns_cpu(NULL, out, N, x, STRIDE, ROWS, N);
    exf_add_bias_cpu(NULL, y, bias, ROWS, N);
    exf_add_bias_cpu(NULL, y, bias, ROWS - 1, N);
    exf_scale_rows_cpu(NULL, out, (const float[]){1, 0.5f, -2}, ROWS, N);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < N; i++) {
            ck_assert_float_eq(out[r * N + i], (float)(r * STRIDE + i) * (r == 0 ? 1 : r == 1 ? 0.5f : -2));
            ck_assert_float_eq(y[r * N + i], (float)((r < ROWS - 1 ? 2 : 1) * (i + 1)));
        }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, attends_like_the_formula, 0, N_LENGTHS * N_SHAPES);
    tcase_add_loop_test(t, windows_and_sinks_are_those_of_the_formula, 0, N_LENGTHS * N_SHAPES);
    tcase_add_loop_test(t, chosen_tokens_are_those_of_the_formula, 0, N_LENGTHS * N_SHAPES);
    tcase_add_test(t, later_tokens_are_not_seen);
    tcase_add_test(t, huge_scores_do_not_overflow);
    tcase_add_test(t, exponential_is_within_its_bound);
    tcase_add_test(t, exponential_at_its_ends);
    tcase_add_loop_test(t, rmsnorm_is_the_formula, 0, 6);
    tcase_add_test(t, rmsnorm_of_small_rows);
    tcase_add_loop_test(t, layernorm_is_the_formula, 0, 6);
    tcase_add_loop_test(t, swiglu_with_and_without_limit, 0, 2);
    tcase_add_loop_test(t, scaled_swiglu, 0, 2);
    tcase_add_test(t, sigmoid_gates_heads);
    tcase_add_test(t, scales_and_caps);
    tcase_add_test(t, bias_and_gathering);
}
