/* check_cuda_forward.c - the pass on the GPU: its results do not depend on what company
 * a sequence is in, nor do its statistics on the run, and they are the CPU's. */
#include "base/hash.h"
#include "tests/fixtures.h"
#include "tests/golden_run.h"
#include "tests/many_fixtures.h"
#include "tests/statistics_run.h"

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
static uint64_t held;  /* there, at most, by the last run */

static exf_layer_statistics statistics_of(const golden_case *c, const exf_batch *batch, const exf_backend *b, exf_compute compute, char digest[65])
{
    exf_statistics_reader r;
    exf_layer_statistics s;
    const char *path = exf_scratch("statistics.h5");
    exf_forward_options o = {.backend = b, .compute = compute, .threads = 2, .max_device_memory = limit};
    exf_forward_report report;
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    ck_ok(statistics_run(c->model, batch, &o, path, &report, &e), e);
    held = report.device_bytes;
    ck_ok(exf_hash_file(path, digest, &e), e);
    ck_ok(exf_statistics_open(&r, path, &e), e);
    ck_ok(exf_layer_statistics_new(&s, c->model->arch.n_experts, &e), e);
    ck_ok(exf_statistics_get(&r, 0, &s, &e), e);
    exf_statistics_close(&r);
    return s;
}

START_TEST(statistics_are_the_same_twice_and_by_parts)
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
        if (i > 0) exf_layer_statistics_merge(&sum, &own);
        if (i > 0) exf_layer_statistics_free(&own);
    }
    ck_assert_msg(memcmp(s.dot, sum.dot, cells * sizeof *s.dot) == 0 && memcmp(s.count, sum.count, cells * 8) == 0 &&
                      memcmp(s.sq0, sum.sq0, cells * sizeof *s.sq0) == 0 && memcmp(s.seq_ab, sum.seq_ab, cells * sizeof *s.seq_ab) == 0 &&
                      memcmp(s.seq_bb, sum.seq_bb, cells * sizeof *s.seq_bb) == 0 && memcmp(s.sequences, sum.sequences, cells * 8) == 0, "%s: sequences one by one have other sums", golden_families[_i / 2]);
    exf_layer_statistics_free(&s);
    exf_layer_statistics_free(&t);
    exf_layer_statistics_free(&sum);
    golden_close(&c);
}
END_TEST

START_TEST(statistics_are_near_the_cpus)
{
    golden_case c;
    char digest[65];
    golden_open(&c, golden_families[_i]);
    size_t cells = (size_t)(c.model->arch.n_experts * c.model->arch.n_experts);
    exf_layer_statistics cpu = statistics_of(&c, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, digest);
    exf_layer_statistics gpu = statistics_of(&c, &c.batch, exf_backend_cuda(&e), EXF_COMPUTE_F32, digest);
    ck_assert(memcmp(cpu.count, gpu.count, cells * 8) == 0);
    for (size_t i = 0; i < cells; i++) {
        double x = exf_exact_value(&cpu.dot[i]), y = exf_exact_value(&gpu.dot[i]);
        double size = exf_exact_value(&cpu.target_sq[i]) + exf_exact_value(&cpu.source_sq[i]);
        ck_assert_msg(fabs(x - y) <= 2e-5 * size, "%s: dot[%zu]: cpu %g, cuda %g", golden_families[_i], i, x, y);
        x = exf_exact_value(&cpu.seq_bb[i]);
        y = exf_exact_value(&gpu.seq_bb[i]);
        ck_assert_msg(fabs(x - y) <= 1e-4 * x && cpu.sequences[i] == gpu.sequences[i], "%s: seq_bb[%zu]: cpu %g, cuda %g", golden_families[_i], i, x, y);
    }
    exf_layer_statistics_free(&cpu);
    exf_layer_statistics_free(&gpu);
    golden_close(&c);
}
END_TEST

/* Refused with the smallest limit that works; under that one, the same bytes. */
START_TEST(a_limit_changes_no_result)
{
    golden_case c;
    char free_run[65], limited[65];
    exf_forward_options o = {.backend = exf_backend_cuda(&e), .compute = EXF_COMPUTE_BF16, .max_device_memory = 1};
    exf_forward_report report;
    golden_open(&c, golden_families[_i]);
    ck_fails(statistics_run(c.model, &c.batch, &o, exf_scratch("refused.h5"), &report, &e), EXF_NOSPACE, e, "the smallest that works is ");
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
    exf_layer_statistics all = statistics_of(&m.c, &m.c.batch, b, compute, near);
    uint64_t least = many_least(&m, b, compute, &d), most;
    ck_ok(many_footprint(&f, &m, b, compute, &d, 0, NULL), e);
    most = f.device;
    for (int k = 0; k < 4; k++) {
        limit = least + (most - least) / 4 * (uint64_t)k;
        ck_ok(many_footprint(&f, &m, b, compute, &d, limit, NULL), e);
        windows += f.window > 0;
        exf_layer_statistics some = statistics_of(&m.c, &m.c.batch, b, compute, far);
        ck_assert_msg(strcmp(near, far) == 0, "%s: limit %llu, window %zu: other statistics", m.c.family, (unsigned long long)limit, f.window);
        ck_assert_msg(held <= f.device, "%s: %llu bytes held, %llu planned", m.c.family, (unsigned long long)held, (unsigned long long)f.device);
        exf_layer_statistics_free(&some);
    }
    ck_assert_int_gt(windows, 0);
    limit = 0;
    exf_layer_statistics_free(&all);
    many_close(&m);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_forward");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, bits_depend_on_nothing_but_the_sequence, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, statistics_are_the_same_twice_and_by_parts, 0, 2 * golden_n_families());
    tcase_add_loop_test(t, statistics_are_near_the_cpus, 0, golden_n_families());
    tcase_add_loop_test(t, a_limit_changes_no_result, 0, golden_n_families());
    tcase_add_loop_test(t, a_window_changes_no_result, 0, 2 * golden_n_families());
    suite_add_tcase(s, t);
    return s;
}
