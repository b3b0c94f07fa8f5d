/* check_router.c - from logits to experts and weights: worked examples, and a plain
 * double version over random rules. */
#include "kernels/moe/moe.h"
#include "base/hash.h"
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include <math.h>
#include <string.h>

enum { MAX_E = 80, MAX_K = 80, MAX_T = 4 };

static const exf_router_rules plain = {.score = EXF_ROUTER_SOFTMAX, .n_groups = 1, .top_groups = 1, .scaling = 1};

static exf_router_rules rules_for(int n_experts, int top_k, exf_router_score score)
{
    exf_router_rules r = plain;
    r.n_experts = n_experts;
    r.top_k = top_k;
    r.score = score;
    return r;
}

/* Routes and expects these experts and weights (to seven digits). */
static void expect(const exf_router_rules *r, const float *logits, const int32_t *want_ids, const double *want_weights)
{
    int32_t ids[MAX_K], token = 2;
    float weights[MAX_K];
    double scratch[3 * MAX_E];
    exf_router_cpu(NULL, ids, weights, logits, &token, 1, r, scratch);
    for (int k = 0; k < r->top_k; k++) {
        ck_assert_msg(ids[k] == want_ids[k], "slot %d: expert %d, expected %d", k, (int)ids[k], (int)want_ids[k]);
        ck_assert_msg(fabs((double)weights[k] - want_weights[k]) <= 1e-7 * fabs(want_weights[k]),
                      "slot %d: weight %.9g, expected %.9g", k, (double)weights[k], want_weights[k]);
    }
}
#define IDS (const int32_t[])
#define WEIGHTS (const double[])

/* ---- worked examples --------------------------------------------------------- */

/* e^logits = 1, 2, 3, 4: softmax 0.1, 0.2, 0.3, 0.4. */
static const float tenths[] = {0, 0.69314718f, 1.09861229f, 1.38629436f};

/* The factor of an expert is on its weight, after the sum, and weights fall with it. */
START_TEST(a_factor_of_an_expert_weighs_but_does_not_choose)
{
    const float factor[] = {9, 9, 2, 0.5f};
    exf_router_rules r = rules_for(4, 2, EXF_ROUTER_SOFTMAX);
    r.renormalise = 1;
    r.expert_scale = factor;
    expect(&r, tenths, IDS{2, 3}, WEIGHTS{6 / 7.0, 2 / 7.0});
}
END_TEST

/* A bias of -infinity takes an expert out: neither a masked choice nor a group brings it back. */
START_TEST(missing_experts_are_never_chosen)
{
    const float none = -INFINITY, z[] = {none, 0, 2, none, none, 1}, bias[] = {none, 0, 0, none, none, 0};
    exf_router_rules r = rules_for(6, 3, EXF_ROUTER_SIGMOID);
    double w[] = {naive_sigmoid(2), naive_sigmoid(1), 0.5};
    r.bias = bias;
    expect(&r, z, IDS{2, 5, 1}, w);
    r.n_groups = 3;
    r.top_groups = 1; /* {. .5} {.88 .} {. .73}: the second; of the others those that exist come next */
    expect(&r, z, IDS{2, 5, 1}, w);
    r.group_top2 = 1; /* a group of one is as good as its one */
    expect(&r, z, IDS{2, 5, 1}, w);
    r.top_k = 2;
    r.top_groups = 2;
    expect(&r, z, IDS{2, 5}, w);
    r.bias = (const float[]){none, none, 0, 0, none, none}; /* fewer groups have experts than are kept */
    expect(&r, (const float[]){none, none, 2, 1, none, none}, IDS{2, 3}, w);
}
END_TEST

/* An expert that a table names twice is one route, of both weights; the slots that are left are empty, and last. */
START_TEST(a_table_names_an_expert_twice)
{
    const float z[] = {0, 1, 2, 3}, table[] = {0, 0, 0, 0, 0, 0, 0, 0, /* token 2: */ 3, 1, 3, 1},
                three[] = {0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 2}, same[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1},
                late[] = {0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 1};
    const double s0 = 0.5, s1 = naive_sigmoid(1), s2 = naive_sigmoid(2), s3 = naive_sigmoid(3);
    exf_router_rules r = rules_for(4, 4, EXF_ROUTER_SIGMOID);
    r.table = table;
    expect(&r, z, IDS{3, 1, -1, -1}, WEIGHTS{2 * s3, 2 * s1, 0, 0});
    r.table = three;
    expect(&r, z, IDS{2, 0, -1, -1}, WEIGHTS{3 * s2, s0, 0, 0});
    r.table = late; /* the second is the heavier for it */
    expect(&r, z, IDS{1, 3, 0, -1}, WEIGHTS{2 * s1, s3, s0, 0});
    r.renormalise = 1; /* every slot counts in the sum */
    r.scaling = 3;
    expect(&r, z, IDS{1, 3, 0, -1}, WEIGHTS{6 * s1 / (2 * s1 + s3 + s0), 3 * s3 / (2 * s1 + s3 + s0), 1.5 / (2 * s1 + s3 + s0), 0});
    r.table = same;
    expect(&r, z, IDS{1, -1, -1, -1}, WEIGHTS{3, 0, 0, 0});
    const float nothing[] = {-2000, -2000, -2000, -2000}; /* weights of 0 are not empty slots */
    r.renormalise = 0;
    r.table = late;
    expect(&r, nothing, IDS{3, 1, 0, -1}, WEIGHTS{0, 0, 0, 0});
}
END_TEST

START_TEST(vanishing_scores_do_not_divide_by_zero)
{
    const float z[] = {-2000, -2000, -2000};
    exf_router_rules r = rules_for(3, 2, EXF_ROUTER_SIGMOID);
    r.renormalise = 1;
    r.epsilon = 1e-20;
    expect(&r, z, IDS{0, 1}, WEIGHTS{0, 0});
    r.score = EXF_ROUTER_SOFTMAX; /* far from 0 but equal */
    expect(&r, z, IDS{0, 1}, WEIGHTS{0.5, 0.5});
}
END_TEST

/* What comes of NaN is refused later; here no expert number may leave its range. */
START_TEST(not_a_number_stays_in_range)
{
    enum { E = 12, K = 5 };
    float z[E], weights[K];
    int32_t ids[K], token = 0;
    double scratch[3 * E];
    exf_router_rules r = rules_for(E, K, (exf_router_score)(_i % 3));
    r.n_groups = _i < 3 ? 1 : 4;
    r.top_groups = _i < 3 ? 1 : 2;
    for (int bad = 0; bad < E; bad++) {
        for (int e = 0; e < E; e++) z[e] = e == bad || bad == E - 1 ? NAN : (float)e;
        exf_router_cpu(NULL, ids, weights, z, &token, 1, &r, scratch);
        for (int k = 0; k < K; k++) ck_assert(ids[k] >= 0 && ids[k] < E);
    }
}
END_TEST

/* ---- the plain version ----------------------------------------------------------- */

static void naive_scores(double *score, const float *z, const exf_router_rules *r)
{
    double sum = 0, top = -INFINITY;
    for (int e = 0; e < r->n_experts; e++) top = fmax(top, (double)z[e]);
    for (int e = 0; e < r->n_experts; e++) sum += exp((double)z[e] - top);
    for (int e = 0; e < r->n_experts; e++) {
        double x = (double)z[e];
        if (r->score == EXF_ROUTER_SOFTMAX) score[e] = exp(x - top) / sum;
        if (r->score == EXF_ROUTER_SIGMOID) score[e] = naive_sigmoid(x);
        if (r->score == EXF_ROUTER_SQRT_SOFTPLUS) score[e] = sqrt(log1p(exp(x)));
    }
}

/* The best of n that is not taken yet, the lowest of equals. */
static int best_of(const double *x, const int *taken, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
    return best;
}

static void naive_groups(double *choice, const exf_router_rules *r)
{
    int kept[MAX_E] = {0}, size = r->n_experts / r->n_groups;
    double worth[MAX_E];
    for (int g = 0; g < r->n_groups; g++) {
        int taken[MAX_E] = {0}, first = best_of(choice + g * size, taken, size), second;
        taken[first] = 1;
        second = r->group_top2 ? best_of(choice + g * size, taken, size) : -1;
        worth[g] = choice[g * size + first] + (second >= 0 ? choice[g * size + second] : 0);
    }
    for (int i = 0; i < r->top_groups; i++) kept[best_of(worth, kept, r->n_groups)] = 1;
    for (int e = 0; e < r->n_experts; e++)
        if (!kept[e / size]) choice[e] = -INFINITY;
}

static void naive_route(int32_t *ids, float *weights, const float *z, int32_t token, const exf_router_rules *r)
{
    double score[MAX_E], choice[MAX_E], sum = 0, weight[MAX_K];
    int taken[MAX_E] = {0}, chosen[MAX_K], placed[MAX_K] = {0};
    naive_scores(score, z, r);
    for (int e = 0; e < r->n_experts; e++) choice[e] = score[e] + (r->bias ? (double)r->bias[e] : 0);
    if (r->n_groups > 1) naive_groups(choice, r);
    for (int k = 0; k < r->top_k; k++) {
        chosen[k] = r->table ? (int)r->table[token * r->top_k + k] : best_of(choice, taken, r->n_experts);
        taken[chosen[k]] = 1;
        sum += score[chosen[k]];
    }
    for (int k = 0; k < r->top_k; k++)
        weight[k] = (double)(float)((r->renormalise ? score[chosen[k]] / (sum + r->epsilon) : score[chosen[k]]) * r->scaling);
    for (int k = 0; k < r->top_k; k++) {
        int at = best_of(weight, placed, r->top_k);
        placed[at] = 1;
        ids[k] = chosen[at];
        weights[k] = (float)weight[at];
    }
}

typedef struct {
    exf_router_rules rules;
    float logits[MAX_T * MAX_E], bias[MAX_E], table[6 * MAX_K];
    int32_t tokens[MAX_T];
    int n_tokens;
} draw;

static int below(int n, uint64_t stream, uint64_t i)
{
    return (int)exf_rng_below((uint64_t)n, 30, stream, i);
}

/* Every other draw has numbers on a coarse grid, so that ties are common. */
static float number(uint64_t round, uint64_t i, float scale)
{
    float x = scale * naive_number(1000 + round, i);
    return round % 2 ? x : rintf(x * 2) / 2;
}

static void draw_rules(draw *d, uint64_t round)
{
    static const int sizes[] = {1, 2, 3, 5, 8, 16, 37, 64, 72, 79};
    int e = sizes[below(10, round, 0)], k = 1 + below(e, round, 1);
    d->rules = rules_for(e, k, (exf_router_score)below(3, round, 2));
    exf_router_rules *r = &d->rules;
    r->renormalise = below(2, round, 3);
    r->epsilon = below(2, round, 4) ? 0.25 : 0;
    r->scaling = below(2, round, 5) ? 2.5 : 1;
    r->bias = below(2, round, 6) ? d->bias : NULL;
    r->table = below(8, round, 7) == 0 ? d->table : NULL;
    r->group_top2 = below(2, round, 8);
    for (int g = 2 + below(7, round, 9); g < e && r->n_groups == 1; g++)
        if (e % g == 0 && e / g > 1) r->n_groups = g;
    r->top_groups = 1 + below(r->n_groups, round, 10);
}

static void draw_numbers(draw *d, uint64_t round)
{
    int e = d->rules.n_experts, k = d->rules.top_k;
    d->n_tokens = 1 + below(MAX_T, round, 11);
    for (int i = 0; i < d->n_tokens * e; i++) d->logits[i] = number(round, (uint64_t)i, 6);
    for (int i = 0; i < e; i++) d->bias[i] = number(round, 500 + (uint64_t)i, 1) - (float)below(3, round, 12);
    for (int i = 0; i < MAX_T; i++) d->tokens[i] = below(6, round, 20 + (uint64_t)i);
    for (int t = 0; t < 6; t++)
        for (int i = 0; i < k; i++) d->table[t * k + i] = (float)((t * 7 + i) % e);
}

START_TEST(agrees_with_the_plain_version)
{
    static draw d;
    for (uint64_t round = 0; round < 4000; round++) {
        int32_t ids[MAX_T * MAX_K], want_ids[MAX_K];
        float weights[MAX_T * MAX_K], want[MAX_K];
        double scratch[3 * MAX_E];
        draw_rules(&d, round);
        draw_numbers(&d, round);
        int e = d.rules.n_experts, k = d.rules.top_k;
        ck_assert_int_le(exf_router_scratch(e), 3 * MAX_E);
        exf_router_cpu(NULL, ids, weights, d.logits, d.tokens, d.n_tokens, &d.rules, scratch);
        for (int t = 0; t < d.n_tokens; t++) {
            naive_route(want_ids, want, d.logits + t * e, d.tokens[t], &d.rules);
            for (int i = 0; i < k; i++) {
                ck_assert_msg(ids[t * k + i] == want_ids[i], "round %d, slot %d of %d: expert %d of %d, expected %d", (int)round, i,
                              k, (int)ids[t * k + i], e, (int)want_ids[i]);
                ck_assert_msg(fabsf(weights[t * k + i] - want[i]) <= 2.4e-7f * want[i],
                              "round %d, slot %d: weight %.9g, expected %.9g", (int)round, i, (double)weights[t * k + i],
                              (double)want[i]);
                ck_assert(i == 0 || weights[t * k + i] <= weights[t * k + i - 1]);
            }
        }
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_factor_of_an_expert_weighs_but_does_not_choose);
    tcase_add_test(t, missing_experts_are_never_chosen);
    tcase_add_test(t, a_table_names_an_expert_twice);
    tcase_add_test(t, vanishing_scores_do_not_divide_by_zero);
    tcase_add_loop_test(t, not_a_number_stays_in_range, 0, 6);
    tcase_add_test(t, agrees_with_the_plain_version);
}
