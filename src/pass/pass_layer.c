/* pass_layer.c - see pass.h. */
#include "pass/pass.h"


/* ---- the experts of one lane ---------------------------------------------------------------- */

/* Returns the lane's observer; NULL in a dense layer. */
static const exf_observer *observer_of(const exf_step *s)
{
    return s->moe.moe_index >= 0 ? s->p->lanes[s->lane].observer : NULL;
}

static exf_code begin_layer(const exf_step *s, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    double start = exf_clock();
    exf_code rc = o && o->layer_begin ? o->layer_begin(o->self, s->moe.layer, s->moe.moe_index, err) : EXF_OK;
    s->p->space[0].times.observe += exf_clock() - start;
    return rc;
}

static exf_code end_sweep(const exf_step *s, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    exf_code rc = EXF_OK;
    if (s->moe.last) EXF_TRY(s->moe.engine->check(&s->moe, err));
    double start = exf_clock();
    if (o && o->sweep_end) rc = o->sweep_end(o->self, s->moe.layer, s->moe.moe_index, s->moe.sweep, err);
    if (s->moe.last || !s->p->b->gpu) s->p->space[0].times.observe += exf_clock() - start; /* else the host may wait in it */
out:
    return rc;
}

static exf_code end_layer(const exf_step *s, exf_progress *progress, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    double start = exf_clock();
    exf_progress_turn(EXF_WORK_REST);
    exf_code rc = o && o->layer_end ? o->layer_end(o->self, s->moe.layer, s->moe.moe_index, progress, err) : EXF_OK;
    s->p->space[0].times.observe += exf_clock() - start;
    return rc;
}

/* Returns the kind of work of the layer's second half. */
static int expert_work(const exf_step *s)
{
    return s->moe.moe_index >= 0 ? EXF_WORK_EXPERTS : EXF_WORK_DENSE;
}

static exf_code run_experts(exf_step *s, exf_err *err)
{
    return s->moe.engine->run(&s->moe, err);
}

static exf_code run_common(exf_step *s, exf_err *err)
{
    return s->moe.engine->common_input(&s->moe, err);
}

/* Runs all sweeps over all groups; the routes do not change between sweeps. */
static exf_code expert_sweeps(exf_step *s, exf_progress *progress, exf_err *err)
{
    const exf_observer *o = observer_of(s);
    int sweeps = o && o->sweeps > 1 ? o->sweeps : 1;
    exf_code rc;
    EXF_TRY(begin_layer(s, err));
    exf_pass_turn(s->p, EXF_WORK_COMMON);
    if (o && o->common_input) EXF_TRY(exf_each_group(s, EXF_HIDDEN_READ, run_common, err));
    exf_pass_turn(s->p, expert_work(s));
    for (s->moe.sweep = 0; s->moe.sweep < sweeps; s->moe.sweep++) {
        s->moe.last = s->moe.sweep == sweeps - 1;
        EXF_TRY(exf_each_group(s, s->moe.last ? EXF_HIDDEN_CHANGE : EXF_HIDDEN_READ, run_experts, err));
        EXF_TRY(end_sweep(s, err));
    }
    rc = end_layer(s, progress, err);
out:
    return rc;
}

/* ---- both halves ------------------------------------------------------------------------------ */

static int wants_host_routes(const exf_step *s)
{
    return s->p->n_lanes > 1 || exf_moe_wants_host_routes(&s->moe);
}

/* Runs mixer and router of one lane.  While the lanes are joined only the first lane mixes; another
 * lane copies its routes, or runs the router again if experts are masked. */
static exf_code mix_lane(exf_step *s, int joined, exf_err *err)
{
    exf_pass *p = s->p;
    exf_code rc;
    EXF_TRY(exf_mask_load(s, p->lanes[s->lane].rewriter, err));
    if (joined && s->lane > 0 && !s->mask) {
        exf_route_set_copy(s->moe.routes, &p->first);
        s->unsent = 1;
        return EXF_OK;
    }
    if (joined && s->lane > 0)
        EXF_TRY(exf_each_group(s, EXF_HIDDEN_READ, exf_route_group, err));
    else
        EXF_TRY(exf_each_group(s, EXF_HIDDEN_CHANGE, exf_mix_group, err));
    if (wants_host_routes(s)) EXF_TRY(exf_route_set_fetch(s->moe.routes, 0, s->moe.routes->n, p->space[0].q, err));
out:
    return rc;
}

/* Returns 1 if a group's experts need not wait for the routes of other groups: no rewriter changes
 * routes, and the observer reads a single sweep. */
static int flows(const exf_step *s)
{
    const exf_rewriter *r = s->p->lanes[s->lane].rewriter;
    const exf_observer *o = s->p->lanes[s->lane].observer;
    if (s->moe.moe_index < 0) return 1;
    return s->p->n_lanes == 1 && !(r && (r->rewrite || r->correct)) && !(o && (o->common_input || o->sweeps > 1));
}

static exf_code flow_group(exf_step *s, exf_err *err)
{
    size_t k = (size_t)s->p->model->arch.top_k;
    const exf_sequence_group *g = &s->moe.group;
    exf_code rc;
    EXF_TRY(exf_mix_group(s, err));
    if (s->moe.moe_index >= 0 && wants_host_routes(s))
        EXF_TRY(exf_route_set_fetch(s->moe.routes, g->row * k, g->n_rows * k, s->p->space[0].q, err));
    exf_pass_turn(s->p, expert_work(s));
    rc = run_experts(s, err);
out:
    return rc;
}

/* Runs both halves of the layer group by group. */
static exf_code flow(exf_step *s, exf_progress *progress, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mask_load(s, s->p->lanes[s->lane].rewriter, err));
    EXF_TRY(begin_layer(s, err));
    EXF_TRY(exf_each_group(s, EXF_HIDDEN_CHANGE, flow_group, err));
    EXF_TRY(end_sweep(s, err));
    EXF_TRY(end_layer(s, progress, err));
out:
    return rc;
}

/* Returns where the router's logits go: the first lane's are read by probes and, while the lanes are joined, by all. */
static float *logits_of(const exf_pass *p, size_t lane, int joined)
{
    const exf_rewriter *r = p->lanes[lane].rewriter;
    int wants = r && r->wants_logits;
    return lane == 0 || (wants && joined) ? p->logits[0] : wants ? p->logits[1] : NULL;
}

static exf_code run_lane(exf_pass *p, size_t lane, int layer, int moe_index, int joined, exf_progress *progress, exf_err *err)
{
    exf_step s = exf_step_of(p, lane, layer, moe_index);
    exf_code rc;
    if (moe_index >= 0) s.logits = logits_of(p, lane, joined);
    if (flows(&s)) return flow(&s, progress, err);
    EXF_TRY(mix_lane(&s, joined, err));
    exf_pass_turn(p, EXF_WORK_ROUTE);
    if (lane == 0) EXF_TRY(exf_first_lane_share(&s, joined, err));
    EXF_TRY(exf_routes_rewrite(&s, err));
    exf_progress_add((double)p->batch->n_tokens * (double)(lane == 0 ? 1 + p->demand.probes : 1));
    EXF_TRY(expert_sweeps(&s, progress, err));
out:
    return rc;
}

exf_code exf_layer_step(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    int joined = p->joined;
    size_t n = joined && moe_index < 0 ? 1 : p->n_lanes;
    exf_code rc = EXF_OK;
    if (moe_index >= 0) p->joined = 0;
    for (size_t i = 0; rc == EXF_OK && i < n; i++) rc = run_lane(p, i, layer, moe_index, joined, progress, err);
    return rc;
}
