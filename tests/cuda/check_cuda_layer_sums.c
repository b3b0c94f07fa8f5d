/* check_cuda_layer_sums.c - the sums of routed outputs on the GPU against the CPU's: the
 * same bits where every product is exact, within the stated bound else, and the same
 * bits however tokens are split over calls and queues. */
#include "tests/support/device_sums_fixtures.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */
#include "tests/support/pairwise.h"

#include "accumulate/chapter.h"

static exf_err e;

enum { N, E, K, H, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 40}, {"experts", 2, 129}, {"top-k", 1, 64}, {"hidden", 3, 4097}};

static const boundary boundaries[] = {
    {"statistics/layer_sums_cuda.cu", "STEP", H, 8}, /* of a vector load */
    {"statistics/layer_sums_cuda.cu", "32 * STEP", H, 32 * 8}, /* of a warp's loads */
    {"statistics/layer_sums_cuda.cu", "SEGMENT", H, 2048},
    {"statistics/layer_sums_cuda.cu", "SEGMENT", H, 2 * 2048},
    {"statistics/layer_sums_cuda.cu", "k <= 8", K, 8},
    {"statistics/layer_sums_cuda.cu", "a += 4", K, 4}, /* rows of a block */
    {"statistics/layer_sums_cuda.cu", "a += 4", K, 12},
    {"statistics/layer_sums_cuda.cu", "b += 8", K, 16}, /* columns of a block */
    {"statistics/layer_sums_cuda.cu", "a += 32", K, 32}, /* slots of a warp's loop */
    {"statistics/layer_sums_internal.cuh", "LINE", K, 2}, /* half a warp has a cell */
    {"model/architecture.h", "EXF_MAX_TOP_K", K, 64},
    {"statistics/layer_sums_fetch_cuda.cu", "CLOSE_THREADS", E, 11}, /* 121 and 144 cells */
    {"statistics/layer_sums_fetch_cuda.cu", "CLOSE_THREADS", E, 128},
};

/* The CPU's reference takes a tenth of a second at most. */
static int is_valid(const shape *s)
{
    return s->at[K] <= s->at[E] && (int64_t)s->at[N] * s->at[K] * s->at[K] * s->at[H] < 1 << 26;
}

static pairwise cases;

static routed routed_of(const shape *s, int integers, uint64_t seed)
{
    return integers ? routed_integers(s->at[N], s->at[E], s->at[K], s->at[H], seed)
                    : routed_reals(s->at[N], s->at[E], s->at[K], s->at[H], seed);
}

static const char *named(const char *what, const shape *s)
{
    return pairwise_label(what, dimensions, DIMENSIONS, s);
}

static exf_layer_statistics on_cpu(const routed *r, exf_weighting w)
{
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, r->n_experts, &e), e);
    ck_ok(add_range(&s, r, 0, r->n, w, &e), e);
    return s;
}

/* Tokens and sums of 0 on the device. */
typedef struct {
    exf_matrix outputs;
    int32_t *ids;
    float *weights;
    void *sums;
} tokens_device;

static tokens_device send(const routed *r, int rounded)
{
    size_t slots = (size_t)(r->n * r->top_k), n = slots * (size_t)r->d_model;
    uint16_t *half = test_memory(n, 2);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(r->outputs[i]);
    tokens_device t = {{rounded ? device_put(&d, half, n * 2) : device_put(&d, r->outputs, n * 4),
                        rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32},
                       device_put(&d, r->ids, slots * 4), device_put(&d, r->weights, slots * 4), NULL};
    ck_ok(d.b->alloc(&t.sums, d.b->gpu->layer_sums_bytes(r->n_experts), 1, "sums", &e), e);
    exf_mem_free(half);
    return t;
}

static void tokens_free(const tokens_device *t)
{
    void *all[] = {(void *)(uintptr_t)t->outputs.p, t->ids, t->weights, t->sums};
    for (int i = 0; i < COUNT(all); i++) d.b->free(all[i]);
}

/* Tokens [at, at + n) of them. */
static exf_layer_sums_call call_of(const tokens_device *t, const routed *r, int at, int n, exf_weighting w)
{
    size_t slot = (size_t)(at * r->top_k);
    return (exf_layer_sums_call){.n_experts = r->n_experts, .top_k = r->top_k, .d_model = r->d_model, .n_tokens = n,
                                 .outputs = exf_matrix_at(t->outputs, slot * (size_t)r->d_model), .ids = t->ids + slot,
                                 .weights = t->weights + slot, .weighting = w, .row = at};
}

/* Nothing is left to be taken twice. */
static void nothing_is_left(void *sums, int n_experts)
{
    exf_layer_statistics zeros, left;
    exf_sums_place place;
    ck_ok(exf_layer_statistics_new(&zeros, n_experts, &e), e);
    ck_ok(exf_layer_statistics_new(&left, n_experts, &e), e);
    memset(left.own, 0xff, exf_layer_statistics_bytes(n_experts));
    memset(left.stream_sq, 0, sizeof *left.stream_sq);
    memset(left.stream_inverse_sq, 0, sizeof *left.stream_inverse_sq);
    *left.stream_inverse_count = 0;
    memset(left.stream_first_sq, 0, sizeof *left.stream_first_sq);
    *left.stream_first_count = 0;
    memset(left.bare_norm_sum, 0, (size_t)n_experts * sizeof *left.bare_norm_sum);
    memset(left.bare_contribution_sum, 0, (size_t)n_experts * sizeof *left.bare_contribution_sum);
    memset(left.bare_count, 0, (size_t)n_experts * sizeof *left.bare_count);
    *left.stream_count = 0;
    exf_layer_sums m = moments_of(&left);
    exf_sequence_sums over = exf_sequence_sums_of(&left);
    ck_ok(d.b->gpu->layer_sums_take(d.q, sums, &m, &over, n_experts, &place, &e), e);
    ck_assert_mem_eq(left.own, zeros.own, exf_layer_statistics_bytes(n_experts));
    exf_layer_statistics_free(&zeros);
    exf_layer_statistics_free(&left);
}

static int experts_only; /* of the calls of on_gpu() */

/* The same on the GPU, in pieces of `piece` tokens dealt to n_queues queues. */
static exf_layer_statistics on_gpu(const routed *r, exf_weighting w, int piece, int n_queues, int rounded)
{
    exf_layer_statistics s;
    exf_queue *q[4] = {d.q};
    tokens_device t = send(r, rounded);
    for (int i = 1; i < n_queues; i++) ck_ok(d.b->open(&q[i], EXF_COMPUTE_F32, &e), e);
    for (int at = 0, i = 0; at < r->n; at += piece, i++) {
        exf_layer_sums_call c = call_of(&t, r, at, r->n - at < piece ? r->n - at : piece, w);
        c.experts_only = experts_only;
        d.b->gpu->layer_sums_add(q[i % n_queues], t.sums, &c);
    }
    for (int i = 0; i < n_queues; i++) ck_ok(d.b->finish(q[i], &e), e);
    ck_ok(exf_layer_statistics_new(&s, r->n_experts, &e), e);
    exf_layer_sums m = moments_of(&s);
    exf_sums_place place;
    ck_ok(d.b->gpu->layer_sums_take(d.q, t.sums, &m, NULL, r->n_experts, &place, &e), e);
    nothing_is_left(t.sums, r->n_experts);
    for (int i = 1; i < n_queues; i++) d.b->close(q[i]);
    tokens_free(&t);
    return s;
}

/* Slots without an expert add nothing but to their count. */
START_TEST(empty_slots_add_nothing)
{
    routed r = routed_of(&cases.shapes[_i], 1, 11);
    routed_with_empty_slots(&r);
    exf_weighting w = (exf_weighting)(_i % 3);
    exf_layer_statistics a = on_cpu(&r, w), b = on_gpu(&r, w, 7, 2, _i % 2);
    compare_sums(&a, &b, 0, 0, named("integers, with empty slots", &cases.shapes[_i]));
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    routed_free(&r);
}
END_TEST

START_TEST(exact_where_products_are)
{
    routed r = routed_of(&cases.shapes[_i], 1, 11);
    for (int w = 0; w < 3; w++)
        for (int rounded = 0; rounded < 2; rounded++) {
            exf_layer_statistics a = on_cpu(&r, (exf_weighting)w), b = on_gpu(&r, (exf_weighting)w, r.n, 1, rounded);
            compare_sums(&a, &b, 0, 0, named("integers", &cases.shapes[_i]));
            exf_layer_statistics_free(&a);
            exf_layer_statistics_free(&b);
        }
    routed_free(&r);
}
END_TEST

START_TEST(reals_are_within_the_bound)
{
    routed r = routed_of(&cases.shapes[_i], 0, 12);
    for (int w = 0; w < 3; w++) {
        exf_layer_statistics a = on_cpu(&r, (exf_weighting)w), b = on_gpu(&r, (exf_weighting)w, r.n, 1, 0);
        compare_sums(&a, &b, 0x1p-17, 0, named("reals", &cases.shapes[_i])); /* a weight and what it multiplies may both be off */
        exf_layer_statistics_free(&a);
        exf_layer_statistics_free(&b);
    }
    routed_free(&r);
}
END_TEST

/* A dead expert's outputs, whose squares float32 does not have. */
START_TEST(tiny_outputs_are_within_the_bound)
{
    routed r = routed_of(&cases.shapes[_i], 0, 13);
    for (int i = 0; i < r.n * r.top_k * r.d_model; i++)
        if (r.ids[i / r.d_model] % 3 == 0) r.outputs[i] *= 1e-20f;
    for (int rounded = 0; rounded < 2; rounded++) {
        for (int i = 0; rounded && i < r.n * r.top_k * r.d_model; i++) r.outputs[i] = of_bf16(to_bf16(r.outputs[i]));
        exf_layer_statistics a = on_cpu(&r, EXF_WEIGHT_SOURCE_NORM), b = on_gpu(&r, EXF_WEIGHT_SOURCE_NORM, r.n, 1, rounded);
        compare_sums(&a, &b, 0x1p-17, 0, named("reals, some tiny", &cases.shapes[_i]));
        exf_layer_statistics_free(&a);
        exf_layer_statistics_free(&b);
    }
    routed_free(&r);
}
END_TEST

START_TEST(splits_give_the_same_bits)
{
    routed r = routed_of(&cases.shapes[_i], 0, 13);
    exf_layer_statistics a = on_gpu(&r, EXF_WEIGHT_SOURCE_NORM, r.n, 1, 0), b = on_gpu(&r, EXF_WEIGHT_SOURCE_NORM, 7, 4, 0);
    compare_sums(&a, &b, 0, 0, named("split", &cases.shapes[_i]));
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    routed_free(&r);
}
END_TEST

/* Beside common input, whose pairs come from elsewhere. */
START_TEST(experts_alone_leave_pairs_alone)
{
    routed r = routed_of(&cases.shapes[_i], 1, 15);
    exf_layer_statistics a;
    ck_ok(exf_layer_statistics_new(&a, r.n_experts, &e), e);
    exf_layer_sums m = moments_of(&a);
    ck_ok(exf_layer_sums_add_experts_cpu(&m, r.top_k, r.d_model, r.n, r.outputs, r.ids, r.weights, &e), e);
    experts_only = 1;
    exf_layer_statistics b = on_gpu(&r, EXF_WEIGHT_SOURCE_NORM, 7, 1, 1);
    experts_only = 0;
    compare_sums(&a, &b, 0, 0, named("experts", &cases.shapes[_i]));
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    routed_free(&r);
}
END_TEST

START_TEST(a_norm_out_of_range_names_its_token)
{
    routed r = routed_reals(20, 6, 3, 16, 14);
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, 6, &e), e);
    r.outputs[(7 * 3 + 1) * 16 + 5] = 1e13f; /* its square is a float32 */
    r.outputs[(9 * 3 + 1) * 16 + 5] = NAN;
    tokens_device t = send(&r, 0);
    exf_layer_sums_call c = call_of(&t, &r, 0, 20, EXF_WEIGHT_SOURCE_NORM);
    c.row = 100;
    d.b->gpu->layer_sums_add(d.q, t.sums, &c);
    exf_layer_sums m = moments_of(&s);
    exf_sums_place place;
    double scratch[9];
    exf_err on_host;
    ck_assert_int_eq(
        exf_layer_sums_add_cpu(&m, 6, 3, 16, 20, r.outputs, NULL, r.ids, r.weights, EXF_WEIGHT_SOURCE_NORM, scratch, &on_host),
        EXF_NUMERIC);
    ck_fails(d.b->gpu->layer_sums_take(d.q, t.sums, &m, NULL, 6, &place, &e), EXF_NUMERIC, e, "");
    ck_assert_int_eq(place.row, 107);
    ck_assert_int_eq(place.sequence, -1);
    ck_assert_str_eq(on_host.msg + strlen("token 7: "), e.msg); /* one sentence */
    tokens_free(&t);
    exf_layer_statistics_free(&s);
    routed_free(&r);
}
END_TEST

/* Rows in another program's GPU memory: a token's inner products are the host's, bit by bit, and give its sums. */
START_TEST(inner_products_have_the_bits_of_the_host)
{
    routed r = routed_of(&cases.shapes[_i], 0, 17);
    size_t slots = (size_t)(r.n * r.top_k), n = slots * (size_t)r.d_model;
    int rounded = _i % 2;
    uint16_t *half = test_memory(n, 2);
    for (size_t i = 0; i < n; i++) {
        half[i] = to_bf16(r.outputs[i]);
        if (rounded) r.outputs[i] = exf_bf16_to_f32(half[i]);
    }
    double *grams = test_memory(slots * (size_t)r.top_k, sizeof *grams), *stream_sq = test_memory((size_t)r.n, sizeof *stream_sq);
    int32_t *ids = test_memory(slots, sizeof *ids);
    float *weights = test_memory(slots, sizeof *weights);
    for (int i = 0; i < r.n; i++) stream_sq[i] = 1 + 1.0 / (i + 3);
    void *there[] = {rounded ? device_put(&d, half, n * 2) : device_put(&d, r.outputs, n * 4), device_put(&d, r.ids, slots * 4),
                     device_put(&d, r.weights, slots * 4), device_put(&d, stream_sq, (size_t)r.n * sizeof *stream_sq)};
    memset(stream_sq, 0, (size_t)r.n * sizeof *stream_sq);
    exf_grams_call c = {.top_k = r.top_k, .d_model = r.d_model, .n_tokens = r.n,
                        .outputs = {there[0], rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .ids = there[1], .weights = there[2],
                        .stream_sq = there[3], .grams = grams, .host_ids = ids, .host_weights = weights,
                        .host_stream_sq = stream_sq};
    ck_ok(exf_layer_sums_grams_cuda(&c, &e), e);
    for (int i = 0; i < r.n; i++) ck_assert(stream_sq[i] == 1 + 1.0 / (i + 3));
    for (int w = 0; w < 3; w++) {
        exf_layer_statistics a = on_cpu(&r, (exf_weighting)w), b;
        ck_ok(exf_layer_statistics_new(&b, r.n_experts, &e), e);
        exf_layer_sums m = moments_of(&b);
        ck_ok(exf_layer_sums_add_cpu(&m, r.n_experts, r.top_k, r.d_model, r.n, NULL, grams, ids, weights, (exf_weighting)w, NULL,
                                     &e), e);
        compare_sums(&a, &b, 0, 0, named("inner products", &cases.shapes[_i]));
        exf_layer_statistics_free(&a);
        exf_layer_statistics_free(&b);
    }
    for (size_t i = 0; i < 4; i++) d.b->free(there[i]);
    exf_mem_free(half);
    exf_mem_free(grams);
    exf_mem_free(stream_sq);
    exf_mem_free(ids);
    exf_mem_free(weights);
    routed_free(&r);
}
END_TEST

/* Sequences of seven tokens, some of which are of the half: with runs of one and of several, the first and the last among them. */
static int is_of_half(int sequence)
{
    return sequence % 5 == 0 || sequence % 5 == 1 || sequence % 7 == 3;
}

START_TEST(a_half_has_the_sums_of_its_sequences)
{
    enum { LENGTH = 7 };
    routed r = routed_of(&cases.shapes[_i], 1, 13);
    exf_layer_statistics want, s;
    size_t cells = (size_t)(r.n_experts * r.n_experts);
    tokens_device t = send(&r, 0);
    int in_half = 0;
    ck_ok(exf_layer_statistics_new(&want, r.n_experts, &e), e);
    ck_ok(exf_layer_statistics_new(&s, r.n_experts, &e), e);
    for (int at = 0, i = 0; at < r.n; at += LENGTH, i++) {
        int n = r.n - at < LENGTH ? r.n - at : LENGTH;
        exf_layer_sums_call c = call_of(&t, &r, at, n, EXF_WEIGHT_NONE);
        if (is_of_half(i) != in_half) d.b->gpu->layer_sums_turn_half(d.q, t.sums, r.n_experts, in_half);
        in_half = is_of_half(i);
        d.b->gpu->layer_sums_add(d.q, t.sums, &c);
        d.b->gpu->layer_sums_close_sequence(d.q, t.sums, r.n_experts, 0x1p-24, (uint64_t)i);
        if (in_half) ck_ok(add_range(&want, &r, at, n, EXF_WEIGHT_NONE, &e), e);
    }
    if (in_half) d.b->gpu->layer_sums_turn_half(d.q, t.sums, r.n_experts, 1);
    exf_layer_sums m = moments_of(&s);
    exf_sequence_sums over = exf_sequence_sums_of(&s);
    exf_sums_place place;
    ck_ok(d.b->gpu->layer_sums_take(d.q, t.sums, &m, &over, r.n_experts, &place, &e), e);
    nothing_is_left(t.sums, r.n_experts);
    ck_assert_mem_eq(s.half_dot, want.dot, cells * sizeof *s.dot);
    ck_assert_mem_eq(s.half_target_sq, want.target_sq, cells * sizeof *s.dot);
    ck_assert_mem_eq(s.half_source_sq, want.source_sq, cells * sizeof *s.dot);
    ck_assert_mem_eq(s.half_count, want.count, cells * sizeof *s.count);
    tokens_free(&t);
    exf_layer_statistics_free(&want);
    exf_layer_statistics_free(&s);
    routed_free(&r);
}
END_TEST

/* Sums of a sequence that fit, with squares that do not. */
START_TEST(a_sequence_out_of_range_names_its_pair)
{
    routed r = routed_reals(2, 6, 2, 16, 15);
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, 6, &e), e);
    for (int i = 0; i < 2 * 2 * 16; i++) r.outputs[i] = i < 2 * 16 ? 1 : 4096;
    for (int i = 0; i < 4; i++) r.ids[i] = (int32_t[]){4, 1, 5, 2}[i];
    tokens_device t = send(&r, 0);
    for (int at = 0; at < 2; at++) {
        exf_layer_sums_call c = call_of(&t, &r, at, 1, EXF_WEIGHT_NONE);
        d.b->gpu->layer_sums_add(d.q, t.sums, &c);
        d.b->gpu->layer_sums_close_sequence(d.q, t.sums, 6, 1e6, (uint64_t)(30 + at));
    }
    exf_layer_sums m = moments_of(&s);
    exf_sums_place place;
    ck_fails(d.b->gpu->layer_sums_take(d.q, t.sums, &m, NULL, 6, &place, &e), EXF_NUMERIC, e,
             "31 2 -> 5 2.68435e+08 2.68435e+08");
    ck_assert_int_eq(place.row, -1);
    ck_assert_int_eq(place.sequence, 31);
    tokens_free(&t);
    exf_layer_statistics_free(&s);
    routed_free(&r);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "layer sums", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, exact_where_products_are, 0, cases.n_shapes);
    tcase_add_loop_test(t, empty_slots_add_nothing, 0, cases.n_shapes);
    tcase_add_loop_test(t, reals_are_within_the_bound, 0, cases.n_shapes);
    tcase_add_loop_test(t, tiny_outputs_are_within_the_bound, 0, cases.n_shapes);
    tcase_add_loop_test(t, splits_give_the_same_bits, 0, cases.n_shapes);
    tcase_add_loop_test(t, inner_products_have_the_bits_of_the_host, 0, cases.n_shapes);
    tcase_add_loop_test(t, experts_alone_leave_pairs_alone, 0, cases.n_shapes);
    tcase_add_loop_test(t, a_half_has_the_sums_of_its_sequences, 0, cases.n_shapes);
    tcase_add_test(t, a_norm_out_of_range_names_its_token);
    tcase_add_test(t, a_sequence_out_of_range_names_its_pair);
}
