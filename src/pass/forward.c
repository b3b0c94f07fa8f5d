/* forward.c - the pass over all layers; see forward.h. */
#include "pass/forward.h"
#include "pass/memory_plan.h"
#include "pass/pass.h"
#include "pass/pass_resume.h"
#include "pass/work.h"

#include "base/stop.h"
#include "base/thread_pool.h"
#include "kernels/linear/linear.h"
#include "pass/mixer.h"
#include "pass/residual.h"
#include "ranks/ranks.h"
#include "pass/resume.h"

#include <string.h>

int exf_forward_workers(const struct exf_backend *backend, const exf_batch *batch, int threads)
{
    if (backend->gpu) return 1;
    size_t n = threads > 0 ? (size_t)threads : (size_t)exf_default_threads();
    return (int)(n < batch->n_sequences ? n : batch->n_sequences);
}

static uint64_t routed_bytes(const exf_model *m, int layer)
{
    return exf_model_role_bytes(m, EXF_W_EXPERT_GATE, layer) + exf_model_role_bytes(m, EXF_W_EXPERT_UP, layer) +
           exf_model_role_bytes(m, EXF_W_EXPERT_DOWN, layer);
}

static exf_code run_layer(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    double start = exf_clock(), waited = exf_pass_waited(p);
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_pass_weights(p, layer, err));
    progress->weight_bytes = exf_model_layer_bytes(p->model, layer);
    if (p->reads > 1) progress->weight_bytes += (uint64_t)(p->reads - 1) * routed_bytes(p->model, layer);
    p->report->weight_bytes += progress->weight_bytes;
    p->report->read += exf_clock() - start;
    p->parts_waited = 0;
    EXF_TRY(exf_layer_step(p, layer, moe_index, progress, err));
    p->report->read += p->parts_waited;
    EXF_TRY(exf_pass_finish(p, err)); /* the next layer's weights overwrite this layer's */
    EXF_TRY(exf_model_layer_done(p->model, layer, err));
    exf_progress_turn(EXF_WORK_REST);
    exf_progress_add(1);
    progress->seconds = exf_clock() - start;
    exf_ranks_layer(p->options->ranks, layer, progress->seconds - (exf_pass_waited(p) - waited));
    exf_ranks_straggler(p->options->ranks, progress->straggler);
    exf_progress_layer(progress);
out:
    return rc;
}

/* Runs the layers that no resume point has done. */
static exf_code run_layers(exf_pass *p, int n_layers, exf_err *err)
{
    int moe_index = 0, first = exf_pass_layers_done(p);
    exf_code rc = EXF_OK;
    for (int l = 0; l < first; l++) moe_index += p->model->arch.is_moe[l];
    exf_stop_defer(p->options->resume && exf_resume_saves(p->options->resume));
    exf_ranks_layer(p->options->ranks, first - 1, 0);
    if (p->options->ranks) rc = exf_pass_votes_begin(p, first, err);
    for (int l = first; rc == EXF_OK && l < n_layers; l++) {
        int is_moe = p->model->arch.is_moe[l];
        exf_progress progress = {.layer = l, .n_layers = n_layers, .done = l + 1, .tokens = exf_pass_run_tokens(p),
                                 .n_experts = is_moe ? p->model->arch.n_experts : 0};
        rc = run_layer(p, l, is_moe ? moe_index : -1, &progress, err);
        moe_index += is_moe;
        if (rc == EXF_OK) rc = exf_pass_save(p, l + 1, err);
    }
    exf_stop_defer(0);
    if (rc == EXF_OK && p->options->ranks) rc = exf_pass_votes_end(p, err);
    return rc;
}

static exf_code begin_hooks(const exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n_lanes; i++) {
        const exf_observer *o = p->lanes[i].observer;
        if (o && o->begin) rc = o->begin(o->self, p->n_workers, err);
        const exf_rewriter *r = p->lanes[i].rewriter;
        if (rc == EXF_OK && o && o->device_open && p->b->gpu) rc = o->device_open(o->self, p->b, err);
        if (rc == EXF_OK && r && r->device_open && p->b->gpu) rc = r->device_open(r->self, p->b, err);
    }
    return rc;
}

/* Fills the hidden states before the first layer that runs. */
static exf_code start_hidden(exf_pass *p, exf_err *err)
{
    if (exf_pass_layers_done(p)) return exf_pass_restore(p, err);
    p->report->weight_bytes += exf_model_layer_bytes(p->model, -1);
    exf_code rc = exf_pass_embed(p, err);
    return rc == EXF_OK && p->model->identity ? exf_weight_identity_settle(p->model->identity, EXF_PART_EMBEDDING, err) : rc;
}

exf_code exf_forward(const exf_model *m, const exf_batch *batch, const exf_lane *lanes, size_t n_lanes,
                     const exf_forward_options *options, exf_forward_report *report, exf_err *err)
{
    exf_code rc;
    double start = exf_clock();
    const exf_backend *b = options->backend ? options->backend : &exf_backend_cpu;
    exf_pass p = {.model = m, .batch = batch, .b = b, .compute = (exf_compute)options->compute, .lanes = lanes, .n_lanes = n_lanes,
                  .report = report, .n_workers = exf_forward_workers(b, batch, options->threads),
                  .demand = exf_demand_of(lanes, n_lanes, b)};
    int n_layers = options->n_layers > 0 && options->n_layers < m->arch.n_layers ? options->n_layers : m->arch.n_layers;
    p.n_layers = n_layers;
    p.options = options;
    int head = p.demand.head && (options->sample || n_layers == m->arch.n_layers);
    memset(report, 0, sizeof *report);
    report->workers = p.n_workers;
    report->on_gpu = b->gpu != NULL;
    p.demand.head = head;
    report->work = exf_work_of_pass(m, batch, &p.demand, exf_pass_layers_done(&p), n_layers);
    exf_progress_begin(options->sample ? "" : "layer", n_layers, &report->work, EXF_WORK_READ);
    EXF_TRY(exf_blas_reserve_cpu(p.n_workers, err));
    EXF_TRY(exf_pass_open(&p, err));
    EXF_TRY(begin_hooks(&p, err));
    report->open = exf_clock() - start;
    EXF_TRY(start_hidden(&p, err));
    EXF_TRY(run_layers(&p, n_layers, err));
    if (head) EXF_TRY(exf_head_step(&p, err));
    EXF_TRY(exf_hidden_settle(&p.hidden, err));
    EXF_TRY(exf_model_pass_done(m, err));
out:
    if (rc != EXF_OK) (void)exf_ranks_fail(options->ranks, rc, err);
    exf_progress_end();
    exf_stage_clock_read(p.clock);
    exf_report_add_times(report, p.space, p.n_spaces);
    if (rc == EXF_OK) rc = exf_pass_sum_flops(options->ranks, &report->flops, err);
    double done = exf_clock();
    exf_pass_close(&p);
    report->close = exf_clock() - done;
    report->wall = exf_clock() - start;
    return rc;
}

double exf_forward_flops(const exf_architecture *a, const exf_batch *batch, int logits)
{
    double moe = exf_work_moe_flops(a), dense = exf_work_dense_flops(a), flops = 0;
    for (size_t i = 0; i < batch->n_sequences; i++) {
        double t = batch->span[i].n_tokens;
        for (int l = 0; l < a->n_layers; l++)
            flops += exf_mixer_of(a->mixer[l])->flops(a, l, t) + t * (a->is_moe[l] ? moe : dense);
        if (logits) flops += t * 2 * a->d_model * a->vocab;
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
    uint64_t routes = exf_route_set_bytes(batch->n_tokens, a->top_k) * exf_demand_route_sets(d) +
                      exf_demand_logits_bytes(d, batch->n_tokens, a->n_experts);
    size_t floats = exf_workspace_floats(b, EXF_COMPUTE_F32, a, batch->max_tokens, exf_host_block(batch->max_tokens), d);
    return weights + hidden + routes + (uint64_t)exf_forward_workers(b, batch, threads) * exf_workspace_bytes(a, floats);
}

exf_code exf_forward_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m,
                            const exf_batch *batch, const exf_demand *d, exf_err *err)
{
    const exf_backend *b = options->backend ? options->backend : &exf_backend_cpu;
    exf_memory_plan plan;
    exf_code rc;
    *f = (exf_forward_footprint){.reads = 1};
    if (!b->gpu) {
        f->host = host_bytes(b, m, batch, d, options->threads);
        return EXF_OK;
    }
    EXF_TRY(exf_memory_plan_make(&plan, options, m, batch, d, m->arch.n_layers, err));
    *f = (exf_forward_footprint){.device = plan.bytes, .host = plan.host_bytes, .window = plan.window, .reads = plan.reads};
out:
    return rc;
}

/* ---- forward report ---------------------------------------------------------------------------- */

void exf_report_add_times(exf_forward_report *report, const exf_workspace *space, int n)
{
    for (int i = 0; space && i < n; i++) {
        const exf_part_times *t = &space[i].times;
        report->mixer += t->mixer;
        report->router += t->router;
        report->experts += t->experts;
        report->observe += t->observe;
        report->head += t->head;
        report->flops += t->flops;
    }
}
