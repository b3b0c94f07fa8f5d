/* check_cuda_norm_head.c - the sums of a norm head on the GPU: those of the host where they read the same numbers, bit for bit, in
 * blocks of any size.  check_cuda_forward.c has whole passes. */
#include "accumulate/accumulate_internal.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

static exf_err e;

static const struct { int n, e, k, h, q;
} shapes[] = {{1, 2, 1, 4, 2},      {40, 6, 3, 10, 10},   {300, 16, 4, 128, 64},
              {700, 3, 2, 100, 7}, {129, 60, 8, 333, 65}, {257, 8, 4, 520, 256}};

/* What a block shows; x and outputs hold numbers that bfloat16 does. */
typedef struct {
    int n, e, k, h, q;
    float *x, *outputs, *logits, *weights;
    int32_t *ids;
    double *basis;
} tokens;

static float *reals(uint64_t seed, size_t n, float size)
{
    float *x = test_memory(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = of_bf16(to_bf16(size * real_at(seed, i, 1)));
    return x;
}

static tokens tokens_new(int n, int n_experts, int k, int h, int q)
{
    size_t slots = (size_t)(n * k), columns = (size_t)(h * q);
    tokens t = {n, n_experts, k, h, q, reals(1, (size_t)(n * h), 3), reals(2, slots * (size_t)h, 1),
                reals(3, (size_t)(n * n_experts), 4), reals(4, slots, 1), test_memory(slots, sizeof *t.ids),
                test_memory(columns, sizeof *t.basis)};
    for (size_t i = 0; i < slots; i++) {
        t.weights[i] = fabsf(t.weights[i]);
        t.ids[i] = (int32_t)((i / (size_t)k * 7 + i % (size_t)k) % (size_t)n_experts);
    }
    if (n > 5) t.ids[5 * k] = -1;
    for (size_t i = 0; i < columns; i++) t.basis[i] = (double)(float)(0.1 * (double)real_at(5, i, 1));
    return t;
}

static void tokens_free(const tokens *t)
{
    void *all[] = {t->x, t->outputs, t->logits, t->weights, t->ids, t->basis};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
}

static exf_norm_sums sums_of(const tokens *t)
{
    exf_norm_sums s;
    ck_ok(exf_norm_sums_new(&s, t->e, t->h, t->q, &e), e);
    exf_norm_sums_set_basis(&s, t->basis);
    return s;
}

static exf_norm_sums on_host(const tokens *t)
{
    exf_norm_sums s = sums_of(t);
    exf_moe_block b = {.n_tokens = t->n, .n_experts = t->e, .top_k = t->k, .d_model = t->h, .moe_input = t->x,
                       .router_logits = t->logits, .topk_ids = t->ids, .topk_weights = t->weights, .expert_outputs = t->outputs};
    ck_ok(exf_norm_sums_add(&s, t->basis, &b, &e), e);
    return s;
}

static void *as_stored(const float *x, size_t n, int rounded)
{
    uint16_t *half = test_memory(n, sizeof *half);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(x[i]);
    void *p = rounded ? device_put(&d, half, n * sizeof *half) : device_put(&d, x, n * sizeof *x);
    exf_mem_free(half);
    return p;
}

/* Adds the tokens in blocks of `piece`; norms of outputs are the host's. */
static exf_code on_gpu(exf_norm_sums *to, const tokens *t, int rounded, int piece, exf_err *err)
{
    size_t slots = (size_t)(t->n * t->k), h = (size_t)t->h;
    exf_device_norms s = {.b = NULL};
    double *sq = test_memory(slots, sizeof *sq);
    char *x = as_stored(t->x, (size_t)t->n * h, rounded);
    int32_t *ids = device_put(&d, t->ids, slots * sizeof *ids);
    float *weights = device_put(&d, t->weights, slots * sizeof *weights), *logits = device_put(&d, NULL, slots * sizeof *logits);
    float *all = device_put(&d, t->logits, (size_t)(t->n * t->e) * sizeof *all);
    exf_code rc;
    *to = sums_of(t);
    for (size_t i = 0; i < slots; i++) {
        sq[i] = 0;
        for (size_t k = 0; k < h; k++) sq[i] += (double)t->outputs[i * h + k] * (double)t->outputs[i * h + k];
    }
    d.b->gpu->slot_logits(d.q, logits, all, ids, t->n, t->e, t->k);
    EXF_TRY(exf_device_norms_open(&s, d.b, t->e, t->k, t->h, t->q, err));
    for (int twice = 0; twice < 2; twice++) { /* a layer leaves nothing to the next */
        exf_norm_sums_zero(to);
        exf_norm_sums_set_basis(to, t->basis);
        exf_device_norms_begin(&s, to->basis);
        for (int at = 0; at < t->n; at += piece) {
            size_t slot = (size_t)(at * t->k);
            exf_moe_block b = {.row = (size_t)at, .n_tokens = t->n - at < piece ? t->n - at : piece, .n_experts = t->e,
                                  .top_k = t->k, .d_model = t->h, .q = d.q, .rounded = rounded,
                                  .moe_input = x + (size_t)at * h * (rounded ? 2 : 4), .topk_ids = ids + slot,
                                  .topk_weights = weights + slot, .slot_logits = logits + slot};
            d.b->upload(d.q, s.sq, sq + slot, (size_t)(b.n_tokens * t->k) * sizeof *sq);
            exf_device_norms_add(&s, &b);
        }
        EXF_TRY(exf_device_norms_take(&s, to, 3, err));
    }
out:
    exf_device_norms_free(&s);
    void *arrays[] = {x, ids, weights, logits, all};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d.b->free(arrays[i]);
    exf_mem_free(sq);
    return rc;
}

static void ck_same_sums(const exf_norm_sums *a, const exf_norm_sums *b)
{
    size_t experts = (size_t)a->n_experts;
    ck_assert_mem_eq(a->pp, b->pp, experts * exf_norm_products(a->q) * sizeof *a->pp);
    ck_assert_mem_eq(a->py, b->py, experts * exf_norm_features(a->q) * sizeof *a->py);
    ck_assert_mem_eq(a->yy, b->yy, experts * sizeof *a->yy);
}

START_TEST(sums_are_the_hosts)
{
    tokens t = tokens_new(shapes[_i].n, shapes[_i].e, shapes[_i].k, shapes[_i].h, shapes[_i].q);
    exf_norm_sums host = on_host(&t), gpu;
    for (int rounded = 0; rounded < 2; rounded++) {
        ck_ok(on_gpu(&gpu, &t, rounded, t.n, &e), e);
        ck_same_sums(&gpu, &host);
        exf_norm_sums_free(&gpu);
    }
    exf_norm_sums_free(&host);
    tokens_free(&t);
}
END_TEST

START_TEST(cuts_change_no_bit)
{
    static const int pieces[] = {1, 7, 32, 129, 256};
    tokens t = tokens_new(300, 16, 4, 128, 64);
    exf_norm_sums whole, cut;
    ck_ok(on_gpu(&whole, &t, _i % 2, t.n, &e), e);
    ck_ok(on_gpu(&cut, &t, _i % 2, pieces[_i / 2], &e), e);
    ck_same_sums(&whole, &cut);
    exf_norm_sums_free(&whole);
    exf_norm_sums_free(&cut);
    tokens_free(&t);
}
END_TEST

START_TEST(numbers_out_of_range_are_refused)
{
    tokens t = tokens_new(300, 16, 4, 128, 64);
    exf_norm_sums gpu;
    t.x[260 * t.h + 3] = 1e30f;
    t.logits[150 * t.e + t.ids[150 * t.k]] = 1e30f;
    ck_fails(on_gpu(&gpu, &t, 0, 64, &e), EXF_NUMERIC, e, "layer 3, token 150 of the run: feature 65 of the norm head is ");
    exf_norm_sums_free(&gpu);
    t.logits[150 * t.e + t.ids[150 * t.k]] = 1;
    ck_fails(on_gpu(&gpu, &t, 0, 64, &e), EXF_NUMERIC, e, "layer 3, token 260 of the run: feature ");
    exf_norm_sums_free(&gpu);
    tokens_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, sums_are_the_hosts, 0, COUNT(shapes));
    tcase_add_loop_test(t, cuts_change_no_bit, 0, 10);
    tcase_add_test(t, numbers_out_of_range_are_refused);
}
