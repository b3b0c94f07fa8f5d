/* check_cuda_recurrent.c - the delta rule of the CUDA backend against the CPU's, for decays of all sizes, near 1 and
 * mostly 0 (every shape: check_cuda_recurrent_shapes.c). */
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

/* ---- convolution, norms and rule in one ---------------------------------------------------- */

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_recurrent");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, rule_is_near, 0, COUNT(rules));
    suite_add_tcase(s, t);
    return s;
}
