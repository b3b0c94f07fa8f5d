/* check_device_corrections.c - a variant's corrections on a device without one (fake_device.h):
 * they are the host's bit for bit, wherever blocks are cut and whichever layer comes next; what
 * is held is what the variant says it will hold. */
#include "tests/support/fake_device.h"
#include "tests/support/fold_fixtures.h"

static const uint64_t plenty = (uint64_t)1 << 40;
static const char *const texts[] = {
    "P1:projector=diagonal", "P2:projector=diagonal,rank=norm", "P3:projector=diagonal,max_loss=0.4",
    "P1:projector=lowrank2", "P2:projector=lowrank3",           "P2:projector=lowrank3,rank=score,max_loss=0.6",
    "P4:projector=lowrank2"};
enum { TEXTS = sizeof texts / sizeof *texts };

typedef struct {
    exf_routes after; /* rewritten */
    float *outputs;   /* [T, K, H] */
    float *routed;    /* [T, H] */
} layer_run;

static layer_run run_new(const fold_case *c, exf_fold_rewriter *f, int layer, int by_token)
{
    layer_run r = {.after = f_routes(c, layer)};
    r.after.by_token = by_token;
    f_rewrite(f, &r.after);
    r.outputs = naive_numbers(F_TOKENS * (size_t)c->arch.top_k * F_H, 81 + (uint64_t)layer, 1);
    r.routed = naive_numbers(F_TOKENS * F_H, 91 + (uint64_t)layer, 1);
    return r;
}

static void run_free(layer_run *r)
{
    f_free_routes(&r->after);
    exf_mem_free(r->outputs);
    exf_mem_free(r->routed);
}

static void correct_here(const fold_case *c, exf_fold_rewriter *f, const layer_run *r)
{
    exf_err err;
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    size_t k = (size_t)c->arch.top_k;
    for (size_t s = 0; s < F_SEQUENCES; s++) {
        size_t row = c->span[s].offset;
        exf_moe_block b = {.layer = r->after.layer,
                           .moe_index = r->after.moe_index,
                           .sequence = s,
                           .row = row,
                           .n_tokens = c->span[s].n_tokens,
                           .n_experts = c->arch.n_experts,
                           .top_k = c->arch.top_k,
                           .d_model = F_H,
                           .router_ids = c->ids + row * k,
                           .router_weights = c->weights + row * k,
                           .topk_ids = r->after.ids + row * k,
                           .topk_weights = r->after.weights + row * k,
                           .expert_outputs = r->outputs + row * k * F_H};
        ck_ok(w->correct(w->self, &b, r->routed + row * F_H, &err), err);
    }
}

/* In blocks of `piece` tokens of the run, which end within sequences and span several. */
static void correct_there(const fold_case *c, exf_fold_rewriter *f, const layer_run *r, exf_queue *q, int piece)
{
    exf_err err;
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    size_t k = (size_t)c->arch.top_k;
    for (int at = 0; at < F_TOKENS; at += piece) {
        size_t row = (size_t)at;
        exf_moe_block b = {.layer = r->after.layer,
                              .moe_index = r->after.moe_index,
                              .batch = &c->batch,
                              .row = row,
                              .n_tokens = F_TOKENS - at < piece ? F_TOKENS - at : piece,
                              .n_experts = c->arch.n_experts,
                              .top_k = c->arch.top_k,
                              .d_model = F_H,
                              .q = q,
                              .expert_outputs = r->outputs + row * k * F_H,
                              .router_ids = c->ids + row * k,
                              .router_weights = c->weights + row * k,
                              .topk_ids = r->after.ids + row * k,
                              .topk_weights = r->after.weights + row * k};
        ck_ok(w->correct(w->self, &b, r->routed + row * F_H, &err), err);
    }
}

static void check_layers(const fold_case *c, const char *text, const exf_backend *b, exf_queue *q[2], int piece)
{
    static const int layers[] = {1, 3, 2, 3, 1}; /* 2 has no tables; layers come again, as in a second pass */
    exf_variant v;
    exf_err err;
    uint64_t before, now, peak;
    exf_fold_rewriter *f = f_folder(c, &v, text);
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    b->gpu->memory(&before, &peak);
    ck_ok(w->device_open(w->self, b, &err), err);
    b->gpu->memory(&now, &peak);
    ck_assert_uint_eq(now - before, w->device_bytes);
    for (int i = 0; i < 5; i++) {
        layer_run here = run_new(c, f, layers[i], 0), there = run_new(c, f, layers[i], 0);
        correct_here(c, f, &here);
        correct_there(c, f, &there, q[i % 2], piece);
        for (size_t at = 0; at < F_TOKENS * F_H; at++)
            ck_assert_msg(here.routed[at] == there.routed[at], "%s: layer %d, row %zu: %.9g, expected %.9g", text, layers[i],
                          at / F_H, (double)there.routed[at], (double)here.routed[at]);
        run_free(&here);
        run_free(&there);
    }
    exf_fold_rewriter_free(f);
    b->gpu->memory(&now, &peak);
    ck_assert_uint_eq(now, before);
}

START_TEST(a_device_corrects_as_the_host)
{
    static const int splits[] = {0, 2, 40}, pieces[] = {F_TOKENS, 32, 1};
    exf_err err;
    const exf_backend *b = fake_device(plenty);
    exf_queue *q[2];
    fold_case c;
    for (int i = 0; i < 2; i++) ck_ok(b->open(&q[i], EXF_COMPUTE_F32, &err), err);
    fold_open(&c, 8, 4, splits[_i], 1);
    for (int i = 0; i < TEXTS; i++)
        for (int p = 0; p < 3; p++) check_layers(&c, texts[i], b, q, pieces[p]);
    fold_close(&c);
    for (int i = 0; i < 2; i++) b->close(q[i]);
}
END_TEST

/* A layer that routes by token id is never folded, so nothing was omitted that could be added. */
START_TEST(layers_that_were_not_rewritten_are_left_alone)
{
    exf_err err;
    const exf_backend *b = fake_device(plenty);
    exf_queue *q;
    fold_case c;
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &err), err);
    fold_open(&c, 8, 4, 0, 1);
    for (int i = 0; i < TEXTS; i++) {
        exf_variant v;
        exf_fold_rewriter *f = f_folder(&c, &v, texts[i]);
        const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
        layer_run r = run_new(&c, f, 4, 1);
        float *before = naive_numbers(F_TOKENS * F_H, 91 + 4, 1);
        correct_here(&c, f, &r);
        ck_assert_msg(memcmp(r.routed, before, F_TOKENS * F_H * sizeof *before) == 0, "%s: the host corrects a hash layer",
                      texts[i]);
        ck_ok(w->device_open(w->self, b, &err), err);
        correct_there(&c, f, &r, q, F_TOKENS);
        ck_assert_msg(memcmp(r.routed, before, F_TOKENS * F_H * sizeof *before) == 0, "%s: the device corrects a hash layer",
                      texts[i]);
        exf_mem_free(before);
        run_free(&r);
        exf_fold_rewriter_free(f);
    }
    fold_close(&c);
    b->close(q);
}
END_TEST

START_TEST(baselines_need_no_device)
{
    static const char *const scalars[] = {"random2", "random1+D2", "sere2", "D2:fold=random"};
    fold_case c;
    fold_open(&c, 8, 4, 0, 1);
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        exf_variant v;
        exf_fold_rewriter *f = f_folder(&c, &v, scalars[i]);
        const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
        ck_assert(!w->device_rewrite && !w->correct && w->device_bytes == 0);
        exf_fold_rewriter_free(f);
    }
    fold_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, a_device_corrects_as_the_host, 0, 3);
    tcase_add_test(t, layers_that_were_not_rewritten_are_left_alone);
    tcase_add_test(t, baselines_need_no_device);
}
