/* route.c - the router, routes in both memories, and the rewriters that change them between the halves of a layer: the lane's
 * rewriter changes the routes of the whole run, other lanes' rewriters change copies of them for probes. */
#include "pass/forward_internal.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- the router -------------------------------------------------------------------------------- */

static exf_router_rules rules_of(const exf_architecture *a, const exf_layer_weights *lw, const float *mask)
{
    const exf_router_spec *r = &a->router;
    return (exf_router_rules){
        .score = r->score, .n_experts = a->n_experts, .top_k = a->top_k, .n_groups = r->n_groups, .top_groups = r->top_groups,
        .group_top2 = r->group_score == EXF_GROUP_TOP2_SUM, .renormalise = r->renormalise, .epsilon = r->epsilon,
        .scaling = r->scaling, .bias = mask ? mask + a->n_experts : lw->w[EXF_W_ROUTER_BIAS], .table = lw->w[EXF_W_ROUTER_TABLE],
    };
}

void exf_routing_run(exf_workspace *ws, int32_t *ids, float *weights, exf_matrix input, const int32_t *tokens, int n_tokens,
                     const exf_architecture *a, const exf_layer_weights *lw, const float *mask, float *logits)
{
    exf_router_rules rules = rules_of(a, lw, mask);
    int h = input.number == EXF_NUMBER_BF16 ? 2 * a->d_model : a->d_model;
    exf_matrix w = input.number == EXF_NUMBER_BF16 ? exf_bf16(lw->router_split) : exf_f32(lw->w[EXF_W_ROUTER]);
    ws->b->gemm_xwt(ws->q, logits, a->n_experts, input, h, w, h, n_tokens, a->n_experts, h, 1, 0);
    if (lw->w[EXF_W_ROUTER_SHIFT]) ws->b->add_bias(ws->q, logits, lw->w[EXF_W_ROUTER_SHIFT], n_tokens, a->n_experts);
    if (mask) ws->b->add_bias(ws->q, logits, mask, n_tokens, a->n_experts);
    ws->b->router(ws->q, ids, weights, logits, tokens, n_tokens, &rules, ws->router);
}

/* ---- route sets -------------------------------------------------------------------------------- */

exf_code exf_route_set_new(exf_route_set *r, const exf_backend *b, size_t n_tokens, int top_k, exf_err *err)
{
    exf_code rc;
    memset(r, 0, sizeof *r);
    r->b = b;
    EXF_TRY(exf_mem_mul(&r->n, n_tokens, (size_t)top_k, "routes", err));
    if (!b->gpu) {
        EXF_TRY(exf_mem_new(&r->ids, r->n, sizeof *r->ids, "routes", err));
        EXF_TRY(exf_mem_new(&r->weights, r->n, sizeof *r->weights, "routes", err));
        r->ids_device = r->ids;
        r->weights_device = r->weights;
        return EXF_OK;
    }
    EXF_TRY(b->gpu->alloc_staging((void *)&r->ids, r->n * sizeof *r->ids, "routes", err));
    EXF_TRY(b->gpu->alloc_staging((void *)&r->weights, r->n * sizeof *r->weights, "routes", err));
    EXF_TRY(b->alloc(&r->ids_device, r->n, sizeof *r->ids, "routes", err));
    EXF_TRY(b->alloc(&r->weights_device, r->n, sizeof *r->weights, "routes", err));
out:
    return rc;
}

uint64_t exf_route_set_bytes(size_t n_tokens, int top_k)
{
    return (uint64_t)n_tokens * (uint64_t)top_k * (sizeof(int32_t) + sizeof(float));
}

void exf_route_set_free(exf_route_set *r)
{
    if (!r->b) return;
    if (r->b->gpu) {
        r->b->free(r->ids_device);
        r->b->free(r->weights_device);
        r->b->gpu->free_staging(r->ids);
        r->b->gpu->free_staging(r->weights);
    } else {
        exf_mem_free(r->ids);
        exf_mem_free(r->weights);
    }
    memset(r, 0, sizeof *r);
}

exf_code exf_route_set_fetch(exf_route_set *r, size_t first, size_t n, exf_queue *q, exf_err *err)
{
    if (!r->b->gpu) return EXF_OK;
    r->b->gpu->carry(q, r->ids + first, r->ids_device + first, n * sizeof *r->ids);
    r->b->gpu->carry(q, r->weights + first, r->weights_device + first, n * sizeof *r->weights);
    return r->b->finish(q, err);
}

void exf_route_set_send_part(exf_route_set *r, size_t first, size_t n, exf_queue *q)
{
    if (!r->b->gpu) return;
    r->b->gpu->carry(q, r->ids_device + first, r->ids + first, n * sizeof *r->ids);
    r->b->gpu->carry(q, r->weights_device + first, r->weights + first, n * sizeof *r->weights);
}

void exf_route_set_send(exf_route_set *r, exf_queue *q)
{
    exf_route_set_send_part(r, 0, r->n, q);
}

void exf_route_set_copy(exf_route_set *to, const exf_route_set *from, exf_queue *q)
{
    void (*copy)(exf_queue *, void *, const void *, size_t) = to->b->gpu ? to->b->gpu->carry : to->b->copy;
    copy(q, to->ids_device, from->ids_device, from->n * sizeof *from->ids);
    copy(q, to->weights_device, from->weights_device, from->n * sizeof *from->weights);
}

/* ---- rewriting --------------------------------------------------------------------------------- */

/* Loads the mask: 0 for a retained expert and -infinity for the others, then the router's bias plus
 * that.  A hash layer chooses by token id and has no mask. */
exf_code exf_mask_load(exf_step *s, const exf_rewriter *r, exf_err *err)
{
    exf_pass *p = s->p;
    size_t n = (size_t)p->model->arch.n_experts;
    int chooses = s->moe.moe_index >= 0 && !p->weights_now.w[EXF_W_ROUTER_TABLE];
    const unsigned char *retained = r && r->retained_experts && chooses ? r->retained_experts(r->self, s->moe.moe_index) : NULL;
    const float *bias = p->weights_now.w[EXF_W_ROUTER_BIAS];
    exf_queue *q = p->space[0].q;
    s->mask = NULL;
    if (!retained) return EXF_OK;
    for (size_t e = 0; e < n; e++) p->mask[e] = retained[e] ? 0.0f : -INFINITY;
    p->b->upload(q, p->mask_device, p->mask, n * sizeof *p->mask);
    p->b->copy(q, p->mask_device + n, p->mask_device, n * sizeof *p->mask);
    if (bias) p->b->add(q, p->mask_device + n, bias, n);
    s->mask = p->mask_device;
    return p->b->finish(q, err);
}

exf_code exf_routes_show(const exf_step *s, const exf_input_block *host, const exf_device_input *device, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n_lanes; i++) {
        const exf_rewriter *r = p->lanes[i].rewriter;
        int gets = i == s->lane || (s->lane == 0 && (s->joined || p->probe_routes[i].n));
        if (!r || !gets || s->is_probe) continue;
        if (host && r->routed) rc = r->routed(r->self, host, err);
        if (device && r->device_routed) rc = r->device_routed(r->self, device, err);
    }
    return rc;
}

/* Rewrites the routes of `set` in GPU memory. */
static exf_code rewrite_on_device(const exf_step *s, const exf_rewriter *r, exf_route_set *set, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_device_routes routes = {.layer = s->moe.layer, .moe_index = s->moe.moe_index, .batch = p->batch,
                                .n_experts = p->model->arch.n_experts, .top_k = p->model->arch.top_k, .probe = set != &p->routes,
                                .by_token = p->weights_now.w[EXF_W_ROUTER_TABLE] != NULL, .q = p->space[0].q,
                                .ids = set->ids_device, .weights = set->weights_device};
    return r->device_rewrite(r->self, &routes, err);
}

/* Rewrites the routes of `set` in place with r, in host memory where r works there alone. */
static exf_code rewrite_set(const exf_step *s, const exf_rewriter *r, exf_route_set *set, exf_err *err)
{
    exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    exf_routes routes = {.layer = s->moe.layer, .moe_index = s->moe.moe_index, .batch = p->batch, .n_experts = a->n_experts,
                         .top_k = a->top_k, .probe = set != &p->routes, .ids = set->ids, .weights = set->weights,
                         .by_token = p->weights_now.w[EXF_W_ROUTER_TABLE] != NULL};
    const float *bias = p->weights_now.w[EXF_W_ROUTER_BIAS];
    exf_code rc = EXF_OK;
    if (!r || !r->rewrite) return EXF_OK;
    if (p->b->gpu && r->device_rewrite) return rewrite_on_device(s, r, set, err);
    EXF_TRY(exf_route_set_fetch(set, 0, set->n, p->space[0].q, err));
    if (r->wants_logits) {
        routes.logits = s->logits;
        routes.bias = bias && p->b->gpu ? p->bias : bias;
        if (bias && p->b->gpu)
            EXF_TRY(p->b->download(p->space[0].q, p->bias, bias, (size_t)a->n_experts * sizeof *bias, err));
    }
    EXF_TRY(r->rewrite(r->self, &routes, err));
    exf_route_set_send(set, p->space[0].q);
out:
    return rc;
}

exf_code exf_routes_rewrite(exf_step *s, exf_err *err)
{
    exf_pass *p = s->p;
    const exf_rewriter *r = p->lanes[s->lane].rewriter;
    exf_queue *q = p->space[0].q;
    exf_code rc = EXF_OK;
    if (r && r->correct) {
        exf_route_set_copy(&p->router_routes, s->moe.routes, q);
        s->moe.router_routes = &p->router_routes;
    }
    EXF_TRY(rewrite_set(s, r, s->moe.routes, err));
    if (!exf_moe_wants_host_routes(&s->moe)) return EXF_OK;
    EXF_TRY(exf_route_set_fetch(s->moe.routes, 0, s->moe.routes->n, q, err));
    if (r && r->correct) EXF_TRY(exf_route_set_fetch(&p->router_routes, 0, p->router_routes.n, q, err));
out:
    return rc;
}

/* Fills the routes of one probing lane: the first lane's hidden states, routed and rewritten by that lane's rules. */
static exf_code share_with_lane(const exf_step *s, size_t lane, exf_err *err)
{
    exf_pass *p = s->p;
    const exf_rewriter *r = p->lanes[lane].rewriter;
    exf_queue *q = p->space[0].q;
    exf_step probe = *s;
    exf_code rc;
    probe.moe.routes = &p->probe_routes[lane];
    probe.logits = NULL; /* a lane of another router wants none */
    probe.is_probe = 1;
    probe.inputs = NULL;
    probe.moe.slot_logits = NULL;
    EXF_TRY(exf_mask_load(&probe, r, err));
    if (probe.mask) {
        EXF_TRY(exf_each_group(&probe, EXF_HIDDEN_READ, exf_route_group, err));
    } else {
        exf_route_set_copy(probe.moe.routes, &p->first, q);
    }
    if (p->probe_router_routes[lane].n) exf_route_set_copy(&p->probe_router_routes[lane], probe.moe.routes, q);
    EXF_TRY(rewrite_set(s, r, probe.moe.routes, err));
out:
    return rc;
}

exf_code exf_first_lane_share(exf_step *s, int joined, exf_err *err)
{
    exf_pass *p = s->p;
    exf_code rc = EXF_OK;
    if (!p->first.n) return EXF_OK;
    exf_route_set_copy(&p->first, s->moe.routes, p->space[0].q);
    for (size_t i = 1; i < p->n_lanes; i++) {
        if (joined) EXF_TRY(exf_hidden_copy(&p->hidden, i, 0, p->space[0].q, err));
        if (p->probe_routes[i].n) EXF_TRY(share_with_lane(s, i, err));
    }
out:
    return rc;
}
