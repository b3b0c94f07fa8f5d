/* check_device_pass.c - the pass on a device without one: readers, memory plans, hidden
 * states that live elsewhere, on a backend that computes as the CPU does (fake_device.h).
 * Whatever the plan, results are the CPU's bit for bit. */
#include "tests/fake_device.h"
#include "tests/lanes_fixtures.h"
#include "tests/many_fixtures.h"

enum { SLACK = 160 << 20 }; /* SLACK: what plans add for libraries (memory_plan.c) */
static const uint64_t plenty = (uint64_t)1 << 40;
static exf_err e;

START_TEST(a_golden_is_the_cpus)
{
    golden_case c;
    golden_seen cpu, fake;
    golden_open(&c, golden_families[_i]);
    golden_forward(&cpu, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    golden_forward(&fake, c.model, &c.batch, fake_device(plenty), EXF_COMPUTE_F32, 1);
    assert_same_lane(&c, &cpu, &fake);
    golden_free(&cpu);
    golden_free(&fake);
    golden_close(&c);
}
END_TEST

START_TEST(a_window_changes_no_bit)
{
    many m;
    exf_forward_footprint f;
    exf_demand d = {.lanes = 1, .head = 1};
    many_open(&m, golden_families[_i]);
    const exf_backend *b = fake_device(plenty);
    lanes_run cpu = {.n = 1}, far = {.n = 1, .backend = b, .limit = many_least(&m, b, EXF_COMPUTE_F32, &d)};
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, far.limit, NULL), e);
    ck_assert_msg(f.window > 0 && 2 * f.window < m.c.batch.n_tokens, "%s: the smallest plan has a window of %zu tokens", m.c.family, f.window);
    lanes_forward(&cpu, &m.c, 1);
    lanes_forward(&far, &m.c, 1);
    assert_same_lane(&m.c, &cpu.seen[0], &far.seen[0]);
    ck_assert_msg(far.report.device_bytes + SLACK <= f.device, "%s: %llu bytes held, %llu planned", m.c.family,
                  (unsigned long long)far.report.device_bytes, (unsigned long long)f.device);
    lanes_free(&cpu);
    lanes_free(&far);
    many_close(&m);
}
END_TEST

/* Rewriters, probes, pruned experts, corrections: two sweeps a lane, lanes that part. */
START_TEST(a_window_serves_lanes)
{
    many m;
    many_open(&m, golden_families[_i]);
    const exf_backend *b = fake_device(plenty);
    const exf_rewriter odd = {.rewrite = rewrite_oddly}, pruned = {.self = &m.c.model->arch.n_experts, .survivors = prune, .correct = correct_by_first};
    exf_demand d = {.lanes = 3, .probes = 2, .pruned = 1, .corrects = 1, .head = 1};
    exf_forward_footprint f;
    lanes_run cpu = {.n = 3, .rewriter = {{0}, odd, pruned}, .probes = {0, 1, 1}}, far = cpu;
    far.backend = b;
    far.limit = many_least(&m, b, EXF_COMPUTE_F32, &d);
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, far.limit, NULL), e);
    ck_assert_uint_gt(f.window, 0);
    lanes_forward(&cpu, &m.c, 1);
    lanes_forward(&far, &m.c, 1);
    for (int i = 0; i < 3; i++) assert_same_lane(&m.c, &cpu.seen[i], &far.seen[i]);
    for (int i = 1; i < 3; i++)
        for (int l = 0; l < m.c.model->arch.n_layers; l++)
            assert_same_bits(cpu.probe[i].rewritten[l], far.probe[i].rewritten[l], m.c.batch.n_tokens * (size_t)m.c.model->arch.d_model, m.c.family,
                             "probes", l);
    ck_assert_uint_le(far.report.device_bytes + SLACK, f.device);
    lanes_free(&cpu);
    lanes_free(&far);
    many_close(&m);
}
END_TEST

/* ---- more than one look at a layer ------------------------------------------------------ */

/* All that an observer was shown, in order, as one number. */
typedef struct {
    uint64_t hash;
    size_t blocks, commons;
} digest;

static void mix_in(digest *d, const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) d->hash = (d->hash ^ ((const unsigned char *)p)[i]) * UINT64_C(0x100000001b3);
}

static exf_code digest_block(void *self, const exf_moe_block *b, exf_err *err)
{
    digest *d = self;
    size_t slots = (size_t)b->n_tokens * (size_t)b->top_k;
    (void)err;
    d->blocks++;
    mix_in(d, &b->sweep, sizeof b->sweep);
    mix_in(d, &b->row, sizeof b->row);
    mix_in(d, b->topk_ids, slots * 4);
    mix_in(d, b->expert_outputs, slots * (size_t)b->d_model * 4);
    mix_in(d, b->block_output, (size_t)b->n_tokens * (size_t)b->d_model * 4);
    return EXF_OK;
}

static exf_code digest_common(void *self, const exf_common_block *b, exf_err *err)
{
    digest *d = self;
    (void)err;
    d->commons++;
    mix_in(d, b->row, (size_t)b->n_tokens * sizeof *b->row);
    mix_in(d, b->outputs, (size_t)b->n_tokens * (size_t)b->n_experts * (size_t)b->d_model * 4);
    return EXF_OK;
}

static digest look(const many *m, const exf_backend *b, uint64_t limit)
{
    digest d = {.hash = 1};
    exf_observer o = {.self = &d, .sweeps = 2, .common_tokens = 5, .block = digest_block, .common = digest_common};
    exf_lane lane = {NULL, &o};
    exf_forward_options options = {.backend = b, .threads = 1, .max_device_memory = limit};
    exf_forward_report report;
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    ck_ok(exf_forward(m->c.model, &m->c.batch, &lane, 1, &options, &report, &e), e);
    return d;
}

START_TEST(a_window_serves_a_second_look)
{
    many m;
    many_open(&m, golden_families[_i]);
    const exf_backend *b = fake_device(plenty);
    exf_demand d = {.lanes = 1, .common = 5, .sweeps = 2};
    digest cpu = look(&m, &exf_backend_cpu, 0), near = look(&m, b, 0), far = look(&m, b, many_least(&m, b, EXF_COMPUTE_F32, &d));
    ck_assert(cpu.blocks > 0 && cpu.commons > 0);
    ck_assert_msg(near.hash == cpu.hash && near.blocks == cpu.blocks, "%s: on a device other blocks are shown", m.c.family);
    ck_assert_msg(far.hash == cpu.hash && far.blocks == cpu.blocks, "%s: with a window other blocks are shown", m.c.family);
    many_close(&m);
}
END_TEST

/* ---- plans ---------------------------------------------------------------------------------- */

START_TEST(a_plan_obeys_the_limit_and_what_is_free)
{
    many m;
    exf_forward_footprint f, all;
    exf_demand d = {.lanes = 1};
    uint64_t least = 0;
    many_open(&m, "qwen3_moe");
    const exf_backend *b = fake_device(plenty);
    size_t width = (size_t)m.c.model->arch.d_model;
    ck_ok(many_footprint(&all, &m, b, EXF_COMPUTE_F32, &d, 0, NULL), e);
    ck_assert_uint_eq(all.window, 0);
    least = many_least(&m, b, EXF_COMPUTE_F32, &d);
    ck_assert_uint_lt(least, all.device);
    for (uint64_t limit = least; limit <= all.device; limit += (all.device - least) / 50 + 1) {
        ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, limit, NULL), e);
        ck_assert_uint_le(f.device, limit);
        ck_assert_uint_ge(f.host, f.window ? m.c.batch.n_tokens * width * 4 : 0);
    }
    ck_assert_int_eq(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, least - 1, &least), EXF_NOSPACE);
    /* without a limit, and with one above it, what is free decides */
    b = fake_device(least);
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, 0, NULL), e);
    ck_assert_uint_eq(f.device, least);
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, 2 * least, NULL), e);
    ck_assert_uint_eq(f.device, least);
    b = fake_device(least - 1);
    exf_forward_options o = {.backend = b};
    ck_fails(exf_forward_memory(&f, &o, m.c.model, &m.c.batch, &d, &e), EXF_NOSPACE, e, "bytes are free, the smallest pass takes ");
    many_close(&m);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("device_pass");
    TCase *t = tcase_create("all");
    int n = golden_n_families();
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, a_golden_is_the_cpus, 0, n);
    tcase_add_loop_test(t, a_window_changes_no_bit, 0, n);
    tcase_add_loop_test(t, a_window_serves_lanes, 0, n);
    tcase_add_loop_test(t, a_window_serves_a_second_look, 0, n);
    tcase_add_test(t, a_plan_obeys_the_limit_and_what_is_free);
    suite_add_tcase(s, t);
    return s;
}
