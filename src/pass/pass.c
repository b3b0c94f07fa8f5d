/* pass.c - opens and closes a pass; see pass.h. */
#include "pass/memory_plan.h"
#include "pass/pass.h"

#include "base/mem.h"
#include "pass/residual.h"
#include "pass/resume.h"

#include <string.h>

/* ---- opening ---------------------------------------------------------------------------- */

static exf_code open_tokens(exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    p->tokens_device = (int32_t *)(uintptr_t)p->batch->ids; /* no function writes to them */
    if (!p->b->gpu) return EXF_OK;
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

static exf_code open_probe(exf_pass *p, size_t i, exf_err *err)
{
    const exf_lane *lane = &p->lanes[i];
    exf_code rc = EXF_OK;
    if (i == 0 || !lane->observer || !lane->observer->probe) return EXF_OK;
    EXF_TRY(open_route_set(p, &p->probe_routes[i], err));
    if (exf_lane_keeps_router_routes(lane)) EXF_TRY(open_route_set(p, &p->probe_router_routes[i], err));
    p->probes[i] = (exf_moe_probe){lane, &p->probe_routes[i], p->probe_router_routes[i].n ? &p->probe_router_routes[i] : &p->first};
out:
    return rc;
}

/* Opens as many route sets as exf_demand_route_sets() counts. */
static exf_code open_routes(exf_pass *p, exf_err *err)
{
    exf_code rc;
    EXF_TRY(open_route_set(p, &p->routes, err));
    EXF_TRY(exf_mem_new(&p->probe_routes, p->n_lanes, sizeof *p->probe_routes, "probes", err));
    EXF_TRY(exf_mem_new(&p->probe_router_routes, p->n_lanes, sizeof *p->probe_router_routes, "probes", err));
    EXF_TRY(exf_mem_new(&p->probes, p->n_lanes, sizeof *p->probes, "probes", err));
    for (size_t i = 0; i < p->n_lanes; i++) EXF_TRY(open_probe(p, i, err));
    if (p->demand.corrects) EXF_TRY(open_route_set(p, &p->router_routes, err));
    if (p->n_lanes > 1) EXF_TRY(open_route_set(p, &p->first, err));
out:
    return rc;
}

static exf_code open_logits(exf_pass *p, exf_err *err)
{
    size_t n_experts = (size_t)p->model->arch.n_experts, n;
    exf_code rc;
    EXF_TRY(exf_mem_mul(&n, p->batch->n_tokens, n_experts, "router logits", err));
    for (int i = 0; i < p->demand.logits; i++) EXF_TRY(exf_mem_new(&p->logits[i], n, sizeof **p->logits, "router logits", err));
    if (p->demand.logits) EXF_TRY(exf_mem_new(&p->bias, n_experts, sizeof *p->bias, "router logits", err));
out:
    return rc;
}

static exf_code open_masks(exf_pass *p, exf_err *err)
{
    size_t n_experts = (size_t)p->model->arch.n_experts;
    int masks = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < p->n_lanes; i++) masks |= p->lanes[i].rewriter && p->lanes[i].rewriter->retained_experts;
    if (!masks) return EXF_OK;
    EXF_TRY(exf_mem_new(&p->mask, n_experts, sizeof *p->mask, "retained experts", err));
    EXF_TRY(p->b->alloc(&p->mask_device, 2 * n_experts, sizeof *p->mask_device, "retained experts", err));
out:
    return rc;
}

static exf_code next_part(void *self, exf_err *err)
{
    exf_pass *p = self;
    double start = exf_clock();
    exf_code rc = exf_weight_loader_next(p->loader, &p->weights_now, err);
    p->parts_waited += exf_clock() - start;
    return rc;
}

/* Plans the GPU's memory and starts reading weights, so that reading overlaps with the rest of the opening. */
static exf_code open_gpu(exf_pass *p, exf_memory_plan *plan, exf_err *err)
{
    exf_code rc;
    p->b->gpu->memory_reset_peak();
    EXF_TRY(exf_memory_plan_make(plan, p->options, p->model, p->batch, &p->demand, p->n_layers, err));
    p->reads = plan->reads;
    p->parts = (exf_expert_parts){p, next_part, plan->loader.part_experts, &p->parts_waited};
    plan->loader.shared = p->options->shared_chunks;
    EXF_TRY(exf_weight_loader_open(&p->loader, p->model, p->b, p->compute, &plan->loader, err));
out:
    return rc;
}

/* On the CPU weights are read between layers. */
static exf_code open_host(exf_pass *p, exf_err *err)
{
    const exf_forward_options *o = p->options;
    exf_weight_loader_options loader = {.first_layer = o->resume ? exf_resume_start(o->resume)->layers_done : 0,
                                        .n_layers = p->n_layers, .head = p->demand.head, .shared = o->shared_chunks};
    return exf_host_loader_open(&p->host_loader, p->model, &loader, err);
}

static exf_code open_workspaces(exf_pass *p, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    size_t floats = exf_workspace_floats(p->b, p->compute, a, p->batch->max_tokens, p->block_tokens, &p->demand);
    size_t mixing = exf_mixing_floats(p->b, a, p->batch->max_tokens),
           mirror = exf_mirror_floats(p->b, a, p->block_tokens, &p->demand);
    exf_code rc;
    EXF_TRY(exf_mem_new(&p->space, (size_t)p->n_spaces, sizeof *p->space, "workspaces", err));
    for (int i = 0; i < p->n_spaces; i++)
        EXF_TRY(exf_workspace_new(&p->space[i], p->b, p->compute, a, i < p->n_workers ? floats : mixing,
                                  i < p->n_workers ? mirror : 0, err));
out:
    return rc;
}

static void read_clock(void *clock)
{
    exf_stage_clock_read(clock);
}

static exf_code open_clock(exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!p->b->gpu || p->options->timed) return EXF_OK;
    EXF_TRY(exf_stage_clock_new(&p->clock, p->b, err));
    for (int i = 0; i < p->n_spaces; i++) p->space[i].clock = p->clock;
    exf_progress_poll(read_clock, p->clock);
out:
    return rc;
}

exf_code exf_pass_open(exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    const exf_architecture *a = &p->model->arch;
    exf_memory_plan plan = {.n_queues = p->n_workers, .block_tokens = exf_host_block(p->batch->max_tokens)};
    p->weights_now.b = p->b;
    EXF_TRY(p->b->gpu ? open_gpu(p, &plan, err) : open_host(p, err));
    p->n_spaces = plan.n_queues;
    p->block_tokens = plan.block_tokens;
    EXF_TRY(open_workspaces(p, err));
    EXF_TRY(open_clock(p, err));
    EXF_TRY(exf_hidden_open(&p->hidden, p->b, p->compute, p->batch, exf_row_width(a), p->n_lanes, plan.window, err));
    EXF_TRY(open_routes(p, err));
    EXF_TRY(open_logits(p, err));
    EXF_TRY(open_masks(p, err));
    EXF_TRY(open_tokens(p, err));
    if (p->b->gpu) EXF_TRY(exf_moe_not_finite_new(&p->not_finite, p->b, p->space[0].q, err));
    EXF_TRY(exf_rope_tables_new(&p->rope_tables, p->b, p->space[0].q, a, p->batch->max_tokens, err));
out:
    return rc;
}

/* ---- closing ---------------------------------------------------------------------------- */

static void close_host(exf_pass *p)
{
    if (!p->host_loader) return;
    p->report->own_bytes = exf_host_loader_bytes(p->host_loader);
    exf_host_loader_close(p->host_loader);
}

static void close_gpu(exf_pass *p)
{
    exf_weight_loader_times times = {.reading = 0};
    uint64_t now;
    if (!p->b->gpu) return;
    p->b->gpu->memory(&now, &p->report->device_bytes);
    exf_weight_loader_close(p->loader, &times);
    p->report->own_bytes = times.bytes;
    p->report->reading = times.reading;
    p->report->sending = times.sending;
    p->report->readers = times.readers;
    p->b->free(p->tokens_device);
    p->b->free(p->not_finite);
}

void exf_pass_close(exf_pass *p)
{
    close_host(p);
    close_gpu(p);
    exf_layer_weights_free(&p->weights_now);
    exf_rope_tables_free(&p->rope_tables, p->b);
    exf_hidden_close(&p->hidden);
    for (size_t i = 0; p->probe_routes && i < p->n_lanes; i++) exf_route_set_free(&p->probe_routes[i]);
    for (size_t i = 0; p->probe_router_routes && i < p->n_lanes; i++) exf_route_set_free(&p->probe_router_routes[i]);
    exf_route_set_free(&p->routes);
    exf_route_set_free(&p->router_routes);
    exf_route_set_free(&p->first);
    p->b->free(p->mask_device);
    for (int i = 0; p->space && i < p->n_spaces; i++) exf_workspace_free(&p->space[i]);
    exf_stage_clock_free(p->clock); /* no queue writes to it any more */
    exf_mem_free(p->mask);
    exf_mem_free(p->bias);
    for (int i = 0; i < 2; i++) exf_mem_free(p->logits[i]);
    exf_mem_free(p->probe_routes);
    exf_mem_free(p->probe_router_routes);
    exf_mem_free(p->probes);
    exf_mem_free(p->space);
}

/* ---- steps of a pass ------------------------------------------------------------------- */

/* Returns the stored bytes of a layer's tensors, of the head's or of the embedding. */
static uint64_t loaded_bytes(const exf_model *m, int layer)
{
    uint64_t table = exf_model_role_bytes(m, EXF_W_EMBED, -1);
    if (layer >= 0) return exf_model_layer_bytes(m, layer);
    return layer == EXF_LAYER_EMBED ? table : exf_model_layer_bytes(m, -1) - table;
}

exf_code exf_pass_weights(exf_pass *p, int layer, exf_err *err)
{
    exf_code rc;
    exf_progress_turn(EXF_WORK_READ);
    rc = p->loader ? exf_weight_loader_next(p->loader, &p->weights_now, err)
                   : exf_host_loader_layer(p->host_loader, &p->weights_now, p->options->threads, err);
    exf_progress_add((double)loaded_bytes(p->model, layer));
    return rc;
}

double exf_pass_waited(const exf_pass *p)
{
    return p->host_loader ? exf_host_loader_waited(p->host_loader) : 0;
}

void exf_pass_turn(const exf_pass *p, int kind)
{
    exf_progress_turn(p->b->gpu ? EXF_WORK_REST : kind);
}

exf_code exf_pass_finish(const exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < p->n_spaces; i++) rc = p->b->finish(p->space[i].q, err);
    exf_stage_clock_read(p->clock);
    return rc;
}

exf_step exf_step_of(exf_pass *p, size_t lane, int layer, int moe_index)
{
    exf_step s = {.p = p, .lane = lane};
    s.moe = (exf_moe_layer){
        .engine = exf_moe_engine_of(p->b), .model = p->model, .batch = p->batch, .tokens = p->tokens_device,
        .weights = &p->weights_now,
        .parts = p->parts, .space = p->space, .n_workers = p->n_workers,
        .needs = exf_moe_needs_of(p->b, &p->model->arch, &p->demand),
        .block_tokens = p->block_tokens, .timed = p->options->timed, .not_finite = p->not_finite, .lane = &p->lanes[lane],
        .probes = p->probes, .n_probes = lane == 0 && p->demand.probes ? p->n_lanes : 0, .routes = &p->routes,
        .router_routes = &p->routes, .layer = layer, .moe_index = moe_index, .last = 1,
        .work = moe_index >= 0 ? EXF_WORK_EXPERTS : EXF_WORK_DENSE, .common_work = EXF_WORK_COMMON,
    };
    return s;
}

exf_code exf_each_group(exf_step *s, exf_hidden_use use, exf_sequence_group_fn fn, exf_err *err)
{
    exf_hidden *h = &s->p->hidden;
    exf_queue *q = s->p->space[0].q;
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < h->n_groups; i++) {
        s->moe.group = h->group[i];
        s->moe.rows = exf_hidden_take(h, s->lane, i, use, q);
        rc = fn(s, err);
        exf_hidden_give(h, s->lane, i, use, q);
    }
    return rc;
}

/* ---- pass embed -------------------------------------------------------------------------------- */

/* Fills the first lane's hidden states with the tokens' embeddings (pass.h).  The
 * other lanes copy them at the first router (pass_layer.c). */

enum { CHUNK = 1024 }; /* rows that the CPU uploads at a time */

/* Writes a token's embedding to every residual stream of its row. */
static void embed_rows(const exf_pass *p, float *rows, size_t first, size_t n, const float *table)
{
    size_t h = (size_t)p->model->arch.d_model, streams = (size_t)p->model->arch.residual.streams;
    for (size_t t = 0; t < n; t++)
        for (size_t k = 0; k < streams; k++)
            memcpy(rows + (t * streams + k) * h, table + (size_t)p->batch->ids[first + t] * h, h * sizeof *rows);
}

/* Uploads the table as it is stored and looks tokens up on the GPU. */
static exf_code embed_gpu(exf_pass *p, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    exf_queue *q = p->space[0].q;
    exf_code rc = exf_pass_weights(p, EXF_LAYER_EMBED, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < p->hidden.n_groups; i++) {
        const exf_sequence_group *g = &p->hidden.group[i];
        float *rows = exf_hidden_take(&p->hidden, 0, i, EXF_HIDDEN_FILL, q);
        p->b->gpu->embed(q, rows, exf_matrix_of(&p->weights_now, EXF_W_EMBED), p->tokens_device + g->row, g->n_rows, a->d_model,
                         a->residual.streams);
        exf_hidden_give(&p->hidden, 0, i, EXF_HIDDEN_FILL, q);
    }
    return p->b->finish(q, err);
}

/* Looks tokens up on the CPU; the table is read once and freed. */
static exf_code embed_host(exf_pass *p, exf_err *err)
{
    float *table = NULL, *rows = NULL;
    size_t width = exf_row_width(&p->model->arch);
    exf_code rc;
    EXF_TRY(exf_mem_new(&table, exf_model_count(p->model, EXF_W_EMBED, -1), sizeof(float), "embedding", err));
    EXF_TRY(exf_mem_new(&rows, CHUNK * width, sizeof(float), "embedded tokens", err));
    EXF_TRY(exf_host_loader_embedding(p->host_loader, table, p->options->threads, err));
    exf_progress_add((double)exf_model_role_bytes(p->model, EXF_W_EMBED, -1));
    for (size_t t = 0; t < p->batch->n_tokens; t += CHUNK) {
        size_t n = p->batch->n_tokens - t < CHUNK ? p->batch->n_tokens - t : CHUNK;
        embed_rows(p, rows, t, n, table);
        p->b->upload(p->space[0].q, p->hidden.lane[0] + t * width, rows, n * width * sizeof(float));
        EXF_TRY(p->b->finish(p->space[0].q, err));
    }
out:
    exf_mem_free(table);
    exf_mem_free(rows);
    return rc;
}

exf_code exf_pass_embed(exf_pass *p, exf_err *err)
{
    double start = exf_clock();
    exf_code rc = p->loader ? embed_gpu(p, err) : embed_host(p, err);
    p->joined = 1;
    p->report->embed += exf_clock() - start;
    return rc;
}
