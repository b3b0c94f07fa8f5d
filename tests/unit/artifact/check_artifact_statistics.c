/* check_artifact_statistics.c - files of kind `statistics` and `capture`. */
#include "tests/support/artifact_fixtures.h"

#include <math.h>

enum { E = 4, L = 2 };

static const exf_run_shape shape = {E, 2, 8, 3, 60};
static const int32_t numbers[L] = {1, 5};
static exf_err e; /* of the last call */

/* ---- statistics: there and back -------------------------------------------------- */

static exf_code write_statistics(const char *name, exf_layer_statistics *layer, exf_err *err)
{
    exf_code rc;
    exf_statistics_writer w = {0};
    exf_provenance p = {0};
    EXF_TRY(exf_provenance_add(&p, err, "model.family", "qwen3_moe"));
    EXF_TRY(create_statistics(&w, exf_scratch(name), 1, &shape, numbers, L, &p, err));
    for (int i = 0; i < L; i++) EXF_TRY(exf_statistics_put(&w, numbers[i], &layer[i], err));
    EXF_TRY(exf_statistics_commit(&w, NULL, err));
out:
    exf_statistics_abort(&w);
    exf_provenance_free(&p);
    return rc;
}

static void new_layers(exf_layer_statistics layer[L])
{
    for (int i = 0; i < L; i++) {
        ck_ok(exf_layer_statistics_new(&layer[i], E, &e), e);
        fill_statistics(&layer[i], &shape, i + 1);
    }
}

static void free_layers(exf_layer_statistics layer[L])
{
    for (int i = 0; i < L; i++) exf_layer_statistics_free(&layer[i]);
}

START_TEST(statistics_come_back_bit_for_bit)
{
    exf_layer_statistics layer[L], back;
    exf_statistics_reader r;
    new_layers(layer);
    ck_ok(write_statistics("s.h5", layer, &e), e);
    ck_ok(exf_layer_statistics_new(&back, E, &e), e);
    fill_statistics(&back, &shape, 9); /* what was there before is replaced */
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_assert_mem_eq(&r.shape, &shape, sizeof shape);
    ck_assert_int_eq(r.n_layers, L);
    ck_assert_mem_eq(r.layer_number, numbers, sizeof numbers);
    ck_assert_str_eq(exf_provenance_get(&r.provenance, "model.family"), "qwen3_moe");
    for (int i = L - 1; i >= 0; i--) {
        ck_ok(exf_statistics_get(&r, i, &back, &e), e);
        ck_assert(same_statistics(&back, &layer[i]));
    }
    ck_assert(!same_statistics(&layer[0], &layer[1]));
    exf_statistics_close(&r);
    exf_statistics_close(&r);
    exf_layer_statistics_free(&back);
    free_layers(layer);
}
END_TEST

START_TEST(equal_statistics_are_equal_files)
{
    exf_layer_statistics layer[L];
    new_layers(layer);
    ck_ok(write_statistics("a.h5", layer, &e), e);
    ck_ok(write_statistics("b.h5", layer, &e), e);
    ck_assert(same_files("a.h5", "b.h5"));
    exf_exact_add(&layer[1].sq_sum[E - 1], ldexp(1, -96)); /* the smallest change there is */
    ck_ok(write_statistics("b.h5", layer, &e), e);
    ck_assert(!same_files("a.h5", "b.h5"));
    free_layers(layer);
}
END_TEST

START_TEST(statistics_merge_exactly)
{
    exf_layer_statistics a, b, sum, swapped;
    ck_ok(exf_layer_statistics_new(&a, E, &e), e);
    ck_ok(exf_layer_statistics_new(&b, E, &e), e);
    ck_ok(exf_layer_statistics_new(&sum, E, &e), e);
    ck_ok(exf_layer_statistics_new(&swapped, E, &e), e);
    fill_statistics(&a, &shape, 1);
    fill_statistics(&b, &shape, 2);
    ck_ok(exf_layer_statistics_merge(&sum, &a, &e), e);
    ck_assert(same_statistics(&sum, &a));
    ck_ok(exf_layer_statistics_merge(&sum, &b, &e), e);
    ck_ok(exf_layer_statistics_merge(&swapped, &b, &e), e);
    ck_ok(exf_layer_statistics_merge(&swapped, &a, &e), e);
    ck_assert(same_statistics(&sum, &swapped));
    ck_assert_uint_eq(sum.norm_count[1], a.norm_count[1] + b.norm_count[1]);
    ck_assert_uint_eq(sum.count[1], a.count[1] + b.count[1]);
    exf_layer_statistics_zero(&sum);
    exf_layer_statistics_free(&swapped);
    ck_ok(exf_layer_statistics_new(&swapped, E, &e), e);
    ck_assert(same_statistics(&sum, &swapped));
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    exf_layer_statistics_free(&sum);
    exf_layer_statistics_free(&swapped);
    exf_layer_statistics_free(&swapped);
}
END_TEST

/* ---- statistics: damage ------------------------------------------------------------ */

static void layer_refused(int i, const char *part)
{
    exf_layer_statistics back;
    exf_statistics_reader r;
    ck_ok(exf_layer_statistics_new(&back, E, &e), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_fails(exf_statistics_get(&r, i, &back, &e), EXF_FORMAT, e, part);
    ck_assert_msg(strstr(e.msg, "s.h5") != NULL, "no file in \"%s\"", e.msg);
    exf_statistics_close(&r);
    exf_layer_statistics_free(&back);
}

START_TEST(rounded_sums_must_be_those_of_the_exact_ones)
{
    exf_layer_statistics layer[L];
    new_layers(layer);
    double was = exf_exact_value(&layer[0].dot[1]), next = nextafter(was, 1e300), nan = NAN;
    uint64_t limb = layer[1].norm_sum[2].limb[2] ^ 1;
    ck_ok(write_statistics("s.h5", layer, &e), e);
    damage("s.h5", "/layers/1/dot", 1, &next);
    layer_refused(0, "/layers/1/dot[1]");
    damage("s.h5", "/layers/1/dot", 1, &nan);
    layer_refused(0, "/layers/1/dot[1] is nan");
    damage("s.h5", "/layers/1/dot", 1, &was);
    damage("s.h5", "/layers/5/exact/norm_sum", 2 * 3 + 2, &limb);
    layer_refused(1, "/layers/5/norm_sum[2]");
    free_layers(layer);
}
END_TEST

/* A change of the second layer's counts. */
typedef void (*forgery)(exf_layer_statistics *s);

static void counts_refused(forgery forge, const char *part)
{
    exf_layer_statistics layer[L];
    new_layers(layer);
    forge(&layer[1]);
    ck_ok(write_statistics("s.h5", layer, &e), e);
    layer_refused(1, part);
    ck_assert_msg(strstr(e.msg, "layer 5: ") != NULL, "no layer in \"%s\"", e.msg);
    free_layers(layer);
}

static void not_mirrored(exf_layer_statistics *s) { s->count[1 * E + 2] = 1; }
static void with_itself(exf_layer_statistics *s) { s->count[2 * E + 2] = 1; }
static void too_large(exf_layer_statistics *s) { s->norm_count[2] = UINT64_MAX; }
static void more_than_tokens(exf_layer_statistics *s) { s->norm_count[2] = 61; }
static void route_lost(exf_layer_statistics *s) { s->norm_count[2]--; }
static void route_made_up(exf_layer_statistics *s) { s->norm_count[2]++; }
static void wraps_to_the_sum(exf_layer_statistics *s)
{
    s->norm_count[0] += (uint64_t)1 << 63;
    s->norm_count[1] += (uint64_t)1 << 63;
}
static void pair_lost(exf_layer_statistics *s) { s->count[1 * E + 2] = --s->count[2 * E + 1]; }
/* The pairs of each expert stay as many; one has more than its rarer expert, another less. */
static void pair_above_its_experts(exf_layer_statistics *s)
{
    memset(s->count, 0, E * E * sizeof *s->count);
    for (int i = 0; i < E; i++) s->norm_count[i] = 30;
    s->count[0 * E + 1] = s->count[1 * E + 0] = 31;
}
static void slots_made_up(exf_layer_statistics *s) { *s->empty_slots = 1; }
/* No token has two experts, and yet there are pairs. */
static void too_many_empty(exf_layer_statistics *s)
{
    for (int i = 0; i < E; i++) s->norm_count[i] = i < 2 ? 30 : 0;
    *s->empty_slots = 60;
    s->count[0 * E + 1] = s->count[1 * E + 0] = 30;
    memset(s->count, 0, E * E * sizeof *s->count);
    s->count[0 * E + 1] = s->count[1 * E + 0] = 3;
}
static void no_routes(exf_layer_statistics *s)
{
    memset(s->count, 0, E * E * sizeof *s->count);
    memset(s->norm_count, 0, E * sizeof *s->norm_count);
    *s->empty_slots = 120;
}

START_TEST(counts_obey_their_rules)
{
    counts_refused(not_mirrored, "/layers/5/count[1, 2] is 1, its mirror /layers/5/count[2, 1] is ");
    counts_refused(with_itself, "/layers/5/count[2, 2] is 1, expected 0");
    counts_refused(too_large, "/layers/5/norm_count[2] is 18446744073709551615, n_tokens is 60");
    counts_refused(more_than_tokens, "/layers/5/norm_count[2] is 61, n_tokens is 60");
    counts_refused(route_lost, "/layers/5/norm_count[...] add up to 119 routes, expected n_tokens x top_k = 60 x 2 = 120");
    counts_refused(route_made_up, "/layers/5/norm_count[...] add up to 121 routes");
    counts_refused(wraps_to_the_sum, "/layers/5/norm_count[0] is 92233720368547758");
    counts_refused(pair_lost, "/layers/5/count[1, ...] add up to ");
    counts_refused(pair_above_its_experts, "/layers/5/count[0, 1] is 31, expert 0 has 30 tokens");
    counts_refused(slots_made_up, "less 1 empty slots");
    counts_refused(too_many_empty, "54 less than without empty slots, of which there are 60");
    counts_refused(no_routes, "less 120 empty slots");
}
END_TEST

/* Two tokens in three have both slots; in the others a second is empty. */
START_TEST(empty_slots_are_counted)
{
    exf_layer_statistics layer[L], back;
    exf_statistics_reader r;
    ck_ok(exf_layer_statistics_new(&back, E, &e), e);
    new_layers(layer);
    memset(layer[1].count, 0, E * E * sizeof *layer[1].count);
    for (int i = 0; i < E; i++) layer[1].norm_count[i] = i < 2 ? 50 : 0;
    layer[1].count[0 * E + 1] = layer[1].count[1 * E + 0] = 40;
    *layer[1].empty_slots = 20;
    ck_ok(write_statistics("s.h5", layer, &e), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    for (int i = L - 1; i >= 0; i--) { /* the last first: what one layer has is not the next one's */
        ck_ok(exf_statistics_get(&r, i, &back, &e), e);
        ck_assert(same_statistics(&back, &layer[i]));
        ck_assert_uint_eq(*back.empty_slots, i ? 20 : 0);
    }
    exf_statistics_close(&r);
    uint64_t less = 19;
    damage("s.h5", "/layers/5/empty_slots", 0, &less);
    layer_refused(1, "add up to 100 routes, expected n_tokens x top_k = 60 x 2 = 120 less 19 empty slots");
    ck_ok(exf_layer_statistics_merge(&layer[0], &layer[1], &e), e);
    ck_assert_uint_eq(*layer[0].empty_slots, 20);
    exf_layer_statistics_free(&back);
    free_layers(layer);
}
END_TEST

/* Sums of two files that each hold, and not together. */
START_TEST(merged_sums_do_not_wrap)
{
    exf_layer_statistics a, b;
    static const uint64_t high[] = {(uint64_t)1 << 62, (uint64_t)3 << 62}; /* 2^94, -2^94: twice 2^94 wraps, twice -2^94 does not */
    for (int sign = 0; sign < 2; sign++) {
        ck_ok(exf_layer_statistics_new(&a, E, &e), e);
        ck_ok(exf_layer_statistics_new(&b, E, &e), e);
        a.dot[5].limb[2] = b.dot[5].limb[2] = high[sign];
        if (sign)
            ck_ok(exf_layer_statistics_merge(&a, &b, &e), e);
        else
            ck_fails(exf_layer_statistics_merge(&a, &b, &e), EXF_FORMAT, e,
                     "dot[5] 1.9807040628566084e+28 1.9807040628566084e+28");
        exf_layer_statistics_zero(&a);
        a.norm_count[3] = b.norm_count[3] = (uint64_t)1 << 63;
        exf_layer_statistics_zero(&b);
        b.norm_count[3] = (uint64_t)1 << 63;
        ck_fails(exf_layer_statistics_merge(&a, &b, &e), EXF_FORMAT, e,
                 "norm_count[3] 9223372036854775808 9223372036854775808");
        exf_layer_statistics_free(&a);
        exf_layer_statistics_free(&b);
    }
}
END_TEST

/* A statistics file without its second layer, or with one of another size. */
START_TEST(layers_must_be_there_and_fit)
{
    exf_layer_statistics layer[L];
    exf_statistics_writer w;
    exf_provenance p = {0};
    exf_run_shape larger = shape;
    larger.n_experts = E + 1;
    new_layers(layer);
    ck_ok(create_statistics(&w, exf_scratch("s.h5"), 0, &shape, numbers, L, &p, &e), e);
    ck_ok(exf_statistics_put(&w, numbers[0], &layer[0], &e), e);
    ck_ok(exf_statistics_commit(&w, NULL, &e), e);
    layer_refused(1, "/layers/5/");
    free_layers(layer);
    ck_ok(exf_layer_statistics_new(&layer[0], E + 1, &e), e);
    ck_ok(create_statistics(&w, exf_scratch("t.h5"), 0, &larger, numbers, 1, &p, &e), e);
    ck_ok(exf_statistics_put(&w, numbers[0], &layer[0], &e), e);
    ck_ok(exf_statistics_commit(&w, NULL, &e), e);
    exf_layer_statistics_free(&layer[0]);
    exf_statistics_reader r;
    ck_ok(exf_statistics_open(&r, exf_scratch("t.h5"), &e), e);
    r.shape.n_experts = E; /* as if the root attribute had said so */
    ck_ok(exf_layer_statistics_new(&layer[0], E, &e), e);
    ck_fails(exf_statistics_get(&r, 0, &layer[0], &e), EXF_FORMAT, e, "U64 [4 4 3]");
    exf_statistics_close(&r);
    exf_layer_statistics_free(&layer[0]);
}
END_TEST

/* ---- capture files ------------------------------------------------------------------- */

enum { T = 5, K = 2, H = 3 };

static const exf_run_shape small = {E, K, H, 2, T};
static const int32_t ids[T * K] = {0, 1, 3, 2, 1, 0, 2, 0, 3, 1};
static float weights[T * K], outputs[T * K * H];
static int32_t layers[L] = {0, 6};

static void fill_rows(void)
{
    for (int i = 0; i < T * K; i++) weights[i] = (float)(i + 1) / 16;
    for (int i = 0; i < T * K * H; i++) outputs[i] = (float)(i * (i % 3 - 1)) / 8;
}

/* The rows of both layers in pieces, the last ones first. */
static exf_code write_capture(const char *name, exf_err *err)
{
    exf_code rc;
    exf_capture_file f = {.h = NULL};
    exf_provenance p = {0};
    EXF_TRY(exf_provenance_add(&p, err, "data.tokens_digest", "t"));
    EXF_TRY(exf_capture_create(&f,
            &(exf_capture_plan){.target = exf_scratch(name), .force = 1, .shape = small,
                                .layer_number = layers, .n_layers = L, .provenance = &p}, err));
    for (int i = 0; i < L; i++) {
        EXF_TRY(exf_capture_put(&f, layers[i], 2, T - 2, ids + 2 * K, weights + 2 * K, outputs + 2 * K * H, NULL, err));
        EXF_TRY(exf_capture_put(&f, layers[i], 0, 2, ids, weights, outputs, NULL, err));
    }
    EXF_TRY(exf_capture_commit(&f, err));
out:
    exf_capture_abort(&f);
    exf_provenance_free(&p);
    return rc;
}

START_TEST(captured_rows_come_back)
{
    exf_capture_file f;
    int32_t id[T * K];
    float weight[T * K], output[T * K * H];
    fill_rows();
    ck_ok(write_capture("c.h5", &e), e);
    ck_ok(write_capture("d.h5", &e), e);
    ck_assert(same_files("c.h5", "d.h5"));
    ck_ok(exf_capture_open(&f, exf_scratch("c.h5"), &e), e);
    ck_assert_mem_eq(&f.shape, &small, sizeof small);
    ck_assert_int_eq(f.n_layers, L);
    ck_assert_mem_eq(f.layer_number, layers, sizeof layers);
    ck_assert_str_eq(exf_provenance_get(&f.provenance, "data.tokens_digest"), "t");
    ck_ok(exf_capture_get(&f, 6, 0, T, id, weight, output, &e), e);
    ck_assert_mem_eq(id, ids, sizeof ids);
    ck_assert_mem_eq(weight, weights, sizeof weights);
    ck_assert_mem_eq(output, outputs, sizeof outputs);
    for (int row = 0; row < T; row++) { /* in pieces, in order */
        ck_ok(exf_capture_get(&f, 0, row, 1, id, weight, output, &e), e);
        ck_assert_mem_eq(id, ids + row * K, K * sizeof *id);
        ck_assert_mem_eq(output, outputs + row * K * H, (size_t)K * H * sizeof *output);
    }
    exf_capture_close(&f);
    exf_capture_close(&f);
}
END_TEST

START_TEST(rows_and_layers_out_of_range_are_refused)
{
    exf_capture_file f;
    exf_provenance p = {0};
    int32_t id[T * K];
    float weight[T * K], output[T * K * H];
    fill_rows();
    ck_ok(exf_capture_create(&f,
            &(exf_capture_plan){.target = exf_scratch("x.h5"), .shape = small,
                                .layer_number = layers, .n_layers = L, .provenance = &p}, &e), e);
    ck_fails(exf_capture_put(&f, 0, T - 1, 2, ids, weights, outputs, NULL, &e), EXF_INTERNAL, e, "5");
    ck_fails(exf_capture_put(&f, 0, -1, 1, ids, weights, outputs, NULL, &e), EXF_INTERNAL, e, "5");
    ck_fails(exf_capture_put(&f, 1, 0, 1, ids, weights, outputs, NULL, &e), EXF_INTERNAL, e, "/layers/1/topk_ids");
    exf_capture_abort(&f);
    ck_ok(write_capture("c.h5", &e), e);
    ck_ok(exf_capture_open(&f, exf_scratch("c.h5"), &e), e);
    ck_fails(exf_capture_get(&f, 0, 4, 2, id, weight, output, &e), EXF_FORMAT, e, "5 2 4");
    ck_fails(exf_capture_get(&f, 0, -1, 1, id, weight, output, &e), EXF_FORMAT, e, "-1");
    ck_fails(exf_capture_get(&f, 3, 0, 1, id, weight, output, &e), EXF_FORMAT, e, "/layers/3/topk_ids");
    exf_capture_close(&f);
}
END_TEST

static void row_refused(const char *dataset, size_t at, const void *value, const char *part)
{
    exf_capture_file f;
    int32_t id[T * K];
    float weight[T * K], output[T * K * H];
    fill_rows();
    ck_ok(write_capture("c.h5", &e), e);
    damage("c.h5", dataset, at, value);
    ck_ok(exf_capture_open(&f, exf_scratch("c.h5"), &e), e);
    ck_ok(exf_capture_get(&f, 0, 0, T, id, weight, output, &e), e);
    ck_ok(exf_capture_get(&f, 6, 0, 2, id, weight, output, &e), e);
    ck_fails(exf_capture_get(&f, 6, 2, T - 2, id, weight, output, &e), EXF_FORMAT, e, part);
    ck_assert_msg(strstr(e.msg, "c.h5: layer 6, row 3: ") != NULL, "no layer and row in \"%s\"", e.msg);
    exf_capture_close(&f);
}

START_TEST(captured_rows_are_checked)
{
    int32_t below = -2, empty = -1, above = E, twice = ids[3 * K];
    float nan = NAN, inf = -INFINITY;
    row_refused("/layers/6/topk_ids", 3 * K, &below, "expert -2, expected [0, 4)");
    row_refused("/layers/6/topk_ids", 3 * K, &empty, "slot 0 has no expert, but a weight of 0.4375 or outputs");
    row_refused("/layers/6/topk_ids", 3 * K + 1, &above, "expert 4, expected [0, 4)");
    row_refused("/layers/6/topk_ids", 3 * K + 1, &twice, "expert 2 stands twice");
    row_refused("/layers/6/topk_weights", 3 * K + 1, &nan, "the weight of expert 0 is not finite");
    row_refused("/layers/6/expert_outputs", 3 * K * H + 4, &inf, "output is not finite");
}
END_TEST

START_TEST(captured_slots_may_be_empty)
{
    static int32_t with[T * K];
    exf_capture_file f;
    exf_provenance p = {0};
    int32_t id[T * K], none = -1;
    float weight[T * K], output[T * K * H];
    fill_rows();
    memcpy(with, ids, sizeof with);
    with[3 * K + 1] = -1;
    weights[3 * K + 1] = 0;
    for (int i = 0; i < H; i++) outputs[(3 * K + 1) * H + i] = 0;
    ck_ok(exf_capture_create(&f,
            &(exf_capture_plan){.target = exf_scratch("c.h5"), .force = 1, .shape = small,
                                .layer_number = layers, .n_layers = 1, .provenance = &p}, &e), e);
    ck_ok(exf_capture_put(&f, layers[0], 0, T, with, weights, outputs, NULL, &e), e);
    ck_ok(exf_capture_commit(&f, &e), e);
    ck_ok(exf_capture_open(&f, exf_scratch("c.h5"), &e), e);
    ck_ok(exf_capture_get(&f, layers[0], 0, T, id, weight, output, &e), e);
    ck_assert_mem_eq(id, with, sizeof id);
    exf_capture_close(&f);
    damage("c.h5", "/layers/0/topk_ids", 3 * K, &none);
    weights[0] = 0;
    damage("c.h5", "/layers/0/topk_weights", 3 * K, &weights[0]);
    for (size_t i = 0; i < H; i++) damage("c.h5", "/layers/0/expert_outputs", 3 * K * H + i, &weights[0]);
    ck_ok(exf_capture_open(&f, exf_scratch("c.h5"), &e), e);
    ck_fails(exf_capture_get(&f, layers[0], 0, T, id, weight, output, &e), EXF_FORMAT, e, "0 3");
    exf_capture_close(&f);
}
END_TEST

/* What the root says, the datasets must have. */
static void wrong_shape(const exf_run_shape *said, const char *part)
{
    static const int parts[] = {2, 2, 3};
    static const char *const names[] = {"/layers/0/topk_ids", "/layers/0/topk_weights", "/layers/0/expert_outputs"};
    exf_h5 *h = NULL;
    exf_provenance p = {0};
    exf_capture_file f;
    int32_t layer = 0;
    ck_ok(exf_artifact_create(&h, exf_scratch("c.h5"), 1, NULL, &exf_artifact_capture, &p, &e), e);
    ck_ok(exf_run_shape_write(said, h, &e), e);
    ck_ok(exf_layer_numbers_write(&layer, 1, h, &e), e);
    for (int k = 0; k < 3; k++) {
        exf_tensor t = {.name = names[k], .dtype = k ? EXF_DT_F32 : EXF_DT_I32, .rank = parts[k], .shape = {T, K, H}};
        ck_ok(exf_h5_define(h, &t, &e), e);
    }
    ck_ok(exf_h5_commit(h, &e), e);
    ck_fails(exf_capture_open(&f, exf_scratch("c.h5"), &e), EXF_FORMAT, e, part);
    ck_assert_ptr_null(f.h);
}

START_TEST(capture_shapes_are_compared_on_opening)
{
    exf_run_shape s;
    wrong_shape((s = small, s.n_tokens = T + 1, &s), "/layers/0/topk_ids is [5, 2], expected [6, 2]");
    wrong_shape((s = small, s.top_k = 3, &s), "/layers/0/topk_ids is [5, 2], expected [5, 3]");
    wrong_shape((s = small, s.d_model = 4, &s), "/layers/0/expert_outputs is [5, 2, 3], expected [5, 2, 4]");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "statistics"), *c = exf_case(s, "capture");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, statistics_come_back_bit_for_bit);
    tcase_add_test(t, equal_statistics_are_equal_files);
    tcase_add_test(t, statistics_merge_exactly);
    tcase_add_test(t, rounded_sums_must_be_those_of_the_exact_ones);
    tcase_add_test(t, counts_obey_their_rules);
    tcase_add_test(t, empty_slots_are_counted);
    tcase_add_test(t, merged_sums_do_not_wrap);
    tcase_add_test(t, layers_must_be_there_and_fit);
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_add_test(c, captured_rows_come_back);
    tcase_add_test(c, rows_and_layers_out_of_range_are_refused);
    tcase_add_test(c, captured_rows_are_checked);
    tcase_add_test(c, captured_slots_may_be_empty);
    tcase_add_test(c, capture_shapes_are_compared_on_opening);
}
