/* check_replay_device.c - recorded hidden states through routers and experts on a device
 * (fake_device.h): outputs near those of a whole pass on the CPU, the same however
 * blocks are cut, within a limit of memory. */
#include "pass/forward.h"

#include "tests/support/fake_device.h"
#include "tests/support/lanes_fixtures.h"
#include "tests/support/many_fixtures.h"

#include <stdio.h>

enum { SLACK = 160 << 20, RESERVE = 256 << 20 }; /* what plans add for libraries, and leave of what is free (footprint.c) */
static const uint64_t plenty = (uint64_t)1 << 40;
static exf_err e;

/* ---- what a pass on the CPU showed, as a recording ------------------------------------- */

static exf_code recorded_input(void *self, int layer, size_t row, size_t n, float *dst, exf_err *err)
{
    const golden_seen *s = self;
    size_t h = (size_t)s->d_model;
    (void)err;
    ck_assert_uint_le(row + n, s->n_rows);
    memcpy(dst, s->moe_input[layer] + row * h, n * h * sizeof *dst);
    return EXF_OK;
}

static exf_code recorded_routes(void *self, int layer, size_t row, size_t n, int32_t *ids, float *weights, exf_err *err)
{
    const golden_seen *s = self;
    size_t k = (size_t)s->top_k;
    (void)err;
    ck_assert_uint_le(row + n, s->n_rows);
    memcpy(ids, s->ids[layer] + row * k, n * k * sizeof *ids);
    memcpy(weights, s->weights[layer] + row * k, n * k * sizeof *weights);
    return EXF_OK;
}

static exf_recorded recording_of(golden_seen *s, const exf_architecture *a, int with_routes)
{
    exf_recorded r = {.self = s, .input = recorded_input, .routes = recorded_routes};
    for (int l = 0; l < a->n_layers; l++) {
        r.has_input[l] = a->is_moe[l];
        r.has_routes[l] = (unsigned char)with_routes;
    }
    return r;
}

/* A model, a batch of more than two of the smallest blocks, and what the CPU showed of it. */
typedef struct {
    many m;
    golden_seen cpu;
} run;

static void run_open(run *r, const char *family)
{
    many_open(&r->m, family);
    golden_forward(&r->cpu, r->m.c.model, &r->m.c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 2);
}

static void run_close(run *r)
{
    golden_free(&r->cpu);
    many_close(&r->m);
}

static exf_forward_report replay(golden_seen *seen, run *r, const exf_recorded *recorded, const exf_backend *b, uint64_t limit)
{
    exf_forward_report report;
    exf_forward_options o = {.backend = b, .threads = 2, .max_device_memory = limit};
    exf_observer observer = golden_observer(seen, r->m.c.model, r->m.c.batch.n_tokens);
    ck_ok(exf_replay(r->m.c.model, &r->m.c.batch, recorded, &observer, &o, &report, &e), e);
    return report;
}

static void assert_near(const run *r, const char *what, const float *got, const float *want, size_t n, int layer)
{
    double d = golden_distance(got, want, n);
    ck_assert_msg(d <= 1e-5, "%s: layer %d: %s are %.1e off", r->m.c.family, layer, what, d);
}

/* Inputs and ids equal, all else near. */
static void assert_near_the_cpu(const run *r, const golden_seen *s)
{
    const exf_architecture *a = &r->m.c.model->arch;
    const golden_seen *cpu = &r->cpu;
    size_t n = s->n_rows, h = (size_t)s->d_model, k = (size_t)s->top_k;
    for (int l = 0; l < a->n_layers; l++) {
        if (!a->is_moe[l]) continue;
        assert_same_bits(s->moe_input[l], cpu->moe_input[l], n * h, r->m.c.family, "inputs", l);
        assert_same_bits(s->ids[l], cpu->ids[l], n * k, r->m.c.family, "ids", l);
        assert_near(r, "weights", s->weights[l], cpu->weights[l], n * k, l);
        assert_near(r, "expert outputs", s->expert_outputs[l], cpu->expert_outputs[l], n * k * h, l);
        assert_near(r, "routed outputs", s->routed[l], cpu->routed[l], n * h, l);
        assert_near(r, "block outputs", s->block[l], cpu->block[l], n * h, l);
    }
}

/* Bits where routes are recorded.  Where the router runs its product adds up otherwise where
 * other tokens share a call, so weights, and what they weigh, are only near. */
static void assert_same_replay(const run *r, const golden_seen *a, const golden_seen *b, int with_routes)
{
    size_t n = a->n_rows, h = (size_t)a->d_model, k = (size_t)a->top_k;
    for (int l = 0; l < r->m.c.model->arch.n_layers; l++) {
        if (!r->m.c.model->arch.is_moe[l]) continue;
        assert_same_bits(a->moe_input[l], b->moe_input[l], n * h, r->m.c.family, "inputs", l);
        assert_same_bits(a->ids[l], b->ids[l], n * k, r->m.c.family, "ids", l);
        assert_same_bits(a->expert_outputs[l], b->expert_outputs[l], n * k * h, r->m.c.family, "expert outputs", l);
        if (!with_routes) {
            assert_near(r, "weights", a->weights[l], b->weights[l], n * k, l);
            assert_near(r, "block outputs", a->block[l], b->block[l], n * h, l);
            continue;
        }
        assert_same_bits(a->weights[l], b->weights[l], n * k, r->m.c.family, "weights", l);
        assert_same_bits(a->routed[l], b->routed[l], n * h, r->m.c.family, "routed outputs", l);
        assert_same_bits(a->block[l], b->block[l], n * h, r->m.c.family, "block outputs", l);
    }
}

/* ---- numbers ------------------------------------------------------------------------------ */

/* Routes of no router: an expert several times in a row, empty slots, negative weights. */
START_TEST(recorded_routes_are_run_as_they_are)
{
    run r;
    golden_seen fake;
    run_open(&r, "qwen3_moe");
    size_t k = (size_t)r.cpu.top_k, h = (size_t)r.cpu.d_model;
    for (size_t row = 0; row < r.cpu.n_rows; row++) {
        r.cpu.ids[1][row * k + 1] = r.cpu.ids[1][row * k];
        r.cpu.weights[1][row * k] = row % 2 ? -0.5f : 2;
    }
    exf_recorded recorded = recording_of(&r.cpu, &r.m.c.model->arch, 1);
    replay(&fake, &r, &recorded, fake_device(plenty), 0);
    assert_same_bits(fake.ids[1], r.cpu.ids[1], r.cpu.n_rows * k, "qwen3_moe", "ids", 1);
    assert_same_bits(fake.weights[1], r.cpu.weights[1], r.cpu.n_rows * k, "qwen3_moe", "weights", 1);
    for (size_t row = 0; row < r.cpu.n_rows; row++) {
        const float *of = fake.expert_outputs[1] + row * k * h;
        assert_same_bits(of, of + h, h, "qwen3_moe", "outputs of the same expert", 1);
        for (size_t i = 0; i < h; i++) {
            double want = 0;
            for (size_t j = 0; j < k; j++) want += (double)r.cpu.weights[1][row * k + j] * (double)of[j * h + i];
            ck_assert_double_le(fabs(want - (double)fake.routed[1][row * h + i]), 1e-6 * (1 + fabs(want)));
        }
    }
    golden_free(&fake);
    run_close(&r);
}
END_TEST

/* ---- observers that read GPU memory --------------------------------------------------------- */

typedef struct {
    golden_seen seen;
    exf_observer inner; /* allocates the rows */
    size_t n_blocks, opened;
} reader;

static exf_code open_reader(void *self, int n_workers, const exf_backend *gpu, exf_err *err)
{
    (void)n_workers;
    (void)err;
    ck_assert(gpu && gpu->gpu);
    ((reader *)self)->opened++;
    return EXF_OK;
}

static exf_code begin_layer(void *self, const exf_moment *m, exf_err *err)
{
    reader *r = self;
    return r->inner.at(&r->seen, m, err);
}

static exf_code read_block(void *self, const exf_moe_block *d, exf_err *err)
{
    reader *r = self;
    size_t h = (size_t)d->d_model, k = (size_t)d->top_k, n = (size_t)d->n_tokens;
    (void)err;
    r->n_blocks++;
    ck_assert(d->q && d->batch);
    ck_assert_int_eq(d->rounded, 0);
    memcpy(r->seen.expert_outputs[d->layer] + d->row * k * h, d->expert_outputs, n * k * h * sizeof(float));
    memcpy(r->seen.ids[d->layer] + d->row * k, d->topk_ids, n * k * sizeof(int32_t));
    memcpy(r->seen.weights[d->layer] + d->row * k, d->topk_weights, n * k * sizeof(float));
    assert_same_bits(d->router_ids, d->topk_ids, n * k, "reader", "ids", d->layer);
    assert_same_bits(d->router_weights, d->topk_weights, n * k, "reader", "weights", d->layer);
    return EXF_OK;
}

START_TEST(device_blocks_show_the_same)
{
    run r;
    golden_seen host;
    reader g = {.n_blocks = 0};
    exf_forward_report report;
    exf_observer o = {.self = &g, .reads_device = 1, .begin = open_reader, .at = begin_layer, .block = read_block};
    run_open(&r, "qwen3_moe");
    const exf_architecture *a = &r.m.c.model->arch;
    exf_recorded recorded = recording_of(&r.cpu, a, _i);
    exf_forward_options options = {.backend = fake_device(plenty)};
    size_t n = r.cpu.n_rows, h = (size_t)r.cpu.d_model, k = (size_t)r.cpu.top_k;
    replay(&host, &r, &recorded, options.backend, 0);
    g.inner = golden_observer(&g.seen, r.m.c.model, n);
    ck_ok(exf_replay(r.m.c.model, &r.m.c.batch, &recorded, &o, &options, &report, &e), e);
    ck_assert_uint_eq(g.opened, 1);
    ck_assert_uint_eq(g.n_blocks, (size_t)a->n_moe_layers); /* a whole run at a time */
    for (int l = 0; l < a->n_layers; l++) {
        assert_same_bits(g.seen.ids[l], host.ids[l], n * k, "qwen3_moe", "ids", l);
        assert_same_bits(g.seen.weights[l], host.weights[l], n * k, "qwen3_moe", "weights", l);
        assert_same_bits(g.seen.expert_outputs[l], host.expert_outputs[l], n * k * h, "qwen3_moe", "expert outputs", l);
    }
    golden_free(&g.seen);
    golden_free(&host);
    run_close(&r);
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------ */

/* What a replay says of a limit; EXF_NOSPACE leaves the least in *least. */
static exf_code footprint(exf_forward_footprint *f, const run *r, const exf_recorded *recorded, const exf_backend *b,
                          uint64_t limit, uint64_t *least)
{
    static const char before[] = "smallest that works is ";
    golden_seen unused;
    exf_observer o = golden_observer(&unused, r->m.c.model, r->m.c.batch.n_tokens);
    exf_forward_options options = {.backend = b, .max_device_memory = limit};
    exf_code rc = exf_replay_memory(f, &options, r->m.c.model, &r->m.c.batch, recorded, &o, &e);
    if (rc == EXF_OK) return rc;
    const char *at = strstr(e.msg, before);
    ck_assert_msg(rc == EXF_NOSPACE && at, "%s", e.msg);
    *least = strtoull(at + strlen(before), NULL, 10);
    return rc;
}

/* Replays with a device that has plenty and with the least that works: near the CPU's, and equal. */
static void check_memory(run *r, int with_routes)
{
    exf_forward_footprint all, f;
    uint64_t least = 0;
    golden_seen cpu, near, far;
    const exf_backend *b = fake_device(plenty);
    exf_recorded recorded = recording_of(&r->cpu, &r->m.c.model->arch, with_routes);
    replay(&cpu, r, &recorded, &exf_backend_cpu, 0);
    assert_near_the_cpu(r, &cpu);
    golden_free(&cpu);
    ck_ok(footprint(&all, r, &recorded, b, 0, NULL), e);
    ck_assert_int_eq(footprint(&f, r, &recorded, b, 1, &least), EXF_NOSPACE);
    ck_assert_uint_lt(least, all.device);
    ck_ok(footprint(&f, r, &recorded, b, least, NULL), e);
    ck_assert_uint_le(f.device, least);
    exf_forward_report plenty_report = replay(&near, r, &recorded, b, 0), report = replay(&far, r, &recorded, b, least);
    assert_near_the_cpu(r, &near);
    assert_same_replay(r, &near, &far, with_routes);
    ck_assert_uint_le(plenty_report.device_bytes + SLACK, all.device);
    ck_assert_uint_le(report.device_bytes + SLACK, f.device);
    ck_assert_uint_lt(report.device_bytes, plenty_report.device_bytes);
    golden_free(&near);
    golden_free(&far);
}

START_TEST(a_device_gives_the_cpus_outputs_in_the_least_memory)
{
    run r;
    run_open(&r, golden_families[_i]);
    if (r.m.c.model->arch.residual.normed) { /* whose router and shared experts read what is not recorded */
        exf_recorded recorded = recording_of(&r.cpu, &r.m.c.model->arch, 1);
        golden_seen unused;
        exf_observer o = golden_observer(&unused, r.m.c.model, r.m.c.batch.n_tokens);
        exf_forward_options options = {.threads = 1};
        exf_forward_report report;
        ck_fails(exf_replay(r.m.c.model, &r.m.c.batch, &recorded, &o, &options, &report, &e), EXF_MODEL, e, "gemma4");
    } else {
        for (int with_routes = 0; with_routes < 2; with_routes++) check_memory(&r, with_routes);
    }
    run_close(&r);
}
END_TEST

START_TEST(a_limit_is_obeyed_or_refused)
{
    run r;
    exf_forward_footprint all, f;
    exf_forward_report report;
    uint64_t least = 0, again = 0;
    run_open(&r, "qwen3_moe");
    const exf_backend *b = fake_device(plenty);
    exf_recorded recorded = recording_of(&r.cpu, &r.m.c.model->arch, 0);
    ck_ok(footprint(&all, &r, &recorded, b, 0, NULL), e);
    ck_assert_int_eq(footprint(&f, &r, &recorded, b, 1, &least), EXF_NOSPACE);
    for (uint64_t limit = least; limit <= all.device; limit += (all.device - least) / 50 + 1) {
        ck_ok(footprint(&f, &r, &recorded, b, limit, NULL), e);
        ck_assert_uint_le(f.device, limit);
    }
    ck_assert_int_eq(footprint(&f, &r, &recorded, b, least - 1, &again), EXF_NOSPACE);
    ck_assert_uint_eq(again, least);
    golden_seen unused;
    exf_observer o = golden_observer(&unused, r.m.c.model, r.m.c.batch.n_tokens);
    exf_forward_options options = {.backend = b, .max_device_memory = least - 1};
    char smallest[64];
    snprintf(smallest, sizeof smallest, "GPU %llu", (unsigned long long)least);
    ck_fails(exf_replay(r.m.c.model, &r.m.c.batch, &recorded, &o, &options, &report, &e), EXF_NOSPACE, e,
             smallest);
    options.max_device_memory = 0; /* what is free decides */
    options.backend = fake_device(least - 1 + RESERVE);
    ck_fails(exf_replay(r.m.c.model, &r.m.c.batch, &recorded, &o, &options, &report, &e), EXF_NOSPACE, e,
             smallest);
    run_close(&r);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(what_is_not_finite_is_named)
{
    run r;
    golden_seen s;
    exf_forward_report report;
    run_open(&r, "qwen3_moe");
    char part[80];
    size_t sequence = r.m.c.batch.n_sequences - 2, row = r.m.span[sequence].offset + 5;
    snprintf(part, sizeof part, "layer 2: the output of sequence %zu at position 5 is not finite", sequence);
    r.cpu.moe_input[2][row * (size_t)r.cpu.d_model + 3] = 3e38f;
    exf_recorded recorded = recording_of(&r.cpu, &r.m.c.model->arch, 1);
    exf_observer o = golden_observer(&s, r.m.c.model, r.m.c.batch.n_tokens);
    exf_forward_options options = {.backend = fake_device(plenty)};
    ck_fails(exf_replay(r.m.c.model, &r.m.c.batch, &recorded, &o, &options, &report, &e), EXF_NUMERIC, e, part);
    golden_free(&s);
    run_close(&r);
}
END_TEST

static exf_code refuse_input(void *self, int layer, size_t row, size_t n, float *dst, exf_err *err)
{
    (void)self;
    (void)n;
    (void)dst;
    return exf_fail(err, EXF_IO, "no rows from %d of layer %d", (int)row, layer);
}

START_TEST(a_failing_reader_ends_the_replay)
{
    run r;
    golden_seen s;
    exf_forward_report report;
    run_open(&r, "qwen3_moe");
    exf_recorded recorded = recording_of(&r.cpu, &r.m.c.model->arch, 0);
    exf_observer o = golden_observer(&s, r.m.c.model, r.m.c.batch.n_tokens);
    exf_forward_options options = {.backend = fake_device(plenty)};
    recorded.input = refuse_input;
    ck_fails(exf_replay(r.m.c.model, &r.m.c.batch, &recorded, &o, &options, &report, &e), EXF_IO, e, "0 0");
    golden_free(&s);
    run_close(&r);
}
END_TEST

/* Layers that choose experts by token need the token ids, or recorded routes. */
START_TEST(token_tables_need_token_ids)
{
    run r;
    golden_seen s;
    exf_forward_report report;
    run_open(&r, "deepseek_v4");
    int layer = first_moe_layer(&r.m.c.model->arch);
    ck_assert(is_hashed(&r.m.c, layer));
    exf_batch batch = r.m.c.batch;
    batch.ids = NULL;
    for (int device = 0; device < 2; device++) {
        exf_forward_options options = {.backend = device ? fake_device(plenty) : &exf_backend_cpu};
        exf_observer o = golden_observer(&s, r.m.c.model, batch.n_tokens);
        exf_recorded recorded = recording_of(&r.cpu, &r.m.c.model->arch, 0);
        ck_fails(exf_replay(r.m.c.model, &batch, &recorded, &o, &options, &report, &e), EXF_MODEL, e, "0");
        golden_free(&s);
        recorded = recording_of(&r.cpu, &r.m.c.model->arch, 1);
        o = golden_observer(&s, r.m.c.model, batch.n_tokens);
        ck_ok(exf_replay(r.m.c.model, &batch, &recorded, &o, &options, &report, &e), e);
        assert_near_the_cpu(&r, &s);
        golden_free(&s);
    }
    run_close(&r);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("replay_device");
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    TCase *t = tcase_create("all");
    int n = golden_n_families();
    tcase_set_timeout(t, 300);
    tcase_add_test(t, recorded_routes_are_run_as_they_are);
    tcase_add_loop_test(t, device_blocks_show_the_same, 0, 2);
    tcase_add_loop_test(t, a_device_gives_the_cpus_outputs_in_the_least_memory, 0, n);
    tcase_add_test(t, a_limit_is_obeyed_or_refused);
    tcase_add_test(t, what_is_not_finite_is_named);
    tcase_add_test(t, a_failing_reader_ends_the_replay);
    tcase_add_test(t, token_tables_need_token_ids);
    suite_add_tcase(s, t);
    return s;
}
