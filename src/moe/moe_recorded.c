/* moe_recorded.c - a block's input from recorded hidden states (recorded.h). */
#include "moe/moe_internal.h"
#include "moe/routing.h"

/* m->input [n, H] = the recorded rows. */
static exf_code read_rows(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, size_t row, int n, exf_err *err)
{
    const exf_recorded *r = l->recorded;
    size_t bytes = (size_t)n * (size_t)l->model->arch.d_model * sizeof(float);
    if (!w->b->gpu) return r->input(r->self, l->layer, row, (size_t)n, m->input, err);
    exf_code rc = w->b->finish(w->q, err); /* an earlier upload may still read the mirror */
    if (rc == EXF_OK) rc = r->input(r->self, l->layer, row, (size_t)n, w->mirror, err);
    if (rc == EXF_OK) w->b->upload(w->q, m->input, w->mirror, bytes);
    return rc;
}

/* The routes of the rows: recorded ones, or the router's. */
static exf_code route_rows(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, size_t row, int n, exf_err *err)
{
    const exf_architecture *a = &l->model->arch;
    const exf_recorded *r = l->recorded;
    size_t k = (size_t)a->top_k, slot = row * k;
    const int32_t *tokens = l->tokens ? l->tokens + row : NULL;
    exf_code rc;
    if (r->has_routes[l->layer]) {
        EXF_TRY(r->routes(r->self, l->layer, row, (size_t)n, l->routes->ids + slot, l->routes->weights + slot, err));
        return exf_route_set_send_part(l->routes, slot, (size_t)n * k, w->q, err);
    }
    exf_routing_run(w, l->routes->ids_device + slot, l->routes->weights_device + slot, exf_f32(m->input), tokens, n, a, l->weights,
                    NULL, m->logits);
    rc = exf_moe_wants_host_routes(l) ? exf_route_set_fetch(l->routes, slot, (size_t)n * k, w->q, err) : EXF_OK;
out:
    return rc;
}

exf_code exf_moe_recorded_input(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, size_t row, int n, exf_err *err)
{
    int h = l->model->arch.d_model;
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(read_rows(l, w, m, row, n, err));
    if (m->x.number == EXF_NUMBER_BF16) w->b->gpu->round_rows(w->q, exf_moe_data(m->x), h, m->input, h, n, h);
    EXF_TRY(route_rows(l, w, m, row, n, err));
    w->times.router += exf_clock() - start;
out:
    return rc;
}
