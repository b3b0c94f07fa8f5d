/* check_cuda_recurrent.c - the delta rule of the CUDA backend, its gates and norms,
 * against the CPU's: exact on integers, within bounds on reals, at awkward shapes. */
#include "tests/support/pair_fixtures.h"

#include <math.h>

static const struct {
    int t, key_heads, value_heads, key_dim, value_dim, gap;
} rules[] = {
    {0, 1, 1, 16, 16, 0},    {1, 1, 1, 16, 16, 0},    {2, 2, 4, 16, 16, 0},     {63, 1, 2, 64, 64, 0},
    {64, 2, 2, 128, 128, 0}, {65, 1, 4, 128, 128, 4}, {130, 2, 4, 24, 31, 0},   {300, 1, 2, 128, 100, 0},
    {129, 1, 1, 33, 40, 3},  {200, 1, 2, 160, 64, 0}, {700, 1, 2, 128, 128, 0}, {65, 1, 1, 1, 1, 0},
};

static exf_delta_shape shape_of(int i)
{
    int dk = rules[i].key_heads * rules[i].key_dim, dv = rules[i].value_heads * rules[i].value_dim, gap = rules[i].gap;
    return (exf_delta_shape){rules[i].t,       rules[i].key_heads, rules[i].value_heads,
                             rules[i].key_dim, rules[i].value_dim, dk + gap,
                             dk + gap,         dv + gap,           dv + gap};
}

typedef struct {
    exf_delta_shape shape;
    pair_array q, k, v, decay, beta, out, space;
} rule_case;

static void run(rule_case *c, exf_compute compute)
{
    const exf_delta_shape *shape = &c->shape;
    c->out = pair_reals(&p, (size_t)(shape->n_tokens * shape->ldo), 9, 1);
    c->space = pair_reals(&p, larger(p.b[0]->delta_rule_workspace(shape), p.b[1]->delta_rule_workspace(shape)), 10, 1e30f);
    pair_compute(&p, compute);
    ON_BOTH(p, B->delta_rule(Q, c->out.f[s], c->q.f[s], c->k.f[s], c->v.f[s], c->decay.f[s], c->beta.f[s], shape, c->space.f[s]));
}

static void free_case(rule_case *c)
{
    pair_free(&c->q);
    pair_free(&c->k);
    pair_free(&c->v);
    pair_free(&c->decay);
    pair_free(&c->beta);
    pair_free(&c->out);
    pair_free(&c->space);
}

/* As a layer has them: normalised q and k, gates; rate: a_log of the decay. */
static void make_reals(rule_case *c, int i, float rate)
{
    exf_delta_shape d = c->shape = shape_of(i);
    size_t t = (size_t)d.n_tokens, gates = t * (size_t)d.n_value_heads;
    c->q = pair_reals(&p, t * (size_t)d.ldq, 1, 1);
    c->k = pair_reals(&p, t * (size_t)d.ldk, 2, 1);
    c->v = pair_reals(&p, t * (size_t)d.ldv, 3, 1);
    c->decay = pair_reals(&p, gates, 4, 3);
    c->beta = pair_reals(&p, gates, 5, 3);
    pair_array a_log = pair_reals(&p, (size_t)d.n_value_heads, 6, rate), bias = pair_reals(&p, (size_t)d.n_value_heads, 7, 1);
    ON_BOTH(p, B->delta_gates(Q, c->decay.f[s], c->beta.f[s], a_log.f[s], bias.f[s], d.n_tokens, d.n_value_heads));
    pair_near(&c->decay, 1e-7, "decay");
    pair_near(&c->beta, 1e-7, "beta");
    ON_BOTH(p, B->l2norm_heads(Q, c->q.f[s], d.ldq, d.n_tokens, d.n_key_heads, d.key_dim, 1e-6, 1 / sqrt(d.key_dim)));
    ON_BOTH(p, B->l2norm_heads(Q, c->k.f[s], d.ldk, d.n_tokens, d.n_key_heads, d.key_dim, 1e-6, 1));
    pair_near(&c->q, 2e-7, "l2norm of q");
    pair_near(&c->k, 2e-7, "l2norm of k");
    pair_free(&a_log);
    pair_free(&bias);
}

START_TEST(rule_is_near)
{
    static const float rates[] = {0.5f, -4, 6}; /* decays of all sizes, near 1, and mostly 0 */
    for (int r = 0; r < 3; r++)
        for (int rounded = 0; rounded < 2; rounded++) {
            rule_case c;
            make_reals(&c, _i, rates[r]);
            run(&c, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
            double d = c.out.n ? pair_distance(&c.out) : 0;
            ck_assert_msg(d <= (rounded ? 2e-3 : 1e-5), "case %d, rate %g, %s: distance %.2e", _i, (double)rates[r],
                          rounded ? "bf16" : "f32", d);
            if (!rounded) pair_near(&c.out, 2e-5, "delta rule");
            free_case(&c);
        }
}
END_TEST

/* Keys are unit vectors in turn and nothing decays: a state's row is what was last
 * written to it, and every sum is of integers. */
START_TEST(rule_is_exact_on_integers)
{
    enum { MOST = 1 << 17 };
    static float keys[MOST], ones[MOST];
    rule_case c = {.shape = shape_of(_i)};
    exf_delta_shape d = c.shape;
    size_t t = (size_t)d.n_tokens, gates = t * (size_t)d.n_value_heads;
    for (size_t i = 0; i < MOST; i++) keys[i] = 0, ones[i] = 1;
    for (int i = 0; i < d.n_tokens; i++)
        for (int h = 0; h < d.n_key_heads; h++) keys[i * d.ldk + h * d.key_dim + (i * 7 + h) % d.key_dim] = 1;
    c.q = pair_integers(&p, t * (size_t)d.ldq, 1);
    c.k = pair_of(&p, keys, t * (size_t)d.ldk);
    c.v = pair_integers(&p, t * (size_t)d.ldv, 3);
    c.decay = pair_of(&p, ones, gates);
    c.beta = pair_of(&p, ones, gates);
    for (int rounded = 0; rounded < 2; rounded++) {
        run(&c, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
        pair_equal(&c.out, "delta rule on integers");
        if (!rounded) {
            pair_free(&c.out);
            pair_free(&c.space);
        }
    }
    free_case(&c);
}
END_TEST

static const struct {
    int t, channels, width;
} convolutions[] = {
    {0, 8, 4},    {1, 1, 4},     {2, 7, 4},    {3, 64, 4},  {63, 65, 4},  {64, 128, 3},
    {65, 256, 2}, {200, 132, 4}, {129, 36, 1}, {70, 33, 6}, {1000, 8, 4},
};

START_TEST(convolution_is_near)
{
    int t = convolutions[_i].t, n = convolutions[_i].channels, w = convolutions[_i].width;
    for (int gap = 0; gap < 8; gap += 3) {
        pair_array x = pair_reals(&p, (size_t)(t * (n + gap)), 1, 2), taps = pair_reals(&p, (size_t)(n * w), 2, 1);
        pair_array integers = pair_integers(&p, (size_t)(t * (n + gap)), 3);
        pair_array space =
            pair_reals(&p, larger(p.b[0]->causal_conv_workspace(n, w), p.b[1]->causal_conv_workspace(n, w)), 4, 1e30f);
        ON_BOTH(p, B->causal_conv_silu(Q, x.f[s], n + gap, taps.f[s], t, n, w, space.f[s]));
        pair_near(&x, 1e-6, "causal_conv");
        ON_BOTH(p, B->causal_conv_silu(Q, integers.f[s], n + gap, taps.f[s], t, n, w, space.f[s]));
        pair_near(&integers, 3e-6, "causal_conv of integers");
        pair_free(&x);
        pair_free(&taps);
        pair_free(&integers);
        pair_free(&space);
    }
}
END_TEST

/* ---- convolution, norms and rule in one ---------------------------------------------------- */

static const struct {
    int t, key_heads, value_heads, key_dim, value_dim, width, gap;
} layers[] = {
    {0, 1, 1, 64, 64, 4, 0},     {1, 1, 2, 128, 128, 4, 0},   {3, 2, 2, 64, 32, 4, 0},    {64, 1, 1, 128, 64, 4, 4},
    {700, 2, 4, 128, 128, 4, 0}, {131, 1, 3, 64, 160, 4, 12}, {1100, 1, 1, 64, 64, 4, 0}, {130, 1, 2, 24, 31, 4, 0},
    {90, 1, 1, 128, 128, 3, 0},  {65, 1, 1, 64, 64, 4, 3},
};

START_TEST(layer_is_near)
{
    int t = layers[_i].t, dk = layers[_i].key_heads * layers[_i].key_dim, dv = layers[_i].value_heads * layers[_i].value_dim;
    int n = 2 * dk + dv, ld = n + layers[_i].gap, w = layers[_i].width;
    exf_delta_shape shape = {t, layers[_i].key_heads, layers[_i].value_heads, layers[_i].key_dim, layers[_i].value_dim, ld, ld, ld,
                             dv};
    size_t gates = (size_t)(t * layers[_i].value_heads), room[2];
    room[0] = larger(p.b[0]->causal_conv_workspace(n, w), p.b[0]->delta_rule_workspace(&shape));
    room[1] = p.b[1]->gpu->conv_delta_rule_workspace(&shape, w);
    for (int rounded = 0; rounded < 2; rounded++) {
        pair_array x = pair_reals(&p, (size_t)(t * ld), 1, 2), taps = pair_reals(&p, (size_t)(n * w), 2, 1);
        pair_array decay = pair_reals(&p, gates, 3, 3), beta = pair_reals(&p, gates, 4, 3),
                   out = pair_reals(&p, (size_t)(t * dv), 5, 1);
        pair_array a_log = pair_reals(&p, (size_t)layers[_i].value_heads, 6, 0.5f),
                   bias = pair_reals(&p, (size_t)layers[_i].value_heads, 7, 1);
        pair_array space = pair_reals(&p, larger(room[0], room[1]), 8, 1e30f);
        pair_compute(&p, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
        ON_BOTH(p, B->delta_gates(Q, decay.f[s], beta.f[s], a_log.f[s], bias.f[s], t, layers[_i].value_heads));
        p.b[0]->causal_conv_silu(p.q[0], x.f[0], ld, taps.f[0], t, n, w, space.f[0]);
        p.b[0]->l2norm_heads(p.q[0], x.f[0], ld, t, shape.n_key_heads, shape.key_dim, 1e-6, 1 / sqrt(shape.key_dim));
        p.b[0]->l2norm_heads(p.q[0], x.f[0] + dk, ld, t, shape.n_key_heads, shape.key_dim, 1e-6, 1);
        p.b[0]->delta_rule(p.q[0], out.f[0], x.f[0], x.f[0] + dk, x.f[0] + 2 * dk, decay.f[0], beta.f[0], &shape, space.f[0]);
        p.b[1]->gpu->conv_delta_rule(p.q[1], out.f[1], x.f[1], taps.f[1], w, decay.f[1], beta.f[1], &shape, 1e-6, space.f[1]);
        double d = out.n ? pair_distance(&out) : 0;
        ck_assert_msg(d <= (rounded ? 2e-3 : 1e-5), "case %d, %s: distance %.2e", _i, rounded ? "bf16" : "f32", d);
        pair_free(&x);
        pair_free(&taps);
        pair_free(&decay);
        pair_free(&beta);
        pair_free(&out);
        pair_free(&a_log);
        pair_free(&bias);
        pair_free(&space);
    }
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_recurrent");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, rule_is_near, 0, COUNT(rules));
    tcase_add_loop_test(t, rule_is_exact_on_integers, 0, COUNT(rules));
    tcase_add_loop_test(t, convolution_is_near, 0, COUNT(convolutions));
    tcase_add_loop_test(t, layer_is_near, 0, COUNT(layers));
    suite_add_tcase(s, t);
    return s;
}
