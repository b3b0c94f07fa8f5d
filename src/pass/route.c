/* route.c - the router, and routes in both memories; see route.h. */
#include "pass/route.h"

#include "base/mem.h"

#include <string.h>

/* ---- the router -------------------------------------------------------------------------------- */

void exf_routing_run(exf_workspace *ws, int32_t *ids, float *weights, exf_matrix input, const int32_t *tokens, int n_tokens,
                     const exf_architecture *a, const exf_layer_weights *lw, const float *mask, float *logits)
{
    const exf_router_spec *r = &a->router;
    exf_router_rules rules = {
        .score = r->score, .n_experts = a->n_experts, .top_k = a->top_k, .n_groups = r->n_groups, .top_groups = r->top_groups,
        .group_top2 = r->group_score == EXF_GROUP_TOP2_SUM, .renormalise = r->renormalise, .epsilon = r->epsilon,
        .scaling = r->scaling, .bias = mask ? mask + a->n_experts : lw->w[EXF_W_ROUTER_BIAS], .table = lw->w[EXF_W_ROUTER_TABLE],
        .expert_scale = lw->w[EXF_W_EXPERT_SCALE],
    };
    int h = input.number == EXF_NUMBER_BF16 ? 2 * a->d_model : a->d_model;
    exf_matrix w = input.number == EXF_NUMBER_BF16 ? exf_bf16(lw->router_split) : exf_f32(lw->w[EXF_W_ROUTER]);
    float alpha = a->router.input_scale > 0 ? (float)a->router.input_scale : 1;
    ws->b->gemm_xwt(ws->q, logits, a->n_experts, input, h, w, h, n_tokens, a->n_experts, h, alpha, 0);
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

void exf_route_set_send(exf_route_set *r, size_t first, size_t n, exf_queue *q)
{
    if (!r->b->gpu) return;
    r->b->gpu->carry(q, r->ids_device + first, r->ids + first, n * sizeof *r->ids);
    r->b->gpu->carry(q, r->weights_device + first, r->weights + first, n * sizeof *r->weights);
}

void exf_route_set_copy(exf_route_set *to, const exf_route_set *from, exf_queue *q)
{
    void (*copy)(exf_queue *, void *, const void *, size_t) = to->b->gpu ? to->b->gpu->carry : to->b->copy;
    copy(q, to->ids_device, from->ids_device, from->n * sizeof *from->ids);
    copy(q, to->weights_device, from->weights_device, from->n * sizeof *from->weights);
}
