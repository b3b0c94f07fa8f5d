/* moe_recorded.c - computes a block's input from recorded hidden states (recorded.h). */
#include "moe/moe_internal.h"
#include "moe/routing.h"

/* m->input [n, H] = the recorded rows: read into it, or sent to the GPU. */
static exf_code read_rows(const exf_moe_layer *l, exf_workspace *w, exf_moe_arrays *m, size_t row, int n, exf_err *err)
{
    const exf_recorded *r = l->recorded;
    if (!l->stage) return r->input(r->self, l->layer, row, (size_t)n, m->input, err);
    exf_code rc = exf_recorded_stage_send(l->stage, r, l->layer, row, (size_t)n, w->q, &m->input, err);
    if (m->x.number == EXF_NUMBER_F32) m->x = exf_f32(m->input);
    return rc;
}

/* The rows of one product.  A library's sums vary with the rows of a call, and a block's size with the free memory. */
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
    int h = l->model->arch.d_model;
    double start = exf_clock();
    exf_code rc;
    exf_stage_begin(w->clock, w->q);
    EXF_TRY(read_rows(l, w, m, row, n, err));
    if (m->x.number == EXF_NUMBER_BF16) w->b->gpu->round_rows(w->q, exf_moe_data(m->x), h, m->input, h, n, h);
    EXF_TRY(route_rows(l, w, m, row, n, err));
    exf_stage_end(w->clock, w->q, &w->times.router, l->work, 0);
    EXF_TRY(exf_moe_wait_if_timed(l, w, err));
    exf_add_time(w, &w->times.router, exf_clock() - start);
out:
    return rc;
}
