/* check_hash_repeats.c - a hash layer that names an expert twice for a token: one route of the summed weight, and the same
 * logits as those of a model that has twins of its experts instead. */
#include "tests/support/artifact_fixtures.h"
#include "tests/support/hash_fixtures.h"
#include "tests/support/statistics_run.h"

#include <math.h>

static exf_err e; /* of the last call */

/* Sums in another order: 4.7e-7 with the kernels of OpenBLAS for Haswell, Prescott or Nehalem. */
#define LIMIT 5e-6

START_TEST(logits_are_those_of_twins)
{
    golden_case repeats, twins;
    golden_seen one, other;
    hash_open(&repeats, 0);
    hash_open(&twins, 1);
    golden_forward(&one, repeats.model, &repeats.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 2);
    golden_forward(&other, twins.model, &twins.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 2);
    double d = golden_distance(one.logits, other.logits, one.n_rows * (size_t)one.vocab);
    ck_assert_msg(d < LIMIT, "logits are %.1e off", d);
    for (int l = 0; l < HASH_LAYERS; l++) {
        d = golden_distance(one.routed[l], other.routed[l], one.n_rows * (size_t)one.d_model);
        ck_assert_msg(d < LIMIT, "layer %d: the routed output is %.1e off", l, d);
    }
    golden_free(&one);
    golden_free(&other);
    golden_close(&repeats);
    golden_close(&twins);
}
END_TEST

START_TEST(an_expert_has_one_slot_and_the_weights_of_all)
{
    golden_case repeats, twins;
    golden_seen one, other;
    int kinds[HASH_K] = {0};
    hash_open(&repeats, 0);
    hash_open(&twins, 1);
    golden_forward(&one, repeats.model, &repeats.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    golden_forward(&other, twins.model, &twins.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    for (size_t row = 0; row < one.n_rows; row++) {
        int empty = hash_empty(repeats.ids[row]);
        kinds[empty]++;
        for (int k = 0; k < HASH_K; k++) {
            int32_t id = one.ids[0][row * HASH_K + (size_t)k];
            float w = one.weights[0][row * HASH_K + (size_t)k], sum = 0;
            ck_assert_int_eq(id >= 0, k < HASH_K - empty); /* empty slots are the last */
            for (size_t i = row * HASH_K; id >= 0 && i < (row + 1) * HASH_K; i++)
                if (other.ids[0][i] % HASH_SAME == id) sum += other.weights[0][i];
            ck_assert_float_eq_tol(w, sum, 1e-6f);
            if (k) ck_assert_float_le(w, one.weights[0][row * HASH_K + (size_t)k - 1]);
            const float *output = one.expert_outputs[0] + (row * HASH_K + (size_t)k) * (size_t)one.d_model;
            for (int i = 0; id < 0 && i < one.d_model; i++) ck_assert_float_eq(output[i], 0);
        }
    }
    for (int i = 0; i < HASH_K; i++) ck_assert_int_gt(kinds[i], 0); /* the golden's tokens have all of them */
    golden_free(&one);
    golden_free(&other);
    golden_close(&repeats);
    golden_close(&twins);
}
END_TEST

/* What is counted, beside what the table says. */
START_TEST(statistics_count_routes_and_empty_slots)
{
    golden_case c;
    exf_layer_statistics s;
    exf_statistics_reader r;
    exf_forward_report report;
    exf_forward_options o = {.backend = &exf_backend_cpu, .threads = 2};
    uint64_t count[HASH_E * HASH_E] = {0}, of_expert[HASH_E] = {0}, empty = 0;
    hash_open(&c, 0);
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    for (int how = 0; how < 2; how++) {
        exf_accumulate_options options = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 24};
        if (how) /* vector sums of every pair, by a sampled basis */
            options = (exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM, .diagonal = 1, .lowrank = 1,
                                               .vector_pairs = 1 << 20, .samples = 300, .seed = 5, .rule = {1e-3, 1, -4, 4}};
        ck_ok(statistics_run_of(c.model, &c.batch, &o, &options, exf_scratch("s.h5"), &report, &e), e);
        ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
        ck_ok(exf_layer_statistics_new(&s, HASH_E, &e), e);
        for (int l = 0; l < r.n_layers; l++) {
            ck_ok(exf_statistics_get(&r, l, &s, &e), e);
            if (l == 0) {
                memset(count, 0, sizeof count);
                memset(of_expert, 0, sizeof of_expert);
                empty = 0;
                for (size_t t = 0; t < c.batch.n_tokens; t++) {
                    int64_t row[HASH_K];
                    int seen[HASH_SAME] = {0};
                    hash_row(row, c.ids[t], 0);
                    for (int k = 0; k < HASH_K; k++) seen[row[k]] = 1;
                    for (int a = 0; a < HASH_SAME; a++) {
                        of_expert[a] += (uint64_t)seen[a];
                        for (int b = 0; b < HASH_SAME; b++)
                            count[a * HASH_E + b] += (uint64_t)(a != b && seen[a] && seen[b]);
                    }
                    empty += (uint64_t)hash_empty(c.ids[t]);
                }
                ck_assert_mem_eq(s.count, count, sizeof count);
                ck_assert_mem_eq(s.norm_count, of_expert, sizeof of_expert);
            }
            ck_assert_uint_eq(*s.empty_slots, l < HASH_LAYERS ? empty : 0);
            ck_assert_uint_gt(empty, 0);
            int none = 0;
            for (size_t i = 0; i < s.routes.n * HASH_K; i++) none += s.routes.ids[i] == -1;
            ck_assert_int_eq(none > 0, !how && l < HASH_LAYERS);
        }
        exf_layer_statistics_free(&s);
        exf_statistics_close(&r);
    }
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, logits_are_those_of_twins);
    tcase_add_test(t, an_expert_has_one_slot_and_the_weights_of_all);
    tcase_add_test(t, statistics_count_routes_and_empty_slots);
}
