/* replay.c - see replay.h. */
#include "pass/replay.h"

#include "base/mem.h"
#include "base/stop.h"
#include "base/thread_pool.h"
#include "pass/memory_plan.h"
#include "pass/forward.h"
#include "pass/work.h"
#include "kernels/linear/linear.h"
#include "pass/moe_engine.h"
#include "pass/moe_layer.h"
#include "weights/host_loader.h"
#include "weights/weight_loader.h"

#include <string.h>

typedef struct {
    const exf_recorded *recorded;
    const exf_observer *observer;
    exf_lane lane;
    exf_layer_weights weights_now;
    exf_weight_loader *loader; /* on a GPU */
    exf_host_loader *host_loader; /* on the CPU */
    exf_recorded_stage stage;  /* on a GPU */
    exf_route_set routes;
    exf_stage_clock *clock;    /* on a GPU, unless the replay is timed */
    int32_t *tokens;           /* the batch's ids in the backend's memory; NULL: not recorded */
    uint64_t *not_finite;      /* used on a GPU only; see exf_moe_layer */
    exf_workspace *space;      /* [layer.n_workers] */
    int threads;               /* exf_forward_options.threads */
    exf_moe_layer layer;       /* arguments of the layer that is replayed */
} replay;

static const exf_backend *backend_of(const exf_forward_options *o)
{
    return o->backend ? o->backend : &exf_backend_cpu;
}

int exf_replay_workers(const exf_backend *b, const exf_batch *batch, int threads)
{
    size_t n = threads > 0 ? (size_t)threads : (size_t)exf_default_threads(), most = exf_moe_blocks(batch);
    return b->gpu ? 1 : (int)(n < most ? n : most);
}

/* ---- sizes ------------------------------------------------------------------------------- */

static exf_moe_needs needs_of(const exf_backend *b, const exf_architecture *a, const exf_demand *d)
{
    exf_moe_needs needs = exf_moe_needs_of(b, a, d);
    needs.input = needs.logits = needs.block = 1;
    needs.sent = b->gpu != NULL;
    return needs;
}

typedef struct {
    exf_weight_loader_options loader;
    int block_tokens;
    size_t floats, mirror;
    exf_demand demand;
    exf_moe_needs needs;
    exf_forward_footprint footprint;
} replay_plan;

static void plan_host(replay_plan *p, const exf_model *m, const exf_batch *batch, int threads)
{
    const exf_backend *b = &exf_backend_cpu;
    p->block_tokens = exf_host_block(batch->max_tokens);
    p->floats = exf_moe_arrays_floats(b, EXF_COMPUTE_F32, &m->arch, p->block_tokens, &p->needs);
    p->footprint.host = sizeof(float) * exf_layer_weights_size(m) + exf_route_set_bytes(batch->n_tokens, m->arch.top_k) +
                        (uint64_t)exf_replay_workers(b, batch, threads) * exf_workspace_bytes(&m->arch, p->floats);
}

static void plan_tokens(replay_plan *p, const exf_forward_options *o, const exf_model *m, const exf_batch *batch)
{
    exf_compute compute = (exf_compute)o->compute;
    uint64_t routes = exf_route_set_bytes(batch->n_tokens, m->arch.top_k) + batch->n_tokens * sizeof(int32_t);
    p->floats = exf_moe_arrays_floats(o->backend, compute, &m->arch, p->block_tokens, &p->needs);
    p->mirror = exf_mirror_floats(o->backend, &m->arch, p->block_tokens, &p->demand);
    uint64_t sent = exf_recorded_stage_bytes((size_t)p->block_tokens, (size_t)m->arch.d_model);
    p->footprint.device = exf_memory_queue_bytes() + sent + p->demand.observers + routes +
                          exf_workspace_bytes(&m->arch, p->floats) +
                          (uint64_t)p->loader.n_slots * exf_weight_loader_slot_bytes(m, compute, &p->loader) +
                          exf_weight_loader_reader_bytes(m, compute, &p->loader);
    p->footprint.host = routes + sent + exf_weight_loader_host_bytes(&p->loader) + p->mirror * sizeof(float);
}

/* Chooses two weight slots if they fit with any size of block, and then the largest blocks of tokens. */
static exf_code plan_gpu(replay_plan *p, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                         exf_err *err)
{
    enum { MOST = 16384, LEAST = 512 };
    uint64_t most;
    exf_code rc = exf_memory_limit(&most, o, err);
    if (rc != EXF_OK) return rc;
    for (p->loader.n_slots = 2; p->loader.n_slots > 0; p->loader.n_slots--)
        for (int tokens = MOST; tokens >= LEAST; tokens /= 2) {
            p->block_tokens = batch->n_tokens < (size_t)tokens ? (int)batch->n_tokens : tokens;
            plan_tokens(p, o, m, batch);
            if (p->footprint.device <= most) return EXF_OK;
        }
    return exf_memory_too_little(o, p->footprint.device, err);
}

static exf_code make_plan(replay_plan *p, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                          const exf_recorded *recorded, const exf_observer *observer, exf_err *err)
{
    const exf_backend *b = backend_of(o);
    exf_lane lane = {.observer = observer};
    *p = (replay_plan){.footprint.reads = 1, .demand = exf_demand_of(&lane, 1, b),
                       .loader = {.n_readers = o->readers, .n_layers = m->arch.n_layers, .chosen = recorded->has_input,
                                  .shared = o->shared_chunks}};
    p->demand.head = 0;
    p->needs = needs_of(b, &m->arch, &p->demand);
    if (b->gpu) return plan_gpu(p, o, m, batch, err);
    plan_host(p, m, batch, o->threads);
    return EXF_OK;
}

exf_code exf_replay_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m, const exf_batch *batch,
                           const exf_recorded *recorded, const exf_observer *observer, exf_err *err)
{
    replay_plan p;
    exf_code rc = make_plan(&p, options, m, batch, recorded, observer, err);
    *f = p.footprint;
    return rc;
}

double exf_replay_flops(const exf_architecture *a, const exf_batch *batch, int n_layers)
{
    return (double)batch->n_tokens * n_layers * exf_work_moe_flops(a);
}

/* ---- layers ------------------------------------------------------------------------------- */

static exf_code check_layer(const replay *p, exf_err *err)
{
    const exf_moe_layer *l = &p->layer;
    if (!l->model->arch.is_moe[l->layer])
        return exf_fail(err, EXF_MODEL, "layer %d is dense: there is nothing to replay", l->layer);
    if (!l->batch->ids && !p->recorded->has_routes[l->layer] && exf_model_copies(l->model, EXF_W_ROUTER_TABLE, l->layer))
        return exf_fail(err, EXF_MODEL, "layer %d chooses experts by token: without token ids its routes must be recorded too",
                        l->layer);
    return EXF_OK;
}

static exf_code load_weights(replay *p, exf_err *err)
{
    exf_code rc;
    exf_progress_turn(EXF_WORK_READ);
    rc = p->loader ? exf_weight_loader_next(p->loader, &p->weights_now, err)
                   : exf_host_loader_layer(p->host_loader, &p->weights_now, p->threads, err);
    exf_progress_add((double)exf_model_layer_bytes(p->layer.model, p->layer.layer));
    return rc;
}

static exf_code run_layer(replay *p, exf_progress *progress, exf_forward_report *report, exf_err *err)
{
    exf_moe_layer *l = &p->layer;
    const exf_observer *o = p->observer;
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(check_layer(p, err));
    EXF_TRY(load_weights(p, err));
    progress->weight_bytes = exf_model_layer_bytes(l->model, l->layer);
    report->weight_bytes += progress->weight_bytes;
    report->read += exf_clock() - start;
    if (o->layer_begin) EXF_TRY(o->layer_begin(o->self, l->layer, l->moe_index, err));
    exf_progress_turn(l->space[0].b->gpu ? EXF_WORK_REST : EXF_WORK_EXPERTS);
    EXF_TRY(l->engine->run(l, err));
    EXF_TRY(l->engine->check(l, err));
    exf_stage_clock_read(p->clock);
    exf_progress_turn(EXF_WORK_REST);
    EXF_TRY(exf_model_layer_done(l->model, l->layer, err));
    if (o->layer_end) EXF_TRY(o->layer_end(o->self, l->layer, l->moe_index, progress, err));
    exf_progress_add(1);
    progress->seconds = exf_clock() - start;
    exf_progress_layer(progress);
out:
    return rc;
}

static exf_code run_layers(replay *p, exf_forward_report *report, exf_err *err)
{
    const exf_architecture *a = &p->layer.model->arch;
    int n = 0, done = 0;
    exf_code rc = EXF_OK;
    for (int l = 0; l < a->n_layers; l++) n += p->recorded->has_input[l] != 0;
    for (int l = 0; rc == EXF_OK && l < a->n_layers; l++) {
        p->layer.layer = l;
        if (p->recorded->has_input[l]) {
            exf_progress progress = {
                .layer = l, .n_layers = n, .done = ++done, .tokens = p->layer.batch->n_tokens, .n_experts = a->n_experts};
            rc = run_layer(p, &progress, report, err);
        }
        p->layer.moe_index += a->is_moe[l];
    }
    return rc;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static void read_clock(void *clock)
{
    exf_stage_clock_read(clock);
}

static exf_code open_gpu(replay *p, const exf_backend *b, const replay_plan *plan, exf_compute compute, int threads, exf_err *err)
{
    const exf_moe_layer *l = &p->layer;
    exf_queue *q = p->space[0].q;
    exf_code rc;
    b->gpu->memory_reset_peak();
    EXF_TRY(exf_weight_loader_open(&p->loader, l->model, b, compute, &plan->loader, err));
    EXF_TRY(
        exf_recorded_stage_open(&p->stage, b, compute, (size_t)plan->block_tokens, (size_t)l->model->arch.d_model, threads, err));
    EXF_TRY(exf_moe_not_finite_new(&p->not_finite, b, q, err));
    if (l->batch->ids) {
        EXF_TRY(b->alloc(&p->tokens, l->batch->n_tokens, sizeof *p->tokens, "tokens", err));
        b->upload(q, p->tokens, l->batch->ids, l->batch->n_tokens * sizeof *p->tokens);
    }
    EXF_TRY(b->finish(q, err));
    if (p->observer->device_open) EXF_TRY(p->observer->device_open(p->observer->self, b, err));
    p->layer.not_finite = p->not_finite;
    p->layer.stage = &p->stage;
    if (!p->layer.timed) {
        EXF_TRY(exf_stage_clock_new(&p->clock, b, err));
        p->space[0].clock = p->clock;
        exf_progress_poll(read_clock, p->clock);
    }
    p->layer.tokens = p->tokens;
out:
    return rc;
}

static exf_code open_replay(replay *p, const exf_forward_options *o, exf_err *err)
{
    const exf_backend *b = backend_of(o);
    exf_moe_layer *l = &p->layer;
    exf_compute compute = (exf_compute)o->compute;
    replay_plan plan;
    exf_code rc;
    EXF_TRY(exf_blas_reserve_cpu(l->n_workers, err));
    EXF_TRY(make_plan(&plan, o, l->model, l->batch, p->recorded, p->observer, err));
    EXF_TRY(exf_mem_new(&p->space, (size_t)l->n_workers, sizeof *p->space, "workspaces", err));
    for (int i = 0; i < l->n_workers; i++)
        EXF_TRY(exf_workspace_new(&p->space[i], b, compute, &l->model->arch, plan.floats, plan.mirror, err));
    EXF_TRY(exf_route_set_new(&p->routes, b, l->batch->n_tokens, l->model->arch.top_k, err));
    p->weights_now.b = b;
    l->space = p->space;
    l->block_tokens = plan.block_tokens;
    l->needs = plan.needs;
    l->group = (exf_sequence_group){0, l->batch->n_sequences, 0, l->batch->n_tokens};
    if (p->observer->begin) EXF_TRY(p->observer->begin(p->observer->self, l->n_workers, err));
    if (b->gpu)
        rc = open_gpu(p, b, &plan, compute, o->threads, err);
    else
        rc = exf_host_loader_open(&p->host_loader, l->model, &plan.loader, err);
out:
    return rc;
}

static void close_replay(replay *p, const exf_backend *b, exf_forward_report *report)
{
    exf_weight_loader_times times = {.reading = 0};
    uint64_t now;
    if (b->gpu) {
        b->gpu->memory(&now, &report->device_bytes);
        exf_weight_loader_close(p->loader, &times);
        exf_recorded_stage_close(&p->stage);
        b->free(p->tokens);
        b->free(p->not_finite);
    }
    report->own_bytes = p->host_loader ? exf_host_loader_bytes(p->host_loader) : times.bytes;
    exf_host_loader_close(p->host_loader);
    report->reading = times.reading;
    report->sending = times.sending;
    report->readers = times.readers;
    exf_layer_weights_free(&p->weights_now);
    exf_route_set_free(&p->routes);
    exf_report_add_times(report, p->space, p->layer.n_workers);
    for (int i = 0; p->space && i < p->layer.n_workers; i++) exf_workspace_free(&p->space[i]);
    exf_stage_clock_free(p->clock); /* no queue writes to it any more */
    exf_mem_free(p->space);
}

exf_code exf_replay(const exf_model *m, const exf_batch *batch, const exf_recorded *recorded, const exf_observer *observer,
                    const exf_forward_options *options, exf_forward_report *report, exf_err *err)
{
    exf_code rc;
    double start = exf_clock(), done;
    const exf_backend *b = backend_of(options);
    replay p = {.recorded = recorded, .observer = observer, .lane = {.observer = observer}, .threads = options->threads};
    p.layer = (exf_moe_layer){.engine = exf_moe_engine_of(b), .model = m, .batch = batch, .tokens = batch->ids,
                              .weights = &p.weights_now,
                              .n_workers = exf_replay_workers(b, batch, options->threads), .timed = options->timed, .lane = &p.lane,
                              .routes = &p.routes, .router_routes = &p.routes, .recorded = recorded, .last = 1,
                              .work = EXF_WORK_EXPERTS};
    memset(report, 0, sizeof *report);
    report->workers = p.layer.n_workers;
    report->work = exf_work_of_replay(m, batch, recorded->has_input);
    exf_progress_begin(options->sample ? "" : "layer", (int)report->work.kind[EXF_WORK_REST].planned, &report->work, EXF_WORK_READ);
    EXF_TRY(open_replay(&p, options, err));
    report->open = exf_clock() - start;
    EXF_TRY(run_layers(&p, report, err));
out:
    exf_progress_end();
    done = exf_clock();
    close_replay(&p, b, report);
    report->close = exf_clock() - done;
    report->wall = exf_clock() - start;
    return rc;
}
