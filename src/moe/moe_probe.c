/* moe_probe.c - runs another lane's rewriter on this lane's hidden states, and applies the
 * corrections of rewriters.
 *
 * Most slots of rewritten routes name an expert that the token already ran: their outputs
 * are read where they are, and only the others are computed. */
#include "moe/moe_internal.h"

exf_code exf_moe_correct(const exf_moe_layer *l, const exf_rewriter *r, const exf_moe_view *v, exf_matrix outputs, float *routed,
                         exf_err *err)
{
    if (!r || !r->correct) return EXF_OK;
    if (!l->space[v->worker].b->gpu) {
        exf_moe_block b = exf_moe_host_block(l, v);
        b.expert_outputs = outputs.p;
        return r->correct(r->self, &b, routed, err);
    }
    exf_device_block b = exf_moe_device_block(l, v, outputs);
    return r->device_correct(r->self, &b, routed, err);
}

static exf_code show(const exf_moe_layer *l, const exf_observer *o, const exf_moe_view *v, const exf_moe_arrays *m, exf_err *err)
{
    const exf_architecture *a = &l->model->arch;
    exf_workspace *w = &l->space[v->worker];
    if (!w->b->gpu) {
        exf_moe_block b = exf_moe_host_block(l, v);
        exf_probe_block host = {b.layer,  b.moe_index, b.sequence, b.row,      b.position, v->n,
                                a->top_k, a->d_model,  v->worker,  b.topk_ids, m->routed,  m->probe_routed};
        return o->probe(o->self, &host, err);
    }
    exf_device_probe device = {l->layer, l->moe_index, l->batch, v->row, v->n, a->d_model, w->q, m->routed, m->probe_routed};
    return o->device_probe(o->self, &device, err);
}

/* Counts the slots that a probe computes; 0 on a GPU, since counting would wait for it. */
static double missing_on_host(const exf_workspace *w, const exf_moe_arrays *m, int n_slots)
{
    int missing = 0;
    for (int i = 0; !w->b->gpu && i < n_slots; i++) missing += m->probe_ids[i] >= 0;
    return missing;
}

/* Finds the outputs of the probe's slots: those that ran stay where they are, unless a correction
 * reads all of them in one array, and the others are computed into m->probe_outputs. */
static exf_code run_experts(const exf_moe_layer *l, const exf_moe_probe *p, const exf_moe_view *v, const exf_moe_arrays *m,
                            exf_err *err)
{
    exf_workspace *w = &l->space[v->worker];
    const exf_architecture *a = &l->model->arch;
    const exf_rewriter *r = p->lane->rewriter;
    size_t slot = v->row * (size_t)a->top_k;
    exf_reuse_call c = {.n_tokens = v->n, .top_k = a->top_k, .d_model = a->d_model, .from = m->outputs,
                        .wanted = v->routes->ids_device + slot,
                        .ran = l->routes->ids_device + slot, .source = m->probe_source, .missing = m->probe_ids};
    if (r && r->correct) c.to = m->probe_outputs;
    w->b->reuse_outputs(w->q, &c);
    w->times.flops += 6.0 * missing_on_host(w, m, v->n * a->top_k) * a->d_model * a->d_expert;
    return exf_moe_run_experts(l, w, m, m->probe_outputs, m->probe_ids, v->n, 1, err);
}

/* m->probe_routed = the weighted sum of the probe's slots. */
static void sum_slots(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m)
{
    exf_workspace *w = &l->space[v->worker];
    const exf_architecture *a = &l->model->arch;
    exf_moe_sum_call c = {.n_tokens = v->n, .top_k = a->top_k, .d_model = a->d_model, .outputs = m->outputs,
                          .source = m->probe_source,
                          .other = m->probe_outputs, .weights = v->routes->weights_device + v->row * (size_t)a->top_k,
                          .routed = m->probe_routed};
    w->b->moe_sum(w->q, &c);
}

exf_code exf_moe_probe_run(const exf_moe_layer *l, const exf_moe_probe *p, const exf_moe_view *v, const exf_moe_arrays *m,
                           exf_err *err)
{
    exf_moe_view view = *v;
    exf_code rc;
    if (!p->routes || !p->routes->n) return EXF_OK;
    view.routes = p->routes;
    view.router_routes = p->router_routes;
    EXF_TRY(run_experts(l, p, &view, m, err));
    sum_slots(l, &view, m);
    EXF_TRY(exf_moe_correct(l, p->lane->rewriter, &view, m->probe_outputs, m->probe_routed, err));
    EXF_TRY(show(l, p->lane->observer, &view, m, err));
out:
    return rc;
}
