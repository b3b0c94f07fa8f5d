/* experts_arrays.c - the arrays of a block in the backend's memory, their number type and size; see experts.h. */
#include "pass/experts.h"

exf_number exf_moe_number(exf_compute compute)
{
    return compute == EXF_COMPUTE_BF16 ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
}

exf_expert_shape exf_expert_shape_of(const exf_architecture *a, int n_tokens, int n_experts, int top_k, int width)
{
    return (exf_expert_shape){.n_tokens = n_tokens, .n_experts = n_experts, .top_k = top_k, .d_model = a->d_model,
                              .d_expert = width, .limit = (float)a->swiglu_limit,
                              .slope = (float)a->swiglu_slope, .shift = (float)a->swiglu_shift};
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Returns the bytes of workspace that the experts of any layer need: routed, shared, dense. */
static size_t experts_bytes(const exf_backend *b, exf_compute compute, const exf_architecture *a, int n_tokens)
{
    exf_number number = exf_moe_number(compute);
    exf_expert_shape routed = exf_expert_shape_of(a, n_tokens, a->n_experts, a->top_k, a->d_expert);
    exf_expert_shape shared = exf_expert_shape_of(a, n_tokens, 1, 1, a->d_shared),
                     dense = exf_expert_shape_of(a, n_tokens, 1, 1, a->d_ffn);
    size_t alone =
        larger(a->d_shared ? b->experts_workspace(&shared, number) : 0, a->d_ffn ? b->experts_workspace(&dense, number) : 0);
    return larger(b->experts_workspace(&routed, number), alone);
}

exf_matrix exf_take_matrix(exf_arena *arena, size_t elements, exf_number number)
{
    return (exf_matrix){exf_take_bytes(arena, elements * exf_number_bytes(number)), number};
}

void exf_moe_carve(exf_moe_arrays *m, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                   int n_tokens, const exf_moe_needs *needs)
{
    size_t t = (size_t)n_tokens, h = (size_t)a->d_model, k = (size_t)a->top_k, shown = t < EXF_MOE_BLOCK ? t : EXF_MOE_BLOCK;
    exf_number number = exf_moe_number(compute);
    int streams = a->residual.streams > 1, wide = number == EXF_NUMBER_F32;
    m->u = exf_arena_take(arena, streams ? t * h : 0);
    m->input = !needs->sent && (wide || needs->input) ? exf_arena_take(arena, t * h) : NULL;
    m->x = wide ? exf_f32(m->input) : exf_take_matrix(arena, t * h, number);
    m->outputs = exf_take_matrix(arena, t * k * h, number);
    m->shared = exf_take_matrix(arena, a->d_shared || a->d_ffn ? t * h : 0, number);
    m->shared_weights = exf_arena_take(arena, a->d_shared ? t : 0);
    m->routed = needs->routed ? exf_arena_take(arena, t * h) : NULL;
    m->block = needs->block || streams ? exf_arena_take(arena, t * h) : NULL;
    m->probe_outputs = exf_take_matrix(arena, needs->probes ? t * k * h : 0, number);
    m->probe_routed = exf_arena_take(arena, needs->probes ? t * h : 0);
    m->probe_ids = exf_take_bytes(arena, sizeof(int32_t) * (needs->probes ? t * k : 0));
    m->probe_source = exf_take_bytes(arena, sizeof(int32_t) * (needs->probes ? t * k : 0));
    m->only = exf_take_bytes(arena, sizeof(int32_t) * t);
    m->logits = exf_arena_take(arena, needs->logits ? t * (size_t)a->n_experts : 0);
    m->shown_outputs = exf_arena_take(arena, needs->shown && !wide ? shown * k * h : 0);
    m->experts = exf_take_bytes(arena, experts_bytes(b, compute, a, n_tokens));
}

size_t exf_moe_arrays_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int n_tokens,
                             const exf_moe_needs *needs)
{
    exf_arena arena = {NULL, 0};
    exf_moe_arrays arrays;
    exf_moe_carve(&arrays, &arena, b, compute, a, n_tokens, needs);
    return arena.used;
}
