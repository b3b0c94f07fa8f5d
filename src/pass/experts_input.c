/* experts_input.c - the input of a block: normed hidden states of the pass, or recorded ones; see experts.h. */
#include "pass/experts.h"

#include "base/parallel.h"

#include <string.h>

/* ---- hidden states of the pass ----------------------------------------------------------------- */

void exf_moe_norm_input(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, const float *hidden, size_t row, int n)
{
    const exf_architecture *a = &l->model->arch;
    float *mixing = exf_moe_mixing(l, row);
    exf_residual_site site = exf_residual_site_of(l->weights, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *norm = l->weights->w[EXF_W_FFN_NORM], *u;
    if (l->moe_index >= 0) /* the router has read them */
        u = exf_residual_read_again(w->b, w->q, a, &site, hidden, n, m->u, mixing);
    else
        u = exf_residual_read(w->b, w->q, a, &site, hidden, n, m->u, mixing);
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
