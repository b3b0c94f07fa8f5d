/* device_experts.c - see device_experts.h. */
#include "forward/device_experts.h"

#include "base/mem.h"
#include "base/stop.h"
#include "forward/device_common_input.h"

#include <string.h>

enum { ALIGN = 256 };

/* A piece's arrays, of T tokens; routed, shared and dense parts take turns in `space`. */
typedef struct {
    uint16_t *x;       /* [T, H] normed, rounded */
    uint16_t *outputs; /* [T, K, H], or [T, H] of a dense part */
    uint16_t *shared;  /* [T, H] */
    float *x32;        /* [T, H] the same not rounded, where a switch asks for it */
    float *weight;     /* [T] a switch's */
    float *u, *mixing, *block; /* with several streams: [T, H], [T, mixing], [T, H] */
    int32_t *zero;     /* [T] ids of an only expert */
    void *space;
} piece;

static exf_expert_shape shape_of(const exf_architecture *a, int n_tokens, int n_experts, int top_k, int width)
{
    return (exf_expert_shape){.n_tokens = n_tokens, .n_experts = n_experts, .top_k = top_k, .d_model = a->d_model, .d_expert = width,
                              .limit = (float)a->swiglu_limit};
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void *take(char **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    return p;
}

/* Carves memory; from address 0 it counts. */
static size_t carve(piece *m, char *memory, const exf_backend *b, const exf_architecture *a, int n_tokens)
{
    char *at = memory;
    size_t t = (size_t)n_tokens, h = (size_t)a->d_model;
    int streams = a->residual.streams > 1;
    exf_expert_shape routed = shape_of(a, n_tokens, a->n_experts, a->top_k, a->d_expert), shared = shape_of(a, n_tokens, 1, 1, a->d_shared);
    exf_expert_shape dense = shape_of(a, n_tokens, 1, 1, a->d_ffn);
    size_t space = b->experts_workspace(&routed);
    m->x = take(&at, t * h * 2);
    m->outputs = take(&at, t * (size_t)a->top_k * h * 2);
    m->shared = take(&at, a->d_shared ? t * h * 2 : 0);
    m->space = take(&at, larger(space, larger(dense.d_expert ? b->experts_workspace(&dense) : 0, shared.d_expert ? b->experts_workspace(&shared) : 0)));
    m->x32 = take(&at, a->d_shared ? t * h * 4 : 0);
    m->weight = take(&at, t * 4);
    m->zero = take(&at, t * 4);
    m->u = take(&at, streams ? t * h * 4 : 0);
    m->mixing = take(&at, t * (size_t)exf_residual_mixing(a) * 4);
    m->block = take(&at, streams ? t * h * 4 : 0);
    return (size_t)(at - memory);
}

size_t exf_device_experts_bytes(const exf_backend *b, const exf_architecture *a, int tokens, int common_input)
{
    piece m;
    static char origin[1];
    size_t bytes = carve(&m, origin, b, a, tokens) + ALIGN;
    return common_input ? larger(bytes, exf_device_common_input_bytes(b, a, 1)) : bytes;
}

int exf_device_experts_fit(const exf_backend *b, exf_compute compute, const exf_architecture *a)
{
    exf_expert_shape shape[3] = {shape_of(a, 1, a->n_experts, a->top_k, a->d_expert), shape_of(a, 1, 1, 1, a->d_shared), shape_of(a, 1, 1, 1, a->d_ffn)};
    if (b->host_memory || compute != EXF_COMPUTE_BF16) return 0;
    for (int i = 0; i < 3; i++)
        if (!b->experts_fit(&shape[i])) return 0;
    return 1;
}

exf_code exf_device_experts_open(exf_pass *p, int tokens, exf_err *err)
{
    const exf_architecture *a = &p->model->arch;
    uint64_t none = ~(uint64_t)0;
    exf_code rc;
    p->device.bytes = exf_device_experts_bytes(p->b, a, tokens, p->demand.common_input);
    EXF_TRY(p->b->alloc(&p->device.memory, p->device.bytes, 1, "grouped experts", err));
    EXF_TRY(p->b->alloc(&p->device.not_finite, 1, sizeof none, "grouped experts", err));
    p->b->upload(p->space[0].q, p->device.not_finite, &none, sizeof none);
    EXF_TRY(p->b->finish(p->space[0].q, err));
    p->device.tokens = tokens;
out:
    return rc;
}

void exf_device_experts_close(exf_pass *p)
{
    p->b->free(p->device.memory);
    p->b->free(p->device.not_finite);
    memset(&p->device, 0, sizeof p->device);
}

int exf_device_experts_serve(const exf_step *s)
{
    const exf_pass *p = s->p;
    const exf_rewriter *r = p->lanes[s->lane].rewriter;
    return p->device.tokens > 0 && !(r && r->correct) && !(s->lane == 0 && p->demand.probes);
}

int exf_step_wants_host_routes(const exf_step *s)
{
    const exf_pass *p = s->p;
    const exf_lane *l = &p->lanes[s->lane];
    return p->n_lanes > 1 || !exf_device_experts_serve(s) || (l->rewriter && (l->rewriter->rewrite || l->rewriter->correct)) ||
           exf_shown_host(s, l->observer && l->observer->sweeps > 1 ? l->observer->sweeps - 1 : 0) || (l->observer && l->observer->common_input && !l->observer->device_common_input);
}

/* ---- one piece ------------------------------------------------------------------- */

static exf_expert_matrices matrices_of(const exf_layer_weights *lw, exf_role gate, exf_role up, exf_role down)
{
    return (exf_expert_matrices){lw->w16[gate], lw->w16[up], lw->w16[down]};
}

/* out [T, H] = the only SwiGLU of `width` on x. */
static void run_one(exf_workspace *w, uint16_t *out, const piece *m, const exf_expert_matrices *matrices, const exf_architecture *a,
                    int n, int width)
{
    exf_expert_shape shape = shape_of(a, n, 1, 1, width);
    w->b->experts(w->q, out, m->x, m->zero, matrices, &shape, m->space);
    w->times.flops += 6.0 * n * a->d_model * width;
}

/* Some experts that come to lie where others were: what uses those must be done. */
static exf_code next_part(exf_pass *p, exf_err *err)
{
    double start;
    exf_code rc;
    EXF_TRY(p->b->finish(p->space[0].q, err));
    start = exf_clock();
    EXF_TRY(exf_weight_loader_next(p->loader, &p->weights_now, err));
    p->device.waited += exf_clock() - start;
out:
    return rc;
}

/* Every expert on the tokens that chose it; part by part where not all are there. */
static exf_code run_routed(const exf_step *s, exf_workspace *w, const piece *m, size_t row, int n, exf_err *err)
{
    exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    int step = p->device.part_experts ? p->device.part_experts : a->n_experts;
    exf_code rc = EXF_OK;
    for (int first = 0; first < a->n_experts; first += step) {
        exf_expert_shape shape = shape_of(a, n, a->n_experts - first < step ? a->n_experts - first : step, a->top_k, a->d_expert);
        shape.first = first;
        if (p->device.part_experts) EXF_TRY(next_part(p, err));
        exf_expert_matrices routed = matrices_of(lw, EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN);
        w->b->experts(w->q, m->outputs, m->x, s->routes->ids_device + row * (size_t)a->top_k, &routed, &shape, m->space);
    }
    w->times.flops += 6.0 * n * a->top_k * a->d_model * a->d_expert;
out:
    return rc;
}

static void run_alone(const exf_step *s, exf_workspace *w, const piece *m, int n)
{
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    if (s->moe_index < 0) {
        exf_expert_matrices dense = matrices_of(lw, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN);
        run_one(w, m->outputs, m, &dense, a, n, a->d_ffn);
        return;
    }
    if (!lw->w16[EXF_W_SHARED_GATE]) return;
    exf_expert_matrices shared = matrices_of(lw, EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN);
    run_one(w, m->shared, m, &shared, a, n, a->d_shared);
    if (lw->w[EXF_W_SHARED_SWITCH]) w->b->switch_weights(w->q, m->weight, m->x32, lw->w[EXF_W_SHARED_SWITCH], n, a->d_model);
}

/* y [n, H] (+)= tokens [at, at + n) of what the piece's experts said. */
static void sum_up(const exf_step *s, exf_workspace *w, float *y, const piece *m, size_t row, int at, int n, int add, int shared)
{
    const exf_architecture *a = &s->p->model->arch;
    size_t h = (size_t)a->d_model, k = s->moe_index < 0 ? 1 : (size_t)a->top_k, from = (size_t)at;
    const float *weights = s->moe_index < 0 ? NULL : s->routes->weights_device + (row + from) * k;
    const float *of_shared = s->p->weights_now.w[EXF_W_SHARED_SWITCH] ? m->weight + from : NULL;
    w->b->routed_sum(w->q, y, m->outputs + from * k * h, weights, n, (int)k, a->d_model, add);
    if (shared && s->moe_index >= 0 && s->p->weights_now.w16[EXF_W_SHARED_GATE])
        w->b->routed_sum(w->q, y, m->shared + from * h, of_shared, n, 1, a->d_model, 1);
}

/* ---- showing ------------------------------------------------------------------------ */

static exf_code show_device(const exf_step *s, exf_workspace *w, const piece *m, size_t row, int n, exf_err *err)
{
    const exf_observer *o = s->p->lanes[s->lane].observer;
    const exf_architecture *a = &s->p->model->arch;
    size_t at = row * (size_t)a->top_k;
    exf_device_block b = {.layer = s->layer, .moe_index = s->moe_index, .sweep = s->sweep, .batch = s->p->batch, .row = row, .n_tokens = n, .n_experts = a->n_experts,
                          .top_k = a->top_k, .d_model = a->d_model, .q = w->q, .expert_outputs = m->outputs, .rounded = 1,
                          .topk_ids = s->routes->ids_device + at, .topk_weights = s->routes->weights_device + at};
    return o->device_block(o->self, &b, err);
}

/* Tokens [at, at + n) of the piece, of one sequence, as the arrays that host observers see. */
static exf_code show_host(const exf_step *s, exf_workspace *w, const piece *m, size_t row, int at, int n, size_t sequence, const float *u,
                          exf_err *err)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    size_t h = (size_t)a->d_model, from = (size_t)at;
    exf_arena arena = {w->floats, 0};
    exf_experts_space e;
    exf_carve_experts(&e, &arena, a, n, 0);
    w->b->rmsnorm_rounded(w->q, NULL, e.input, u + from * h, p->weights_now.w[EXF_W_FFN_NORM], n, a->d_model, a->norm_eps);
    w->b->widen(w->q, e.outputs, m->outputs + from * (size_t)a->top_k * h, (size_t)n * (size_t)a->top_k * h);
    sum_up(s, w, e.routed, m, row, at, n, 0, 0);
    if (e.block != e.routed) sum_up(s, w, e.block, m, row, at, n, 0, 1);
    return exf_show_block(s, sequence, (int)(row + from - p->batch->span[sequence].offset), n, &e, w, 0, err);
}

/* The blocks of each sequence that the piece holds; *sequence is the first of them and moves on. */
static exf_code show_all_host(const exf_step *s, exf_workspace *w, const piece *m, size_t row, int n, const float *u, size_t *sequence, exf_err *err)
{
    const exf_batch *batch = s->p->batch;
    exf_code rc = EXF_OK;
    for (int at = 0, step; rc == EXF_OK && at < n; at += step) {
        while (row + (size_t)at >= batch->span[*sequence].offset + (size_t)batch->span[*sequence].n_tokens) ++*sequence;
        size_t end = batch->span[*sequence].offset + (size_t)batch->span[*sequence].n_tokens;
        step = n - at < EXF_MOE_BLOCK ? n - at : EXF_MOE_BLOCK;
        if ((size_t)step > end - row - (size_t)at) step = (int)(end - row - (size_t)at);
        rc = show_host(s, w, m, row, at, step, *sequence, u, err);
    }
    return rc;
}

/* ---- the sweep ------------------------------------------------------------------------- */

static void close_piece(const exf_step *s, exf_workspace *w, float *hidden, const piece *m, size_t row, int n)
{
    const exf_architecture *a = &s->p->model->arch;
    size_t width = exf_row_width(a);
    if (a->residual.streams == 1) {
        sum_up(s, w, hidden, m, row, 0, n, 1, 1);
    } else {
        sum_up(s, w, m->block, m, row, 0, n, 0, 1);
        exf_residual_update(w->b, w->q, a, hidden, m->block, n, m->mixing);
    }
    w->b->watch_finite(w->q, s->p->device.not_finite, hidden, (size_t)n * width, row * width);
}

static exf_code run_piece(const exf_step *s, const piece *m, size_t row, int n, size_t *sequence, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_workspace *w = &p->space[0];
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    int shown = s->moe_index >= 0;
    float *hidden = exf_step_rows(s, row);
    double start = exf_clock(), ran;
    exf_code rc;
    exf_residual_site site = exf_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, m->mixing);
    w->b->rmsnorm_rounded(w->q, m->x, lw->w[EXF_W_SHARED_SWITCH] ? m->x32 : NULL, u, lw->w[EXF_W_FFN_NORM], n, a->d_model, a->norm_eps);
    double waited = p->device.waited;
    if (s->moe_index >= 0) EXF_TRY(run_routed(s, w, m, row, n, err));
    run_alone(s, w, m, n);
    EXF_TRY(exf_wait_if_timed(s, w, err));
    ran = exf_clock();
    w->times.experts += ran - start - (p->device.waited - waited);
    if (shown && exf_shown_device(s, s->sweep))
        EXF_TRY(show_device(s, w, m, row, n, err));
    else if (shown && exf_shown_host(s, s->sweep))
        EXF_TRY(show_all_host(s, w, m, row, n, u, sequence, err));
    EXF_TRY(exf_wait_if_timed(s, w, err));
    start = exf_clock();
    w->times.observe += start - ran;
    if (s->last) close_piece(s, w, hidden, m, row, n);
    rc = exf_wait_if_timed(s, w, err);
    w->times.experts += exf_clock() - start;
out:
    return rc;
}

exf_code exf_device_experts_check(const exf_step *s, exf_err *err)
{
    const exf_pass *p = s->p;
    uint64_t at;
    size_t sequence = 0, row;
    exf_code rc = p->b->download(p->space[0].q, &at, p->device.not_finite, sizeof at, err);
    if (rc != EXF_OK || at == ~(uint64_t)0) return rc;
    row = (size_t)at / exf_row_width(&p->model->arch);
    while (row >= p->batch->span[sequence].offset + (size_t)p->batch->span[sequence].n_tokens) sequence++;
    return exf_fail(err, EXF_NUMERIC, "layer %d: the hidden state of sequence %zu at position %d is not finite", s->layer, sequence,
                    (int)(row - p->batch->span[sequence].offset));
}

exf_code exf_device_experts_run(const exf_step *s, exf_err *err)
{
    const exf_pass *p = s->p;
    const exf_architecture *a = &p->model->arch;
    size_t sequence = s->group.first, most = (size_t)p->device.tokens, end = s->group.row + s->group.n_rows;
    piece m;
    exf_code rc = EXF_OK;
    carve(&m, p->device.memory, p->b, a, p->device.tokens);
    p->b->zero(p->space[0].q, m.zero, most * sizeof *m.zero);
    for (size_t row = s->group.row; row < end; row += most) {
        size_t left = end - row;
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(run_piece(s, &m, row, (int)(left < most ? left : most), &sequence, err));
    }
out:
    return rc;
}
