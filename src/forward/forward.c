/* forward.c - the pass: lanes over layers over sequences; see forward.h. */
#include "forward/forward.h"

#include "base/mem.h"
#include "base/stop.h"
#include "forward/layer_step.h"
#include "kernels/gemm.h"

#include <omp.h>
#include <string.h>

int exf_forward_workers(const exf_batch *batch, int threads)
{
    size_t n = threads > 0 ? (size_t)threads : (size_t)omp_get_max_threads();
    return (int)(n < batch->n_sequences ? n : batch->n_sequences);
}

static int any_logits(const exf_lane *lanes, size_t n_lanes)
{
    for (size_t i = 0; i < n_lanes; i++)
        if (lanes[i].observer && lanes[i].observer->logits) return 1;
    return 0;
}

static exf_code open_pass(exf_pass *p, size_t n_lanes, exf_err *err)
{
    exf_code rc;
    const exf_architecture *a = &p->model->arch;
    size_t floats, routes;
    EXF_TRY(exf_mem_mul(&floats, p->batch->n_tokens, (size_t)a->d_model, "hidden states", err));
    EXF_TRY(exf_mem_mul(&routes, p->batch->n_tokens, (size_t)a->top_k, "routes", err));
    EXF_TRY(exf_mem_new(&p->hidden, n_lanes, sizeof *p->hidden, "lanes", err));
    for (size_t i = 0; i < n_lanes; i++) EXF_TRY(exf_mem_new(&p->hidden[i], floats, sizeof(float), "hidden states", err));
    EXF_TRY(exf_mem_new(&p->ids, routes, sizeof *p->ids, "routes", err));
    EXF_TRY(exf_mem_new(&p->weights, routes, sizeof *p->weights, "routes", err));
    EXF_TRY(exf_rope_tables_new(&p->rope, &a->attention, p->batch->max_tokens, err));
    EXF_TRY(exf_mem_new(&p->space, (size_t)p->n_workers, sizeof *p->space, "workspaces", err));
    for (int i = 0; i < p->n_workers; i++) EXF_TRY(exf_workspace_new(&p->space[i], a, p->batch->max_tokens, p->with_head, err));
out:
    return rc;
}

static void close_pass(exf_pass *p, size_t n_lanes)
{
    for (int i = 0; p->space && i < p->n_workers; i++) exf_workspace_free(&p->space[i]);
    for (size_t i = 0; p->hidden && i < n_lanes; i++) exf_mem_free(p->hidden[i]);
    exf_mem_free(p->space);
    exf_mem_free(p->hidden);
    exf_mem_free(p->ids);
    exf_mem_free(p->weights);
    exf_rope_tables_free(&p->rope);
    exf_layer_weights_free(&p->weights_now);
}

/* hidden[row] = embedding of its token.  The table is read once and dropped. */
static exf_code embed(exf_pass *p, size_t n_lanes, exf_err *err)
{
    float *table = NULL;
    size_t h = (size_t)p->model->arch.d_model;
    double start = exf_clock();
    exf_code rc = exf_mem_new(&table, exf_model_count(p->model, EXF_W_EMBED), sizeof(float), "embedding", err);
    if (rc == EXF_OK) rc = exf_model_read(p->model, EXF_W_EMBED, 0, 0, table, err);
    for (size_t t = 0; rc == EXF_OK && t < p->batch->n_tokens; t++)
        for (size_t i = 0; i < n_lanes; i++) memcpy(p->hidden[i] + t * h, table + (size_t)p->batch->ids[t] * h, h * sizeof(float));
    exf_mem_free(table);
    p->report->embed += exf_clock() - start;
    return rc;
}

static exf_code run_layer(exf_pass *p, const exf_lane *lanes, size_t n_lanes, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_layer_weights_read(&p->weights_now, p->model, layer, err));
    progress->weight_bytes = exf_model_layer_bytes(p->model, layer);
    p->report->weight_bytes += progress->weight_bytes;
    p->report->read += exf_clock() - start;
    for (size_t i = 0; i < n_lanes; i++) EXF_TRY(exf_layer_step(p, &lanes[i], p->hidden[i], layer, moe_index, progress, err));
    progress->seconds = exf_clock() - start;
    exf_progress_layer(progress);
out:
    return rc;
}

static exf_code run_layers(exf_pass *p, const exf_lane *lanes, size_t n_lanes, int n_layers, exf_err *err)
{
    int moe_index = 0;
    exf_code rc = EXF_OK;
    for (int l = 0; rc == EXF_OK && l < n_layers; l++) {
        int is_moe = p->model->arch.is_moe[l];
        exf_progress progress = {.layer = l, .n_layers = n_layers, .done = l + 1, .tokens = p->batch->n_tokens,
                                 .n_experts = is_moe ? p->model->arch.n_experts : 0};
        rc = run_layer(p, lanes, n_lanes, l, is_moe ? moe_index : -1, &progress, err);
        moe_index += is_moe;
    }
    exf_progress_end();
    return rc;
}

static exf_code begin_observers(const exf_lane *lanes, size_t n_lanes, int n_workers, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < n_lanes; i++) {
        const exf_observer *o = lanes[i].observer;
        if (o && o->begin) rc = o->begin(o->self, n_workers, err);
    }
    return rc;
}

static void sum_times(exf_pass *p)
{
    for (int i = 0; p->space && i < p->n_workers; i++) {
        const exf_forward_report *t = &p->space[i].times;
        p->report->mixer += t->mixer;
        p->report->router += t->router;
        p->report->experts += t->experts;
        p->report->observe += t->observe;
        p->report->head += t->head;
    }
}

exf_code exf_forward(const exf_model *m, const exf_batch *batch, const exf_lane *lanes, size_t n_lanes, const exf_forward_options *options,
                     exf_forward_report *report, exf_err *err)
{
    exf_code rc;
    double start = exf_clock();
    exf_pass p = {.model = m, .batch = batch, .report = report, .n_workers = exf_forward_workers(batch, options->threads),
                  .with_head = any_logits(lanes, n_lanes)};
    int n_layers = options->n_layers > 0 && options->n_layers < m->arch.n_layers ? options->n_layers : m->arch.n_layers;
    memset(report, 0, sizeof *report);
    report->workers = p.n_workers;
    exf_gemm_setup_cpu();
    EXF_TRY(open_pass(&p, n_lanes, err));
    EXF_TRY(begin_observers(lanes, n_lanes, p.n_workers, err));
    EXF_TRY(embed(&p, n_lanes, err));
    report->weight_bytes += exf_model_layer_bytes(m, -1);
    EXF_TRY(run_layers(&p, lanes, n_lanes, n_layers, err));
    if (p.with_head && n_layers == m->arch.n_layers) EXF_TRY(exf_head_step(&p, lanes, n_lanes, err));
out:
    sum_times(&p);
    close_pass(&p, n_lanes);
    report->wall = exf_clock() - start;
    return rc;
}

double exf_forward_flops(const exf_architecture *a, const exf_batch *batch, int logits)
{
    double h = a->d_model, d = a->attention.head_dim, heads = a->attention.n_heads, kv = a->attention.n_kv_heads;
    double projections = 2 * h * d * (2 * heads + 2 * kv), experts = 2 * h * a->n_experts + 6.0 * a->top_k * h * a->d_expert;
    double per_token = a->n_layers * projections + a->n_moe_layers * experts + (a->n_layers - a->n_moe_layers) * 6 * h * a->d_ffn;
    double flops = 0;
    if (logits) per_token += 2 * h * a->vocab;
    for (size_t i = 0; i < batch->n_sequences; i++) {
        double t = batch->span[i].n_tokens;
        flops += t * per_token + a->n_layers * 2 * heads * d * t * (t + 1); /* scores and values, half of T x T each */
    }
    return flops;
}

uint64_t exf_forward_memory(const exf_model *m, const exf_batch *batch, size_t n_lanes, int threads, int logits)
{
    const exf_architecture *a = &m->arch;
    size_t table = exf_model_count(m, EXF_W_EMBED), layer = exf_layer_weights_size(m);
    uint64_t weights = sizeof(float) * (uint64_t)(table > layer && !logits ? table : logits ? layer + table : layer);
    uint64_t hidden = (uint64_t)batch->n_tokens * (sizeof(float) * (uint64_t)a->d_model * n_lanes + 8u * (uint64_t)a->top_k);
    return weights + hidden + (uint64_t)exf_forward_workers(batch, threads) * exf_workspace_bytes(a, batch->max_tokens, logits);
}
