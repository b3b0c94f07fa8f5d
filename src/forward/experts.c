/* experts.c - see experts.h. */
#include "forward/experts.h"

#include "kernels/gemm.h"
#include "kernels/swiglu.h"

#include <string.h>

/* Counting sort of the slots by expert: slots[first[e] .. first[e+1]) are e's, in
 * order of token.  Slots without an expert are left out. */
static void bucket(int n_slots, const int32_t *ids, int n_experts, int32_t *first, int32_t *slots)
{
    memset(first, 0, ((size_t)n_experts + 1) * sizeof *first);
    for (int i = 0; i < n_slots; i++)
        if (ids[i] >= 0) first[ids[i] + 1]++;
    for (int e = 0; e < n_experts; e++) first[e + 1] += first[e];
    for (int i = 0; i < n_slots; i++)
        if (ids[i] >= 0) slots[first[ids[i]]++] = i;
    for (int e = n_experts; e > 0; e--) first[e] = first[e - 1]; /* undo the walk */
    first[0] = 0;
}

static void swiglu_ffn(float *out, const float *x, int n, int d_model, int width, const float *gate, const float *up, const float *down,
                       const exf_experts_space *s)
{
    exf_gemm_xwt_cpu(s->gate, width, x, d_model, gate, d_model, n, width, d_model, 1, 0);
    exf_gemm_xwt_cpu(s->up, width, x, d_model, up, d_model, n, width, d_model, 1, 0);
    exf_swiglu_cpu(s->gate, s->up, (size_t)n * (size_t)width);
    exf_gemm_xwt_cpu(out, d_model, s->gate, width, down, width, n, d_model, width, 1, 0);
}

/* One expert on the tokens of its slots.  The products go back into `gathered`
 * (its inputs are spent by then), from where rows are dealt out to their slots. */
static void run_expert(int e, int n, const int32_t *slots, const exf_architecture *a, const exf_layer_weights *lw, const exf_experts_space *s)
{
    size_t h = (size_t)a->d_model, each = h * (size_t)a->d_expert, at = (size_t)e * each;
    for (int i = 0; i < n; i++) memcpy(s->gathered + (size_t)i * h, s->input + (size_t)(slots[i] / a->top_k) * h, h * sizeof(float));
    swiglu_ffn(s->gathered, s->gathered, n, a->d_model, a->d_expert, lw->w[EXF_W_EXPERT_GATE] + at, lw->w[EXF_W_EXPERT_UP] + at,
               lw->w[EXF_W_EXPERT_DOWN] + at, s);
    for (int i = 0; i < n; i++) memcpy(s->outputs + (size_t)slots[i] * h, s->gathered + (size_t)i * h, h * sizeof(float));
}

static void combine(int n_tokens, int top_k, int d_model, const float *weights, const exf_experts_space *s)
{
    size_t h = (size_t)d_model;
    memset(s->routed, 0, (size_t)n_tokens * h * sizeof(float));
    for (int i = 0; i < n_tokens * top_k; i++) {
        float *y = s->routed + (size_t)(i / top_k) * h;
        const float *o = s->outputs + (size_t)i * h;
        for (size_t j = 0; j < h; j++) y[j] += weights[i] * o[j];
    }
}

void exf_experts_run(int n_tokens, const int32_t *ids, const float *weights, const exf_architecture *a, const exf_layer_weights *lw,
                     const exf_experts_space *s)
{
    int n_slots = n_tokens * a->top_k;
    bucket(n_slots, ids, a->n_experts, s->first, s->slots);
    for (int i = 0; i < n_slots; i++)
        if (ids[i] < 0) memset(s->outputs + (size_t)i * (size_t)a->d_model, 0, (size_t)a->d_model * sizeof(float));
    for (int e = 0; e < a->n_experts; e++) {
        int n = s->first[e + 1] - s->first[e];
        if (n) run_expert(e, n, s->slots + s->first[e], a, lw, s);
    }
    combine(n_tokens, a->top_k, a->d_model, weights, s);
}

void exf_dense_ffn_run(int n_tokens, const exf_architecture *a, const exf_layer_weights *lw, const exf_experts_space *s)
{
    swiglu_ffn(s->routed, s->input, n_tokens, a->d_model, a->d_ffn, lw->w[EXF_W_DENSE_GATE], lw->w[EXF_W_DENSE_UP],
               lw->w[EXF_W_DENSE_DOWN], s);
}
