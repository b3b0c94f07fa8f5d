/* check_cuda_ops.c - every operation of the CUDA backend against the CPU's: exact on
 * small integers, within a stated bound on reals, at awkward shapes. */
#include "base/hash.h"
#include "base/mem.h"
#include "tests/support/pair_fixtures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* n zero floats on the host; the caller frees. */
static float *test_room(size_t n)
{
    float *room;
    exf_err err;
    ck_ok(exf_mem_new(&room, n + 1, sizeof *room, "test", &err), err);
    return room;
}

static const struct { int m, n, k; } products[] = {{1, 1, 1}, {3, 5, 7}, {0, 4, 4}, {17, 64, 33}, {128, 96, 128}, {257, 130, 65}};

START_TEST(products_are_exact_on_integers)
{
    int m = products[_i].m, n = products[_i].n, k = products[_i].k;
    pair_array x = pair_integers(&p, (size_t)(m * k), 1), w = pair_integers(&p, (size_t)(n * k), 2),
               y = pair_integers(&p, (size_t)(m * n), 3);
    ON_BOTH(p, B->gemm_xwt(Q, y.f[s], n, exf_f32(x.f[s]), k, exf_f32(w.f[s]), k, m, n, k, 2, 1));
    pair_equal(&y, "gemm_xwt");
    ON_BOTH(p, B->gemm_xw(Q, y.f[s], n, x.f[s], k, w.f[s], n, m, n, k, 1, 0));
    pair_equal(&y, "gemm_xw");
    pair_free(&x);
    pair_free(&w);
    pair_free(&y);
}
END_TEST

START_TEST(products_of_reals_are_near)
{
    int m = products[_i].m, n = products[_i].n, k = products[_i].k;
    pair_array x = pair_reals(&p, (size_t)(m * k), 1, 1), w = pair_reals(&p, (size_t)(n * k), 2, 1),
               y = pair_reals(&p, (size_t)(m * n), 3, 1);
    ON_BOTH(p, B->gemm_xwt(Q, y.f[s], n, exf_f32(x.f[s]), k, exf_f32(w.f[s]), k, m, n, k, 1, 0));
    pair_near(&y, k * 0x1p-23, "gemm_xwt"); /* two float32 accumulations of k terms below 1 */
    pair_free(&x);
    pair_free(&w);
    pair_free(&y);
}
END_TEST

/* Three products in rows that are longer than all of them, x shared or each its own columns. */
START_TEST(products_side_by_side_are_exact)
{
    enum { COUNT = 3, GAP = 2 };
    int m = products[_i].m, n = products[_i].n, k = products[_i].k, ldy = COUNT * (n + GAP), ldx = COUNT * k + GAP;
    pair_array x = pair_integers(&p, (size_t)(m * ldx), 1), w = pair_integers(&p, (size_t)(COUNT * n * k), 2),
               y = pair_integers(&p, (size_t)(m * ldy), 3);
    for (int shared = 0; shared < 2; shared++) {
        exf_product_steps steps = {COUNT, n + GAP, shared ? 0 : k, (size_t)(n * k)};
        ON_BOTH(p, B->gemm_xwt_many(Q, y.f[s], ldy, exf_f32(x.f[s]), ldx, exf_f32(w.f[s]), k, &steps, m, n, k));
        pair_equal(&y, "gemm_xwt_many");
    }
    pair_free(&x);
    pair_free(&w);
    pair_free(&y);
}
END_TEST

/* The same weights as bfloat16 for the device and widened for the CPU. */
typedef struct {
    pair_array full, half;
} narrow_pair;

static narrow_pair narrow_weights(size_t n, uint64_t seed, int reals)
{
    pair_array random = reals ? pair_reals(&p, n, seed, 1) : pair_integers(&p, n, seed);
    float *full = test_room(n);
    uint32_t *half = (uint32_t *)(void *)test_room((n + 1) / 2);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, random.f[0] + i, sizeof u);
        u &= 0xffff0000u;
        memcpy(full + i, &u, sizeof u);
        half[i / 2] |= i % 2 ? u : u >> 16;
    }
    narrow_pair w = {pair_of(&p, full, n), pair_of(&p, half, (n + 1) / 2)};
    pair_free(&random);
    exf_mem_free(full);
    exf_mem_free(half);
    return w;
}

static exf_matrix narrow_of(const narrow_pair *w, int s)
{
    return s == 0 ? exf_f32(w->full.f[0]) : exf_bf16((const uint16_t *)(const void *)w->half.f[1]);
}

/* Integers of 20 bits, so that all three terms of a float32 take part. */
static pair_array long_integers(size_t n, uint64_t seed)
{
    float *x = test_room(n);
    for (size_t i = 0; i < n; i++) x[i] = (float)((int64_t)(exf_rng_u64(seed, 3, i) % ((1u << 20) - 1)) - (1 << 19));
    pair_array a = pair_of(&p, x, n);
    exf_mem_free(x);
    return a;
}

/* k no larger than 3 where sums of long integers must stay below 2^24. */
static const struct {
    int m, n, k;
} narrow_products[] = {{1, 1, 1}, {5, 3, 2}, {0, 4, 4}, {17, 64, 1}, {300, 40, 2}, {200000, 3, 2}};

START_TEST(products_with_bfloat16_weights_lose_nothing)
{
    int m = narrow_products[_i].m, n = narrow_products[_i].n, k = narrow_products[_i].k;
    pair_array x = long_integers((size_t)(m * k), 1), y = pair_integers(&p, (size_t)(m * n), 3);
    narrow_pair w = narrow_weights((size_t)(n * k), 2, 0);
    ON_BOTH(p, B->gemm_xwt(Q, y.f[s], n, exf_f32(x.f[s]), k, narrow_of(&w, s), k, m, n, k, 1, 1));
    pair_equal(&y, "gemm_xwt");
    pair_free(&x);
    pair_free(&y);
    pair_free(&w.full);
    pair_free(&w.half);
}
END_TEST

START_TEST(products_with_bfloat16_weights_are_near)
{
    enum { COUNT = 3, GAP = 2 };
    int m = products[_i].m, n = products[_i].n, k = products[_i].k, ldy = COUNT * (n + GAP), ldx = COUNT * k + GAP;
    pair_array x = pair_reals(&p, (size_t)(m * ldx), 1, 1), y = pair_reals(&p, (size_t)(m * ldy), 3, 1);
    narrow_pair w = narrow_weights((size_t)(COUNT * n * k), 2, 1);
    ON_BOTH(p, B->gemm_xwt(Q, y.f[s], ldy, exf_f32(x.f[s]), ldx, narrow_of(&w, s), k, m, n, k, 2, 0.5f));
    pair_near(&y, k * 0x1p-22, "gemm_xwt"); /* twice the bounds of linear.h for terms below 1 */
    for (int shared = 0; shared < 2; shared++) {
        exf_product_steps steps = {COUNT, n + GAP, shared ? 0 : k, (size_t)(n * k)};
        ON_BOTH(p, B->gemm_xwt_many(Q, y.f[s], ldy, exf_f32(x.f[s]), ldx, narrow_of(&w, s), k, &steps, m, n, k));
        pair_near(&y, k * 0x1p-22, "gemm_xwt_many");
    }
    pair_free(&x);
    pair_free(&y);
    pair_free(&w.full);
    pair_free(&w.half);
}
END_TEST

static const int widths[] = {1, 2, 31, 64, 130, 2048};

START_TEST(rows_are_moved_exactly)
{
    enum { T = 9, K = 3 };
    static const int32_t row[T] = {3, 0, 8, 1, 2, 7, 4, 6, 5};
    int w = widths[_i];
    pair_array x = pair_reals(&p, (size_t)(T * K * w), 4, 3), out = pair_reals(&p, (size_t)(T * w), 5, 1),
               index = pair_of(&p, row, T);
    pair_array weights = pair_integers(&p, T * K, 6), integers = pair_integers(&p, (size_t)(T * K * w), 7);
    ON_BOTH(p, B->gather_rows(Q, out.f[s], x.f[s], index.i[s], T, w));
    pair_equal(&out, "gather_rows");
    for (int with = 0; with < 4; with++) { /* with the shared output, with what was there before */
        exf_moe_sum_call c[2];
        for (int s = 0; s < 2; s++)
            c[s] = (exf_moe_sum_call){.n_tokens = T, .top_k = K, .d_model = w, .outputs = exf_f32(integers.f[s]),
                                      .weights = with & 2 ? weights.f[s] : NULL,
                                      .shared = exf_f32(with & 1 ? x.f[s] : NULL), .start = with & 2 ? out.f[s] : NULL,
                                      .hidden = out.f[s]};
        ON_BOTH(p, B->moe_sum(Q, &c[s]));
        pair_equal(&out, "moe_sum");
    }
    ON_BOTH(p, B->add(Q, out.f[s], x.f[s], out.n));
    pair_equal(&out, "add");
    ON_BOTH(p, B->add_bias(Q, out.f[s], x.f[s], T, w));
    pair_equal(&out, "add_bias");
    ON_BOTH(p, B->copy(Q, out.f[s], x.f[s], out.n * 4));
    pair_equal(&out, "copy");
    ON_BOTH(p, B->zero(Q, out.f[s], out.n * 4));
    pair_equal(&out, "zero");
    pair_free(&x);
    pair_free(&out);
    pair_free(&index);
    pair_free(&weights);
    pair_free(&integers);
}
END_TEST

START_TEST(not_finite_is_found)
{
    static const size_t places[] = {0, 5, 999};
    exf_err err;
    int64_t at;
    for (size_t k = 0; k < 3; k++) {
        float x[1000] = {0};
        x[places[k]] = k == 1 ? INFINITY : NAN;
        x[999] = NAN;
        pair_array a = pair_of(&p, x, 1000);
        for (int s = 0; s < 2; s++) {
            ck_ok(p.b[s]->first_not_finite(p.q[s], a.f[s], 1000, &at, &err), err);
            ck_assert_int_eq((int)at, (int)places[k]);
            ck_ok(p.b[s]->first_not_finite(p.q[s], a.f[s], places[k], &at, &err), err);
            ck_assert_int_eq((int)at, -1);
        }
        pair_free(&a);
    }
}
END_TEST

static const struct {
    int t, heads, kv, d, dv;
} attentions[] = {{1, 1, 1, 4, 4},   {2, 4, 2, 16, 16},   {127, 4, 1, 32, 16},
                  {128, 2, 2, 8, 8}, {129, 6, 2, 16, 16}, {300, 4, 4, 24, 16}};

START_TEST(attention_is_near)
{
    int t = attentions[_i].t, heads = attentions[_i].heads, kv = attentions[_i].kv, d = attentions[_i].d, dv = attentions[_i].dv;
    exf_attention_shape shape = {t, heads, kv, d, dv, heads * d, kv * d, kv * dv, heads * dv, (float)(1 / sqrt(d)), 0, NULL,
                                 NULL, 0};
    pair_array q = pair_reals(&p, (size_t)(t * heads * d), 13, 3), k = pair_reals(&p, (size_t)(t * kv * d), 14, 3);
    pair_array v = pair_reals(&p, (size_t)(t * kv * dv), 15, 1), out = pair_reals(&p, (size_t)(t * heads * dv), 16, 1);
    size_t room[2] = {p.b[0]->attention_workspace(&shape), p.b[1]->attention_workspace(&shape)};
    pair_array space = pair_reals(&p, room[0] > room[1] ? room[0] : room[1], 17, 1);
    ON_BOTH(p, B->attention(Q, out.f[s], q.f[s], k.f[s], v.f[s], &shape, space.f[s]));
    pair_near(&out, 2e-5, "attention"); /* scores up to 9 d/sqrt(d) with float32 products, exponentiated */
    pair_free(&q);
    pair_free(&k);
    pair_free(&v);
    pair_free(&out);
    pair_free(&space);
}
END_TEST

static const struct { int e, k, groups, kept, top2, bias, table; exf_router_score score;
} routers[] = {
    {4, 1, 1, 1, 0, 0, 0, EXF_ROUTER_SOFTMAX},        {128, 8, 1, 1, 0, 0, 0, EXF_ROUTER_SOFTMAX},
    {3, 3, 1, 1, 0, 0, 0, EXF_ROUTER_SOFTMAX},        {64, 6, 8, 3, 0, 0, 0, EXF_ROUTER_SOFTMAX},
    {256, 8, 8, 4, 1, 1, 0, EXF_ROUTER_SIGMOID},      {256, 6, 1, 1, 0, 1, 0, EXF_ROUTER_SQRT_SOFTPLUS},
    {16, 3, 1, 1, 0, 0, 1, EXF_ROUTER_SQRT_SOFTPLUS}, {512, 10, 1, 1, 0, 0, 0, EXF_ROUTER_SOFTMAX},
    {64, 6, 8, 3, 0, 2, 0, EXF_ROUTER_SOFTMAX},       {256, 8, 64, 4, 1, 2, 0, EXF_ROUTER_SIGMOID},
    {16, 2, 16, 9, 0, 2, 0, EXF_ROUTER_SIGMOID},      {256, 8, 8, 4, 1, 3, 0, EXF_ROUTER_SIGMOID},
    {16, 8, 8, 4, 0, 3, 0, EXF_ROUTER_SIGMOID},       {16, 3, 1, 1, 0, 0, 2, EXF_ROUTER_SQRT_SOFTPLUS},
    {64, 6, 1, 1, 0, 0, 2, EXF_ROUTER_SQRT_SOFTPLUS}, {256, 16, 1, 1, 0, 0, 2, EXF_ROUTER_SIGMOID},
};

/* Two of three experts do not exist, and of the first sixteen but four: groups with one left, and with none. */
static pair_array missing_experts(int e)
{
    float bias[512];
    for (int i = 0; i < e; i++) bias[i] = i % 3 || (i < 16 && i % 4) ? -INFINITY : 0.01f * (float)i;
    return pair_of(&p, bias, (size_t)e);
}

/* Biases below -1, so that every choice by sigmoid is below 0. */
static pair_array negative_bias(int e)
{
    float bias[512];
    for (int i = 0; i < e; i++) bias[i] = -1 - 0.25f * (float)(i % 7);
    return pair_of(&p, bias, (size_t)e);
}

static pair_array bias_of(int kind, int e)
{
    return kind == 3 ? negative_bias(e) : kind == 2 ? missing_experts(e) : pair_reals(&p, (size_t)e, 19, 0.3f);
}

START_TEST(routing_is_the_same)
{
    enum { T = 67, VOCAB = 11 };
    int e = routers[_i].e, k = routers[_i].k;
    float table[VOCAB * 16];
    int32_t tokens[T];
    for (int i = 0; i < VOCAB * k && i < VOCAB * 16; i++) table[i] = (float)((i * 5) % e);
    for (int i = 0; routers[_i].table == 2 && i < VOCAB * k; i++) /* tokens that name experts twice, thrice ... and all the same */
        table[i] = table[i - i % k + i % k % (1 + i / k % k)];
    for (int t = 0; t < T; t++) tokens[t] = t % VOCAB;
    pair_array logits = pair_reals(&p, (size_t)(T * e), 18, 6),
               bias = bias_of(routers[_i].bias, e),
               ids = pair_integers(&p, (size_t)(T * k), 20);
    pair_array weights = pair_reals(&p, (size_t)(T * k), 21, 1), scratch = pair_reals(&p, 2 * (size_t)exf_router_scratch(e), 22, 1);
    pair_array map = pair_of(&p, table, VOCAB * 16), token = pair_of(&p, tokens, T);
    for (int ties = 0; ties < 2; ties++) {
        if (ties) { /* many equal logits: the lower expert number must win on both */
            pair_free(&logits);
            logits = pair_integers(&p, (size_t)(T * e), 23);
        }
        for (int s = 0; s < 2; s++) {
            exf_router_rules r = {routers[_i].score, e, k, routers[_i].groups, routers[_i].kept, routers[_i].top2, 1, 1e-20, 2.5,
                                  routers[_i].bias ? bias.f[s] : NULL, routers[_i].table ? map.f[s] : NULL};
            p.b[s]->router(p.q[s], ids.i[s], weights.f[s], logits.f[s], token.i[s], T, &r, (double *)scratch.f[s]);
        }
        pair_equal(&ids, "router ids");
        pair_near(&weights, 3e-7, "router weights");
    }
    pair_free(&logits);
    pair_free(&bias);
    pair_free(&ids);
    pair_free(&weights);
    pair_free(&scratch);
    pair_free(&map);
    pair_free(&token);
}
END_TEST

/* Of logits that are NaN, some or all, K experts of the layer are named, each once: the next kernels read by these numbers. */
START_TEST(routing_of_nan_names_experts)
{
    enum { T = 9 };
    int e = routers[_i].e, k = routers[_i].k;
    float rows[T * 512];
    int32_t named[T * 16];
    if (routers[_i].table) return; /* a table names them */
    for (int i = 0; i < T * e; i++) rows[i] = i / e % 3 == 0 || i % 5 == 0 ? NAN : (float)(i % 11) - 5;
    pair_array logits = pair_of(&p, rows, (size_t)(T * e)), bias = bias_of(routers[_i].bias, e),
               ids = pair_integers(&p, (size_t)(T * k), 20), weights = pair_reals(&p, (size_t)(T * k), 21, 1),
               scratch = pair_reals(&p, 2 * (size_t)exf_router_scratch(e), 22, 1);
    for (int s = 0; s < 2; s++) {
        exf_router_rules r = {routers[_i].score, e, k, routers[_i].groups, routers[_i].kept, routers[_i].top2, 1, 1e-20, 2.5,
                              routers[_i].bias ? bias.f[s] : NULL, NULL};
        p.b[s]->router(p.q[s], ids.i[s], weights.f[s], logits.f[s], NULL, T, &r, (double *)scratch.f[s]);
        exf_err err;
        ck_ok(p.b[s]->download(p.q[s], named, ids.i[s], (size_t)(T * k) * sizeof *named, &err), err);
        for (int i = 0; i < T * k; i++) {
            ck_assert_msg(named[i] >= 0 && named[i] < e, "token %d, slot %d: expert %d of %d", i / k, i % k, (int)named[i], e);
            for (int j = i - i % k; j < i; j++) ck_assert_int_ne(named[j], named[i]);
        }
    }
    pair_free(&logits);
    pair_free(&bias);
    pair_free(&ids);
    pair_free(&weights);
    pair_free(&scratch);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_ops");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, products_are_exact_on_integers, 0, COUNT(products));
    tcase_add_loop_test(t, products_side_by_side_are_exact, 0, COUNT(products));
    tcase_add_loop_test(t, products_of_reals_are_near, 0, COUNT(products));
    tcase_add_loop_test(t, products_with_bfloat16_weights_lose_nothing, 0, COUNT(narrow_products));
    tcase_add_loop_test(t, products_with_bfloat16_weights_are_near, 0, COUNT(products));
    tcase_add_loop_test(t, rows_are_moved_exactly, 0, COUNT(widths));
    tcase_add_test(t, not_finite_is_found);
    tcase_add_loop_test(t, attention_is_near, 0, COUNT(attentions));
    tcase_add_loop_test(t, routing_is_the_same, 0, COUNT(routers));
    tcase_add_loop_test(t, routing_of_nan_names_experts, 0, COUNT(routers));
    suite_add_tcase(s, t);
    return s;
}
