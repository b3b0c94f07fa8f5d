/* check_cuda_ops.c - products with float32 weights and routing of the CUDA backend against the CPU's: exact on small
 * integers, within a stated bound on reals, at awkward shapes (other operations: check_cuda_*_shapes.c). */
#include "tests/support/pair_fixtures.h"

#include <math.h>

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
    tcase_add_loop_test(t, routing_is_the_same, 0, COUNT(routers));
    tcase_add_loop_test(t, routing_of_nan_names_experts, 0, COUNT(routers));
    suite_add_tcase(s, t);
    return s;
}
