/* work.c - what the lanes of a pass require, and how much work that is, kind by kind, before it runs; see forward.h. */
#include "pass/forward_internal.h"

/* ---- demand ------------------------------------------------------------------------------- */

int exf_lane_keeps_router_routes(const exf_lane *lane)
{
    return exf_lane_observer(lane)->probe && lane->rewriter && lane->rewriter->retained_experts && lane->rewriter->correct;
}

int exf_rewrites_on_device(const exf_rewriter *r, const struct exf_backend *b)
{
    return b->gpu && r && r->device_rewrite;
}

exf_demand exf_demand_of(const exf_lane *lanes, size_t n_lanes, const struct exf_backend *b)
{
    exf_demand d = {.lanes = n_lanes};
    for (size_t i = 0; i < n_lanes; i++) {
        const exf_observer *o = exf_lane_observer(&lanes[i]);
        const exf_rewriter *r = lanes[i].rewriter;
        d.corrects |= r && r->correct;
        if (r) d.observers += r->device_bytes;
        int wants = r && r->wants_logits, there = exf_rewrites_on_device(r, b);
        if (wants && there) d.device_logits = n_lanes > 1 ? 2 : 1;
        if (wants && !there) d.logits = n_lanes > 1 ? 2 : 1;
        d.head |= o->logits != NULL;
        d.scored |= o->logits && o->reads_device;
        if (b->gpu && o->device_bytes) d.observers += o->device_bytes(o->self, b);
        d.host_blocks |= o->block && !o->reads_device; /* even if the pass runs on a GPU */
        d.slot_logits |= b->gpu && o->wants_slot_logits;
        d.probes += i > 0 && o->probe;
        d.pruned += i > 0 && exf_lane_keeps_router_routes(&lanes[i]);
        if (o->common_input && o->common_input_tokens > d.common_input) d.common_input = o->common_input_tokens;
        if ((o->wants_router_logits || (o->wants_slot_logits && !b->gpu)) && !d.logits) d.logits = 1;
        if (o->sweeps > d.sweeps) d.sweeps = o->sweeps;
    }
    return d;
}

size_t exf_demand_route_sets(const exf_demand *d)
{
    return 1 + d->probes + d->pruned + (d->lanes > 1) + (d->corrects != 0);
}

uint64_t exf_demand_logits_bytes(const exf_demand *d, size_t n_tokens, int n_experts)
{
    return (uint64_t)d->logits * n_tokens * (uint64_t)n_experts * sizeof(float);
}

/* ---- seconds of a unit, before any is measured -------------------------------------------- */

/* Seconds of a core that the priors are made of: right within a factor of two in relation to each other,
 * which is all that an estimate needs before it has measured (base/progress.h). */
static const double second_per_byte = 1e-9, second_per_flop = 1 / 4e10, second_per_mixer_flop = 1 / 1e10,
                    second_per_score = 5e-9, second_per_route = 5e-7, second_per_pair_at_end = 2e-7;

/* Return the floating-point operations of one token in the router and experts of an MoE layer, or in a dense layer. */
static double moe_flops(const exf_architecture *a)
{
    double h = a->d_model;
    return 2 * h * a->n_experts + 6 * h * (a->top_k * (double)a->d_expert + a->d_shared);
}

static double dense_flops(const exf_architecture *a)
{
    return 6.0 * a->d_model * a->d_ffn;
}

static void set_priors(exf_eta *e, const exf_architecture *a)
{
    double h = a->d_model, k = a->top_k, experts = a->n_experts, observed = 4 * k * k * h;
    e->kind[EXF_WORK_READ].prior = second_per_byte;
    for (int i = 0; i < EXF_MIXER_KINDS; i++) e->kind[EXF_WORK_MIXER + i].prior = second_per_mixer_flop;
    e->kind[EXF_WORK_ROUTE].prior = second_per_route;
    e->kind[EXF_WORK_DENSE].prior = dense_flops(a) * second_per_flop;
    e->kind[EXF_WORK_EXPERTS].prior = (moe_flops(a) + observed) * second_per_flop;
    e->kind[EXF_WORK_COMMON].prior = (6 * h * a->d_expert + experts * h) * experts * second_per_flop;
    e->kind[EXF_WORK_HEAD].prior = a->vocab * (2 * h * second_per_flop + second_per_score);
    e->kind[EXF_WORK_REST].prior = experts * experts * second_per_pair_at_end;
}

/* ---- units -------------------------------------------------------------------------------- */

/* Until the first router has run the lanes are joined, and the first of them computes for all. */
exf_eta exf_work_of_pass(const exf_model *m, const exf_batch *batch, const exf_demand *d, int first, int n_layers)
{
    const exf_architecture *a = &m->arch;
    exf_eta e = {.now = EXF_WORK_READ};
    double lanes = (double)d->lanes, tokens = (double)batch->n_tokens, common = 0;
    int joined = 1, sweeps = d->sweeps > 1 ? d->sweeps : 1;
    set_priors(&e, a);
    for (size_t i = 0; i < batch->n_sequences; i++)
        common += batch->span[i].n_tokens < d->common_input ? batch->span[i].n_tokens : d->common_input;
    for (int l = 0; l < first; l++) joined &= !a->is_moe[l];
    for (int l = first; l < n_layers; l++) {
        double mixer = 0, computed = joined ? 1 : lanes;
        for (size_t i = 0; i < batch->n_sequences; i++) mixer += exf_mixer_of(a->mixer[l])->flops(a, l, batch->span[i].n_tokens);
        e.kind[EXF_WORK_READ].planned += (double)exf_model_layer_bytes(m, l);
        e.kind[EXF_WORK_MIXER + a->mixer[l]].planned += mixer * computed;
        joined &= !a->is_moe[l];
        if (!a->is_moe[l]) {
            e.kind[EXF_WORK_DENSE].planned += tokens * computed;
            continue;
        }
        if (lanes > 1) e.kind[EXF_WORK_ROUTE].planned += tokens * (lanes + (double)d->probes);
        e.kind[EXF_WORK_EXPERTS].planned += tokens * (lanes - 1 + sweeps);
        e.kind[EXF_WORK_COMMON].planned += common;
    }
    e.kind[EXF_WORK_REST].planned = n_layers - first;
    if (!first || d->head) e.kind[EXF_WORK_READ].planned += (double)exf_model_layer_bytes(m, -1);
    if (d->head && n_layers == a->n_layers) e.kind[EXF_WORK_HEAD].planned = tokens * lanes;
    return e;
}

int exf_work_sample_layers(const exf_architecture *a)
{
    int n = 0;
    for (int l = 0; l < a->n_layers; l++) {
        int k = 0;
        while (k < l && (a->mixer[k] != a->mixer[l] || a->is_moe[k] != a->is_moe[l] || a->traits[k] != a->traits[l])) k++;
        if (k == l) n = l + 1;
    }
    return n;
}

/* ---- floating-point operations --------------------------------------------------------------- */

double exf_forward_flops(const exf_architecture *a, const exf_batch *batch, int logits)
{
    double moe = moe_flops(a), dense = dense_flops(a), flops = 0;
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
