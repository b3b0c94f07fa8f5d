/* check_cuda_forward.c - the pass on the GPU: its results do not depend on what company
 * a sequence is in, nor do its statistics on the run, and they are the CPU's. */
#include "base/hash.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"
#include "tests/support/many_fixtures.h"
#include "tests/support/statistics_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static exf_err e;

START_TEST(bits_depend_on_nothing_but_the_sequence)
{
    golden_case c;
    golden_seen all, one;
    exf_compute compute = _i % 2 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
    golden_open(&c, golden_families[_i / 2]);
    golden_forward(&all, c.model, &c.batch, exf_backend_cuda(&e), compute, 0);
    size_t vocab = (size_t)c.model->arch.vocab;
    for (size_t i = 0; i < c.batch.n_sequences; i++) {
        exf_span span = {0, c.span[i].n_tokens};
        exf_batch alone = {c.ids + c.span[i].offset, &span, 1, (size_t)span.n_tokens, span.n_tokens};
        golden_forward(&one, c.model, &alone, exf_backend_cuda(&e), compute, 0);
        ck_assert_msg(memcmp(one.logits, all.logits + c.span[i].offset * vocab, (size_t)span.n_tokens * vocab * sizeof(float)) == 0,
                      "%s: sequence %zu alone gives other logits", golden_families[_i / 2], i);
        golden_free(&one);
    }
    golden_free(&all);
    golden_close(&c);
}
END_TEST

/* A statistics file of the batch, and the first MoE layer's sums. */
static uint64_t limit; /* of the device's memory; 0: none */
static int mixer_queues;    /* exf_forward_options */
static exf_accumulate_options options;

static void plain_options(void)
{
    limit = 0;
    mixer_queues = 0;
    options = (exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 24};
}

static void common_options(void)
{
    plain_options();
    options.common_input_tokens = 13;
}

/* Vectors of all pairs. */
static void vector_options(int lowrank)
{
    plain_options();
    options = (exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM, .diagonal = 1, .lowrank = lowrank,
                                       .vector_pairs = 1 << 20, .samples = 300, .seed = 5, .rule = {1e-3, 1, -4, 4}, .helpers = 2};
}

static void norm_options(void)
{
    plain_options();
    options.norm_head = 4;
}
static uint64_t held;  /* there, at most, by the last run */

static exf_layer_statistics statistics_of(const golden_case *c, const exf_batch *batch, const exf_backend *b, exf_compute compute,
                                          char digest[65])
{
    exf_statistics_reader r;
    exf_layer_statistics s;
    const char *path = exf_scratch("statistics.h5");
    exf_forward_options o = {
        .backend = b, .compute = compute, .threads = 2, .mixer_queues = mixer_queues, .max_device_memory = limit};
    exf_forward_report report;
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    ck_ok(statistics_run_of(c->model, batch, &o, &options, path, &report, &e), e);
    held = report.device_bytes;
    ck_ok(exf_hash_file(path, digest, &e), e);
    ck_ok(exf_statistics_open(&r, path, &e), e);
    ck_ok(exf_layer_statistics_new(&s, c->model->arch.n_experts, &e), e);
    ck_ok(exf_statistics_get(&r, 0, &s, &e), e);
    exf_statistics_close(&r);
    return s;
}

static void check_twice_and_by_parts(int _i)
{
    golden_case c;
    char one[65], two[65], part[65];
    exf_compute compute = _i % 2 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
    golden_open(&c, golden_families[_i / 2]);
    size_t cells = (size_t)(c.model->arch.n_experts * c.model->arch.n_experts);
    exf_layer_statistics s = statistics_of(&c, &c.batch, exf_backend_cuda(&e), compute, one), sum = {.n_experts = 0};
    exf_layer_statistics t = statistics_of(&c, &c.batch, exf_backend_cuda(&e), compute, two);
    ck_assert_str_eq(one, two);
    for (size_t i = 0; i < c.batch.n_sequences; i++) {
        exf_span span = {0, c.span[i].n_tokens};
        exf_batch alone = {c.ids + c.span[i].offset, &span, 1, (size_t)span.n_tokens, span.n_tokens};
        exf_layer_statistics own = statistics_of(&c, &alone, exf_backend_cuda(&e), compute, part);
        if (i == 0) sum = own;
        if (i > 0) ck_ok(exf_layer_statistics_merge(&sum, &own, &e), e);
        if (i > 0) exf_layer_statistics_free(&own);
    }
    ck_assert_msg(
        memcmp(s.dot, sum.dot, cells * sizeof *s.dot) == 0 && memcmp(s.count, sum.count, cells * 8) == 0 &&
            memcmp(s.sq0, sum.sq0, cells * sizeof *s.sq0) == 0 && memcmp(s.seq_ab, sum.seq_ab, cells * sizeof *s.seq_ab) == 0 &&
            memcmp(s.seq_bb, sum.seq_bb, cells * sizeof *s.seq_bb) == 0 && memcmp(s.sequences, sum.sequences, cells * 8) == 0 &&
            memcmp(s.half_dot, sum.half_dot, cells * sizeof *s.half_dot) == 0 &&
            memcmp(s.half_target_sq, sum.half_target_sq, cells * sizeof *s.half_target_sq) == 0 &&
            memcmp(s.half_source_sq, sum.half_source_sq, cells * sizeof *s.half_source_sq) == 0 &&
            memcmp(s.half_count, sum.half_count, cells * 8) == 0 &&
            memcmp(s.stream_sq, sum.stream_sq, sizeof *s.stream_sq) == 0 && *s.stream_count == *sum.stream_count &&
            memcmp(s.stream_inverse_sq, sum.stream_inverse_sq, sizeof *s.stream_inverse_sq) == 0,
        "%s: sequences one by one have other sums", golden_families[_i / 2]);
    exf_layer_statistics_free(&s);
    exf_layer_statistics_free(&t);
    exf_layer_statistics_free(&sum);
    golden_close(&c);
}

START_TEST(statistics_are_the_same_twice_and_by_parts)
{
    check_twice_and_by_parts(_i);
}
END_TEST

/* Sequences share a chunk of products in the whole run and have one each alone. */
START_TEST(common_input_is_the_same_twice_and_by_parts)
{
    common_options();
    check_twice_and_by_parts(_i);
}
END_TEST

/* What budgets per token are solved from. */
static void check_near_budgets(const char *family, const exf_layer_statistics *cpu, const exf_layer_statistics *gpu)
{
    double x = exf_exact_value(cpu->stream_sq), y = exf_exact_value(gpu->stream_sq);
    const exf_route_sample *a = &cpu->routes, *b = &gpu->routes;
    ck_assert_msg(x > 0 && *cpu->stream_count > 0 && *cpu->stream_count == *gpu->stream_count && fabs(x - y) <= 2e-5 * x,
                  "%s: stream_sq: cpu %g, cuda %g", family, x, y);
    x = exf_exact_value(cpu->stream_inverse_sq), y = exf_exact_value(gpu->stream_inverse_sq);
    ck_assert_msg(x > 0 && *cpu->stream_inverse_count == *gpu->stream_inverse_count && fabs(x - y) <= 2e-5 * x,
                  "%s: stream_inverse_sq: cpu %g, cuda %g", family, x, y);
    for (int i = 0; i < cpu->n_experts; i++) {
        x = exf_exact_value(&cpu->energy_sum[i]);
        y = exf_exact_value(&gpu->energy_sum[i]);
        ck_assert_msg(fabs(x - y) <= 4e-5 * x, "%s: energy_sum[%d]: cpu %g, cuda %g", family, i, x, y);
    }
    ck_assert_msg(a->n > 0 && a->n == b->n && memcmp(a->key, b->key, a->n * sizeof *a->key) == 0, "%s: other tokens", family);
    for (size_t i = 0; i < a->n * (size_t)a->top_k; i++)
        ck_assert_msg(a->ids[i] == b->ids[i] && fabs((double)a->weights[i] - (double)b->weights[i]) <= 1e-4,
                      "%s: sampled route %zu: cpu %d (%g), cuda %d (%g)", family, i, (int)a->ids[i], (double)a->weights[i],
                      (int)b->ids[i], (double)b->weights[i]);
}

static void check_near_the_cpus(int _i)
{
    golden_case c;
    char digest[65];
    golden_open(&c, golden_families[_i]);
    size_t cells = (size_t)(c.model->arch.n_experts * c.model->arch.n_experts);
    exf_layer_statistics cpu = statistics_of(&c, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, digest);
    exf_layer_statistics gpu = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_F32, digest);
    ck_assert(memcmp(cpu.count, gpu.count, cells * 8) == 0);
    check_near_budgets(golden_families[_i], &cpu, &gpu);
    for (int i = 0; i < c.model->arch.n_experts; i++) {
        double x = exf_exact_value(&cpu.contribution_sum[i]), y = exf_exact_value(&gpu.contribution_sum[i]);
        ck_assert_msg(cpu.norm_count[i] == gpu.norm_count[i] && fabs(x - y) <= 2e-5 * x,
                      "%s: contribution_sum[%d]: cpu %g, cuda %g", golden_families[_i], i, x, y);
    }
    for (size_t i = 0; i < cells; i++) {
        double x = exf_exact_value(&cpu.dot[i]), y = exf_exact_value(&gpu.dot[i]);
        double size = exf_exact_value(&cpu.target_sq[i]) + exf_exact_value(&cpu.source_sq[i]);
        ck_assert_msg(fabs(x - y) <= 2e-5 * size, "%s: dot[%zu]: cpu %g, cuda %g", golden_families[_i], i, x, y);
        x = exf_exact_value(&cpu.seq_bb[i]);
        y = exf_exact_value(&gpu.seq_bb[i]);
        ck_assert_msg(fabs(x - y) <= 1e-4 * x && cpu.sequences[i] == gpu.sequences[i], "%s: seq_bb[%zu]: cpu %g, cuda %g",
                      golden_families[_i], i, x, y);
    }
    exf_layer_statistics_free(&cpu);
    exf_layer_statistics_free(&gpu);
    golden_close(&c);
}

START_TEST(statistics_are_near_the_cpus)
{
    check_near_the_cpus(_i);
}
END_TEST

START_TEST(common_input_is_near_the_cpus)
{
    common_options();
    check_near_the_cpus(_i);
}
END_TEST

/* Refused with the smallest limit that works; under that one, the same bytes. */
static void check_a_limit(int _i)
{
    golden_case c;
    char free_run[65], limited[65];
    exf_forward_options o = {.backend = exf_backend_cuda(&e), .compute = EXF_COMPUTE_BF16, .max_device_memory = 1};
    exf_forward_report report;
    golden_open(&c, golden_families[_i]);
    ck_fails(statistics_run_of(c.model, &c.batch, &o, &options, exf_scratch("refused.h5"), &report, &e), EXF_NOSPACE, e,
             "");
    uint64_t least = strtoull(strstr(e.msg, "works is ") + strlen("works is "), NULL, 10);
    exf_layer_statistics a = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_BF16, free_run);
    limit = least;
    exf_layer_statistics b = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_BF16, limited);
    limit = 0;
    ck_assert_str_eq(free_run, limited);
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    golden_close(&c);
}

START_TEST(a_limit_changes_no_result)
{
    check_a_limit(_i);
}
END_TEST

START_TEST(a_limit_changes_no_result_of_common_input)
{
    common_options();
    check_a_limit(_i);
}
END_TEST

START_TEST(a_limit_changes_no_result_of_norm_heads)
{
    norm_options();
    check_a_limit(_i);
}
END_TEST

/* A product of an expert's sums: of numbers a and b of z, b <= a. */
static double head_product(const exf_norm_sums *s, int expert, int a, int b)
{
    size_t n = exf_norm_features(s->q), i = (size_t)a;
    const exf_exact *pp = s->pp + (size_t)expert * exf_norm_products(s->q), *py = s->py + (size_t)expert * n;
    return exf_exact_value(i < n ? &pp[i * (i + 1) / 2 + (size_t)b] : b < a ? &py[b] : &s->yy[expert]);
}

/* Products of what is beside the directions one by one; of the directions, whose signs and order may differ, the energy. */
START_TEST(norm_heads_are_near_the_cpus)
{
    golden_case c;
    char digest[65];
    norm_options();
    golden_open(&c, golden_families[_i]);
    exf_layer_statistics cpu = statistics_of(&c, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, digest);
    exf_layer_statistics gpu = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_F32, digest);
    const exf_norm_sums *s = &cpu.norms, *t = &gpu.norms;
    double energy = 0, other = 0;
    ck_assert_int_eq(s->q, 4);
    ck_assert_int_eq(t->q, 4);
    for (int i = 0; i < s->n_experts; i++) {
        for (int a = s->q + 1; a <= s->q + EXF_NORM_BESIDE; a++)
            for (int b = s->q + 1; b <= a; b++) {
                double x = head_product(s, i, a, b), y = head_product(t, i, a, b);
                double size = sqrt(head_product(s, i, a, a) * head_product(s, i, b, b)) + head_product(s, i, 0, 0);
                ck_assert_msg(fabs(x - y) <= 1e-4 * size, "%s: expert %d, product of %d and %d: cpu %g, cuda %g", c.family, i, a, b,
                              x, y);
            }
        for (int a = 1; a <= s->q; a++) {
            energy += head_product(s, i, a, a);
            other += head_product(t, i, a, a);
        }
    }
    ck_assert_msg(energy > 0 && fabs(energy - other) <= 1e-3 * energy, "%s: energy: cpu %g, cuda %g", c.family, energy, other);
    exf_layer_statistics_free(&cpu);
    exf_layer_statistics_free(&gpu);
    golden_close(&c);
}
END_TEST

/* Counts of the last MoE layer of the last statistics_of(): nothing of earlier layers is in them. */
static uint64_t last_count(const golden_case *c)
{
    exf_statistics_reader r;
    exf_layer_statistics s;
    uint64_t sum = 0;
    ck_ok(exf_statistics_open(&r, exf_scratch("statistics.h5"), &e), e);
    ck_ok(exf_layer_statistics_new(&s, c->model->arch.n_experts, &e), e);
    ck_ok(exf_statistics_get(&r, c->model->arch.n_moe_layers - 1, &s, &e), e);
    for (int i = 0; i < s.n_experts * s.n_experts; i++) sum += s.count[i];
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
    return sum;
}

/* The first MoE layer's vectors of the last statistics_of(). */
static exf_vector_sums vectors_of(void)
{
    exf_statistics_reader r;
    exf_vector_sums v;
    ck_ok(exf_statistics_open(&r, exf_scratch("statistics.h5"), &e), e);
    ck_ok(exf_statistics_get_vectors(&r, 0, &v, &e), e);
    exf_statistics_close(&r);
    return v;
}

/* Of all pairs, what a basis takes of their targets' energy: no rotation of it matters. */
static double taken(const exf_vector_sums *v)
{
    double sum = 0;
    for (int64_t p = 0; p < v->n_pairs; p++)
        for (int i = 0; i < v->rank; i++)
            sum += ldexp((double)v->zz[(p * v->rank + i) * v->rank + i], v->grid[EXF_N_GRIDS * p + EXF_GRID_ZV]);
    return sum;
}

static void compare_vectors(const exf_vector_sums *a, const exf_vector_sums *b, const exf_layer_statistics *s, const char *family)
{
    size_t h = (size_t)a->d_model;
    ck_assert_int_gt(a->n_pairs, 0);
    ck_assert_int_eq(a->n_pairs, b->n_pairs);
    ck_assert_mem_eq(a->pair, b->pair, (size_t)a->n_pairs * 2 * sizeof *a->pair);
    for (int64_t p = 0; p < a->n_pairs; p++) {
        size_t at = (size_t)(a->pair[2 * p] * s->n_experts + a->pair[2 * p + 1]);
        double size = exf_exact_value(&s->target_sq[at]) + exf_exact_value(&s->source_sq[at]);
        for (size_t i = (size_t)p * h; i < (size_t)(p + 1) * h; i++) {
            double u = exf_exact_value(&a->vu[i]) - exf_exact_value(&b->vu[i]),
                   v = exf_exact_value(&a->vv[i]) - exf_exact_value(&b->vv[i]);
            ck_assert_msg(fabs(u) <= 2e-5 * size && fabs(v) <= 2e-5 * size, "%s: pair %d: vu is off by %g, vv by %g, of %g", family,
                          (int)p, u, v, size);
        }
    }
    if (!a->rank) return;
    ck_assert_int_eq(a->rank, b->rank);
    ck_assert_msg(fabs(taken(a) - taken(b)) <= 1e-3 * taken(a), "%s: bases take %g and %g", family, taken(a), taken(b));
}

START_TEST(vectors_are_near_the_cpus)
{
    golden_case c;
    char digest[65];
    int family = _i / 2;
    golden_open(&c, golden_families[family]);
    vector_options(_i % 2);
    exf_layer_statistics cpu = statistics_of(&c, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, digest);
    exf_vector_sums a = vectors_of();
    exf_layer_statistics gpu = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_F32, digest);
    exf_vector_sums b = vectors_of();
    ck_assert_uint_eq(last_count(&c), (uint64_t)c.batch.n_tokens * (uint64_t)(c.model->arch.top_k * (c.model->arch.top_k - 1)));
    ck_assert(memcmp(cpu.count, gpu.count, (size_t)(cpu.n_experts * cpu.n_experts) * 8) == 0);
    compare_vectors(&a, &b, &cpu, golden_families[family]);
    exf_layer_statistics_free(&cpu);
    exf_layer_statistics_free(&gpu);
    exf_vector_sums_free(&a);
    exf_vector_sums_free(&b);
    golden_close(&c);
}
END_TEST

/* In bfloat16, where blocks are of several sequences: runs have the same bytes, and diagonal sums are the same beside low-rank
 * ones. */
START_TEST(vectors_are_the_same_twice)
{
    golden_case c;
    char one[65], two[65];
    golden_open(&c, golden_families[_i]);
    vector_options(0);
    exf_layer_statistics s = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_BF16, one);
    exf_layer_statistics_free(&s);
    s = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_BF16, two);
    ck_assert_str_eq(one, two);
    exf_vector_sums alone = vectors_of();
    vector_options(1);
    exf_layer_statistics t = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_BF16, one);
    exf_layer_statistics_free(&t);
    t = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_BF16, two);
    ck_assert_str_eq(one, two);
    exf_vector_sums both = vectors_of();
    size_t n = (size_t)both.n_pairs * (size_t)both.d_model;
    ck_assert_int_gt(both.rank, 0);
    ck_assert_mem_eq(s.dot, t.dot, (size_t)(s.n_experts * s.n_experts) * sizeof *s.dot);
    ck_assert_int_eq(alone.n_pairs, both.n_pairs);
    ck_assert_mem_eq(alone.vu, both.vu, n * sizeof *both.vu);
    ck_assert_mem_eq(alone.vv, both.vv, n * sizeof *both.vv);
    exf_layer_statistics_free(&s);
    exf_layer_statistics_free(&t);
    exf_vector_sums_free(&alone);
    exf_vector_sums_free(&both);
    golden_close(&c);
}
END_TEST

START_TEST(a_limit_changes_no_result_of_vectors)
{
    vector_options(_i % 2);
    check_a_limit(_i / 2);
}
END_TEST

/* One queue for all sequences, one for two, one for each. */
START_TEST(streams_change_no_result)
{
    golden_case c;
    char digest[3][65];
    static const int number[3] = {1, 2, 4};
    exf_compute compute = _i % 2 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
    golden_open(&c, golden_families[_i / 2]);
    for (int i = 0; i < 3; i++) {
        mixer_queues = number[i];
        exf_layer_statistics s = statistics_of(&c, &c.batch, exf_backend_cuda(&e), compute, digest[i]);
        exf_layer_statistics_free(&s);
    }
    mixer_queues = 0;
    ck_assert_str_eq(digest[0], digest[1]);
    ck_assert_str_eq(digest[0], digest[2]);
    golden_close(&c);
}
END_TEST

/* Hidden states that live in pinned memory, in windows of several sizes: the same bytes, and
 * never more held than planned. */
START_TEST(a_window_changes_no_result)
{
    many m;
    char near[65], far[65];
    exf_forward_footprint f;
    exf_compute compute = _i % 2 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
    const exf_backend *b = exf_backend_cuda(&e);
    exf_demand d = {.lanes = 1};
    int windows = 0;
    many_open(&m, golden_families[_i / 2]);
    const exf_architecture *a = &m.c.model->arch;
    const exf_run_shape shape = {.n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model,
                                 .n_tokens = (int64_t)m.c.batch.n_tokens};
    d.observers = exf_accumulate_device_memory(b, &shape, &options);
    exf_layer_statistics all = statistics_of(&m.c, &m.c.batch, b, compute, near);
    uint64_t least = many_least(&m, b, compute, &d), most;
    ck_ok(many_footprint(&f, &m, b, compute, &d, 0, NULL), e);
    most = f.device;
    for (int k = 0; k < 4; k++) {
        limit = least + (most - least) / 4 * (uint64_t)k;
        ck_ok(many_footprint(&f, &m, b, compute, &d, limit, NULL), e);
        windows += f.window > 0;
        exf_layer_statistics some = statistics_of(&m.c, &m.c.batch, b, compute, far);
        ck_assert_msg(strcmp(near, far) == 0, "%s: limit %llu, window %zu: other statistics", m.c.family, (unsigned long long)limit,
                      f.window);
        ck_assert_msg(held <= f.device, "%s: %llu bytes held, %llu planned", m.c.family, (unsigned long long)held,
                      (unsigned long long)f.device);
        exf_layer_statistics_free(&some);
    }
    ck_assert_int_gt(windows, 0);
    limit = 0;
    exf_layer_statistics_free(&all);
    many_close(&m);
}
END_TEST

/* With the workspaces of the CUDA backend, of which tests/unit/run/check_plans.c knows nothing. */
static const char *const released[] = {"qwen3-30b-a3b", "glm-4.5-air", "deepseek-v2-lite", "qwen3.5-35b-a3b", "deepseek-v4-flash"};

START_TEST(released_models_run_on_24_gb)
{
    enum { SEQUENCES = 512, LENGTH = 2048 };
    static exf_span span[SEQUENCES];
    char dir[128];
    exf_model *m;
    exf_forward_footprint f;
    snprintf(dir, sizeof dir, "tests/configs/%s", released[_i]);
    ck_ok(exf_model_open_part(&m, dir, EXF_MODEL_CONFIG, &e), e);
    for (size_t i = 0; i < SEQUENCES; i++) span[i] = (exf_span){i * LENGTH, LENGTH};
    exf_batch batch = {NULL, span, SEQUENCES, SEQUENCES * LENGTH, LENGTH};
    exf_run_shape shape = {m->arch.n_experts, m->arch.top_k, m->arch.d_model, SEQUENCES, (int64_t)batch.n_tokens};
    exf_forward_options o = {.backend = exf_backend_cuda(&e), .compute = EXF_COMPUTE_BF16, .threads = 2,
                             .max_device_memory = (uint64_t)22 << 30};
    exf_demand d = {.lanes = 1, .sweeps = 1, .observers = exf_accumulate_device_memory(o.backend, &shape, &options)};
    ck_ok(exf_forward_memory(&f, &o, m, &batch, &d, &e), e);
    ck_assert_msg(f.device <= o.max_device_memory && f.reads == 1, "%s: %llu bytes, experts read %d times", released[_i],
                  (unsigned long long)f.device, f.reads);
    exf_model_close(m);
}
END_TEST

/* The kernels of GPUs that are no Hopper (mma.sync), on any that has them. */
static void mma_options(void)
{
    plain_options();
    ck_ok(exf_backend_cuda(&e)->gpu->choose_tensor_cores(EXF_TENSOR_CORES_MMA, &e), e);
}

static void end_mma(void)
{
    ck_ok(exf_backend_cuda(&e)->gpu->choose_tensor_cores(EXF_TENSOR_CORES_AUTO, &e), e);
}

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, plain_options, NULL);
    tcase_add_loop_test(t, bits_depend_on_nothing_but_the_sequence, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, statistics_are_the_same_twice_and_by_parts, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, statistics_are_near_the_cpus, 0, golden_n_families());
    tcase_add_loop_test(t, a_limit_changes_no_result, 0, golden_n_families());
    tcase_add_loop_test(t, norm_heads_are_near_the_cpus, 0, golden_n_families());
    tcase_add_loop_test(t, a_limit_changes_no_result_of_norm_heads, 0, golden_n_families());
    tcase_add_loop_test(t, common_input_is_the_same_twice_and_by_parts, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, common_input_is_near_the_cpus, 0, golden_n_families());
    tcase_add_loop_test(t, a_limit_changes_no_result_of_common_input, 0, golden_n_families());
    tcase_add_loop_test(t, vectors_are_near_the_cpus, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, vectors_are_the_same_twice, 0, golden_n_families());
    tcase_add_loop_test(t, a_limit_changes_no_result_of_vectors, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, streams_change_no_result, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, a_window_changes_no_result, 0, 2 * golden_n_families());
    TCase *mma = exf_case(s, "mma");
    tcase_add_checked_fixture(mma, mma_options, end_mma);
    tcase_add_loop_test(mma, bits_depend_on_nothing_but_the_sequence, 0, 2 * golden_n_families());
    tcase_add_loop_test(mma, statistics_are_the_same_twice_and_by_parts, 0, 2 * golden_n_families());
    tcase_add_loop_test(mma, statistics_are_near_the_cpus, 0, golden_n_families());
    tcase_add_loop_test(mma, a_limit_changes_no_result, 0, golden_n_families());
    tcase_add_loop_test(mma, streams_change_no_result, 0, 2 * golden_n_families());
    tcase_add_loop_test(mma, released_models_run_on_24_gb, 0, COUNT(released));
}
