/* forward.c - the pass over all layers: opens it, runs layer after layer and the head, and closes it; see forward.h. */
#include "pass/forward_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "kernels/linear/linear.h"
#include "ranks/ranks.h"

/* ---- opening ---------------------------------------------------------------------------- */

static void read_clock(void *clock)
{
    exf_stage_clock_read(clock);
}

/* Opens a workspace for each worker or stream and, on a GPU, the clock that measures them. */
static exf_code open_workspaces(exf_pass *p, const exf_pass_plan *plan, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    exf_code rc;
    EXF_TRY(exf_mem_new(&p->space, (size_t)p->n_spaces, sizeof *p->space, "workspaces", err));
    for (int i = 0; i < p->n_spaces; i++) {
        int whole = i < p->n_workers; /* other streams run mixers alone */
        size_t floats = whole ? plan->floats : exf_mixing_floats(p->b, a, p->batch->max_tokens);
        EXF_TRY(exf_workspace_new(&p->space[i], p->b, p->compute, a, floats, whole ? plan->mirror : 0, err));
    }
    if (!p->b->gpu || p->options->timed) return EXF_OK;
    EXF_TRY(exf_stage_clock_new(&p->clock, p->b, err));
    for (int i = 0; i < p->n_spaces; i++) p->space[i].clock = p->clock;
    exf_progress_poll(read_clock, p->clock);
out:
    return rc;
}

static exf_code open_tokens(exf_pass *p, exf_err *err)
{
    size_t n = p->batch->n_tokens;
    exf_code rc = EXF_OK;
    if (!p->b->gpu) p->tokens_device = (int32_t *)(uintptr_t)p->batch->ids; /* no function writes to them */
    if (!p->b->gpu || !p->batch->ids) return EXF_OK;
    EXF_TRY(p->b->alloc(&p->tokens_device, n + 1, sizeof *p->tokens_device, "tokens", err));
    p->b->upload(p->space[0].q, p->tokens_device, p->batch->ids, n * sizeof *p->tokens_device);
    EXF_TRY(p->b->finish(p->space[0].q, err));
out:
    return rc;
}

static exf_code open_route_set(exf_pass *p, exf_route_set *set, exf_err *err)
{
    return exf_route_set_new(set, p->b, p->batch->n_tokens, p->model->arch.top_k, err);
}

/* Opens as many route sets as exf_demand_route_sets() counts. */
static exf_code open_routes(exf_pass *p, exf_err *err)
{
    exf_code rc;
    EXF_TRY(open_route_set(p, &p->routes, err));
    EXF_TRY(exf_mem_new(&p->probe_routes, p->n_lanes, sizeof *p->probe_routes, "probes", err));
    EXF_TRY(exf_mem_new(&p->probe_router_routes, p->n_lanes, sizeof *p->probe_router_routes, "probes", err));
    EXF_TRY(exf_mem_new(&p->probes, p->n_lanes, sizeof *p->probes, "probes", err));
    for (size_t i = 1; i < p->n_lanes; i++) {
        const exf_lane *lane = &p->lanes[i];
        int own = exf_lane_keeps_router_routes(lane);
        if (!exf_lane_observer(lane)->probe) continue;
        EXF_TRY(open_route_set(p, &p->probe_routes[i], err));
        if (own) EXF_TRY(open_route_set(p, &p->probe_router_routes[i], err));
        p->probes[i] = (exf_moe_probe){lane, &p->probe_routes[i], own ? &p->probe_router_routes[i] : &p->first};
    }
    if (p->demand.corrects) EXF_TRY(open_route_set(p, &p->router_routes, err));
    if (p->n_lanes > 1) EXF_TRY(open_route_set(p, &p->first, err));
out:
    return rc;
}

/* Allocates the router's logits and masks, where lanes read or set them. */
static exf_code open_router(exf_pass *p, exf_err *err)
{
    size_t n_experts = (size_t)p->model->arch.n_experts, n;
    int masks = 0;
    exf_code rc;
    EXF_TRY(exf_mem_mul(&n, p->batch->n_tokens, n_experts, "router logits", err));
    for (int i = 0; i < p->demand.logits; i++) EXF_TRY(exf_mem_new(&p->logits[i], n, sizeof **p->logits, "router logits", err));
    for (int i = 0; i < p->demand.device_logits; i++)
        EXF_TRY(p->b->alloc((void *)&p->logits_device[i], n, sizeof **p->logits_device, "router logits", err));
    if (p->demand.slot_logits) EXF_TRY(p->b->alloc(&p->slot_logits, p->routes.n, sizeof *p->slot_logits, "router logits", err));
    if (p->demand.logits) EXF_TRY(exf_mem_new(&p->bias, n_experts, sizeof *p->bias, "router logits", err));
    for (size_t i = 0; i < p->n_lanes; i++) masks |= p->lanes[i].rewriter && p->lanes[i].rewriter->retained_experts;
    if (!masks) return EXF_OK;
    EXF_TRY(exf_mem_new(&p->mask, n_experts, sizeof *p->mask, "retained experts", err));
    EXF_TRY(p->b->alloc(&p->mask_device, 2 * n_experts, sizeof *p->mask_device, "retained experts", err));
out:
    return rc;
}

/* Allocates what the plan says and starts reading weights, so that reading overlaps with the rest of the opening.
 * close_pass() accepts a pass whose opening failed. */
static exf_code open_pass(exf_pass *p, exf_err *err)
{
    const exf_backend *b = p->b;
    const exf_architecture *a = &p->model->arch;
    exf_pass_plan plan;
    exf_code rc;
    p->weights_now.b = b;
    if (b->gpu) b->gpu->memory_reset_peak();
    EXF_TRY(exf_pass_plan_make(&plan, p->options, p->model, p->batch, &p->demand, p->n_layers, err));
    p->n_spaces = plan.n_queues;
    p->block_tokens = plan.block_tokens;
    p->needs = plan.needs;
    EXF_TRY(exf_pass_open_weights(p, &plan, err));
    EXF_TRY(open_workspaces(p, &plan, err));
    EXF_TRY(exf_hidden_open(&p->hidden, b, p->compute, p->batch, exf_row_width(a), p->n_lanes, plan.window, err));
    size_t mixing = (size_t)exf_residual_mixing(a) * sizeof *p->mixing;
    if (mixing) EXF_TRY(b->alloc(&p->mixing, p->batch->n_tokens, mixing, "residual streams", err));
    EXF_TRY(open_routes(p, err));
    EXF_TRY(open_router(p, err));
    EXF_TRY(open_tokens(p, err));
    if (b->gpu) {
        uint64_t all_finite = ~(uint64_t)0;
        EXF_TRY(b->alloc(&p->not_finite, 1, sizeof *p->not_finite, "finite check", err));
        b->upload(p->space[0].q, p->not_finite, &all_finite, sizeof all_finite);
        EXF_TRY(b->finish(p->space[0].q, err));
        EXF_TRY(b->alloc(&p->slots_run, 1, sizeof *p->slots_run, "slots that ran", err));
    }
    EXF_TRY(exf_rope_tables_new(&p->rope_tables, b, p->space[0].q, a, p->batch->max_tokens, err));
    for (size_t i = 0; i < p->n_lanes; i++) {
        const exf_observer *o = exf_lane_observer(&p->lanes[i]);
        const exf_rewriter *r = p->lanes[i].rewriter;
        if (o->begin) EXF_TRY(o->begin(o->self, p->n_workers, b->gpu ? b : NULL, err));
        if (r && r->device_open && b->gpu) EXF_TRY(r->device_open(r->self, b, err));
    }
out:
    return rc;
}

/* ---- closing ---------------------------------------------------------------------------- */

static void close_pass(exf_pass *p)
{
    uint64_t now;
    if (p->b->gpu) p->b->gpu->memory(&now, &p->report->device_bytes);
    exf_pass_close_weights(p);
    exf_rope_tables_free(&p->rope_tables, p->b);
    exf_hidden_close(&p->hidden);
    for (size_t i = 0; p->probe_routes && i < p->n_lanes; i++) exf_route_set_free(&p->probe_routes[i]);
    for (size_t i = 0; p->probe_router_routes && i < p->n_lanes; i++) exf_route_set_free(&p->probe_router_routes[i]);
    exf_route_set_free(&p->routes);
    exf_route_set_free(&p->router_routes);
    exf_route_set_free(&p->first);
    p->b->free(p->mixing);
    p->b->free(p->mask_device);
    p->b->free(p->slot_logits);
    for (int i = 0; i < 2; i++) p->b->free(p->logits_device[i]);
    p->b->free(p->not_finite);
    p->b->free(p->slots_run);
    if (p->b->gpu) p->b->free(p->tokens_device);
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

/* ---- layers ----------------------------------------------------------------------------- */

/* Runs the layers that no resume point has done. */
static exf_code run_layers(exf_pass *p, exf_err *err)
{
    exf_ranks *ranks = p->options->ranks;
    int moe_index = 0, first = exf_pass_layers_done(p->options);
    exf_code rc = EXF_OK;
    for (int l = 0; l < first; l++) moe_index += p->model->arch.is_moe[l];
    int votes = ranks && p->options->resume && exf_resume_saves(p->options->resume), dropped;
    exf_stop_defer(p->options->resume && exf_resume_saves(p->options->resume));
    exf_ranks_layer(ranks, first - 1, 0);
    if (votes) EXF_TRY(exf_ranks_vote_start(ranks, exf_pass_vote(p, first + 1), err)); /* a layer ahead of what it decides */
    for (int l = first; l < p->n_layers; l++) {
        int is_moe = p->model->arch.is_moe[l];
        double start = exf_clock(), waited = exf_pass_waited(p);
        exf_progress progress = {.layer = l, .n_layers = p->n_layers, .done = l + 1, .tokens = exf_pass_run_tokens(p),
                                 .n_experts = is_moe ? p->model->arch.n_experts : 0};
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_pass_weights(p, l, err));
        progress.weight_bytes = exf_model_layer_bytes(p->model, l);
        if (p->reads > 1) /* the routed experts, in parts */
            progress.weight_bytes += (uint64_t)(p->reads - 1) * (exf_model_role_bytes(p->model, EXF_W_EXPERT_GATE, l) +
                                                                 exf_model_role_bytes(p->model, EXF_W_EXPERT_UP, l) +
                                                                 exf_model_role_bytes(p->model, EXF_W_EXPERT_DOWN, l));
        p->report->weight_bytes += progress.weight_bytes;
        p->report->read += exf_clock() - start;
        p->parts_waited = 0;
        EXF_TRY(exf_layer_step(p, l, is_moe ? moe_index++ : -1, &progress, err));
        p->report->read += p->parts_waited;
        EXF_TRY(exf_pass_finish(p, err)); /* the next layer's weights overwrite this layer's */
        EXF_TRY(exf_model_layer_done(p->model, l, err));
        exf_progress_turn(EXF_WORK_REST);
        exf_progress_add(1);
        progress.seconds = exf_clock() - start;
        exf_ranks_layer(ranks, l, progress.seconds - (exf_pass_waited(p) - waited));
        exf_ranks_straggler(ranks, progress.straggler);
        exf_progress_layer(&progress);
        EXF_TRY(exf_pass_save(p, l + 1, err));
    }
out:
    exf_stop_defer(0);
    if (rc == EXF_OK && votes) rc = exf_ranks_vote_finish(ranks, &dropped, err);
    return rc;
}

/* ---- the pass --------------------------------------------------------------------------- */

/* Fills the hidden states before the first layer that runs. */
static exf_code start_hidden(exf_pass *p, exf_err *err)
{
    int first = exf_pass_layers_done(p->options);
    exf_code rc;
    if (first) {
        exf_eta earlier = exf_work_of_pass(p->model, p->batch, &p->demand, 0, first);
        double before = exf_eta_expected(&earlier), left = exf_eta_expected(&p->report->work);
        rc = exf_pass_restore(p, err);
        exf_progress_resume(first, before + left > 0 ? before / (before + left) : 0);
        return rc;
    }
    p->report->weight_bytes += exf_model_layer_bytes(p->model, -1);
    rc = exf_pass_embed(p, err);
    return rc == EXF_OK && p->model->identity ? exf_weight_identity_settle(p->model->identity, EXF_PART_EMBEDDING, err) : rc;
}

exf_code exf_forward_facts_add(exf_provenance *p, const exf_architecture *a, exf_err *err)
{
    exf_text text = {0};
    exf_code rc = exf_architecture_text(&text, a, err);
    if (rc == EXF_OK) rc = exf_architecture_facts_add(p, text.s, err);
    exf_text_free(&text);
    return rc;
}

exf_code exf_forward(const exf_model *m, const exf_batch *batch, const exf_lane *lanes, size_t n_lanes,
                     const exf_forward_options *options, exf_forward_report *report, exf_err *err)
{
    const exf_backend *b = exf_backend_of(options);
    exf_ranks *ranks = options->ranks;
    int all = m->arch.n_layers;
    double start = exf_clock(), done;
    exf_code rc;
    exf_pass p = {.model = m, .batch = batch, .b = b, .compute = (exf_compute)options->compute, .options = options, .lanes = lanes,
                  .n_lanes = n_lanes, .report = report, .n_workers = exf_forward_workers(b, batch, options->threads),
                  .demand = exf_demand_of(lanes, n_lanes, b),
                  .n_layers = options->n_layers > 0 && options->n_layers < all ? options->n_layers : all};
    p.demand.head = p.demand.head && (options->sample || p.n_layers == all);
    *report = (exf_forward_report){.on_gpu = b->gpu != NULL, .workers = p.n_workers,
                                   .work = exf_work_of_pass(m, batch, &p.demand, exf_pass_layers_done(options), p.n_layers)};
    const exf_eta *then = options->then;
    for (int k = 0; then && k < EXF_ETA_KINDS; k++) report->work.kind[k].after = then->kind[k].planned;
    exf_progress_begin(options->sample ? "" : then ? "pilot layer" : "layer", p.n_layers, &report->work, EXF_WORK_READ);
    EXF_TRY(exf_blas_reserve_cpu(p.n_workers, err));
    EXF_TRY(open_pass(&p, err));
    report->open = exf_clock() - start;
    EXF_TRY(start_hidden(&p, err));
    EXF_TRY(run_layers(&p, err));
    if (p.demand.head) EXF_TRY(exf_head_step(&p, err));
    EXF_TRY(exf_hidden_settle(&p.hidden, err));
    if (b->gpu) { /* what it counted of rewritten routes */
        uint64_t slots = 0;
        EXF_TRY(b->download(p.space[0].q, &slots, p.slots_run, sizeof slots, err));
        p.space[0].times.flops += 6.0 * (double)slots * m->arch.d_model * m->arch.d_expert;
    }
    EXF_TRY(exf_model_layer_done(m, -1, err));
out:
    if (rc != EXF_OK) (void)exf_ranks_fail(ranks, rc, err);
    exf_progress_end();
    exf_stage_clock_read(p.clock);
    for (int i = 0; p.space && i < p.n_spaces; i++) {
        const exf_part_times *t = &p.space[i].times;
        report->mixer += t->mixer;
        report->router += t->router;
        report->rewrite += t->rewrite;
        report->experts += t->experts;
        report->observe += t->observe;
        report->head += t->head;
        report->flops += t->flops;
    }
    if (rc == EXF_OK) rc = exf_pass_sum_flops(ranks, &report->flops, err);
    done = exf_clock();
    close_pass(&p);
    report->close = exf_clock() - done;
    report->wall = exf_clock() - start;
    return rc;
}
