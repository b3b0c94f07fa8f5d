/* check_cost.c - validate/cost: bytes of experts against the checkpoint's own tensors in every format, bandwidths, bounds. */
#include "tests/support/validation_fixtures.h"

#include "base/mem.h"
#include "validate/cost.h"

#include <stdlib.h>

static exf_err e;

static exf_model *golden(const char *family)
{
    char path[128];
    exf_model *m;
    snprintf(path, sizeof path, "tests/golden/%s", family);
    ck_ok(exf_model_open(&m, path, &e), e);
    return m;
}

/* Returns the layer in a tensor's name, "...layers.3...."; -1: none. */
static int layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    return at ? atoi(at + 7) : -1;
}

/* Sums the bytes of the checkpoint's tensors that have `part` in their name, but for those that are not read. */
static double stored(const exf_model *m, int layer, const char *part)
{
    double bytes = 0;
    for (size_t i = 0; i < m->checkpoint->n_stored; i++) {
        const exf_st_tensor *t = m->checkpoint->stored[i].tensor;
        const char *name = t->view.name;
        if (strstr(name, "mtp.") || strstr(name, ".visual.")) continue;
        if (strstr(name, part) && !strstr(name, "shared_expert") && layer_of(name) == layer)
            bytes += (double)t->nbytes;
    }
    return bytes;
}

/* Bytes of BF16, FP8 with scales, FP4 with scales, and of one tensor for all experts. */
START_TEST(an_expert_is_as_large_as_its_tensors)
{
    static const char *const families[] = {"qwen3_moe", "qwen3_moe_fp8", "deepseek_v4_fp8_fp4", "qwen3_5_moe", "deepseek_v2"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        exf_model *m = golden(families[f]);
        exf_cost_model c = exf_cost_model_of(m, 0);
        double experts = 0;
        int n = 0;
        ck_assert_int_eq(c.n_layers, m->arch.n_moe_layers);
        ck_assert(c.expert_flops == 6.0 * m->arch.d_model * m->arch.d_expert);
        for (int l = 0; l < m->arch.n_layers; l++) {
            if (!m->arch.is_moe[l]) continue;
            double want = stored(m, l, ".experts.") / m->arch.n_experts;
            ck_assert_msg(want > 0 && c.expert_bytes[n] == want, "%s, layer %d: %g bytes, expected %g", families[f], l,
                          c.expert_bytes[n], want);
            experts += want * m->arch.n_experts;
            n++;
        }
        double rows = m->arch.tied_embeddings ? 0 : stored(m, -1, "embed");
        for (int l = 0; l < m->arch.n_layers; l++) rows += stored(m, l, "tid2eid");
        ck_assert_msg(c.other_bytes == (double)exf_model_bytes(m) - experts - rows, "%s: %g, %g of %g are experts, %g rows",
                      families[f], c.other_bytes, experts, (double)exf_model_bytes(m), rows);
        exf_model_close(m);
    }
}
END_TEST

START_TEST(the_cost_of_a_row)
{
    exf_layer_result layers[2] = {{0, 0, 2, 5, }, {1, 0, 3, 7, }};
    exf_variant_result r = {.layer = layers};
    exf_cost_model c = {.n_layers = 2, .expert_flops = 10, .expert_bytes = {100, 200}, .other_bytes = 100};
    exf_cost cost = exf_cost_of(&c, &r, 8);
    ck_assert(cost.flops == 50 && cost.expert_bytes == 1900 && cost.step_bytes == 2000 && cost.tokens_per_second == 0);
    c.bandwidth = 1e6;
    ck_assert(exf_cost_of(&c, &r, 8).tokens_per_second == 4000); /* 8 tokens in 2 ms */
    layers[0].experts_per_batch = layers[1].experts_per_batch = 0; /* nothing decodes */
    ck_assert(exf_cost_of(&c, &r, 8).tokens_per_second == 0);
}
END_TEST

START_TEST(gpus_by_any_of_their_names)
{
    static const struct {
        const char *name;
        double bandwidth;
    } cases[] = {{"NVIDIA H200", 4.8e12}, {"h200", 4.8e12}, {"NVIDIA GeForce RTX 4090", 1.008e12}, {"rtx 4090", 1.008e12},
                 {"RTX4090", 1.008e12}, {"NVIDIA A100-SXM4-80GB", 2.039e12}, {"NVIDIA H100 80GB HBM3", 3.35e12},
                 {"h100 pcie", 2e12}, {"mi300x", 5.3e12}, {"L40", 864e9}, {"L40S", 864e9}, {"A10G", 600e9}};
    const exf_gpu *gpu;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_ok(exf_gpu_require(cases[i].name, &gpu, &e), e);
        ck_assert_msg(gpu->bandwidth == cases[i].bandwidth, "%s: %g", cases[i].name, gpu->bandwidth);
    }
    ck_fails(exf_gpu_require("RTX 409", &gpu, &e), EXF_USAGE, e, "RTX 409");
    ck_assert_msg(strstr(e.msg, "RTX4090") && strstr(e.msg, "MI300X"), "%s", e.msg);
    for (size_t i = 0; exf_gpu_at(i); i++) { /* each is found by both names, and no other is */
        ck_ok(exf_gpu_require(exf_gpu_at(i)->name, &gpu, &e), e);
        ck_assert_ptr_eq(gpu, exf_gpu_at(i));
        ck_ok(exf_gpu_require(exf_gpu_at(i)->brief, &gpu, &e), e);
        ck_assert_ptr_eq(gpu, exf_gpu_at(i));
    }
    exf_mem_fail_at(1);
    ck_fails(exf_gpu_require("none", &gpu, &e), EXF_NOSPACE, e, "");
    exf_mem_fail_at(0);
}
END_TEST

START_TEST(bandwidths)
{
    static const char *const bad[] = {"", "4.8", "4.8TB", "TB/s", "-1TB/s", "0GB/s", "4.8 TB/s", "1e999GB/s", "4.8tb/s",
                                      "1111111111111111111111111111111111GB/s"};
    double x;
    ck_ok(exf_bandwidth_parse("4.8TB/s", &x, &e), e);
    ck_assert(x == 4.8e12);
    ck_ok(exf_bandwidth_parse("936GB/s", &x, &e), e);
    ck_assert(x == 936e9);
    ck_ok(exf_bandwidth_parse("2GiB/s", &x, &e), e);
    ck_assert(x == 2.0 * (1 << 30));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_fails(exf_bandwidth_parse(bad[i], &x, &e), EXF_USAGE, e, "validate.bandwidth");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, an_expert_is_as_large_as_its_tensors);
    tcase_add_test(t, the_cost_of_a_row);
    tcase_add_test(t, gpus_by_any_of_their_names);
    tcase_add_test(t, bandwidths);
}
