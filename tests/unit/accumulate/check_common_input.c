/* check_common_input.c - pair sums of tokens that all experts ran on: the kernel
 * against a plain loop, the observer, the file's own rules. */
#include "tests/support/layer_sums_fixtures.h"

#include "accumulate/accumulate.h"
#include "kernels/statistics/layer_sums.h"

#include <math.h>

enum { E = 5, H = 11, T = 9, K = 2 };

static exf_err e; /* of the last call */
static float outputs[T * E * H];

static void start(void)
{
    start_empty();
    for (int i = 0; i < T * E * H; i++) outputs[i] = (float)(draw(3, i, 1 << 20) - (1 << 19)) / (1 << 17);
}

static exf_code add(const exf_layer_statistics *s, const float *x, int n, exf_weighting w, exf_err *err)
{
    exf_layer_sums m = moments_of(s);
    double *scratch = NULL;
    exf_code rc = exf_mem_new(&scratch, exf_layer_sums_common_input_scratch(s->n_experts, H), sizeof *scratch, "scratch", err);
    if (rc == EXF_OK) rc = exf_layer_sums_add_common_input_cpu(&m, s->n_experts, H, n, x, w, scratch, err);
    exf_mem_free(scratch);
    return rc;
}

static double product(int t, int a, int b)
{
    double x = 0;
    for (int i = 0; i < H; i++) x += (double)outputs[(t * E + a) * H + i] * (double)outputs[(t * E + b) * H + i];
    return x;
}

START_TEST(sums_are_those_of_a_plain_loop)
{
    static const exf_weighting each[] = {EXF_WEIGHT_SOURCE_NORM, EXF_WEIGHT_NONE};
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    for (int k = 0; k < 2; k++) {
        exf_layer_statistics_zero(&s);
        ck_ok(add(&s, outputs, T, each[k], &e), e);
        for (int i = 0; i < E * E; i++) {
            int a = i / E, b = i % E;
            double want[6] = {0};
            for (int t = 0; t < T && a != b; t++) {
                double w = k ? 1 : sqrt(product(t, a, a));
                want[0] += w * product(t, a, b), want[1] += w * product(t, b, b), want[2] += w * product(t, a, a);
                want[3] += product(t, a, b), want[4] += product(t, a, a);
                want[5] += product(t, a, b) / sqrt(product(t, a, a) * product(t, b, b));
            }
            int n = 0;
#define X(name) \
    ck_assert_msg(fabs(exf_exact_value(&s.name[i]) - want[n]) <= 1e-12 * (want[2] + want[1] + 1), "%s[%d]", #name, i), n++;
            X(dot) X(target_sq) X(source_sq) X(dot0) X(sq0) X(cosine_sum)
#undef X
            ck_assert_uint_eq(s.count[i], a == b ? 0 : T);
        }
        for (int i = 0; i < E; i++) ck_assert_uint_eq(s.norm_count[i], 0); /* the experts' own sums are of routed tokens */
    }
    exf_layer_statistics_free(&s);
}
END_TEST

/* Calls of the same tokens in another order: the same bits.  dot0 and cosine_sum are symmetric. */
START_TEST(the_order_of_calls_does_not_matter)
{
    exf_layer_statistics a, b;
    ck_ok(exf_layer_statistics_new(&a, E, &e), e);
    ck_ok(exf_layer_statistics_new(&b, E, &e), e);
    for (int t = 0; t < T; t += 3) ck_ok(add(&a, outputs + t * E * H, 3, EXF_WEIGHT_SOURCE_NORM, &e), e);
    for (int t = T - 3; t >= 0; t -= 3) ck_ok(add(&b, outputs + t * E * H, 3, EXF_WEIGHT_SOURCE_NORM, &e), e);
    ck_assert(same_statistics(&a, &b));
    for (int i = 0; i < E * E; i++) {
        ck_assert_mem_eq(&a.dot0[i], &a.dot0[i % E * E + i / E], sizeof *a.dot0);
        ck_assert_mem_eq(&a.cosine_sum[i], &a.cosine_sum[i % E * E + i / E], sizeof *a.cosine_sum);
    }
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
}
END_TEST

START_TEST(what_cannot_be_summed_is_refused)
{
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_fails(add(&s, outputs, 1, EXF_WEIGHT_ROUTER, &e), EXF_INTERNAL, e, "");
    outputs[2 * H + 1] = 1e20f;
    ck_fails(add(&s, outputs, 1, EXF_WEIGHT_NONE, &e), EXF_NUMERIC, e, "0 2");
    outputs[2 * H + 1] = NAN;
    ck_fails(add(&s, outputs, 1, EXF_WEIGHT_NONE, &e), EXF_NUMERIC, e, "0 2");
    exf_layer_statistics_free(&s);
}
END_TEST

/* ---- the observer ---------------------------------------------------------------------- */

static exf_code observe(const char *name, int n_workers, exf_err *err)
{
    static const int32_t number = 6;
    static const int32_t ids[3 * K] = {1, 4, 1, 4, 1, 4};
    static const float weights[3 * K] = {0.75f, 0.25f, 0.75f, 0.25f, 0.75f, 0.25f};
    exf_run_shape shape = {E, K, H, 3, T};
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .common_input_tokens = 3};
    exf_sequence_list list = {.n = 0};
    exf_provenance p = {0};
    exf_facts_part part = {.path = "tokens", .provenance = &p, .sequences = &list};
    exf_accumulator_plan plan = {.target = exf_scratch(name), .force = 1, .shape = &shape, .layer_number = &number, .n_layers = 1,
                                 .parts = &part, .n_parts = 1, .options = &o};
    exf_accumulator *a = NULL;
    exf_progress progress = {.layer = 6};
    exf_code rc;
    EXF_TRY(exf_sequence_list_new(&list, 3, err));
    for (int i = 0; i < 3; i++) {
        list.length[i] = 3;
        list.sha256[i][0] = (unsigned char)(9 - i);
    }
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    const exf_observer *x = exf_accumulator_observer(a);
    ck_assert_int_eq(x->common_input_tokens, 3);
    ck_assert_int_eq(x->sweeps, 1);
    EXF_TRY(x->begin(x->self, n_workers, NULL, err));
    for (int layer = 5; layer <= 6; layer++) { /* 5 is not wanted: a hash layer, which is shown in blocks only */
        EXF_TRY(exf_observer_tell(x, &(exf_moment){.at = EXF_AT_LAYER_BEGIN, .layer = layer, .moe_index = layer - 5}, err));
        for (int i = 0; i < 6 && layer == 6; i++) { /* two calls for each sequence: 2 tokens and 1 */
            exf_common_input_block c = {.layer = 6, .moe_index = 1, .sequence = (size_t)(i / 2), .n_tokens = i % 2 ? 1 : 2,
                                        .n_experts = E, .top_k = K,
                                  .d_model = H, .worker = i / 2 % n_workers, .outputs = outputs + (i / 2 * 3 + i % 2 * 2) * E * H};
            EXF_TRY(x->common_input(x->self, &c, err));
        }
        for (int i = 0; i < 3; i++) {
            exf_moe_block b = {.layer = layer, .moe_index = layer - 5, .sequence = (size_t)i, .row = (size_t)(3 * i), .n_tokens = 3,
                               .n_experts = E,
                               .top_k = K, .d_model = H, .worker = i % n_workers, .topk_ids = ids, .topk_weights = weights,
                               .expert_outputs = outputs + i * E * H};
            EXF_TRY(x->block(x->self, &b, err));
        }
        exf_moment end = {.at = EXF_AT_SWEEP_END, .layer = layer, .moe_index = layer - 5, .progress = &progress};
        EXF_TRY(exf_observer_tell(x, &end, err));
        end.at = EXF_AT_LAYER_END;
        EXF_TRY(exf_observer_tell(x, &end, err));
    }
    rc = exf_accumulator_commit(a, NULL, err);
out:
    exf_accumulator_free(a);
    exf_sequence_list_free(&list);
    exf_provenance_free(&p);
    return rc;
}

START_TEST(every_pair_has_every_common_token)
{
    exf_statistics_reader r;
    exf_layer_statistics s;
    ck_ok(observe("one.h5", 1, &e), e);
    ck_ok(observe("two.h5", 2, &e), e);
    ck_assert(same_files("one.h5", "two.h5"));
    ck_ok(exf_statistics_open(&r, exf_scratch("one.h5"), &e), e);
    ck_assert(r.common_input);
    ck_assert_int_eq(r.n_layers, 1);
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(exf_statistics_get(&r, 0, &s, &e), e);
    for (int i = 0; i < E * E; i++) {
        ck_assert_uint_eq(s.count[i], i / E == i % E ? 0 : T);
        ck_assert_uint_eq(s.sequences[i], i / E == i % E ? 0 : 3);
    }
    ck_assert_uint_eq(s.norm_count[1], T);
    ck_assert_uint_eq(s.norm_count[0], 0);
    ck_assert(exf_exact_value(&s.norm_sum[4]) > 0);
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
}
END_TEST

/* A reader of version 1 would take such counts for damage: it must say that it is too old. */
START_TEST(the_file_keeps_its_rules)
{
    exf_statistics_reader r;
    exf_layer_statistics s;
    exf_h5 *h;
    int64_t least;
    uint64_t other = T - 1, many = 4;
    ck_ok(observe("s.h5", 1, &e), e);
    ck_ok(exf_h5_open(&h, exf_scratch("s.h5"), &e), e);
    ck_ok(exf_h5_get_i64(h, "/", "exfold_min_reader", &least, &e), e);
    ck_assert_int_eq(least, 2);
    exf_h5_close(h);
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    damage("s.h5", "/layers/6/count", 7, &other);
    damage("s.h5", "/layers/6/count", 11, &other); /* its mirror */
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_fails(exf_statistics_get(&r, 0, &s, &e), EXF_FORMAT, e, "/layers/6/count[1 2] 8 9");
    exf_statistics_close(&r);
    ck_ok(observe("s.h5", 1, &e), e);
    damage("s.h5", "/layers/6/sequences", 7, &many);
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_fails(exf_statistics_get(&r, 0, &s, &e), EXF_FORMAT, e, "/layers/6/sequences[1 2] 4 9 3");
    exf_statistics_close(&r);
    exf_layer_statistics_free(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start, NULL);
    tcase_add_test(t, sums_are_those_of_a_plain_loop);
    tcase_add_test(t, the_order_of_calls_does_not_matter);
    tcase_add_test(t, what_cannot_be_summed_is_refused);
    tcase_add_test(t, every_pair_has_every_common_token);
    tcase_add_test(t, the_file_keeps_its_rules);
}
