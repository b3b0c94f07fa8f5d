/* experts.c - see experts.h. */
#include "forward/experts.h"

#include <string.h>

/* Counting sort of the slots by expert: slots[first[e] .. first[e+1]) are e's, in
 * order of token, rows[] their tokens.  Slots without an expert are left out.
 * Returns how many slots there are. */
static int bucket(exf_workspace *ws, int n_slots, const int32_t *ids, int n_experts, int top_k)
{
    int32_t *first = ws->first;
    memset(first, 0, ((size_t)n_experts + 1) * sizeof *first);
    for (int i = 0; i < n_slots; i++)
        if (ids[i] >= 0) first[ids[i] + 1]++;
    for (int e = 0; e < n_experts; e++) first[e + 1] += first[e];
    for (int i = 0; i < n_slots; i++)
        if (ids[i] >= 0) {
            int at = first[ids[i]]++;
            ws->slots[at] = i;
            ws->rows[at] = i / top_k;
        }
    for (int e = n_experts; e > 0; e--) first[e] = first[e - 1]; /* undo the walk */
    first[0] = 0;
    return first[n_experts];
}

/* A SwiGLU's three matrices, [width, H], [width, H], [H, width]. */
typedef struct {
    exf_matrix gate, up, down;
    int width;
} swiglu;

static swiglu swiglu_of(const exf_layer_weights *lw, exf_role gate, exf_role up, exf_role down, int width)
{
    return (swiglu){exf_matrix_of(lw, gate), exf_matrix_of(lw, up), exf_matrix_of(lw, down), width};
}

/* out [n, H], rows ldo apart; gate and up are room for [n, width]. */
static void swiglu_run(exf_workspace *ws, float *out, int ldo, const float *x, int n, const exf_architecture *a, const swiglu *w, float *gate,
                       float *up)
{
    const exf_backend *b = ws->b;
    int h = a->d_model;
    b->gemm_xwt(ws->q, gate, w->width, exf_f32(x), h, w->gate, h, n, w->width, h, 1, 0);
    b->gemm_xwt(ws->q, up, w->width, exf_f32(x), h, w->up, h, n, w->width, h, 1, 0);
    b->swiglu(ws->q, gate, up, (size_t)n * (size_t)w->width, (float)a->swiglu_limit);
    b->gemm_xwt(ws->q, out, ldo, exf_f32(gate), w->width, w->down, w->width, n, h, w->width, 1, 0);
    ws->times.flops += 6.0 * n * h * w->width;
}

static swiglu expert_of(const exf_layer_weights *lw, const exf_architecture *a, int e)
{
    size_t at = (size_t)e * (size_t)a->d_model * (size_t)a->d_expert;
    swiglu w = swiglu_of(lw, EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN, a->d_expert);
    w.gate = exf_matrix_at(w.gate, at);
    w.up = exf_matrix_at(w.up, at);
    w.down = exf_matrix_at(w.down, at);
    return w;
}

/* One expert on the tokens of its slots.  The products go back into `gathered`
 * (its inputs are spent by then), from where rows are dealt out to their slots. */
static void run_expert(exf_workspace *ws, int e, const exf_architecture *a, const exf_layer_weights *lw, const exf_experts_space *s)
{
    int from = ws->first[e], n = ws->first[e + 1] - from;
    swiglu w = expert_of(lw, a, e);
    if (n == 0) return;
    ws->b->gather_rows(ws->q, s->gathered, s->input, s->rows + from, n, a->d_model);
    swiglu_run(ws, s->gathered, a->d_model, s->gathered, n, a, &w, s->gate, s->up);
    ws->b->scatter_rows(ws->q, s->outputs, s->gathered, s->slots + from, n, a->d_model);
}

static void run_buckets(exf_workspace *ws, int n, const exf_architecture *a, const exf_layer_weights *lw, const exf_experts_space *s)
{
    ws->b->upload(ws->q, s->slots, ws->slots, (size_t)n * sizeof *s->slots);
    ws->b->upload(ws->q, s->rows, ws->rows, (size_t)n * sizeof *s->rows);
    for (int e = 0; e < a->n_experts; e++) run_expert(ws, e, a, lw, s);
}

void exf_experts_run(exf_workspace *ws, int n_tokens, const int32_t *ids, const exf_architecture *a, const exf_layer_weights *lw,
                     const exf_experts_space *s)
{
    int n_slots = n_tokens * a->top_k, n = bucket(ws, n_slots, ids, a->n_experts, a->top_k);
    if (n < n_slots) ws->b->zero(ws->q, s->outputs, (size_t)n_slots * (size_t)a->d_model * sizeof(float));
    run_buckets(ws, n, a, lw, s);
}

void exf_experts_add(exf_workspace *ws, int n_tokens, const int32_t *ids, const exf_architecture *a, const exf_layer_weights *lw,
                     const exf_experts_space *s)
{
    run_buckets(ws, bucket(ws, n_tokens * a->top_k, ids, a->n_experts, a->top_k), a, lw, s);
}

void exf_experts_combine(exf_workspace *ws, int n_tokens, const float *weights, const exf_architecture *a, const exf_experts_space *s)
{
    ws->b->combine(ws->q, s->routed, s->outputs, weights, n_tokens, a->top_k, a->d_model);
}

void exf_every_expert_run(exf_workspace *ws, int n_rows, const exf_architecture *a, const exf_layer_weights *lw, const exf_common_input_space *s)
{
    for (int e = 0; e < a->n_experts; e++) {
        swiglu w = expert_of(lw, a, e);
        swiglu_run(ws, s->outputs + (size_t)e * (size_t)a->d_model, a->n_experts * a->d_model, s->input, n_rows, a, &w, s->gate, s->up);
    }
}

void exf_shared_experts_run(exf_workspace *ws, int n_tokens, const exf_architecture *a, const exf_layer_weights *lw,
                            const exf_experts_space *s)
{
    const exf_backend *b = ws->b;
    size_t n = (size_t)n_tokens * (size_t)a->d_model;
    if (s->block == s->routed) return;
    if (!exf_matrix_of(lw, EXF_W_SHARED_GATE).p) {
        b->copy(ws->q, s->block, s->routed, n * sizeof *s->block);
        return;
    }
    swiglu w = swiglu_of(lw, EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN, a->d_shared);
    swiglu_run(ws, s->block, a->d_model, s->input, n_tokens, a, &w, s->gate, s->up);
    if (lw->w[EXF_W_SHARED_SWITCH])
        b->sigmoid_switch(ws->q, s->block, a->d_model, s->input, lw->w[EXF_W_SHARED_SWITCH], a->d_model, n_tokens);
    b->add(ws->q, s->block, s->routed, n);
}

void exf_dense_ffn_run(exf_workspace *ws, int n_tokens, const exf_architecture *a, const exf_layer_weights *lw, const exf_experts_space *s)
{
    swiglu w = swiglu_of(lw, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN, a->d_ffn);
    swiglu_run(ws, s->block, a->d_model, s->input, n_tokens, a, &w, s->gate, s->up);
}
