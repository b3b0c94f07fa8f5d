/* layer.c - runs one layer for all lanes, and the head after the last layer.
 *
 * A layer has two halves: mixer and router (mix.c) over all sequences, so that a rewriter sees the routes of the whole run (a
 * decode batch spans sequences), then the experts (experts.c).  If no rewriter or observer needs all routes at once, both
 * halves of one group of sequences run before the next group (hidden.h), so that hidden states kept in host memory cross
 * the bus once. */
#include "pass/forward_internal.h"

#include "base/parallel.h"

#include <omp.h>

/* Returns which of two arrays the router's logits go to: the first lane's are read by probes and, while the lanes are joined, by
 * all.  wants: 1: the lane's rewriter reads them there. */
static float *logits_of(float *const array[2], size_t lane, int joined, int wants)
{
    return lane == 0 || (wants && joined) ? array[0] : wants ? array[1] : NULL;
}

/* Returns the layer of one lane, whose weights are loaded.  A group's experts need not wait for the routes of other groups where no
 * rewriter changes routes, and the observer reads a single sweep and no input before it. */
static exf_step step_of(exf_pass *p, size_t lane, int layer, int moe_index, int joined)
{
    const exf_rewriter *r = p->lanes[lane].rewriter;
    const exf_observer *o = exf_lane_observer(&p->lanes[lane]);
    int rewrites = r && (r->rewrite || r->correct), wants = r && r->wants_logits, there = exf_rewrites_on_device(r, p->b);
    exf_step s = {.p = p, .lane = lane, .joined = joined};
    s.group_by_group = moe_index < 0 || (p->n_lanes == 1 && !rewrites && !o->common_input && o->sweeps <= 1 && !o->input);
    s.inputs = o->input && !s.group_by_group ? o : NULL;
    s.moe = (exf_moe_layer){
        .model = p->model, .batch = p->batch, .tokens = p->tokens_device, .weights = &p->weights_now, .parts = p->parts,
        .space = p->space, .n_workers = p->n_workers, .needs = p->needs, .block_tokens = p->block_tokens,
        .timed = p->options->timed, .not_finite = p->not_finite, .slots_run = p->slots_run, .lane = &p->lanes[lane],
        .probes = p->probes, .n_probes = lane == 0 && p->demand.probes ? p->n_lanes : 0,
        .routes = &p->routes, .router_routes = &p->routes, .mixing = p->mixing,
        .layer = layer, .moe_index = moe_index,
        .group = {0, p->batch->n_sequences, 0, p->batch->n_tokens}, .last = 1,
        .work = moe_index >= 0 ? EXF_WORK_EXPERTS : EXF_WORK_DENSE, .common_work = EXF_WORK_COMMON,
    };
    if (moe_index < 0) return s;
    s.moe.router_logits = s.logits = logits_of(p->logits, lane, joined, wants && !there);
    s.logits_device = logits_of(p->logits_device, lane, joined, wants && there);
    if (o->wants_slot_logits) s.moe.slot_logits = p->slot_logits;
    return s;
}

/* ---- one lane ------------------------------------------------------------------------------------- */

/* Tells the lane's observer where a MoE layer is.  The seconds count as observing, of all workers, since they wait for the one
 * that observes; not those between sweeps on a GPU, since the host may wait for it then. */
static exf_code tell(const exf_step *s, exf_moment_kind at, exf_progress *progress, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_moment m = {.at = at, .layer = s->moe.layer, .moe_index = s->moe.moe_index, .sweep = s->moe.sweep,
                    .q = p->b->gpu ? p->space[0].q : NULL, .progress = progress};
    double start = exf_clock();
    exf_code rc = m.moe_index < 0 ? EXF_OK : exf_observer_tell(exf_lane_observer(s->moe.lane), &m, err);
    if (at != EXF_AT_SWEEP_END || s->moe.last || !p->b->gpu) p->space[0].times.observe += (exf_clock() - start) * p->n_workers;
    return rc;
}

/* Rewrites the lane's routes, and of the first lane those that other lanes probe with; the times are the GPU's own where there is
 * one, and else of all workers, since they wait for it. */
static exf_code rewrite_lane(exf_step *s, exf_err *err)
{
    exf_pass *p = s->p;
    exf_workspace *w = &p->space[0];
    double start = exf_clock();
    exf_code rc;
    exf_stage_begin(p->clock, w->q);
    if (s->lane == 0) EXF_TRY(exf_first_lane_share(s, s->joined, err));
    EXF_TRY(exf_routes_rewrite(s, err));
    exf_stage_end(p->clock, w->q, &w->times.rewrite, -1, 0);
    if (!p->clock) w->times.rewrite += (exf_clock() - start) * p->n_workers;
out:
    return rc;
}

/* Routes all tokens, before any expert runs.  While the lanes are joined only the first lane mixes; another lane copies its
 * routes, or runs the router again if experts are masked. */
static exf_code route_all(exf_step *s, exf_err *err)
{
    exf_pass *p = s->p;
    int follows = s->joined && s->lane > 0;
    exf_code rc;
    if (s->inputs) EXF_TRY(tell(s, EXF_AT_INPUTS_BEGIN, NULL, err));
    EXF_TRY(exf_mask_load(s, p->lanes[s->lane].rewriter, err));
    if (follows && !s->mask) exf_route_set_copy(s->moe.routes, &p->first, p->space[0].q);
    for (size_t n = 0; (!follows || s->mask) && exf_next_group(s, follows ? EXF_HIDDEN_READ : EXF_HIDDEN_CHANGE, &n);)
        EXF_TRY(follows ? exf_route_group(s, err) : exf_mix_group(s, err));
    exf_pass_turn(p, EXF_WORK_ROUTE);
    EXF_TRY(rewrite_lane(s, err));
    exf_progress_add((double)p->batch->n_tokens * (double)(s->lane == 0 ? 1 + p->demand.probes : 1));
out:
    return rc;
}

/* Runs the first half of the layer for a group whose experts need not wait for the routes of others. */
static exf_code mix_before_experts(exf_step *s, exf_err *err)
{
    size_t k = (size_t)s->p->model->arch.top_k;
    const exf_sequence_group *g = &s->moe.group;
    exf_code rc;
    EXF_TRY(exf_mix_group(s, err));
    if (s->moe.moe_index >= 0 && exf_moe_wants_host_routes(&s->moe))
        EXF_TRY(exf_route_set_fetch(s->moe.routes, g->row * k, g->n_rows * k, s->p->space[0].q, err));
    exf_pass_turn(s->p, s->moe.work);
out:
    return rc;
}

/* Runs the layer for one lane after the other: routes all tokens, then runs the experts once for each sweep, whose routes are the
 * same. */
exf_code exf_layer_step(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    int joined = p->joined;
    size_t n_lanes = joined && moe_index < 0 ? 1 : p->n_lanes;
    exf_code rc = EXF_OK;
    if (moe_index >= 0) p->joined = 0;
    for (size_t i = 0; i < n_lanes; i++) {
        exf_step s = step_of(p, i, layer, moe_index, joined);
        const exf_observer *o = exf_lane_observer(&p->lanes[i]);
        int sweeps = o->sweeps > 1 && !s.group_by_group ? o->sweeps : 1;
        EXF_TRY(s.group_by_group ? exf_mask_load(&s, p->lanes[i].rewriter, err) : route_all(&s, err));
        EXF_TRY(tell(&s, EXF_AT_LAYER_BEGIN, NULL, err));
        if (s.inputs) EXF_TRY(tell(&s, EXF_AT_INPUTS_END, NULL, err));
        if (!s.group_by_group) exf_pass_turn(p, EXF_WORK_COMMON);
        for (size_t n = 0; !s.group_by_group && o->common_input && exf_next_group(&s, EXF_HIDDEN_READ, &n);)
            EXF_TRY(exf_common_input(&s.moe, err));
        if (!s.group_by_group) exf_pass_turn(p, s.moe.work);
        for (; s.moe.sweep < sweeps; s.moe.sweep++) {
            s.moe.last = s.moe.sweep == sweeps - 1;
            for (size_t n = 0; exf_next_group(&s, s.moe.last ? EXF_HIDDEN_CHANGE : EXF_HIDDEN_READ, &n);) {
                if (s.group_by_group) EXF_TRY(mix_before_experts(&s, err));
                EXF_TRY(exf_moe_run(&s.moe, err));
            }
            if (s.moe.last && p->n_lanes == 1) EXF_TRY(exf_moe_check_finite(&s.moe, err)); /* of several, below */
            EXF_TRY(tell(&s, EXF_AT_SWEEP_END, NULL, err));
        }
        exf_progress_turn(EXF_WORK_REST);
        EXF_TRY(tell(&s, EXF_AT_LAYER_END, progress, err));
    }
    if (!p->b->gpu) return EXF_OK;
    EXF_TRY(exf_pass_finish(p, err)); /* once for all lanes, whose observers then read their numbers */
    exf_step done = step_of(p, 0, layer, moe_index, 0);
    if (p->n_lanes > 1) EXF_TRY(exf_moe_check_finite(&done.moe, err));
    for (size_t i = 0; i < n_lanes; i++) {
        done.moe.lane = &p->lanes[i];
        EXF_TRY(tell(&done, EXF_AT_LAYER_DONE, NULL, err));
    }
out:
    return rc;
}

/* ---- the head ----------------------------------------------------------------------------------- */

static exf_code head_of_rows(exf_pass *p, size_t lane, size_t sequence, int at, int n, int worker, exf_err *err)
{
    exf_workspace *w = &p->space[worker];
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    exf_arena arena = {w->floats, 0};
    exf_head_arrays h;
    size_t row = p->batch->span[sequence].offset + (size_t)at;
    exf_logits_block b = {.sequence = sequence, .row = row, .position = at, .n_tokens = n, .vocab = a->vocab, .worker = worker};
    double start = exf_clock();
    exf_stage_begin(w->clock, w->q);
    exf_head_carve(&h, &arena, w->b, a);
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_HEAD_MIX, EXF_W_HEAD_MIX_BASE, EXF_W_HEAD_MIX_SCALE);
    const float *u = exf_residual_collapse(w->b, w->q, a, &site, exf_hidden_rows(&p->hidden, lane, row, (size_t)n, w->q), n, h.u);
    w->b->rmsnorm(w->q, h.normed, a->d_model, u, a->d_model, lw->w[EXF_W_FINAL_NORM], n, a->d_model, a->norm_eps);
    w->b->gemm_xwt(w->q, h.logits, a->vocab, exf_f32(h.normed), a->d_model, exf_matrix_of(lw, EXF_W_HEAD), a->d_model, n, a->vocab,
                   a->d_model, 1, 0);
    if (a->logit_scale > 0) w->b->scale(w->q, h.logits, (size_t)n * (size_t)a->vocab, (float)a->logit_scale, NULL);
    if (a->logit_cap > 0) w->b->soft_cap(w->q, h.logits, (size_t)n * (size_t)a->vocab, (float)a->logit_cap);
    w->times.flops += 2.0 * n * a->vocab * a->d_model;
    double ran = exf_clock();
    exf_add_time(w, &w->times.head, ran - start);
    exf_stage_end(w->clock, w->q, &w->times.head, EXF_WORK_HEAD, n);
    exf_stage_begin(w->clock, w->q);
    const exf_observer *o = exf_lane_observer(&p->lanes[lane]);
    float *mirror = w->mirror;
    exf_code rc = EXF_OK;
    if (w->b->gpu && o->reads_device) {
        b.q = w->q;
        b.logits = h.logits;
        b.next = p->tokens_device + row + 1;
    } else {
        rc = exf_visible(w, h.logits, (size_t)n * (size_t)a->vocab, &mirror, &b.logits, err);
    }
    if (rc == EXF_OK) rc = o->logits(o->self, &b, err);
    exf_stage_end(w->clock, w->q, &w->times.observe, EXF_WORK_HEAD, 0);
    if (!w->b->gpu) exf_progress_add(n);
    exf_add_time(w, &w->times.observe, exf_clock() - ran);
    return rc;
}

static exf_code head_of_sequence(exf_pass *p, size_t sequence, int worker, exf_err *err)
{
    int n = p->batch->span[sequence].n_tokens, rows = exf_head_rows(p->b);
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += rows)
        for (size_t i = 0; rc == EXF_OK && i < p->n_lanes; i++)
            if (exf_lane_observer(&p->lanes[i])->logits)
                rc = head_of_rows(p, i, sequence, at, n - at < rows ? n - at : rows, worker, err);
    return rc;
}

exf_code exf_head_step(exf_pass *p, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
    exf_code rc;
    EXF_TRY(exf_pass_weights(p, EXF_LAYER_HEAD, err));
    EXF_TRY(exf_hidden_settle(&p->hidden, err));
    exf_pass_turn(p, EXF_WORK_HEAD);
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(p->batch->n_sequences, p->n_workers))
    for (size_t i = 0; i < p->batch->n_sequences; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && head_of_sequence(p, i, omp_get_thread_num(), &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    rc = exf_loop_end(&loop, err);
out:
    return rc;
}
