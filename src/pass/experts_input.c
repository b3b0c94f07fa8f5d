/* experts_input.c - the arrays of a block, and its input: normed hidden states of the pass, or recorded ones; see experts.h. */
#include "pass/experts.h"

#include "base/parallel.h"

#include <string.h>

/* ---- arrays ------------------------------------------------------------------------------------ */

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
    m->mixing = exf_arena_take(arena, t * (size_t)exf_residual_mixing(a));
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

/* ---- hidden states of the pass ----------------------------------------------------------------- */

void exf_moe_norm_input(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, const float *hidden, int n)
{
    const exf_architecture *a = &l->model->arch;
    exf_residual_site site = exf_residual_site_of(l->weights, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, m->mixing), *norm = l->weights->w[EXF_W_FFN_NORM];
    if (m->x.number == EXF_NUMBER_BF16)
        w->b->gpu->rmsnorm_rounded(w->q, exf_moe_data(m->x), m->input, u, norm, n, a->d_model, a->norm_eps);
    else
        w->b->rmsnorm(w->q, m->input, a->d_model, u, a->d_model, norm, n, a->d_model, a->norm_eps);
}

/* ---- sending recorded rows to a GPU -------------------------------------------------------------------- */

enum { READ_ROWS = 512 }; /* rows that a thread reads at a time */

uint64_t exf_recorded_stage_bytes(size_t rows, size_t width)
{
    return 2 * (uint64_t)rows * width * sizeof(float);
}

exf_code exf_recorded_stage_open(exf_recorded_stage *s, const exf_backend *b, exf_compute compute, size_t rows, size_t width,
                                 int threads, exf_err *err)
{
    exf_code rc;
    *s = (exf_recorded_stage){.b = b, .width = width, .threads = threads > 0 ? threads : exf_default_threads()};
    EXF_TRY(b->open(&s->q, compute, err));
    for (int i = 0; i < 2; i++) {
        EXF_TRY(b->gpu->alloc_staging(&s->host[i], rows * width * sizeof(float), "recorded hidden states", err));
        EXF_TRY(b->alloc(&s->device[i], rows * width, sizeof(float), "recorded hidden states", err));
    }
out:
    return rc;
}

void exf_recorded_stage_close(exf_recorded_stage *s)
{
    if (!s->b) return;
    s->b->close(s->q); /* waits for its uploads */
    for (int i = 0; i < 2; i++) {
        s->b->gpu->free_staging(s->host[i]);
        s->b->free(s->device[i]);
    }
    memset(s, 0, sizeof *s);
}

/* Rows of one block, read in parts. */
typedef struct {
    const exf_recorded *r;
    int layer;
    size_t row, n, width;
    float *to;
} reading;

static exf_code read_part(const reading *k, size_t i, exf_err *err)
{
    size_t at = i * READ_ROWS, n = k->n - at < READ_ROWS ? k->n - at : READ_ROWS;
    return k->r->input(k->r->self, k->layer, k->row + at, n, k->to + at * k->width, err);
}

/* Sends rows [row, row + n) of the layer to *out in GPU memory.  Work may read them that is queued on q after this call and
 * before the next one. */
static exf_code send_rows(exf_recorded_stage *s, const exf_recorded *r, int layer, size_t row, size_t n, exf_queue *q,
                          float **out, exf_err *err)
{
    size_t buffer = s->n_blocks++ % 2, parts = (n + READ_ROWS - 1) / READ_ROWS;
    exf_loop loop = EXF_LOOP;
    reading k = {r, layer, row, n, s->width, s->host[buffer]};
    exf_code rc;
    EXF_TRY(s->b->finish(s->q, err)); /* the upload before the last has left this buffer */
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(parts, s->threads))
    for (size_t i = 0; i < parts; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && read_part(&k, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    EXF_TRY(exf_loop_end(&loop, err));
    s->b->upload(s->q, s->device[buffer], s->host[buffer], n * s->width * sizeof(float));
    s->b->gpu->wait_for(q, s->q);
    s->b->gpu->wait_for(s->q, q); /* the next upload waits for work queued so far, which read the other buffer */
    *out = s->device[buffer];
out:
    return rc;
}

/* ---- recorded hidden states -------------------------------------------------------------------- */

/* Rows of one product of the router: a fixed number, since a matrix library's sums depend on the rows of a call, and a block's
 * size depends on the free memory. */
enum { ROUTER_ROWS = 512 };

/* Computes the routes of the n rows at `row` from their recorded input. */
static void run_router(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, size_t row, int n)
{
    const exf_architecture *a = &l->model->arch;
    for (int at = 0; at < n; at += ROUTER_ROWS) {
        size_t first = row + (size_t)at, slot = first * (size_t)a->top_k;
        exf_matrix input = exf_f32(m->input + (size_t)at * (size_t)a->d_model);
        const int32_t *tokens = l->tokens ? l->tokens + first : NULL;
        int rows = n - at < ROUTER_ROWS ? n - at : ROUTER_ROWS;
        exf_routing_run(w, l->routes->ids_device + slot, l->routes->weights_device + slot, input, tokens, rows, a, l->weights, NULL,
                        m->logits);
    }
}

/* Reads the routes of the rows if they are recorded; else runs the router. */
static exf_code route_rows(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, size_t row, int n, exf_err *err)
{
    const exf_recorded *r = l->recorded;
    size_t k = (size_t)l->model->arch.top_k, slot = row * k;
    exf_code rc;
    if (r->has_routes[l->layer]) {
        EXF_TRY(r->routes(r->self, l->layer, row, (size_t)n, l->routes->ids + slot, l->routes->weights + slot, err));
        exf_route_set_send_part(l->routes, slot, (size_t)n * k, w->q);
        return EXF_OK;
    }
    run_router(l, w, m, row, n);
    rc = exf_moe_wants_host_routes(l) ? exf_route_set_fetch(l->routes, slot, (size_t)n * k, w->q, err) : EXF_OK;
out:
    return rc;
}

exf_code exf_moe_recorded_input(const exf_moe_layer *l, exf_workspace *w, exf_moe_arrays *m, size_t row, int n, exf_err *err)
{
    const exf_recorded *r = l->recorded;
    int h = l->model->arch.d_model;
    double start = exf_clock();
    exf_code rc;
    exf_stage_begin(w->clock, w->q);
    if (l->stage)
        EXF_TRY(send_rows(l->stage, r, l->layer, row, (size_t)n, w->q, &m->input, err));
    else
        EXF_TRY(r->input(r->self, l->layer, row, (size_t)n, m->input, err));
    if (m->x.number == EXF_NUMBER_F32) m->x = exf_f32(m->input);
    if (m->x.number == EXF_NUMBER_BF16) w->b->gpu->round_rows(w->q, exf_moe_data(m->x), h, m->input, h, n, h);
    EXF_TRY(route_rows(l, w, m, row, n, err));
    exf_stage_end(w->clock, w->q, &w->times.router, l->work, 0);
    EXF_TRY(exf_moe_wait_if_timed(l, w, err));
    exf_add_time(w, &w->times.router, exf_clock() - start);
out:
    return rc;
}
