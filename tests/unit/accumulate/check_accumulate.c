/* check_accumulate.c - src/accumulate: statistics files from blocks and from
 * capture files. */
#include "tests/support/digest_fixtures.h"
#include "tests/support/layer_sums_fixtures.h"

#include "accumulate/accumulate.h"
#include "kernels/rows/simd.h"

#include <math.h>

/* More tokens than are read from a capture file at a time. */
enum { E = 6, K = 3, H = 10, N = 600, L = 2 };

static int32_t numbers[L] = {1, 4};
static exf_err e; /* of the last call */

static exf_run_shape shape_of(const routed *r)
{
    return (exf_run_shape){r->n_experts, r->top_k, r->d_model, 4, r->n};
}

/* Layer i of a run: other tokens for each. */
static routed layer_of_run(int i)
{
    return routed_reals(N, E, K, H, (uint64_t)(100 + i));
}

/* ---- blocks -------------------------------------------------------------------------- */

static exf_moe_block block_of(const routed *r, int from, int n, int worker, int layer)
{
    size_t slot = (size_t)(from * r->top_k);
    return (exf_moe_block){.layer = numbers[layer], .moe_index = layer, .row = (size_t)from, .n_tokens = n,
                           .n_experts = r->n_experts,
                           .top_k = r->top_k, .d_model = r->d_model, .worker = worker, .topk_ids = r->ids + slot,
                           .topk_weights = r->weights + slot, .expert_outputs = r->outputs + slot * (size_t)r->d_model};
}

static int shows_grams; /* 1: blocks have the inner products of outputs, not the outputs */

/* All tokens in blocks of 1 to 40, each to a worker that the seed says, the
 * last block first when `backward`. */
static void feed(const exf_observer *o, const routed *r, int layer, int n_workers, int backward, uint64_t seed)
{
    double grams[40 * K * K];
    exf_progress progress = {.layer = numbers[layer]};
    ck_ok(exf_observer_tell(o, &(exf_moment){.at = EXF_AT_LAYER_BEGIN, .layer = numbers[layer], .moe_index = layer}, &e), e);
    for (int at = 0, i = 0, n; at < r->n; at += n, i++) {
        n = 1 + draw(seed, i, 40);
        if (n > r->n - at) n = r->n - at;
        exf_moe_block b = block_of(r, backward ? r->n - at - n : at, n, draw(seed + 1, i, n_workers), layer);
        const float *outputs = b.expert_outputs;
        for (int ab = 0; shows_grams && ab < n * K * K; ab++)
            grams[ab] = exf_dot(outputs + ab / K * H, outputs + (ab / (K * K) * K + ab % K) * H, H);
        if (shows_grams) b.expert_outputs = NULL;
        if (shows_grams) b.grams = grams;
        ck_ok(o->block(o->self, &b, &e), e);
    }
    exf_moment end = {.at = EXF_AT_SWEEP_END, .layer = numbers[layer], .moe_index = layer, .progress = &progress};
    ck_ok(exf_observer_tell(o, &end, &e), e);
    end.at = EXF_AT_LAYER_END;
    ck_ok(exf_observer_tell(o, &end, &e), e);
    ck_assert_int_eq(progress.cold, 0);
}

/* Of data whose sequences are not known: blocks may come in any order. */
static exf_code new_accumulator(exf_accumulator **a, const char *name, int force, const exf_run_shape *s, int n_layers,
                                exf_weighting w, const exf_provenance *p, exf_err *err)
{
    exf_accumulate_options o = {.weighting = w};
    exf_sequence_list none = {.n = 0};
    exf_facts_part part = {.path = "blocks", .provenance = p, .sequences = &none};
    exf_accumulator_plan plan = {.target = exf_scratch(name), .force = force, .shape = s, .layer_number = numbers,
                                 .n_layers = n_layers, .parts = &part, .n_parts = 1, .options = &o};
    return exf_accumulator_new(a, &plan, err);
}

static void accumulate_blocks(const char *name, exf_weighting w, const exf_provenance *p, int n_workers, int backward)
{
    exf_accumulator *a = NULL;
    routed r = layer_of_run(0);
    exf_run_shape shape = shape_of(&r);
    ck_ok(new_accumulator(&a, name, 1, &shape, L, w, p, &e), e);
    const exf_observer *o = exf_accumulator_observer(a);
    ck_ok(o->begin(o->self, n_workers, NULL, &e), e);
    ck_assert(o->logits == NULL); /* the head need not run */
    for (int i = 0; i < L; i++) {
        feed(o, &r, i, n_workers, backward, (uint64_t)(n_workers + backward));
        routed_free(&r);
        r = layer_of_run(i + 1);
    }
    routed_free(&r);
    ck_ok(exf_accumulator_commit(a, NULL, &e), e);
    exf_accumulator_free(a);
}

START_TEST(workers_and_blocks_do_not_matter)
{
    exf_provenance p = sample_facts("t");
    accumulate_blocks("one.h5", EXF_WEIGHT_SOURCE_NORM, &p, 1, 0);
    accumulate_blocks("three.h5", EXF_WEIGHT_SOURCE_NORM, &p, 3, 0);
    accumulate_blocks("back.h5", EXF_WEIGHT_SOURCE_NORM, &p, 2, 1);
    ck_assert(same_files("one.h5", "three.h5"));
    ck_assert(same_files("one.h5", "back.h5"));
    exf_provenance_free(&p);
}
END_TEST

/* Recorded rows in GPU memory come as inner products. */
START_TEST(inner_products_give_the_file_of_their_outputs)
{
    exf_provenance p = sample_facts("t");
    accumulate_blocks("outputs.h5", EXF_WEIGHT_SOURCE_NORM, &p, 1, 0);
    shows_grams = 1;
    accumulate_blocks("grams.h5", EXF_WEIGHT_SOURCE_NORM, &p, 1, 0);
    shows_grams = 0;
    ck_assert(same_files("outputs.h5", "grams.h5"));
    exf_provenance_free(&p);
}
END_TEST

/* The file holds what the kernel sums, and says how. */
START_TEST(the_file_holds_the_sums)
{
    static const struct { exf_weighting w; const char *name; } each[] = {
        {EXF_WEIGHT_SOURCE_NORM, "source_norm"}, {EXF_WEIGHT_NONE, "none"}, {EXF_WEIGHT_ROUTER, "router"}};
    exf_provenance p = sample_facts("t");
    for (int i = 0; i < 3; i++) {
        exf_statistics_reader r;
        exf_layer_statistics sums, back;
        accumulate_blocks("s.h5", each[i].w, &p, 2, 0);
        ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
        ck_assert_str_eq(exf_provenance_get(&r.provenance, "accumulate.weighting"), each[i].name);
        ck_assert_str_eq(exf_provenance_get(&r.provenance, "accumulate.pairs"), "corouted");
        ck_assert_str_eq(exf_provenance_get(&r.provenance, "model.weights_digest"), "aaaa");
        ck_assert_int_eq(r.n_layers, L);
        ck_ok(exf_layer_statistics_new(&back, E, &e), e);
        for (int l = 0; l < L; l++) {
            routed tokens = layer_of_run(l);
            ck_ok(exf_layer_statistics_new(&sums, E, &e), e);
            ck_ok(add_range(&sums, &tokens, 0, N, each[i].w, &e), e);
            ck_ok(exf_statistics_get(&r, l, &back, &e), e);
            ck_assert(same_statistics(&back, &sums));
            exf_layer_statistics_free(&sums);
            routed_free(&tokens);
        }
        exf_layer_statistics_free(&back);
        exf_statistics_close(&r);
    }
    exf_provenance_free(&p);
}
END_TEST

START_TEST(cold_experts_are_counted)
{
    float outputs[4] = {1, 2, 3, 4}, weights[2] = {0.5f, 0.5f};
    int32_t ids[2] = {1, 3};
    routed r = {1, 5, 2, 2, outputs, weights, ids};
    exf_run_shape shape = shape_of(&r);
    exf_provenance p = {0};
    exf_accumulator *a = NULL;
    exf_progress progress = {.layer = 1};
    ck_ok(new_accumulator(&a, "s.h5", 0, &shape, 1, EXF_WEIGHT_NONE, &p, &e), e);
    const exf_observer *o = exf_accumulator_observer(a);
    exf_moe_block b = block_of(&r, 0, 1, 1, 0);
    ck_ok(o->begin(o->self, 2, NULL, &e), e);
    ck_ok(exf_observer_tell(o, &(exf_moment){.at = EXF_AT_LAYER_BEGIN, .layer = 1}, &e), e);
    ck_ok(o->block(o->self, &b, &e), e);
    ck_ok(exf_observer_tell(o, &(exf_moment){.at = EXF_AT_SWEEP_END, .layer = 1}, &e), e);
    ck_ok(exf_observer_tell(o, &(exf_moment){.at = EXF_AT_LAYER_END, .layer = 1, .progress = &progress}, &e), e);
    ck_assert_int_eq(progress.cold, 3);
    exf_accumulator_free(a);
    exf_accumulator_free(NULL);
    ck_assert_int_eq(files_left(), 0); /* never committed */
}
END_TEST

START_TEST(an_existing_file_is_refused_at_once)
{
    exf_run_shape shape = {E, K, H, 1, N};
    exf_provenance p = {0};
    exf_accumulator *a = (exf_accumulator *)1;
    exf_write_file(exf_scratch("s.h5"), "x", 1);
    ck_fails(new_accumulator(&a, "s.h5", 0, &shape, L, EXF_WEIGHT_NONE, &p, &e), EXF_IO, e, "--force");
    ck_assert_ptr_null(a);
}
END_TEST

/* ---- capture files ------------------------------------------------------------------- */

/* Tokens [from, from + n) of both layers of the run as a capture file. */
static exf_code write_capture(const char *name, int from, int n, const exf_provenance *p, exf_err *err)
{
    exf_capture_file f = {.h = NULL};
    exf_run_shape shape = {E, K, H, 4, n};
    exf_code rc;
    EXF_TRY(exf_capture_create(&f,
            &(exf_capture_plan){.target = exf_scratch(name), .force = 1, .shape = shape,
                                .layer_number = numbers, .n_layers = L, .provenance = p}, err));
    for (int l = 0; l < L; l++) {
        routed r = layer_of_run(l);
        size_t slot = (size_t)(from * K);
        rc = exf_capture_put(&f, numbers[l], 0, n, r.ids + slot, r.weights + slot, r.outputs + slot * H, NULL, err);
        routed_free(&r);
        if (rc != EXF_OK) goto out;
    }
    EXF_TRY(exf_capture_commit(&f, err));
out:
    exf_capture_abort(&f);
    return rc;
}

static void capture(const char *name, int from, int n, const char *tokens)
{
    exf_provenance p = sample_facts(tokens);
    ck_ok(write_capture(name, from, n, &p, &e), e);
    exf_provenance_free(&p);
}

static char digest[EXF_SHA256_HEX]; /* that the last accumulation gave */

static exf_code from_captures(const char *a, const char *b, const char *target, exf_err *err)
{
    char first[600], second[600];
    const char *paths[] = {first, second};
    snprintf(first, sizeof first, "%s", exf_scratch(a));
    if (b) snprintf(second, sizeof second, "%s", exf_scratch(b));
    return exf_accumulate_captures(paths, b ? 2 : 1, exf_scratch(target), 1,
                                   &(exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM}, digest, err);
}

START_TEST(one_capture_gives_what_its_blocks_give)
{
    exf_provenance p = sample_facts("t");
    capture("c.h5", 0, N, "t");
    ck_ok(from_captures("c.h5", NULL, "s.h5", &e), e);
    ck_ok(same_digest(exf_scratch("s.h5"), digest, &e), e);
    accumulate_blocks("blocks.h5", EXF_WEIGHT_SOURCE_NORM, &p, 2, 0);
    ck_assert_int_eq(files_left(), 3);
    exf_statistics_reader r;
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_assert_int_eq(r.shape.n_tokens, N);
    ck_assert_int_eq(r.shape.n_sequences, 4);
    exf_statistics_close(&r);
    ck_assert(same_files("s.h5", "blocks.h5"));
    exf_provenance_free(&p);
}
END_TEST

START_TEST(two_captures_give_the_sums_of_both_in_either_order)
{
    exf_statistics_reader one, two;
    exf_layer_statistics a, b;
    capture("all.h5", 0, N, "t");
    capture("first.h5", 0, 290, "t1");
    capture("rest.h5", 290, N - 290, "t0");
    ck_ok(from_captures("all.h5", NULL, "all-s.h5", &e), e);
    ck_ok(from_captures("first.h5", "rest.h5", "forth.h5", &e), e);
    ck_ok(from_captures("rest.h5", "first.h5", "back.h5", &e), e);
    ck_assert(same_files("forth.h5", "back.h5"));
    ck_assert(!same_files("forth.h5", "all-s.h5")); /* the data are told apart */
    ck_ok(exf_statistics_open(&one, exf_scratch("all-s.h5"), &e), e);
    ck_ok(exf_statistics_open(&two, exf_scratch("forth.h5"), &e), e);
    ck_assert_int_eq(two.shape.n_tokens, N);
    ck_assert_int_eq(two.shape.n_sequences, 8);
    ck_assert_str_eq(exf_provenance_get(&two.provenance, "data.0.tokens_digest"), "t0");
    ck_ok(exf_layer_statistics_new(&a, E, &e), e);
    ck_ok(exf_layer_statistics_new(&b, E, &e), e);
    for (int l = 0; l < L; l++) {
        ck_ok(exf_statistics_get(&one, l, &a, &e), e);
        ck_ok(exf_statistics_get(&two, l, &b, &e), e);
        ck_assert(same_statistics(&a, &b));
    }
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    exf_statistics_close(&one);
    exf_statistics_close(&two);
}
END_TEST

static void captures_refused(const char *a, const char *b, exf_code want, const char *part)
{
    ck_fails(from_captures(a, b, "s.h5", &e), want, e, part);
    ck_assert_msg(access(exf_scratch("s.h5"), F_OK) != 0, "a file is there after \"%s\"", e.msg);
}

START_TEST(captures_of_other_runs_are_refused)
{
    exf_provenance p = {0};
    exf_run_shape shapes[] = {{E, K, H, 4, 0}, {E + 1, K, H, 4, 0}, {E, K, H, 4, 0}};
    static int32_t other[] = {1, 5};
    static const char *const names[] = {"same.h5", "wider.h5", "layers.h5"};
    capture("a.h5", 0, 20, "t");
    capture("b.h5", 20, 20, "t");
    captures_refused("a.h5", "b.h5", EXF_MODEL, "same tokens");
    add_fact(&p, "data.tokens_digest", "u");
    for (int i = 0; i < 3; i++) { /* captures without a token */
        exf_capture_file f;
        ck_ok(exf_capture_create(&f,
                &(exf_capture_plan){.target = exf_scratch(names[i]), .shape = shapes[i],
                                    .layer_number = i == 2 ? other : numbers, .n_layers = L, .provenance = &p}, &e), e);
        ck_ok(exf_capture_commit(&f, &e), e);
    }
    captures_refused("a.h5", "same.h5", EXF_MODEL, "capture.layers");
    captures_refused("a.h5", "wider.h5", EXF_MODEL, "wider.h5: 7 experts, 3 per token, width 10");
    captures_refused("a.h5", "layers.h5", EXF_MODEL, "layers.h5: captured other layers than");
    captures_refused("a.h5", "absent.h5", EXF_IO, "absent.h5");
    captures_refused("absent.h5", NULL, EXF_IO, "absent.h5");
    ck_ok(from_captures("same.h5", NULL, "empty.h5", &e), e); /* no tokens: everything is unobserved */
    exf_provenance_free(&p);
}
END_TEST

START_TEST(damaged_captures_are_named)
{
    float huge = 1e20f, nan = NAN;
    capture("c.h5", 0, N, "t");
    damage("c.h5", "/layers/4/expert_outputs", 513 * K * H, &nan);
    captures_refused("c.h5", NULL, EXF_FORMAT, "c.h5: layer 4, row 513");
    damage("c.h5", "/layers/4/expert_outputs", 513 * K * H, &huge);
    captures_refused("c.h5", NULL, EXF_NUMERIC, "c.h5: layer 4, rows from 0: token 513: ");
}
END_TEST

/* A weight that no router gives, but that a file may hold. */
START_TEST(a_captured_weight_beyond_the_range_is_refused)
{
    float huge = 1e30f;
    capture("c.h5", 0, 20, "t");
    damage("c.h5", "/layers/1/topk_weights", 7 * K, &huge);
    captures_refused("c.h5", NULL, EXF_NUMERIC, "c.h5: layer 1, rows from 0: token 7");
}
END_TEST

/* A rank's rows begin with a sequence of the run, or there is none whose sums they could be. */
START_TEST(rows_of_a_rank_begin_a_sequence)
{
    enum { SEQUENCES = 3, TOKENS = 4 };
    static const struct { size_t first; exf_code code; } cases[] = {
        {0, EXF_OK}, {2 * TOKENS, EXF_OK}, {SEQUENCES * TOKENS, EXF_OK}, {TOKENS + 1, EXF_INTERNAL},
        {SEQUENCES * TOKENS + 1, EXF_INTERNAL}, {1000, EXF_INTERNAL}};
    const exf_run_shape shape = {4, 2, 8, SEQUENCES, SEQUENCES * TOKENS};
    const int32_t layer = 0;
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_NONE};
    exf_sequence_list list;
    exf_provenance facts = {0};
    ck_ok(exf_sequence_list_new(&list, SEQUENCES, &e), e);
    for (int i = 0; i < SEQUENCES; i++) list.length[i] = TOKENS, list.sha256[i][0] = (unsigned char)i;
    exf_facts_part part = {.path = "run", .provenance = &facts, .sequences = &list};
    exf_accumulator_plan plan = {.shape = &shape, .layer_number = &layer, .n_layers = 1, .parts = &part, .n_parts = 1,
                                 .options = &o, .own = {cases[_i].first, 0}};
    exf_accumulator *a = NULL;
    ck_assert_int_eq(exf_accumulator_new(&a, &plan, &e), cases[_i].code);
    exf_accumulator_free(a);
    exf_sequence_list_free(&list);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "blocks"), *c = exf_case(s, "captures");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, workers_and_blocks_do_not_matter);
    tcase_add_test(t, inner_products_give_the_file_of_their_outputs);
    tcase_add_test(t, the_file_holds_the_sums);
    tcase_add_test(t, cold_experts_are_counted);
    tcase_add_test(t, an_existing_file_is_refused_at_once);
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_set_timeout(c, 300);
    tcase_add_test(c, one_capture_gives_what_its_blocks_give);
    tcase_add_test(c, two_captures_give_the_sums_of_both_in_either_order);
    tcase_add_test(c, captures_of_other_runs_are_refused);
    tcase_add_test(c, damaged_captures_are_named);
    tcase_add_test(c, a_captured_weight_beyond_the_range_is_refused);
    tcase_add_loop_test(t, rows_of_a_rank_begin_a_sequence, 0, 6);
}
