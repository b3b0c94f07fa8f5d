/* rewrite.c - the rewriters that change routes between the halves of a layer: the lane's rewriter changes the routes of the whole
 * run, other lanes' rewriters change copies of them for probes. */
#include "pass/forward_internal.h"

#include <math.h>

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
    if (exf_rewrites_on_device(r, p->b)) {
        routes.q = p->space[0].q;
        routes.ids = set->ids_device;
        routes.weights = set->weights_device;
        routes.logits = r->wants_logits ? s->logits_device : NULL;
        routes.bias = r->wants_logits ? bias : NULL;
        return r->device_rewrite(r->self, &routes, err);
    }
    EXF_TRY(exf_route_set_fetch(set, 0, set->n, p->space[0].q, err));
    if (r->wants_logits) {
        routes.logits = s->logits;
        routes.bias = bias && p->b->gpu ? p->bias : bias;
        if (bias && p->b->gpu)
            EXF_TRY(p->b->download(p->space[0].q, p->bias, bias, (size_t)a->n_experts * sizeof *bias, err));
    }
    EXF_TRY(r->rewrite(r->self, &routes, err));
    exf_route_set_send(set, 0, set->n, p->space[0].q);
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
    probe.logits = probe.logits_device = NULL; /* a lane of another router wants none */
    probe.is_probe = 1;
    probe.inputs = NULL;
    probe.moe.slot_logits = NULL;
    EXF_TRY(exf_mask_load(&probe, r, err));
    if (!probe.mask) exf_route_set_copy(probe.moe.routes, &p->first, q);
    for (size_t n = 0; probe.mask && exf_next_group(&probe, EXF_HIDDEN_READ, &n);) EXF_TRY(exf_route_group(&probe, err));
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
