/* check_layer_sums.c - kernels/statistics/layer_sums.h: which sums, exactly, in any order. */
#include "tests/support/layer_sums_fixtures.h"

#include <math.h>

static const exf_weighting weightings[] = {EXF_WEIGHT_SOURCE_NORM, EXF_WEIGHT_NONE, EXF_WEIGHT_ROUTER};
static exf_err e; /* of the last call */

static exf_layer_statistics sums_of(const routed *r, exf_weighting w)
{
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, r->n_experts, &e), e);
    ck_ok(add_range(&s, r, 0, r->n, w, &e), e);
    return s;
}

/* ---- against a double loop ------------------------------------------------------- */

/* The definition, word for word, with nothing but doubles. */
typedef struct {
    double dot, target_sq, source_sq, dot0, sq0, cosine_sum, norm_sum, sq_sum, route_weight_sum, contribution_sum, energy_sum;
    uint64_t count, norm_count;
} naive_cell;

static double inner(const float *u, const float *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)u[i] * (double)v[i];
    return sum;
}

static double weight_of(exf_weighting w, double norm, double route_weight)
{
    return w == EXF_WEIGHT_SOURCE_NORM ? norm : w == EXF_WEIGHT_NONE ? 1 : route_weight;
}

/* One token's part of the cell (s, t), or of expert s when s == t. */
static void naive_add(naive_cell *c, const routed *r, int token, int a, int b, exf_weighting weighting)
{
    const float *u = r->outputs + (token * r->top_k + a) * r->d_model, *v = r->outputs + (token * r->top_k + b) * r->d_model;
    double uu = inner(u, u, r->d_model), vv = inner(v, v, r->d_model), uv = inner(u, v, r->d_model);
    double p = (double)r->weights[token * r->top_k + a], w = weight_of(weighting, sqrt(uu), p);
    if (a == b) {
        c->norm_sum += sqrt(uu);
        c->sq_sum += uu;
        c->route_weight_sum += p;
        c->contribution_sum += p * sqrt(uu);
        c->energy_sum += p * p * uu;
        c->norm_count++;
        return;
    }
    c->dot += w * uv;
    c->target_sq += w * vv;
    c->source_sq += w * uu;
    c->dot0 += uv;
    c->sq0 += uu;
    c->cosine_sum += uu > 0 && vv > 0 ? uv / sqrt(uu * vv) : 0;
    c->count++;
}

static void ck_cell(const exf_layer_statistics *s, int source, int target, const naive_cell *c)
{
    int at = source * s->n_experts + target;
#define X(name) ck_assert_msg(exf_exact_value(&s->name[at]) == c->name, #name "[%d, %d]", source, target);
    X(dot) X(target_sq) X(source_sq) X(dot0) X(sq0)
#undef X
    ck_assert_double_eq_tol(exf_exact_value(&s->cosine_sum[at]), c->cosine_sum, 1e-14 * (double)(c->count + 1));
    ck_assert_uint_eq(s->count[at], c->count);
    if (source != target) return;
#define X(name) ck_assert_msg(exf_exact_value(&s->name[source]) == c->name, #name "[%d]", source);
    X(norm_sum) X(sq_sum) X(route_weight_sum) X(contribution_sum) X(energy_sum)
#undef X
    ck_assert_uint_eq(s->norm_count[source], c->norm_count);
}

static void ck_sums(const exf_layer_statistics *s, const routed *r, exf_weighting weighting)
{
    for (int source = 0; source < r->n_experts; source++)
        for (int target = 0; target < r->n_experts; target++) {
            naive_cell c = {0};
            for (int token = 0; token < r->n; token++)
                for (int a = 0; a < r->top_k; a++)
                    for (int b = 0; b < r->top_k; b++)
                        if (r->ids[token * r->top_k + a] == source && r->ids[token * r->top_k + b] == target)
                            naive_add(&c, r, token, a, b, weighting);
            ck_cell(s, source, target, &c);
        }
}

/* {E, K, H, T}: H below, at and beyond whole lanes of eight; one expert per
 * token; two experts; all experts. */
START_TEST(sums_are_the_definition)
{
    static const int size[][4] = {{8, 4, 11, 90}, {6, 3, 16, 60}, {5, 2, 3, 40}, {4, 1, 7, 30},
                                  {2, 1, 4, 20},  {2, 2, 5, 20},  {3, 3, 8, 1},  {4, 2, 8, 0}};
    const int *z = size[_i];
    routed r = routed_integers(z[3], z[0], z[1], z[2], 77);
    for (int w = 0; w < 3; w++) {
        exf_layer_statistics s = sums_of(&r, weightings[w]);
        ck_sums(&s, &r, weightings[w]);
        exf_layer_statistics_free(&s);
    }
    routed_free(&r);
}
END_TEST

/* By hand: u = (3, 4), v = (0, 2), router weights 1/2 and 1/4. */
START_TEST(one_token_by_hand)
{
    float outputs[] = {3, 4, 0, 2}, weights[] = {0.5f, 0.25f};
    int32_t ids[] = {2, 0};
    routed r = {1, 3, 2, 2, outputs, weights, ids};
    static const double w_of_u[] = {5, 1, 0.5}, w_of_v[] = {2, 1, 0.25};
    for (int i = 0; i < 3; i++) {
        exf_layer_statistics s = sums_of(&r, weightings[i]);
        naive_cell uv = {
            .dot = w_of_u[i] * 8, .target_sq = w_of_u[i] * 4, .source_sq = w_of_u[i] * 25, .dot0 = 8, .sq0 = 25, .cosine_sum = 0.8,
            .count = 1};
        naive_cell vu = {
            .dot = w_of_v[i] * 8, .target_sq = w_of_v[i] * 25, .source_sq = w_of_v[i] * 4, .dot0 = 8, .sq0 = 4, .cosine_sum = 0.8,
            .count = 1};
        naive_cell u = {.norm_sum = 5, .sq_sum = 25, .route_weight_sum = 0.5, .contribution_sum = 2.5,
                        .energy_sum = 6.25, .norm_count = 1};
        naive_cell v = {.norm_sum = 2, .sq_sum = 4, .route_weight_sum = 0.25, .contribution_sum = 0.5,
                        .energy_sum = 0.25, .norm_count = 1};
        naive_cell nothing = {0};
        ck_cell(&s, 2, 0, &uv);
        ck_cell(&s, 0, 2, &vu);
        ck_cell(&s, 2, 2, &u);
        ck_cell(&s, 0, 0, &v);
        ck_cell(&s, 1, 1, &nothing);
        ck_cell(&s, 1, 0, &nothing);
        exf_layer_statistics_free(&s);
    }
}
END_TEST

/* ---- any order, any split ---------------------------------------------------------- */

START_TEST(order_and_split_do_not_matter)
{
    enum { N = 200, WORKERS = 3 };
    routed r = routed_reals(N, 9, 3, 13, 5);
    for (int w = 0; w < 3; w++) {
        exf_layer_statistics whole = sums_of(&r, weightings[w]), part[WORKERS];
        for (int i = 0; i < WORKERS; i++) ck_ok(exf_layer_statistics_new(&part[i], 9, &e), e);
        for (int i = 0; i < N; i++) { /* 77 and 200 have no common factor: every token once, far out of order */
            int token = (i * 77 + 31) % N;
            ck_ok(add_range(&part[draw(9, i, WORKERS)], &r, token, 1, weightings[w], &e), e);
        }
        ck_ok(exf_layer_statistics_merge(&part[2], &part[0], &e), e);
        ck_ok(exf_layer_statistics_merge(&part[2], &part[1], &e), e);
        ck_assert(same_statistics(&part[2], &whole));
        exf_layer_statistics_free(&whole);
        for (int i = 0; i < WORKERS; i++) exf_layer_statistics_free(&part[i]);
    }
    routed_free(&r);
}
END_TEST

/* The order of experts within a token is the router's business, too. */
/* Inner products that came from elsewhere give the sums of the outputs; with empty slots too. */
START_TEST(inner_products_give_the_sums_of_outputs)
{
    routed r = routed_integers(40, 6, 3, 16, 21);
    if (_i) routed_with_empty_slots(&r);
    double grams[40 * 3 * 3];
    for (int i = 0; i < 40; i++)
        for (int ab = 0; ab < 9; ab++)
            grams[i * 9 + ab] = inner(r.outputs + (i * 3 + ab / 3) * 16, r.outputs + (i * 3 + ab % 3) * 16, 16);
    for (int w = 0; w < 3; w++) {
        exf_layer_statistics a = sums_of(&r, weightings[w]), b;
        ck_ok(exf_layer_statistics_new(&b, r.n_experts, &e), e);
        exf_layer_sums m = moments_of(&b);
        ck_ok(exf_layer_sums_add_cpu(&m, 6, 3, 16, 40, NULL, grams, r.ids, r.weights, weightings[w], NULL, &e), e);
        ck_assert_mem_eq(a.own, b.own, exf_layer_statistics_bytes(6));
        exf_layer_statistics_free(&a);
        exf_layer_statistics_free(&b);
    }
    routed_free(&r);
}
END_TEST

START_TEST(order_of_slots_does_not_matter)
{
    routed r = routed_reals(50, 6, 3, 10, 6);
    exf_layer_statistics before = sums_of(&r, EXF_WEIGHT_SOURCE_NORM);
    for (int t = 0; t < r.n; t++)
        for (int i = -1; i < r.d_model; i++) { /* slots 0 and 2 change places, the ids and weights first */
            size_t a = (size_t)(t * 3), b = a + 2;
            float *x = i < 0 ? &r.weights[a] : &r.outputs[a * 10 + (size_t)i],
                  *y = i < 0 ? &r.weights[b] : &r.outputs[b * 10 + (size_t)i], f = *x;
            int32_t id = r.ids[a];
            *x = *y;
            *y = f;
            if (i < 0) r.ids[a] = r.ids[b];
            if (i < 0) r.ids[b] = id;
        }
    exf_layer_statistics after = sums_of(&r, EXF_WEIGHT_SOURCE_NORM);
    ck_assert(same_statistics(&before, &after));
    exf_layer_statistics_free(&before);
    exf_layer_statistics_free(&after);
    routed_free(&r);
}
END_TEST

/* A token with empty slots adds what its other slots alone add. */
START_TEST(empty_slots_add_nothing)
{
    enum { N = 60, MOST = 4, H = 10 };
    routed r = routed_reals(N, 9, MOST, H, 8);
    routed_with_empty_slots(&r);
    for (int w = 0; w < 3; w++) {
        exf_layer_statistics all = sums_of(&r, weightings[w]), alone;
        uint64_t empty = 0;
        ck_ok(exf_layer_statistics_new(&alone, 9, &e), e);
        for (int t = 0; t < N; t++) {
            float outputs[MOST * H], weights[MOST];
            int32_t ids[MOST];
            int n = 0;
            for (int k = 0; k < MOST; k++) {
                size_t slot = (size_t)(t * MOST + k);
                if (r.ids[slot] < 0) continue;
                ids[n] = r.ids[slot];
                weights[n] = r.weights[slot];
                memcpy(outputs + n++ * H, r.outputs + slot * H, H * sizeof *outputs);
            }
            empty += (uint64_t)(MOST - n);
            routed some = {1, 9, n, H, outputs, weights, ids};
            ck_ok(add_range(&alone, &some, 0, 1, weightings[w], &e), e);
        }
        ck_assert_uint_eq(*all.empty_slots, empty);
        ck_assert_uint_gt(empty, 0);
        *alone.empty_slots = empty;
        ck_assert(same_statistics(&all, &alone));
        exf_layer_statistics_free(&all);
        exf_layer_statistics_free(&alone);
    }
    routed_free(&r);
}
END_TEST

/* ---- range ---------------------------------------------------------------------------- */

static exf_code add_one(float output, float weight, exf_weighting w)
{
    float outputs[] = {1, 0, 0, 1, 1, 0, 0, output}, weights[] = {0.5f, 0.5f, 0.5f, weight};
    int32_t ids[] = {0, 1, 0, 2};
    routed r = {2, 3, 2, 2, outputs, weights, ids};
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, 3, &e), e);
    exf_code rc = add_range(&s, &r, 0, 2, w, &e);
    exf_layer_statistics_free(&s);
    return rc;
}

START_TEST(outputs_beyond_the_range_are_refused)
{
    static const float bad[] = {1e30f, 3e38f, 1e11f, 3e6f, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_fails(add_one(bad[i], 0.5f, EXF_WEIGHT_SOURCE_NORM), EXF_NUMERIC, e, "1");
        ck_assert_msg(strstr(e.msg, "expert 2") != NULL, "no expert in \"%s\"", e.msg);
    }
    ck_fails(add_one(1e11f, 0.5f, EXF_WEIGHT_NONE), EXF_NUMERIC, e, "2");
    ck_fails(add_one(1e11f, 0.5f, EXF_WEIGHT_ROUTER), EXF_NUMERIC, e, "2");
}
END_TEST

START_TEST(outputs_up_to_the_range_are_exact)
{
    float big = 2097152; /* 2^21: its norm times its square is 2^63 */
    float outputs[] = {big, -big}, weights[] = {1, 1};
    int32_t ids[] = {1, 0};
    routed r = {1, 2, 2, 1, outputs, weights, ids};
    exf_layer_statistics s = sums_of(&r, EXF_WEIGHT_SOURCE_NORM);
    ck_assert(exf_exact_value(&s.dot[1]) == -ldexp(1, 63));
    ck_assert(exf_exact_value(&s.source_sq[2]) == ldexp(1, 63));
    exf_layer_statistics_free(&s);
}
END_TEST

/* The router's weight is a factor like the others. */
START_TEST(weights_beyond_the_range_are_refused)
{
    static const float bad[] = {1e30f, -1e30f, 3e38f, INFINITY, NAN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int w = 0; w < 3; w++) {
            ck_fails(add_one(1, bad[i], weightings[w]), EXF_NUMERIC, e, "1");
            ck_assert_msg(strstr(e.msg, "expert 2") != NULL, "no expert in \"%s\"", e.msg);
        }
    ck_fails(add_one(65536, 1e9f, EXF_WEIGHT_NONE), EXF_NUMERIC, e, "2"); /* each fits, their product does not */
    ck_fails(add_one(1, 5e9f, EXF_WEIGHT_NONE), EXF_NUMERIC, e, "2");     /* nor does the weight's square */
    ck_ok(add_one(1, 4e9f, EXF_WEIGHT_ROUTER), e);
    ck_ok(add_one(1, 0, EXF_WEIGHT_ROUTER), e);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_loop_test(t, sums_are_the_definition, 0, 8);
    tcase_add_test(t, one_token_by_hand);
    tcase_add_test(t, order_and_split_do_not_matter);
    tcase_add_loop_test(t, inner_products_give_the_sums_of_outputs, 0, 2);
    tcase_add_test(t, order_of_slots_does_not_matter);
    tcase_add_test(t, empty_slots_add_nothing);
    tcase_add_test(t, outputs_beyond_the_range_are_refused);
    tcase_add_test(t, outputs_up_to_the_range_are_exact);
    tcase_add_test(t, weights_beyond_the_range_are_refused);
}
