/* check_cuda_router_shapes.c - the router on the GPU beside the CPU's at shapes made from its constants: the same experts, and
 * weights that differ by the last bit at most. */
#include "base/mem.h"
#include "tests/support/pairwise.h"
#include "tests/support/pair_fixtures.h" /* after it: its pair is called p */

#include <math.h>

/* A group's experts, groups, groups that are kept; CHOICE 0: by scores alone, 1: with a bias, 2: every other expert does not
 * exist, 3: from a table. */
enum { SIZE, GROUPS, KEPT, TOP_K, SCORE, CHOICE, TOP2, TIES, DIMENSIONS };
static const dimension dimensions[] = {{"experts of a group", 1, 4096}, {"groups", 1, 33}, {"kept groups", 1, 33}, {"top-k", 1, 64},
                                       {"score", 0, 2}, {"choice", 0, 3}, {"two largest", 0, 1}, {"ties", 0, 1}};

static const boundary boundaries[] = {
    {"moe/moe_router_cuda.cu", "e < r.n_experts; e += 32", SIZE, 32},
    {"moe/moe_router_cuda.cu", "second > -INFINITY", SIZE, 2}, /* a group of one has no second */
    {"moe/moe_router_cuda.cu", "bytes > 48 * 1024", SIZE, 2048}, /* 24 bytes an expert */
    {"moe/moe_router_cuda.cu", "bytes > 48 * 1024", SIZE, 2048 / 32}, /* in 32 groups */
    {"model/architecture.h", "EXF_MAX_EXPERTS", SIZE, 4096},
    {"moe/moe_router_cuda.cu", "g < r.n_groups; g += 32", GROUPS, 32},
    {"moe/moe_router_cuda.cu", "g < r.n_groups; g += 32", KEPT, 32},
    {"moe/moe_router_cuda.cu", "k < r.top_k; k += 32", TOP_K, 32},
    {"model/architecture.h", "EXF_MAX_TOP_K", TOP_K, 64},
    {"moe/moe_router_cuda.cu", "EXF_ROUTER_SOFTMAX", SCORE, 1},
    {"moe/moe_router_cuda.cu", "r.bias ?", CHOICE, 1},
    {"moe/moe_router_cuda.cu", "r.table", CHOICE, 2},
    {"moe/route_weights.h", "r->expert_scale", CHOICE, 0},
};

/* K experts exist, and a model has no more than 4096. */
static int is_valid(const shape *s)
{
    int experts = s->at[SIZE] * s->at[GROUPS], exist = s->at[CHOICE] == 2 ? (experts + 1) / 2 : experts;
    return experts <= 4096 && s->at[TOP_K] <= exist && s->at[KEPT] <= s->at[GROUPS];
}

static pairwise cases;

static const exf_router_score scores[] = {EXF_ROUTER_SOFTMAX, EXF_ROUTER_SIGMOID, EXF_ROUTER_SQRT_SOFTPLUS};
enum { T = 7, VOCAB = 5, GUARD = 16 }; /* GUARD: numbers after the last, which no kernel may write */

/* exist: 1 in so many experts does; lower: taken off, so that every choice by sigmoid is below 0. */
static pair_array bias_of(int kind, int experts, int exist, int lower)
{
    float *bias;
    exf_err err;
    ck_ok(exf_mem_new(&bias, (size_t)experts, sizeof *bias, "bias", &err), err);
    for (int i = 0; i < experts; i++) {
        double u = (double)exf_rng_below(1000, 19, 1, (uint64_t)i) / 1000;
        bias[i] = kind == 2 && i % exist ? -INFINITY : (float)(0.3 * (u - 0.5)) - (float)lower;
    }
    pair_array a = pair_of(&p, bias, (size_t)experts);
    exf_mem_free(bias);
    return a;
}

static pair_array table_of(int experts, int top_k)
{
    float *table;
    exf_err err;
    size_t n = (size_t)(VOCAB * top_k);
    ck_ok(exf_mem_new(&table, n, sizeof *table, "table", &err), err);
    for (size_t i = 0; i < n; i++) table[i] = (float)((i * 5 + i / 3) % (size_t)experts);
    pair_array a = pair_of(&p, table, n);
    exf_mem_free(table);
    return a;
}

static void route(const shape *s, int exist)
{
    int experts = s->at[SIZE] * s->at[GROUPS], k = s->at[TOP_K], choice = s->at[CHOICE];
    size_t slots = (size_t)(T * k), n = (size_t)(T * experts);
    int32_t tokens[T];
    for (int t = 0; t < T; t++) tokens[t] = t * 3 % VOCAB;
    pair_array logits = s->at[TIES] ? pair_integers(&p, n, 23) : pair_reals(&p, n, 18, 6);
    pair_array bias = bias_of(choice, experts, exist, s->at[TIES]), table = table_of(experts, k), token = pair_of(&p, tokens, T);
    pair_array ids = pair_integers(&p, slots + GUARD, 20), weights = pair_reals(&p, slots + GUARD, 21, 1);
    pair_array factors = pair_reals(&p, (size_t)experts, 24, 2);
    pair_array scratch = pair_reals(&p, 2 * (size_t)exf_router_scratch(experts), 22, 1);
    for (int side = 0; side < 2; side++) {
        exf_router_rules r = {.score = scores[s->at[SCORE]], .n_experts = experts, .top_k = k, .n_groups = s->at[GROUPS],
                              .top_groups = s->at[KEPT], .group_top2 = s->at[TOP2], .renormalise = s->at[TIES] ? 0 : 1,
                              .epsilon = 1e-20, .scaling = 2.5, .bias = choice == 1 || choice == 2 ? bias.f[side] : NULL,
                              .table = choice == 3 ? table.f[side] : NULL, .expert_scale = choice == 0 ? factors.f[side] : NULL};
        p.b[side]->router(p.q[side], ids.i[side], weights.f[side], logits.f[side], token.i[side], T, &r,
                          (double *)(void *)scratch.f[side]);
    }
    pair_equal(&ids, pairwise_name(dimensions, DIMENSIONS, s));
    pair_near(&weights, 3e-7, pairwise_name(dimensions, DIMENSIONS, s));
    pair_array *all[] = {&logits, &bias, &table, &token, &ids, &weights, &factors, &scratch};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}

START_TEST(routes_are_the_same)
{
    route(&cases.shapes[_i], 2);
}
END_TEST

/* Where fewer than K experts exist, those that do not fill the slots, the lower numbers first. */
START_TEST(experts_that_do_not_exist_come_last)
{
    static const shape few[] = {{{16, 1, 1, 4, 0, 2, 0, 0}}, {{100, 1, 1, 20, 1, 2, 0, 0}}, {{8, 4, 2, 7, 1, 2, 1, 0}},
                                {{1, 32, 3, 32, 2, 2, 0, 0}}};
    for (int i = 0; i < COUNT(few); i++) route(&few[i], 10);
}
END_TEST

/* Of logits that are NaN, some or all, K experts of the layer are named, each once: the next kernels read by these numbers. */
START_TEST(routing_of_nan_names_experts)
{
    enum { E = 64, K = 6 };
    float rows[T * E];
    int32_t named[T * K];
    exf_err err;
    for (int i = 0; i < T * E; i++) rows[i] = i / E % 3 == 0 || i % 5 == 0 ? NAN : (float)(i % 11) - 5;
    pair_array logits = pair_of(&p, rows, T * E), bias = bias_of(_i / 6, E, 2, 0), ids = pair_integers(&p, T * K, 20),
               weights = pair_reals(&p, T * K, 21, 1), scratch = pair_reals(&p, 2 * (size_t)exf_router_scratch(E), 22, 1);
    for (int side = 0; side < 2; side++) {
        exf_router_rules r = {.score = scores[_i % 3], .n_experts = E, .top_k = K, .n_groups = _i / 3 % 2 ? 8 : 1,
                              .top_groups = _i / 3 % 2 ? 3 : 1, .group_top2 = _i % 6 == 4, .renormalise = 1, .epsilon = 1e-20,
                              .scaling = 2.5, .bias = _i / 6 ? bias.f[side] : NULL};
        p.b[side]->router(p.q[side], ids.i[side], weights.f[side], logits.f[side], NULL, T, &r, (double *)(void *)scratch.f[side]);
        ck_ok(p.b[side]->download(p.q[side], named, ids.i[side], sizeof named, &err), err);
        for (int i = 0; i < T * K; i++) {
            ck_assert_msg(named[i] >= 0 && named[i] < E, "token %d, slot %d: expert %d of %d", i / K, i % K, (int)named[i], E);
            for (int j = i - i % K; j < i; j++) ck_assert_int_ne(named[j], named[i]);
        }
    }
    pair_array *all[] = {&logits, &bias, &ids, &weights, &scratch};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    pairwise_shapes(&cases, "router", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    tcase_add_unchecked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, routes_are_the_same, 0, cases.n_shapes);
    tcase_add_test(t, experts_that_do_not_exist_come_last);
    tcase_add_loop_test(t, routing_of_nan_names_experts, 0, 18);
}
