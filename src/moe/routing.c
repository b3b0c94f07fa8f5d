/* routing.c - see routing.h. */
#include "moe/routing.h"

static exf_router_rules rules_of(const exf_architecture *a, const exf_layer_weights *lw, const float *mask)
{
    static const exf_router_score score[] = {EXF_ROUTER_SOFTMAX, EXF_ROUTER_SIGMOID, EXF_ROUTER_SQRT_SOFTPLUS};
    const exf_router_spec *r = &a->router;
    return (exf_router_rules){
        .score = score[r->score], .n_experts = a->n_experts, .top_k = a->top_k, .n_groups = r->n_groups,
        .top_groups = r->top_groups,
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
    if (mask) ws->b->add_bias(ws->q, logits, mask, n_tokens, a->n_experts);
    ws->b->router(ws->q, ids, weights, logits, tokens, n_tokens, &rules, ws->router);
}
