/* check_cuda_hash_repeats.c - a hash layer that names an expert twice for a token, on the GPU: the routes, logits and counts
 * are the CPU's (tests/unit/pass/check_hash_repeats.c has these against a model with twins of its experts). */
#include "base/hash.h"
#include "tests/support/artifact_fixtures.h"
#include "tests/support/hash_fixtures.h"
#include "tests/support/statistics_run.h"

#include <math.h>
#include <string.h>

static exf_err e; /* of the last call */

START_TEST(routes_and_logits_are_the_cpus)
{
    golden_case c;
    golden_seen host, device, again;
    hash_open(&c, 0);
    golden_forward(&host, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 2);
    golden_forward(&device, c.model, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_F32, 0);
    golden_forward(&again, c.model, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_F32, 0);
    size_t slots = host.n_rows * HASH_K, logits = host.n_rows * (size_t)host.vocab;
    for (int l = 0; l < HASH_LAYERS; l++) {
        ck_assert_mem_eq(host.ids[l], device.ids[l], slots * sizeof *host.ids[l]);
        for (size_t i = 0; i < slots; i++) {
            ck_assert_float_eq_tol(host.weights[l][i], device.weights[l][i], 1e-5f);
            if (device.ids[l][i] < 0) ck_assert_float_eq(device.weights[l][i], 0);
        }
        double d = golden_distance(device.routed[l], host.routed[l], host.n_rows * (size_t)host.d_model);
        ck_assert_msg(d < 1e-4, "layer %d: the routed output is %.1e off", l, d);
    }
    double d = golden_distance(device.logits, host.logits, logits);
    ck_assert_msg(d < 1e-4, "logits are %.1e off", d);
    ck_assert_mem_eq(device.logits, again.logits, logits * sizeof *device.logits);
    golden_free(&host);
    golden_free(&device);
    golden_free(&again);
    golden_close(&c);
}
END_TEST

/* Bfloat16 rounds outputs and hidden states, but not which experts a token's number names. */
START_TEST(bfloat16_leaves_the_same_slots_empty)
{
    golden_case c;
    golden_seen device;
    hash_open(&c, 0);
    golden_forward(&device, c.model, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_BF16, 0);
    for (int l = 0; l < HASH_LAYERS; l++)
        for (size_t row = 0; row < device.n_rows; row++)
            for (int k = 0; k < HASH_K; k++)
                ck_assert_int_eq(device.ids[l][row * HASH_K + (size_t)k] >= 0, k < HASH_K - hash_empty(c.ids[row]));
    golden_free(&device);
    golden_close(&c);
}
END_TEST

/* Statistics of the batch; all layers' counts go to `layer`. */
static void statistics_of(const golden_case *c, const exf_backend *b, const exf_accumulate_options *options,
                          exf_layer_statistics layer[GOLDEN_LAYERS], char digest[EXF_SHA256_HEX])
{
    exf_statistics_reader r;
    exf_forward_options o = {.backend = b, .threads = 2};
    exf_forward_report report;
    const char *path = exf_scratch("statistics.h5");
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    ck_ok(statistics_run_of(c->model, &c->batch, &o, options, path, &report, &e), e);
    ck_ok(exf_hash_file(path, digest, &e), e);
    ck_ok(exf_statistics_open(&r, path, &e), e);
    for (int l = 0; l < r.n_layers; l++) {
        ck_ok(exf_layer_statistics_new(&layer[l], HASH_E, &e), e);
        ck_ok(exf_statistics_get(&r, l, &layer[l], &e), e);
    }
    exf_statistics_close(&r);
}

/* Plain, with diagonal sums, and with low-rank sums beside them. */
START_TEST(counts_are_the_cpus)
{
    golden_case c;
    exf_layer_statistics host[GOLDEN_LAYERS], device[GOLDEN_LAYERS], again[GOLDEN_LAYERS];
    char digest[3][EXF_SHA256_HEX];
    exf_accumulate_options options = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 24};
    if (_i)
        options = (exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM, .diagonal = 1, .lowrank = _i == 2,
                                           .vector_pairs = 1 << 20, .samples = 300, .seed = 5, .rule = {1e-3, 1, -4, 4}};
    hash_open(&c, 0);
    statistics_of(&c, &exf_backend_cpu, &options, host, digest[0]);
    statistics_of(&c, exf_backend_cuda(&e), &options, device, digest[1]);
    statistics_of(&c, exf_backend_cuda(&e), &options, again, digest[2]);
    ck_assert_str_eq(digest[1], digest[2]);
    for (int l = 0; l < c.model->arch.n_layers; l++) {
        if (l < HASH_LAYERS) {
            ck_assert_mem_eq(host[l].count, device[l].count, HASH_E * HASH_E * sizeof *host[l].count);
            ck_assert_mem_eq(host[l].norm_count, device[l].norm_count, HASH_E * sizeof *host[l].norm_count);
            ck_assert_uint_gt(*device[l].empty_slots, 0);
            for (size_t i = 0; i < device[l].routes.n * HASH_K; i++)
                ck_assert_int_eq(host[l].routes.ids[i], device[l].routes.ids[i]);
        }
        ck_assert_uint_eq(*host[l].empty_slots, *device[l].empty_slots);
        exf_layer_statistics_free(&host[l]);
        exf_layer_statistics_free(&device[l]);
        exf_layer_statistics_free(&again[l]);
    }
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, routes_and_logits_are_the_cpus);
    tcase_add_test(t, bfloat16_leaves_the_same_slots_empty);
    tcase_add_loop_test(t, counts_are_the_cpus, 0, 3);
}
