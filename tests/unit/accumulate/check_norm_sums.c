/* check_norm_sums.c - sums of a norm head (src/accumulate/chapter_norm_head.c): against sums in double, over any cut. */
#include "accumulate/accumulate_internal.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <string.h>

enum { T = 12, K = 2, E = 3, H = 5, Q = 2, F = Q + EXF_NORM_BESIDE };

static exf_err e; /* of the last call */

typedef struct {
    float input[T * H], logits[T * E], outputs[T * K * H], weights[T * K];
    int32_t ids[T * K];
    double basis[H * Q];
} tokens;

static void fill(tokens *x)
{
    for (int i = 0; i < T * H; i++) x->input[i] = (float)sin(1.3 * i);
    for (int i = 0; i < T * E; i++) x->logits[i] = (float)cos(0.7 * i);
    x->logits[7 * E + 1] = 1700; /* a feature that is added alone */
    for (int i = 0; i < T * K * H; i++) x->outputs[i] = (float)(2 + sin(0.9 * i));
    for (int i = 0; i < T * K; i++) x->weights[i] = 0.3f + 0.01f * (float)i;
    for (int t = 0; t < T; t++) x->ids[t * K] = t % E, x->ids[t * K + 1] = t == 4 ? -1 : (t + 1) % E;
    for (int i = 0; i < H * Q; i++) x->basis[i] = 0.1 * (i + 1);
}

/* Adds tokens [at, at + n). */
static exf_code add(const exf_norm_sums *s, const tokens *x, int at, int n)
{
    exf_moe_block b = {.n_tokens = n, .n_experts = E, .top_k = K, .d_model = H, .moe_input = x->input + at * H,
                       .router_logits = x->logits + at * E, .topk_ids = x->ids + at * K, .topk_weights = x->weights + at * K,
                       .expert_outputs = x->outputs + at * K * H};
    return exf_norm_sums_add(s, x->basis, &b, &e);
}

static double norm_of(const float *v)
{
    double sum = 0;
    for (int i = 0; i < H; i++) sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

static double on_grid(double v)
{
    return rint(v * 4096) / 4096;
}

/* Computes the features of a slot as docs/method.md defines them, and its y. */
static double slot_of(const tokens *x, int t, int k, double phi[F])
{
    const float *z = x->logits + t * E;
    double mean = 0;
    for (int i = 0; i < E; i++) mean += (double)z[i] / E;
    phi[0] = 1;
    for (int q = 0; q < Q; q++) {
        phi[1 + q] = 0;
        for (int i = 0; i < H; i++) phi[1 + q] += x->basis[i * Q + q] * (double)x->input[t * H + i];
    }
    phi[Q + 1] = (double)z[x->ids[t * K + k]] - mean;
    phi[Q + 2] = log((double)x->weights[t * K + k]);
    phi[Q + 3] = log(norm_of(x->input + t * H));
    for (int i = 0; i < F; i++) phi[i] = on_grid(phi[i]);
    return on_grid(log(norm_of(x->outputs + (t * K + k) * H)));
}

START_TEST(sums_are_those_of_the_definition)
{
    tokens x;
    exf_norm_sums s;
    double pp[E][F][F] = {{{0}}}, py[E][F] = {{0}}, yy[E] = {0}, phi[F];
    fill(&x);
    ck_ok(exf_norm_sums_new(&s, E, H, Q, &e), e);
    ck_ok(add(&s, &x, 0, T), e);
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++) {
            int id = x.ids[t * K + k];
            if (id < 0) continue;
            double y = slot_of(&x, t, k, phi);
            yy[id] += y * y;
            for (int i = 0; i < F; i++) {
                py[id][i] += phi[i] * y;
                for (int j = 0; j <= i; j++) pp[id][i][j] += phi[i] * phi[j];
            }
        }
    for (int i = 0; i < E; i++) {
        const exf_exact *at = s.pp + (size_t)i * exf_norm_products(Q);
        ck_assert_double_eq_tol(exf_exact_value(&s.yy[i]), yy[i], 1e-12);
        for (int a = 0; a < F; a++) {
            ck_assert_double_eq_tol(exf_exact_value(&s.py[i * F + a]), py[i][a], 1e-12);
            for (int b = 0; b <= a; b++) ck_assert_double_eq_tol(exf_exact_value(at++), pp[i][a][b], 1e-12);
        }
    }
    exf_norm_sums_free(&s);
}
END_TEST

START_TEST(any_cut_gives_the_same_bits)
{
    tokens x;
    exf_norm_sums whole, part, sum;
    fill(&x);
    ck_ok(exf_norm_sums_new(&whole, E, H, Q, &e), e);
    ck_ok(exf_norm_sums_new(&sum, E, H, Q, &e), e);
    ck_ok(add(&whole, &x, 0, T), e);
    for (int at = T - 3; at >= 0; at -= 3) {
        ck_ok(exf_norm_sums_new(&part, E, H, Q, &e), e);
        exf_norm_sums_set_basis(&part, x.basis);
        ck_ok(add(&part, &x, at, 3), e);
        ck_ok(exf_norm_sums_merge(&sum, &part, &e), e);
        exf_norm_sums_free(&part);
    }
    ck_assert_mem_eq(sum.pp, whole.pp, E * exf_norm_products(Q) * sizeof *sum.pp);
    ck_assert_mem_eq(sum.py, whole.py, E * F * sizeof *sum.py);
    ck_assert_mem_eq(sum.yy, whole.yy, E * sizeof *sum.yy);
    exf_norm_sums_free(&whole);
    exf_norm_sums_free(&sum);
}
END_TEST

START_TEST(a_feature_out_of_range_is_refused)
{
    tokens x;
    exf_norm_sums s;
    fill(&x);
    x.logits[3 * E] = 1e30f;
    ck_ok(exf_norm_sums_new(&s, E, H, Q, &e), e);
    ck_fails(add(&s, &x, 0, T), EXF_NUMERIC, e, "token 3: feature 3 of the norm head");
    exf_norm_sums_free(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, sums_are_those_of_the_definition);
    tcase_add_test(t, any_cut_gives_the_same_bits);
    tcase_add_test(t, a_feature_out_of_range_is_refused);
}
