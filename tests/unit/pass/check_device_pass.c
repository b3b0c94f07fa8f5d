/* check_device_pass.c - the pass on a device without one: readers, memory plans, hidden
 * states that live elsewhere, on a backend that computes as the CPU does (fake_device.h).
 * Whatever the plan, results on the fake device are the same bit for bit.  Beside the CPU
 * they are near: its product library adds up otherwise where other tokens share a call. */
#include "weights/weight_loader.h"
#include "tests/support/fake_device.h"
#include "tests/support/lanes_fixtures.h"
#include "tests/support/many_fixtures.h"

#include <stdio.h>

enum { SLACK = 160 << 20, RESERVE = 256 << 20 }; /* what plans add for libraries, and leave of what is free (footprint.c) */
static const uint64_t plenty = (uint64_t)1 << 40;
static exf_err e;

START_TEST(a_golden_is_the_cpus)
{
    golden_case c;
    golden_seen cpu, fake;
    golden_open(&c, golden_families[_i]);
    golden_forward(&cpu, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    golden_forward(&fake, c.model, &c.batch, fake_device(plenty), EXF_COMPUTE_F32, 1);
    ck_assert_double_lt(golden_distance(fake.logits, cpu.logits, cpu.n_rows * (size_t)cpu.vocab), 1e-5);
    for (int l = 0; l < c.model->arch.n_layers; l++)
        if (c.model->arch.is_moe[l])
            ck_assert_double_lt(golden_distance(fake.block[l], cpu.block[l], cpu.n_rows * (size_t)cpu.d_model), 1e-5);
    golden_free(&cpu);
    golden_free(&fake);
    golden_close(&c);
}
END_TEST

/* The weights' identity is that of the CPU's reading, which reads whole tensors one after the other. */
START_TEST(weights_are_the_cpus)
{
    exf_text list[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        golden_case c;
        golden_seen seen;
        golden_open(&c, golden_families[_i]);
        golden_forward(&seen, c.model, &c.batch, k ? fake_device(plenty) : &exf_backend_cpu, EXF_COMPUTE_F32, 1);
        ck_ok(exf_weight_identity_list(c.model->identity, 0, &list[k], &e), e);
        golden_free(&seen);
        golden_close(&c);
    }
    ck_assert_uint_gt(list[0].len, 0);
    ck_assert_str_eq(list[0].s, list[1].s);
    exf_text_free(&list[0]);
    exf_text_free(&list[1]);
}
END_TEST

START_TEST(a_window_changes_no_bit)
{
    many m;
    exf_forward_footprint f;
    exf_demand d = {.lanes = 1, .head = 1, .host_blocks = 1};
    many_open(&m, golden_families[_i]);
    const exf_backend *b = fake_device(plenty);
    lanes_run near = {.n = 1, .backend = b}, far = {.n = 1, .backend = b, .limit = many_least(&m, b, EXF_COMPUTE_F32, &d)};
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, far.limit, NULL), e);
    ck_assert_msg(f.window > 0 && 2 * f.window < m.c.batch.n_tokens, "%s: the smallest plan has a window of %zu tokens", m.c.family,
                  f.window);
    lanes_forward(&near, &m.c, 1);
    lanes_forward(&far, &m.c, 1);
    assert_same_lane(&m.c, &near.seen[0], &far.seen[0]);
    ck_assert_msg(far.report.device_bytes + SLACK <= f.device, "%s: %llu bytes held, %llu planned", m.c.family,
                  (unsigned long long)far.report.device_bytes, (unsigned long long)f.device);
    lanes_free(&near);
    lanes_free(&far);
    many_close(&m);
}
END_TEST

/* Rewriters, probes, pruned experts, corrections: two sweeps a lane, lanes that part. */
START_TEST(a_window_serves_lanes)
{
    many m;
    many_open(&m, golden_families[3 * _i]);
    const exf_backend *b = fake_device(plenty);
    const exf_rewriter odd = {.rewrite = rewrite_oddly}, pruned = {.self = &m.c.model->arch.n_experts,
                                                                   .retained_experts = prune,
                                                                   .correct = correct_by_first};
    exf_demand d = {.lanes = 3, .probes = 2, .pruned = 1, .corrects = 1, .head = 1, .host_blocks = 1};
    exf_forward_footprint f;
    lanes_run near = {.n = 3, .backend = b, .rewriter = {{0}, odd, pruned}, .probes = {0, 1, 1}}, far = near;
    far.limit = many_least(&m, b, EXF_COMPUTE_F32, &d);
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, far.limit, NULL), e);
    ck_assert_uint_gt(f.window, 0);
    lanes_forward(&near, &m.c, 1);
    lanes_forward(&far, &m.c, 1);
    for (int i = 0; i < 3; i++) assert_same_lane(&m.c, &near.seen[i], &far.seen[i]);
    for (int i = 1; i < 3; i++)
        for (int l = 0; l < m.c.model->arch.n_layers; l++)
            assert_same_bits(near.probe[i].rewritten[l], far.probe[i].rewritten[l],
                             m.c.batch.n_tokens * (size_t)m.c.model->arch.d_model, m.c.family, "probes", l);
    ck_assert_uint_le(far.report.device_bytes + SLACK, f.device);
    lanes_free(&near);
    lanes_free(&far);
    many_close(&m);
}
END_TEST

/* The same in the memory of the fake device, which is the host's. */
static exf_code rewrite_oddly_there(void *self, const exf_routes *d, exf_err *err)
{
    exf_routes r = {.layer = d->layer, .batch = d->batch, .n_experts = d->n_experts, .top_k = d->top_k, .ids = d->ids,
                    .weights = d->weights};
    return rewrite_oddly(self, &r, err);
}

static exf_code refuse_to_rewrite(void *self, exf_routes *r, exf_err *err)
{
    (void)self;
    return exf_fail(err, EXF_INTERNAL, "layer %d is rewritten on the host", r->layer);
}

/* Lanes that rewrite on the device, that prune or correct beside it, and that rewrite on the host alone: as all on the host. */
START_TEST(routes_may_be_rewritten_on_the_device)
{
    many m;
    many_open(&m, golden_families[3 * _i]);
    const exf_backend *b = fake_device(plenty);
    const exf_rewriter odd = {.rewrite = rewrite_oddly};
    exf_rewriter here = {.self = &m.c.model->arch.n_experts, .rewrite = rewrite_oddly, .retained_experts = prune,
                         .correct = correct_by_first};
    lanes_run host = {.n = 4, .backend = b, .rewriter = {{0}, odd, here, odd}, .probes = {0, 1, 1, 1}}, there = host;
    for (int i = 1; i < 3; i++) {
        there.rewriter[i].rewrite = refuse_to_rewrite;
        there.rewriter[i].device_rewrite = rewrite_oddly_there;
    }
    lanes_forward(&host, &m.c, 1);
    lanes_forward(&there, &m.c, 1);
    for (int i = 0; i < 4; i++) assert_same_lane(&m.c, &host.seen[i], &there.seen[i]);
    for (int i = 1; i < 4; i++)
        for (int l = 0; l < m.c.model->arch.n_layers; l++)
            assert_same_bits(host.probe[i].rewritten[l], there.probe[i].rewritten[l],
                             m.c.batch.n_tokens * (size_t)m.c.model->arch.d_model, m.c.family, "probes", l);
    ck_assert_double_eq(host.report.flops, there.report.flops);
    lanes_free(&host);
    lanes_free(&there);
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

/* In GPU memory token by token, so that the chunks in which tokens are shown do not matter. */
static exf_code digest_common(void *self, const exf_common_input_block *c, exf_err *err)
{
    digest *d = self;
    size_t each = (size_t)c->n_experts * (size_t)c->d_model;
    (void)err;
    if (!c->q) d->commons += (size_t)c->n_tokens;
    for (int p = 0; c->q && p < c->n_parts; p++)
        for (int t = c->part[p].first; t < c->part[p].first + c->part[p].n_tokens; t++, d->commons++) {
            size_t row = c->row_offset + (size_t)c->device_row[t];
            mix_in(d, &row, sizeof row);
            mix_in(d, (const float *)c->outputs + (size_t)t * each, each * 4);
        }
    return EXF_OK;
}

static digest look(const many *m, const exf_backend *b, uint64_t limit)
{
    digest d = {.hash = 1};
    exf_observer o = {.self = &d, .sweeps = 2, .common_input_tokens = 5, .block = digest_block, .common_input = digest_common};
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
    many_open(&m, golden_families[3 * _i]);
    const exf_backend *b = fake_device(plenty);
    exf_demand d = {.lanes = 1, .common_input = 5, .sweeps = 2, .host_blocks = 1};
    digest cpu = look(&m, &exf_backend_cpu, 0), near = look(&m, b, 0), far = look(&m, b, many_least(&m, b, EXF_COMPUTE_F32, &d));
    ck_assert(cpu.blocks > 0 && cpu.commons > 0);
    ck_assert_uint_eq(near.commons, cpu.commons);
    ck_assert_msg(far.hash == near.hash && far.commons == near.commons, "%s: with a window other numbers are shown", m.c.family);
    many_close(&m);
}
END_TEST

/* ---- weights in parts ---------------------------------------------------------------------- */

/* Role's tensors [first, first + n) as they lie in lw; layer as weight_loader.h has it. */
static void assert_loaded(const exf_model *m, const exf_layer_weights *lw, exf_role role, int layer, int first, int n)
{
    int of = layer < 0 ? -1 : layer;
    size_t each = exf_model_count(m, role, of);
    float *want = test_memory(each, 4), *have = test_memory(each, 4);
    exf_matrix matrix = exf_matrix_of(lw, role);
    exf_dtype stored = matrix.number == EXF_NUMBER_BF16 ? EXF_DT_BF16 : EXF_DT_F32;
    ck_assert_msg(matrix.p != NULL, "layer %d: role %d is not there", layer, (int)role);
    for (int i = 0; i < n; i++) {
        ck_ok(exf_model_read(m, role, of, first + i, want, &e), e);
        exf_dtype_to_f32(have, exf_matrix_at(matrix, (size_t)i * each).p, each, stored);
        assert_same_bits(want, have, each, m->family->name, "weights", layer);
    }
    exf_mem_free(want);
    exf_mem_free(have);
}

static int routed(int role)
{
    return role >= EXF_W_EXPERT_GATE && role <= EXF_W_EXPERT_DOWN_BIAS;
}

/* All of a layer but its routed experts. */
static void assert_rest(const exf_model *m, const exf_layer_weights *lw, int layer)
{
    for (int role = layer < 0 ? 0 : EXF_W_FIRST_IN_LAYER; role < (layer < 0 ? EXF_W_FIRST_IN_LAYER : EXF_W_COUNT); role++) {
        int in_layer = !routed(role) && (layer == EXF_LAYER_EMBED) == (role == EXF_W_EMBED),
            n = exf_model_copies(m, (exf_role)role, layer < 0 ? -1 : layer);
        if (in_layer && n > 0) assert_loaded(m, lw, (exf_role)role, layer, 0, n);
    }
}

START_TEST(parts_are_what_the_checkpoint_holds)
{
    enum { PASSES = 3 };
    golden_case c;
    golden_open(&c, golden_families[_i / 2]);
    const exf_model *m = c.model;
    const exf_backend *b = fake_device(plenty);
    int experts = m->arch.n_experts, step = experts / 3 + 1;
    exf_weight_loader_options o = {
        .n_slots = 1 + _i % 2, .n_readers = 3, .n_layers = m->arch.n_layers, .head = 1, .part_experts = step, .passes = PASSES};
    exf_layer_weights lw = {.b = b};
    exf_weight_loader *s;
    uint64_t now, peak,
        planned = exf_weight_loader_base_bytes(m, EXF_COMPUTE_F32, &o) +
                  (uint64_t)o.n_slots * exf_weight_loader_slot_bytes(m, EXF_COMPUTE_F32, &o);
    b->gpu->memory_reset_peak();
    ck_ok(exf_weight_loader_open(&s, m, b, EXF_COMPUTE_F32, &o, &e), e);
    b->gpu->memory(&now, &peak);
    ck_assert_uint_ge(planned + exf_weight_loader_device_bytes(c.model), peak);
    ck_ok(exf_weight_loader_next(s, &lw, &e), e);
    assert_rest(m, &lw, EXF_LAYER_EMBED);
    for (int l = 0; l < m->arch.n_layers; l++) {
        ck_ok(exf_weight_loader_next(s, &lw, &e), e);
        assert_rest(m, &lw, l);
        for (int pass = 0; m->arch.is_moe[l] && pass < PASSES; pass++)
            for (int first = 0; first < experts; first += step) {
                ck_ok(exf_weight_loader_next(s, &lw, &e), e);
                int n = experts - first < step ? experts - first : step;
                for (int role = 0; role < EXF_W_COUNT; role++)
                    if (routed(role) && exf_model_copies(m, (exf_role)role, l) > 0)
                        assert_loaded(m, &lw, (exf_role)role, l, first, n);
                if (first == 0) assert_rest(m, &lw, l);
            }
    }
    ck_ok(exf_weight_loader_next(s, &lw, &e), e);
    assert_rest(m, &lw, EXF_LAYER_HEAD);
    ck_fails(exf_weight_loader_next(s, &lw, &e), EXF_INTERNAL, e, "");
    exf_weight_loader_close(s, NULL);
    golden_close(&c);
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
    b = fake_device(least + RESERVE);
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, 0, NULL), e);
    ck_assert_uint_eq(f.device, least);
    ck_ok(many_footprint(&f, &m, b, EXF_COMPUTE_F32, &d, 2 * least, NULL), e);
    ck_assert_uint_eq(f.device, least);
    b = fake_device(least - 1 + RESERVE);
    exf_forward_options o = {.backend = b};
    char smallest[64];
    snprintf(smallest, sizeof smallest, "GPU %llu", (unsigned long long)least);
    ck_fails(exf_forward_memory(&f, &o, m.c.model, &m.c.batch, &d, &e), EXF_NOSPACE, e, smallest);
    many_close(&m);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    int n = golden_n_families();
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, a_golden_is_the_cpus, 0, n);
    tcase_add_loop_test(t, weights_are_the_cpus, 0, n);
    tcase_add_loop_test(t, a_window_changes_no_bit, 0, n);
    tcase_add_loop_test(t, a_window_serves_lanes, 0, n / 3);
    tcase_add_loop_test(t, routes_may_be_rewritten_on_the_device, 0, n / 3);
    tcase_add_loop_test(t, a_window_serves_a_second_look, 0, n / 3);
    tcase_add_loop_test(t, parts_are_what_the_checkpoint_holds, 0, 2 * n);
    tcase_add_test(t, a_plan_obeys_the_limit_and_what_is_free);
}
