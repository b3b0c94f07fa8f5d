/* check_observers.c - what an observer and a correcting rewriter are shown: sweeps that
 * repeat a layer, all experts on common tokens, routes as the router made them. */
#include "tests/support/lanes_fixtures.h"

/* ---- sweeps ------------------------------------------------------------------------- */

enum { SWEEPS = 3 };

typedef struct {
    const golden_case *c;
    golden_seen sweep[SWEEPS];
    exf_observer keep;
    int ended[GOLDEN_LAYERS], layers_ended, commons; /* sweeps that ended, layers that did, blocks of common tokens */
    float *logits;
} repeated;

static void sweeps_begin(repeated *r, const exf_moment *m)
{
    exf_err err;
    for (int i = 0; i < SWEEPS; i++) ck_ok(r->keep.at(&r->sweep[i], m, &err), err);
    r->commons = 0;
}

static exf_code sweeps_block(void *self, const exf_moe_block *b, exf_err *err)
{
    repeated *r = self;
    ck_assert_int_lt(b->sweep, SWEEPS);
    ck_assert_int_eq(b->sweep, r->ended[b->layer]); /* one sweep after the other */
    ck_assert(r->commons > 0); /* common tokens come before */
    return r->keep.block(&r->sweep[b->sweep], b, err);
}

static exf_code sweeps_common(void *self, const exf_common_input_block *b, exf_err *err)
{
    repeated *r = self;
    (void)err;
    ck_assert_int_eq(r->ended[b->layer], 0);
    r->commons++;
    return EXF_OK;
}

static exf_code sweeps_at(void *self, const exf_moment *m, exf_err *err)
{
    repeated *r = self;
    (void)err;
    switch (m->at) {
    case EXF_AT_LAYER_BEGIN: sweeps_begin(r, m); break;
    case EXF_AT_SWEEP_END: ck_assert_int_eq(m->sweep, r->ended[m->layer]++); break;
    case EXF_AT_LAYER_END:
        ck_assert_int_eq(r->ended[m->layer], SWEEPS);
        ck_assert_int_eq(m->moe_index, r->layers_ended++);
        ck_assert_ptr_nonnull(m->progress);
        break;
    default: ck_abort_msg("moment %d: of inputs nothing is shown, and there is no GPU", (int)m->at);
    }
    return EXF_OK;
}

static exf_code sweeps_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    repeated *r = self;
    (void)err;
    memcpy(r->logits + b->row * (size_t)b->vocab, b->logits, (size_t)b->n_tokens * (size_t)b->vocab * sizeof(float));
    return EXF_OK;
}

static void assert_same_sweeps(const repeated *r, const golden_seen *plain)
{
    size_t n = plain->n_rows, h = (size_t)plain->d_model, k = (size_t)plain->top_k;
    for (int l = 0; l < r->c->model->arch.n_layers; l++) {
        if (!r->c->model->arch.is_moe[l]) continue;
        for (int i = 0; i < SWEEPS; i++) {
            assert_same_bits(r->sweep[i].moe_input[l], plain->moe_input[l], n * h, r->c->family, "inputs of a sweep", l);
            assert_same_bits(r->sweep[i].ids[l], plain->ids[l], n * k, r->c->family, "ids of a sweep", l);
            assert_same_bits(r->sweep[i].weights[l], plain->weights[l], n * k, r->c->family, "weights of a sweep", l);
            assert_same_bits(r->sweep[i].expert_outputs[l], plain->expert_outputs[l], n * k * h, r->c->family, "outputs of a sweep",
                             l);
            assert_same_bits(r->sweep[i].routed[l], plain->routed[l], n * h, r->c->family, "routed outputs of a sweep", l);
            assert_same_bits(r->sweep[i].block[l], plain->block[l], n * h, r->c->family, "block outputs of a sweep", l);
        }
    }
    assert_same_bits(r->logits, plain->logits, n * (size_t)plain->vocab, r->c->family, "logits", -1);
}

START_TEST(sweeps_show_the_same_again)
{
    golden_case c;
    golden_seen plain;
    exf_err err = {.code = EXF_OK};
    golden_open(&c, golden_families[_i]);
    golden_forward(&plain, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    repeated r = {.c = &c};
    for (int i = 0; i < SWEEPS; i++) r.keep = golden_observer(&r.sweep[i], c.model, c.batch.n_tokens);
    r.logits = test_memory(c.batch.n_tokens * (size_t)c.model->arch.vocab, 4);
    exf_observer o = {.self = &r, .sweeps = SWEEPS, .common_input_tokens = 2, .at = sweeps_at, .block = sweeps_block,
                      .common_input = sweeps_common, .logits = sweeps_logits};
    exf_lane lane = {.observer = &o};
    exf_forward_options options = {.backend = &exf_backend_cpu, .threads = 1};
    exf_forward_report report;
    ck_ok(exf_forward(c.model, &c.batch, &lane, 1, &options, &report, &err), err);
    ck_assert_int_eq(r.layers_ended, c.model->arch.n_moe_layers);
    assert_same_sweeps(&r, &plain);
    for (int i = 0; i < SWEEPS; i++) golden_free(&r.sweep[i]);
    exf_mem_free(r.logits);
    golden_free(&plain);
    golden_close(&c);
}
END_TEST

/* A lane that is swept twice and one that is not, beside each other; none is changed. */
START_TEST(sweeps_of_one_lane_leave_the_others_alone)
{
    golden_case c;
    golden_seen plain, second;
    exf_err err = {.code = EXF_OK};
    golden_open(&c, golden_families[_i]);
    golden_forward(&plain, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    exf_observer twice = golden_observer(&second, c.model, c.batch.n_tokens), once = {.self = NULL};
    second.logits = test_memory(c.batch.n_tokens * (size_t)c.model->arch.vocab, 4);
    twice.sweeps = 2;
    exf_rewriter odd = {.rewrite = rewrite_oddly};
    exf_lane lanes[] = {{&odd, &once}, {NULL, &twice}};
    exf_forward_options options = {.backend = &exf_backend_cpu, .threads = 1};
    exf_forward_report report;
    ck_ok(exf_forward(c.model, &c.batch, lanes, 2, &options, &report, &err), err);
    assert_same_lane(&c, &plain, &second);
    golden_free(&plain);
    golden_free(&second);
    golden_close(&c);
}
END_TEST

/* ---- common tokens -------------------------------------------------------------------- */

typedef struct {
    const golden_case *c;
    int wanted;
    const golden_seen *plain;
    int shown[GOLDEN_LAYERS][16]; /* tokens so far, by layer and sequence */
} commons;

/* The i-th of n of T positions, as common_input.c documents it. */
static int position_of(int n_tokens, int wanted, int i)
{
    return n_tokens <= wanted ? i : (2 * i + 1) * n_tokens / (2 * wanted);
}

static void compare_slots(const commons *s, const exf_common_input_block *b, int i)
{
    size_t k = (size_t)b->top_k, h = (size_t)b->d_model, row = b->row[i];
    const golden_seen *p = s->plain;
    ck_assert_mem_eq(b->router_ids + (size_t)i * k, p->ids[b->layer] + row * k, k * sizeof(int32_t));
    ck_assert_mem_eq(b->router_weights + (size_t)i * k, p->weights[b->layer] + row * k, k * sizeof(float));
    for (size_t j = 0; j < k; j++) {
        int32_t id = p->ids[b->layer][row * k + j];
        double d = golden_distance((const float *)b->outputs + ((size_t)i * (size_t)b->n_experts + (size_t)id) * h,
                                   p->expert_outputs[b->layer] + (row * k + j) * h, h);
        ck_assert_msg(d <= 1e-5, "%s: layer %d, row %zu: expert %d on a common token is %.1e from its routed output", s->c->family,
                      b->layer, row, (int)id, d);
    }
}

static exf_code check_common(void *self, const exf_common_input_block *b, exf_err *err)
{
    commons *s = self;
    const exf_span *span = &s->c->batch.span[b->sequence];
    int *shown = &s->shown[b->layer][b->sequence];
    (void)err;
    ck_assert(b->n_experts == s->c->model->arch.n_experts && b->top_k == s->c->model->arch.top_k &&
              b->d_model == s->c->model->arch.d_model);
    for (int i = 0; i < b->n_tokens; i++, ++*shown) {
        ck_assert_uint_eq(b->row[i], span->offset + (size_t)position_of(span->n_tokens, s->wanted, *shown));
        compare_slots(s, b, i);
    }
    return EXF_OK;
}

START_TEST(common_tokens_are_evenly_spaced)
{
    static const int wanted[] = {1, 3, 8, 9, 23, 24, 1000};
    golden_case c;
    golden_seen plain;
    exf_err err = {.code = EXF_OK};
    golden_open(&c, golden_families[_i]);
    golden_forward(&plain, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++) {
        commons s = {.c = &c, .wanted = wanted[w], .plain = &plain};
        exf_observer o = {.self = &s, .common_input_tokens = wanted[w], .common_input = check_common};
        exf_lane lane = {.observer = &o};
        exf_forward_options options = {.backend = &exf_backend_cpu, .threads = 1};
        exf_forward_report report;
        ck_ok(exf_forward(c.model, &c.batch, &lane, 1, &options, &report, &err), err);
        for (int l = 0; l < c.model->arch.n_layers; l++)
            for (size_t i = 0; i < c.batch.n_sequences; i++) {
                int n = c.span[i].n_tokens < wanted[w] ? c.span[i].n_tokens : wanted[w];
                ck_assert_int_eq(s.shown[l][i], c.model->arch.is_moe[l] ? n : 0);
            }
    }
    golden_free(&plain);
    golden_close(&c);
}
END_TEST

/* The formula itself: in order, apart, inside, the middle for one. */
START_TEST(evenly_spaced_is_that)
{
    for (int n = 1; n < 70; n++)
        for (int wanted = 1; wanted <= n; wanted++) {
            for (int i = 0; i < wanted; i++) {
                int at = position_of(n, wanted, i);
                ck_assert(at >= 0 && at < n && (i == 0 || at > position_of(n, wanted, i - 1)));
            }
            ck_assert_int_eq(position_of(n, 1, 0), n > 1 ? n / 2 : 0);
        }
}
END_TEST

/* ---- corrections ------------------------------------------------------------------------ */

typedef struct {
    const golden_case *c;
    const golden_seen *plain;
    int blocks;
} correction;

/* Half of the slots are dropped by rewriting; the correction still sees all routes. */
static exf_code drop_half(void *self, exf_routes *r, exf_err *err)
{
    (void)self;
    (void)err;
    for (size_t i = 0; i < r->batch->n_tokens * (size_t)r->top_k; i++)
        if (i % (size_t)r->top_k >= (size_t)r->top_k / 2) r->ids[i] = -1;
    return EXF_OK;
}

static exf_code correct_by_row(void *self, const exf_moe_block *b, float *routed, exf_err *err)
{
    correction *s = self;
    size_t k = (size_t)b->top_k, h = (size_t)b->d_model, n = (size_t)b->n_tokens;
    (void)err;
    if (b->layer == first_moe_layer(&s->c->model->arch)) {
        assert_same_bits(b->router_ids, s->plain->ids[b->layer] + b->row * k, n * k, s->c->family, "the router's ids", b->layer);
        assert_same_bits(b->router_weights, s->plain->weights[b->layer] + b->row * k, n * k, s->c->family, "the router's weights",
                         b->layer);
        assert_same_bits(b->topk_weights, b->router_weights, n * k, s->c->family, "weights that nobody rewrote", b->layer);
        s->blocks++;
    }
    for (size_t i = 0; i < n * k; i++) {
        ck_assert_int_eq(b->topk_ids[i], i % k >= k / 2 ? -1 : b->router_ids[i]);
        if (b->topk_ids[i] < 0) /* a slot without an expert says nothing */
            for (size_t j = 0; j < h; j++) ck_assert(((const float *)b->expert_outputs)[i * h + j] == 0);
    }
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < h; j++) routed[t * h + j] += (float)(b->row + t + 1) / 64;
    return EXF_OK;
}

/* With and without the correction: the first layer's outputs differ by just what was added. */
START_TEST(corrections_reach_the_block)
{
    golden_case c;
    golden_seen plain;
    golden_open(&c, golden_families[_i]);
    golden_forward(&plain, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    correction s = {.c = &c, .plain = &plain};
    lanes_run r = {.n = 2, .rewriter = {{.rewrite = drop_half}, {.self = &s, .rewrite = drop_half, .correct = correct_by_row}}};
    lanes_forward(&r, &c, 1);
    int l = first_moe_layer(&c.model->arch);
    size_t h = (size_t)c.model->arch.d_model;
    ck_assert_int_eq(s.blocks, (int)c.batch.n_sequences);
    for (size_t i = 0; i < c.batch.n_tokens * h; i++) {
        float added = (float)(i / h + 1) / 64;
        ck_assert(r.seen[1].routed[l][i] == r.seen[0].routed[l][i] + added);
        float block = r.seen[0].block[l][i] + added;
        if (c.model->arch.residual.normed) continue; /* the sum's norm changes every element */
        ck_assert_msg(fabsf(r.seen[1].block[l][i] - block) <= 1e-5f * (1 + fabsf(block)),
                      "%s: element %zu of the block is %g, expected %g", c.family, i, (double)r.seen[1].block[l][i], (double)block);
    }
    ck_assert_msg(golden_distance(r.seen[1].logits, r.seen[0].logits, c.batch.n_tokens * (size_t)c.model->arch.vocab) > 1e-3,
                  "%s: the correction goes no further", c.family);
    lanes_free(&r);
    golden_free(&plain);
    golden_close(&c);
}
END_TEST

/* ---- refusals --------------------------------------------------------------------------- */

static exf_code refuse_rewrite(void *self, exf_routes *r, exf_err *err)
{
    (void)self;
    return r->moe_index == 1 ? exf_fail(err, EXF_USAGE, "not layer %d", r->layer) : EXF_OK;
}

static exf_code refuse_block(void *self, const exf_moe_block *b, exf_err *err)
{
    (void)self;
    return b->sequence == 1 ? exf_fail(err, EXF_NUMERIC, "no good") : EXF_OK;
}

static exf_code refuse_common(void *self, const exf_common_input_block *b, exf_err *err)
{
    (void)self;
    return b->sequence == 1 ? exf_fail(err, EXF_NUMERIC, "no good") : EXF_OK;
}

static exf_code refuse_correction(void *self, const exf_moe_block *b, float *routed, exf_err *err)
{
    (void)self;
    (void)b;
    (void)routed;
    return exf_fail(err, EXF_NUMERIC, "wrong vectors");
}

static exf_code refuse_probe(void *self, const exf_probe_block *b, exf_err *err)
{
    (void)self;
    return b->sequence == 0 ? exf_fail(err, EXF_NUMERIC, "no probe of layer %d", b->layer) : EXF_OK;
}

static exf_code refuse_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    (void)self;
    return b->sequence == 1 ? exf_fail(err, EXF_NUMERIC, "no logits") : EXF_OK;
}

START_TEST(what_a_door_refuses_ends_the_pass)
{
    static const exf_rewriter rewrite = {.rewrite = refuse_rewrite}, correct = {.correct = refuse_correction};
    static const exf_observer block = {.block = refuse_block}, common = {.common_input_tokens = 2, .common_input = refuse_common},
                              probe = {.probe = refuse_probe}, logits = {.logits = refuse_logits};
    static const struct { exf_lane lane; exf_code code; const char *says; } cases[] = {
        {{&rewrite, NULL}, EXF_USAGE, "not layer 1"},
        {{&correct, NULL}, EXF_NUMERIC, "wrong vectors"},
        {{NULL, &block}, EXF_NUMERIC, "layer 0, sequence 1, block at position 0: no good"},
        {{NULL, &common}, EXF_NUMERIC, "layer 0, sequence 1, common input: no good"},
        {{NULL, &probe}, EXF_NUMERIC, "no probe of layer 0"},
        {{NULL, &logits}, EXF_NUMERIC, "no logits"},
    };
    golden_case c;
    exf_err err = {.code = EXF_OK};
    golden_open(&c, "qwen3_moe");
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        exf_lane lanes[] = {{NULL, NULL}, cases[i].lane};
        exf_forward_options options = {.backend = &exf_backend_cpu, .threads = 2};
        exf_forward_report report;
        ck_fails(exf_forward(c.model, &c.batch, lanes, 2, &options, &report, &err), cases[i].code, err, cases[i].says);
    }
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    int n = golden_n_families();
    tcase_add_loop_test(t, sweeps_show_the_same_again, 0, n);
    tcase_add_loop_test(t, sweeps_of_one_lane_leave_the_others_alone, 0, n);
    tcase_add_loop_test(t, common_tokens_are_evenly_spaced, 0, n);
    tcase_add_test(t, evenly_spaced_is_that);
    tcase_add_loop_test(t, corrections_reach_the_block, 0, n);
    tcase_add_test(t, what_a_door_refuses_ends_the_pass);
}
