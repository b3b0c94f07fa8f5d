/* replay.c - see replay.h. */
#include "forward/replay.h"

#include "base/mem.h"
#include "base/stop.h"
#include "forward/each.h"
#include "forward/experts.h"
#include "forward/routing.h"
#include "kernels/moe/router.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Consecutive tokens of one sequence. */
typedef struct {
    size_t sequence;
    int position, n_tokens;
} piece;

typedef struct {
    exf_experts_space experts;
    float *logits, *weights;
    int32_t *ids;
} block_space;

typedef struct {
    const exf_model *model;
    const exf_batch *batch;
    const exf_recorded *recorded;
    const exf_observer *observer;
    exf_layer_weights weights_now;
    piece *pieces;
    size_t n_pieces;
    exf_workspace *space;
    int n_workers, layer, moe_index;
} replay;

static size_t count_pieces(const exf_batch *batch)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_sequences; i++) n += ((size_t)batch->span[i].n_tokens + EXF_MOE_BLOCK - 1) / EXF_MOE_BLOCK;
    return n;
}

int exf_replay_workers(const exf_batch *batch, int threads)
{
    size_t n = threads > 0 ? (size_t)threads : (size_t)omp_get_max_threads(), most = count_pieces(batch);
    return (int)(n < most ? n : most);
}

static void carve(block_space *s, exf_arena *arena, const exf_architecture *a, int n_tokens)
{
    size_t n = (size_t)n_tokens;
    exf_carve_experts(&s->experts, arena, a, n_tokens, 0);
    s->logits = exf_arena_take(arena, n * (size_t)a->n_experts);
    s->weights = exf_arena_take(arena, n * (size_t)a->top_k);
    s->ids = (int32_t *)exf_arena_take(arena, n * (size_t)a->top_k);
}

static int block_of(const exf_batch *batch)
{
    return batch->max_tokens < EXF_MOE_BLOCK ? batch->max_tokens : EXF_MOE_BLOCK;
}

static size_t block_floats(const exf_architecture *a, const exf_batch *batch)
{
    exf_arena arena = {NULL, 0};
    block_space space;
    carve(&space, &arena, a, block_of(batch));
    return arena.used;
}

/* ---- one block ------------------------------------------------------------------ */

static exf_code route(const replay *p, const piece *b, size_t row, const block_space *s, exf_workspace *w, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    if (p->recorded->has_routes[p->layer])
        return p->recorded->routes(p->recorded->self, p->layer, row, (size_t)b->n_tokens, s->ids, s->weights, err);
    const int32_t *tokens = p->batch->ids ? p->batch->ids + row : NULL;
    exf_routing_run(w, s->ids, s->weights, exf_f32(s->experts.input), tokens, b->n_tokens, a, &p->weights_now, NULL, s->logits);
    return EXF_OK;
}

static exf_code check_finite(const replay *p, const piece *b, const float *output, exf_err *err)
{
    size_t h = (size_t)p->model->arch.d_model;
    for (size_t i = 0; i < (size_t)b->n_tokens * h; i++)
        if (!isfinite(output[i]))
            return exf_fail(err, EXF_NUMERIC, "layer %d: the output of sequence %zu at position %d is not finite", p->layer, b->sequence,
                            b->position + (int)(i / h));
    return EXF_OK;
}

static exf_code show(const replay *p, const piece *b, size_t row, const block_space *s, int worker, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    const exf_experts_space *e = &s->experts;
    if (!p->observer->block) return EXF_OK;
    exf_moe_block block = {
        .layer = p->layer, .moe_index = p->moe_index, .sequence = b->sequence, .row = row, .position = b->position, .n_tokens = b->n_tokens,
        .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .worker = worker,
        .moe_input = e->input, .router_ids = s->ids, .router_weights = s->weights, .topk_ids = s->ids, .topk_weights = s->weights,
        .expert_outputs = e->outputs, .routed_output = e->routed, .block_output = e->block,
    };
    exf_code rc = p->observer->block(p->observer->self, &block, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, block at position %d: ", p->layer, b->sequence, b->position);
    return rc;
}

static exf_code run_piece(void *self, size_t i, int worker, exf_err *err)
{
    const replay *p = self;
    const piece *b = &p->pieces[i];
    const exf_architecture *a = &p->model->arch;
    size_t row = p->batch->span[b->sequence].offset + (size_t)b->position;
    exf_workspace *w = &p->space[worker];
    exf_arena arena = {w->floats, 0};
    block_space s;
    exf_code rc;
    double start = exf_clock(), routed, ran;
    carve(&s, &arena, a, b->n_tokens);
    EXF_TRY(p->recorded->input(p->recorded->self, p->layer, row, (size_t)b->n_tokens, s.experts.input, err));
    EXF_TRY(route(p, b, row, &s, w, err));
    routed = exf_clock();
    exf_experts_run(w, b->n_tokens, s.ids, a, &p->weights_now, &s.experts);
    exf_experts_combine(w, b->n_tokens, s.weights, a, &s.experts);
    exf_shared_experts_run(w, b->n_tokens, a, &p->weights_now, &s.experts);
    ran = exf_clock();
    EXF_TRY(check_finite(p, b, s.experts.block, err));
    EXF_TRY(show(p, b, row, &s, worker, err));
    w->times.router += routed - start;
    w->times.experts += ran - routed;
    w->times.observe += exf_clock() - ran;
out:
    return rc;
}

/* ---- layers ---------------------------------------------------------------------- */

static exf_code check_layer(const replay *p, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    if (!a->is_moe[p->layer]) return exf_fail(err, EXF_MODEL, "layer %d is dense: there is nothing to replay", p->layer);
    if (!p->batch->ids && !p->recorded->has_routes[p->layer] && exf_model_copies(p->model, EXF_W_ROUTER_TABLE, p->layer))
        return exf_fail(err, EXF_MODEL, "layer %d chooses experts by token: without token ids its routes must be recorded too", p->layer);
    return EXF_OK;
}

static exf_code run_layer(replay *p, exf_progress *progress, exf_forward_report *report, exf_err *err)
{
    const exf_observer *o = p->observer;
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(check_layer(p, err));
    EXF_TRY(exf_layer_weights_read(&p->weights_now, p->model, p->layer, err));
    progress->weight_bytes = exf_model_layer_bytes(p->model, p->layer);
    report->weight_bytes += progress->weight_bytes;
    report->read += exf_clock() - start;
    if (o->layer_begin) EXF_TRY(o->layer_begin(o->self, p->layer, p->moe_index, err));
    EXF_TRY(exf_each(p->n_pieces, p->n_workers, run_piece, p, err));
    if (o->layer_end) EXF_TRY(o->layer_end(o->self, p->layer, p->moe_index, progress, err));
    progress->seconds = exf_clock() - start;
    exf_progress_layer(progress);
out:
    return rc;
}

static exf_code run_layers(replay *p, exf_forward_report *report, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    int n = 0, done = 0;
    exf_code rc = EXF_OK;
    for (int l = 0; l < a->n_layers; l++) n += p->recorded->has_input[l] != 0;
    for (int l = 0; rc == EXF_OK && l < a->n_layers; l++) {
        p->layer = l;
        if (p->recorded->has_input[l]) {
            exf_progress progress = {.layer = l, .n_layers = n, .done = ++done, .tokens = p->batch->n_tokens, .n_experts = a->n_experts};
            rc = run_layer(p, &progress, report, err);
        }
        p->moe_index += a->is_moe[l];
    }
    exf_progress_end();
    return rc;
}

static exf_code open_replay(replay *p, exf_err *err)
{
    exf_code rc;
    const exf_architecture *a = &p->model->arch;
    size_t n = 0;
    EXF_TRY(exf_mem_new(&p->pieces, p->n_pieces, sizeof *p->pieces, "blocks", err));
    for (size_t i = 0; i < p->batch->n_sequences; i++)
        for (int at = 0, left; (left = p->batch->span[i].n_tokens - at) > 0; at += EXF_MOE_BLOCK)
            p->pieces[n++] = (piece){i, at, left < EXF_MOE_BLOCK ? left : EXF_MOE_BLOCK};
    EXF_TRY(exf_mem_new(&p->space, (size_t)p->n_workers, sizeof *p->space, "workspaces", err));
    for (int i = 0; i < p->n_workers; i++)
        EXF_TRY(exf_workspace_sized(&p->space[i], &exf_backend_cpu, EXF_COMPUTE_F32, a, block_floats(a, p->batch), block_of(p->batch), 0, err));
    p->weights_now.b = &exf_backend_cpu;
out:
    return rc;
}

static void close_replay(replay *p, exf_forward_report *report)
{
    exf_layer_weights_free(&p->weights_now);
    for (int i = 0; p->space && i < p->n_workers; i++) {
        report->router += p->space[i].times.router;
        report->experts += p->space[i].times.experts;
        report->observe += p->space[i].times.observe;
        exf_workspace_free(&p->space[i]);
    }
    exf_mem_free(p->space);
    exf_mem_free(p->pieces);
}

exf_code exf_replay(const exf_model *m, const exf_batch *batch, const exf_recorded *recorded, const exf_observer *observer, int threads,
                    exf_forward_report *report, exf_err *err)
{
    exf_code rc;
    double start = exf_clock();
    replay p = {.model = m, .batch = batch, .recorded = recorded, .observer = observer, .n_pieces = count_pieces(batch),
                .n_workers = exf_replay_workers(batch, threads)};
    memset(report, 0, sizeof *report);
    report->workers = p.n_workers;
    EXF_TRY(open_replay(&p, err));
    if (observer->begin) EXF_TRY(observer->begin(observer->self, p.n_workers, err));
    EXF_TRY(run_layers(&p, report, err));
out:
    close_replay(&p, report);
    report->wall = exf_clock() - start;
    return rc;
}

double exf_replay_flops(const exf_architecture *a, const exf_batch *batch, int n_layers)
{
    double h = a->d_model, token = 2 * h * a->n_experts + 6 * h * (a->top_k * (double)a->d_expert + a->d_shared);
    return (double)batch->n_tokens * n_layers * token;
}

uint64_t exf_replay_memory(const exf_model *m, const exf_batch *batch, int threads)
{
    uint64_t bytes_each = sizeof(float) * block_floats(&m->arch, batch) + sizeof(double) * (uint64_t)exf_router_scratch(m->arch.n_experts);
    return sizeof(float) * exf_layer_weights_size(m) + (uint64_t)exf_replay_workers(batch, threads) * bytes_each;
}
