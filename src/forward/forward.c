/* forward.c - the pass: lanes over layers over sequences; see forward.h. */
#include "forward/forward.h"

#include "base/mem.h"
#include "base/stop.h"
#include "forward/device_experts.h"
#include "forward/head_step.h"
#include "forward/memory_plan.h"
#include "mixers/mixer.h"
#include "kernels/backend.h"

#include <omp.h>
#include <string.h>

int exf_forward_workers(const exf_backend *backend, const exf_batch *batch, int threads)
{
    if (!backend->host_memory) return 1;
    size_t n = threads > 0 ? (size_t)threads : (size_t)omp_get_max_threads();
    return (int)(n < batch->n_sequences ? n : batch->n_sequences);
}

/* A probe whose retained experts make routes of their own, which its correction is to see. */
static int keeps_made(const exf_lane *lane)
{
    return lane->observer && lane->observer->probe && lane->rewriter && lane->rewriter->retained_experts && lane->rewriter->correct;
}

exf_demand exf_demand_of(const exf_lane *lanes, size_t n_lanes)
{
    exf_demand d = {.lanes = n_lanes};
    for (size_t i = 0; i < n_lanes; i++) {
        const exf_observer *o = lanes[i].observer;
        d.corrects |= lanes[i].rewriter && lanes[i].rewriter->correct;
        if (!o) continue;
        d.head |= o->logits != NULL;
        d.scored |= o->device_logits != NULL;
        d.observers += o->device_bytes;
        d.probes += i > 0 && o->probe;
        d.pruned += i > 0 && keeps_made(&lanes[i]);
        if (o->common_input && o->common_input_tokens > d.common_input) d.common_input = o->common_input_tokens;
        if (o->sweeps > d.sweeps) d.sweeps = o->sweeps;
    }
    return d;
}

static exf_code open_tokens(exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    p->tokens_device = (int32_t *)(uintptr_t)p->batch->ids; /* read only */
    if (p->b->host_memory) return EXF_OK;
    p->tokens_device = NULL;
    EXF_TRY(p->b->alloc(&p->tokens_device, p->batch->n_tokens + 1, sizeof *p->tokens_device, "tokens", err));
    p->b->upload(p->space[0].q, p->tokens_device, p->batch->ids, p->batch->n_tokens * sizeof *p->tokens_device);
    EXF_TRY(p->b->finish(p->space[0].q, err));
out:
    return rc;
}

static exf_code open_route_set(exf_pass *p, exf_route_set *set, exf_err *err)
{
    return exf_route_set_new(set, p->b, p->batch->n_tokens, p->model->arch.top_k, err);
}

/* Routes: the lane's under way always, the others only where someone needs them. */
static exf_code open_routes(exf_pass *p, exf_err *err)
{
    exf_code rc;
    size_t n_experts = (size_t)p->model->arch.n_experts;
    int masks = 0;
    EXF_TRY(open_route_set(p, &p->routes, err));
    EXF_TRY(exf_mem_new(&p->probe, p->n_lanes, sizeof *p->probe, "probes", err));
    EXF_TRY(exf_mem_new(&p->probe_router_routes, p->n_lanes, sizeof *p->probe_router_routes, "probes", err));
    for (size_t i = 0; i < p->n_lanes; i++) {
        const exf_lane *lane = &p->lanes[i];
        masks |= lane->rewriter && lane->rewriter->retained_experts;
        if (i > 0 && lane->observer && lane->observer->probe) EXF_TRY(open_route_set(p, &p->probe[i], err));
        if (i > 0 && keeps_made(lane)) EXF_TRY(open_route_set(p, &p->probe_router_routes[i], err));
    }
    if (p->demand.corrects) EXF_TRY(open_route_set(p, &p->router_routes, err));
    if (p->n_lanes > 1) EXF_TRY(open_route_set(p, &p->first, err));
    if (!masks) return EXF_OK;
    EXF_TRY(exf_mem_new(&p->mask, n_experts, sizeof *p->mask, "retained experts", err));
    EXF_TRY(p->b->alloc(&p->mask_device, 2 * n_experts, sizeof *p->mask_device, "retained experts", err));
out:
    return rc;
}

static exf_code open_pass(exf_pass *p, exf_err *err)
{
    exf_code rc;
    exf_memory_plan plan = {.window = 0};
    const exf_architecture *a = &p->model->arch;
    if (!p->b->host_memory) {
        p->b->memory_reset_peak();
        EXF_TRY(exf_memory_plan_make(&plan, p->options, p->model, p->batch, &p->demand, p->n_layers, err));
        p->timed = p->options->timed;
        p->reads = plan.reads;
        p->device.part_experts = plan.loader.part_experts;
        EXF_TRY(exf_weight_loader_open(&p->loader, p->model, p->b, p->compute, &plan.loader, err)); /* first: the rest is made while it reads */
    }
    p->n_spaces = p->b->host_memory ? p->n_workers : plan.n_queues;
    EXF_TRY(exf_mem_new(&p->space, (size_t)p->n_spaces, sizeof *p->space, "workspaces", err));
    for (int k = 0; k < p->n_workers; k++) EXF_TRY(exf_workspace_new(&p->space[k], p->b, p->compute, a, p->batch->max_tokens, &p->demand, err));
    for (int k = p->n_workers; k < p->n_spaces; k++) EXF_TRY(exf_workspace_mixing(&p->space[k], p->b, p->compute, a, p->batch->max_tokens, err));
    EXF_TRY(exf_hidden_open(&p->hidden, p->b, p->compute, p->batch, exf_row_width(a), p->n_lanes, plan.window, err));
    EXF_TRY(open_routes(p, err));
    EXF_TRY(open_tokens(p, err));
    EXF_TRY(exf_rope_tables_new(&p->rope_tables, p->b, p->space[0].q, a, p->batch->max_tokens, err));
    p->weights_now.b = p->b;
    if (!p->b->host_memory && plan.expert_tokens) EXF_TRY(exf_device_experts_open(p, plan.expert_tokens, err));
out:
    return rc;
}

static void close_pass(exf_pass *p)
{
    exf_close_device(p);
    exf_layer_weights_free(&p->weights_now);
    exf_rope_tables_free(&p->rope_tables, p->b);
    exf_hidden_close(&p->hidden);
    for (size_t i = 0; p->probe && i < p->n_lanes; i++) exf_route_set_free(&p->probe[i]);
    for (size_t i = 0; p->probe_router_routes && i < p->n_lanes; i++) exf_route_set_free(&p->probe_router_routes[i]);
    exf_route_set_free(&p->routes);
    exf_route_set_free(&p->router_routes);
    exf_route_set_free(&p->first);
    p->b->free(p->mask_device);
    if (!p->b->host_memory) p->b->free(p->tokens_device);
    for (int i = 0; p->space && i < p->n_spaces; i++) exf_workspace_free(&p->space[i]);
    exf_mem_free(p->mask);
    exf_mem_free(p->probe);
    exf_mem_free(p->probe_router_routes);
    exf_mem_free(p->space);
}

/* Every stream of a row starts as its token's embedding. */
static void embed_rows(const exf_pass *p, float *rows, size_t first, size_t n, const float *table)
{
    size_t h = (size_t)p->model->arch.d_model, streams = (size_t)p->model->arch.residual.streams;
    for (size_t t = 0; t < n; t++)
        for (size_t k = 0; k < streams; k++)
            memcpy(rows + (t * streams + k) * h, table + (size_t)p->batch->ids[first + t] * h, h * sizeof *rows);
}

/* On a device the table crosses as it is stored and is looked up there. */
static exf_code embed_device(exf_pass *p, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    double start = exf_clock();
    exf_code rc = exf_pass_weights(p, EXF_LAYER_EMBED, err);
    if (rc != EXF_OK) return rc;
    exf_queue *q = p->space[0].q;
    for (size_t i = 0; i < p->hidden.n_groups; i++) {
        const exf_sequence_group *g = &p->hidden.group[i];
        float *rows = exf_hidden_take(&p->hidden, 0, i, EXF_HIDDEN_FILL, q);
        p->b->embed(q, rows, exf_matrix_of(&p->weights_now, EXF_W_EMBED), p->tokens_device + g->row, g->n_rows, a->d_model, a->residual.streams);
        exf_hidden_give(&p->hidden, 0, i, EXF_HIDDEN_FILL, q);
    }
    p->joined = 1;
    rc = p->b->finish(p->space[0].q, err);
    p->report->embed += exf_clock() - start;
    return rc;
}

/* The table is read once and dropped; rows go to the first lane a chunk at a time,
 * the others take them from there when they part (layer_step.c). */
static exf_code embed(exf_pass *p, exf_err *err)
{
    enum { CHUNK = 1024 };
    float *table = NULL, *rows = NULL;
    size_t width = exf_row_width(&p->model->arch);
    double start = exf_clock();
    exf_code rc;
    if (p->loader) return embed_device(p, err);
    EXF_TRY(exf_mem_new(&table, exf_model_count(p->model, EXF_W_EMBED, -1), sizeof(float), "embedding", err));
    EXF_TRY(exf_mem_new(&rows, CHUNK * width, sizeof(float), "embedded tokens", err));
    EXF_TRY(exf_model_read(p->model, EXF_W_EMBED, -1, 0, table, err));
    for (size_t t = 0; t < p->batch->n_tokens; t += CHUNK) {
        size_t n = p->batch->n_tokens - t < CHUNK ? p->batch->n_tokens - t : CHUNK;
        embed_rows(p, rows, t, n, table);
        p->b->upload(p->space[0].q, p->hidden.lane[0] + t * width, rows, n * width * sizeof(float));
        EXF_TRY(p->b->finish(p->space[0].q, err));
    }
    p->joined = 1;
out:
    exf_mem_free(table);
    exf_mem_free(rows);
    p->report->embed += exf_clock() - start;
    return rc;
}

static uint64_t routed_bytes(const exf_model *m, int layer)
{
    return exf_model_role_bytes(m, EXF_W_EXPERT_GATE, layer) + exf_model_role_bytes(m, EXF_W_EXPERT_UP, layer) +
           exf_model_role_bytes(m, EXF_W_EXPERT_DOWN, layer);
}

static exf_code run_layer(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_pass_weights(p, layer, err));
    progress->weight_bytes = exf_model_layer_bytes(p->model, layer);
    if (p->reads > 1) progress->weight_bytes += (uint64_t)(p->reads - 1) * routed_bytes(p->model, layer);
    p->report->weight_bytes += progress->weight_bytes;
    p->report->read += exf_clock() - start;
    p->device.waited = 0;
    EXF_TRY(exf_layer_step(p, layer, moe_index, progress, err));
    p->report->read += p->device.waited;
    EXF_TRY(exf_finish_queues(p, err)); /* the next layer's weights go where these are */
    progress->seconds = exf_clock() - start;
    exf_progress_layer(progress);
out:
    return rc;
}

static exf_code run_layers(exf_pass *p, int n_layers, exf_err *err)
{
    int moe_index = 0;
    exf_code rc = EXF_OK;
    for (int l = 0; rc == EXF_OK && l < n_layers; l++) {
        int is_moe = p->model->arch.is_moe[l];
        exf_progress progress = {.layer = l, .n_layers = n_layers, .done = l + 1, .tokens = p->batch->n_tokens,
                                 .n_experts = is_moe ? p->model->arch.n_experts : 0};
        rc = run_layer(p, l, is_moe ? moe_index : -1, &progress, err);
        moe_index += is_moe;
    }
    exf_progress_end();
    return rc;
}

static exf_code begin_observers(const exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n_lanes; i++) {
        const exf_observer *o = p->lanes[i].observer;
        if (o && o->begin) rc = o->begin(o->self, p->n_workers, err);
        if (rc == EXF_OK && o && o->device_open && !p->b->host_memory) rc = o->device_open(o->self, p->b, err);
    }
    return rc;
}

static void sum_times(exf_pass *p)
{
    for (int i = 0; p->space && i < p->n_spaces; i++) {
        const exf_forward_report *t = &p->space[i].times;
        p->report->mixer += t->mixer;
        p->report->router += t->router;
        p->report->experts += t->experts;
        p->report->observe += t->observe;
        p->report->head += t->head;
        p->report->flops += t->flops;
    }
}

exf_code exf_forward(const exf_model *m, const exf_batch *batch, const exf_lane *lanes, size_t n_lanes, const exf_forward_options *options,
                     exf_forward_report *report, exf_err *err)
{
    exf_code rc;
    double start = exf_clock();
    const exf_backend *b = options->backend ? options->backend : &exf_backend_cpu;
    exf_pass p = {.model = m, .batch = batch, .b = b, .compute = (exf_compute)options->compute, .lanes = lanes, .n_lanes = n_lanes,
                  .report = report, .n_workers = exf_forward_workers(b, batch, options->threads), .demand = exf_demand_of(lanes, n_lanes)};
    int n_layers = options->n_layers > 0 && options->n_layers < m->arch.n_layers ? options->n_layers : m->arch.n_layers;
    p.n_layers = n_layers;
    p.options = options;
    memset(report, 0, sizeof *report);
    report->workers = p.n_workers;
    EXF_TRY(open_pass(&p, err));
    EXF_TRY(begin_observers(&p, err));
    report->open = exf_clock() - start;
    EXF_TRY(embed(&p, err));
    report->weight_bytes += exf_model_layer_bytes(m, -1);
    EXF_TRY(run_layers(&p, n_layers, err));
    if (p.demand.head && n_layers == m->arch.n_layers) EXF_TRY(exf_head_step(&p, err));
    EXF_TRY(exf_hidden_settle(&p.hidden, err));
out:
    sum_times(&p);
    double done = exf_clock();
    close_pass(&p);
    report->close = exf_clock() - done;
    report->wall = exf_clock() - start;
    return rc;
}

double exf_forward_flops(const exf_architecture *a, const exf_batch *batch, int logits)
{
    double h = a->d_model, moe = 2 * h * a->n_experts + 6.0 * h * (a->top_k * (double)a->d_expert + a->d_shared), flops = 0;
    for (size_t i = 0; i < batch->n_sequences; i++) {
        double t = batch->span[i].n_tokens;
        for (int l = 0; l < a->n_layers; l++)
            flops += exf_mixer_of(a->mixer[l])->flops(a, l, t) + t * (a->is_moe[l] ? moe : 6 * h * a->d_ffn);
        if (logits) flops += t * 2 * h * a->vocab;
    }
    return flops;
}

double exf_forward_demand_flops(const exf_architecture *a, const exf_batch *batch, const exf_demand *d)
{
    double h = a->d_model, one = 6.0 * h * a->d_expert, again = 0;
    for (size_t i = 0; i < batch->n_sequences; i++) {
        int t = batch->span[i].n_tokens, common_input = t < d->common_input ? t : d->common_input;
        again += (double)common_input * a->n_experts * one;
        if (d->sweeps > 1) again += (double)(d->sweeps - 1) * t * a->top_k * one;
    }
    return exf_forward_flops(a, batch, d->head) * (double)d->lanes + again * a->n_moe_layers;
}

static uint64_t host_bytes(const exf_backend *b, const exf_model *m, const exf_batch *batch, const exf_demand *d, int threads)
{
    const exf_architecture *a = &m->arch;
    size_t table = exf_model_count(m, EXF_W_EMBED, -1), layer = exf_layer_weights_size(m);
    uint64_t weights = sizeof(float) * (uint64_t)(table > layer && !d->head ? table : d->head ? layer + table : layer);
    uint64_t hidden = (uint64_t)batch->n_tokens * sizeof(float) * exf_row_width(a) * d->lanes;
    uint64_t route_sets = 1 + d->probes + d->pruned + (d->lanes > 1) + (d->corrects != 0); /* see open_routes */
    uint64_t routes = (uint64_t)batch->n_tokens * 8u * (uint64_t)a->top_k * route_sets;
    return weights + hidden + routes + (uint64_t)exf_forward_workers(b, batch, threads) * exf_workspace_bytes(b, a, batch->max_tokens, d);
}

exf_code exf_forward_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m, const exf_batch *batch,
                            const exf_demand *d, exf_err *err)
{
    const exf_backend *b = options->backend ? options->backend : &exf_backend_cpu;
    exf_memory_plan plan;
    exf_code rc;
    *f = (exf_forward_footprint){.reads = 1};
    if (b->host_memory) {
        f->host = host_bytes(b, m, batch, d, options->threads);
        return EXF_OK;
    }
    EXF_TRY(exf_memory_plan_make(&plan, options, m, batch, d, m->arch.n_layers, err));
    *f = (exf_forward_footprint){.device = plan.bytes, .host = plan.host_bytes, .window = plan.window, .reads = plan.reads};
out:
    return rc;
}
