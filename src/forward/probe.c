/* probe.c - what other lanes' rewriters would have made of the first lane's hidden
 * states (exf_probe_run in expert_step.h).
 *
 * Most slots of a rewritten token name an expert that the token ran anyway; only the
 * others are computed. */
#include "forward/expert_step.h"
#include "forward/experts.h"

/* The slot of the token's own K in which expert id ran, or -1. */
static int slot_of(const int32_t *ran, int top_k, int32_t id)
{
    for (int k = 0; k < top_k; k++)
        if (ran[k] == id) return k;
    return -1;
}

/* Slots of a token that it did not run go to w->probe_ids, -1 elsewhere; the others are
 * listed as copies from slot w->slots[i] to slot w->rows[i].  Returns how many copies. */
static int split(exf_workspace *w, const int32_t *wanted, const int32_t *ran, int n_tokens, int top_k)
{
    int n = 0;
    for (int i = 0; i < n_tokens * top_k; i++) {
        int base = i - i % top_k, at = wanted[i] < 0 ? -1 : slot_of(ran + base, top_k, wanted[i]);
        w->probe_ids[i] = at < 0 ? wanted[i] : -1;
        if (at < 0) continue;
        w->slots[n] = base + at;
        w->rows[n++] = i;
    }
    return n;
}

static void copy_slots(exf_workspace *w, const exf_experts_space *to, const float *outputs, int n, int width)
{
    const exf_backend *b = w->b;
    b->upload(w->q, to->slots, w->slots, (size_t)n * sizeof *w->slots);
    b->upload(w->q, to->rows, w->rows, (size_t)n * sizeof *w->rows);
    b->gather_rows(w->q, to->gathered, outputs, to->slots, n, width);
    b->scatter_rows(w->q, to->outputs, to->gathered, to->rows, n, width);
}

static exf_code show(const exf_step *s, const exf_observer *o, const exf_moe_block *b, const exf_experts_space *e, const exf_experts_space *own,
                     exf_workspace *w, exf_err *err)
{
    size_t rows = (size_t)b->n_tokens * (size_t)b->d_model;
    float *mirror = w->mirror;
    exf_code rc;
    exf_probe_block seen = {.layer = s->layer, .moe_index = s->moe_index, .sequence = b->sequence, .row = b->row, .position = b->position,
                            .n_tokens = b->n_tokens, .top_k = b->top_k, .d_model = b->d_model, .worker = b->worker, .topk_ids = b->topk_ids};
    EXF_TRY(exf_visible(w, e->routed, rows, &mirror, &seen.original, err));
    EXF_TRY(exf_visible(w, own->routed, rows, &mirror, &seen.rewritten, err));
    EXF_TRY(o->probe(o->self, &seen, err));
out:
    return rc;
}

static exf_code probe_lane(const exf_step *s, size_t lane, size_t sequence, int position, int n, const exf_experts_space *e, int worker,
                           exf_err *err)
{
    exf_pass *p = s->p;
    exf_workspace *w = &p->space[worker];
    const exf_architecture *a = &p->model->arch;
    const exf_route_set *set = &p->probe[lane];
    const exf_rewriter *r = p->lanes[lane].rewriter;
    size_t at = (p->batch->span[sequence].offset + (size_t)position) * (size_t)a->top_k;
    exf_moe_block b = exf_block_of(s, set, p->probe_router_routes[lane].n ? &p->probe_router_routes[lane] : &p->first, sequence, position, n, worker);
    exf_experts_space own = *e;
    exf_code rc = EXF_OK;
    own.outputs = e->probe_outputs;
    own.routed = e->probe_routed;
    int copies = split(w, set->ids + at, s->routes->ids + at, n, a->top_k), done = copies;
    for (int i = 0; i < n * a->top_k; i++) done += set->ids[at + (size_t)i] < 0;
    if (copies < n * a->top_k) w->b->zero(w->q, own.outputs, (size_t)n * (size_t)a->top_k * (size_t)a->d_model * sizeof(float));
    copy_slots(w, &own, e->outputs, copies, a->d_model);
    if (done < n * a->top_k) exf_experts_add(w, n, w->probe_ids, a, &p->weights_now, &own);
    exf_experts_combine(w, n, set->weights_device + at, a, &own);
    if (r && r->correct) EXF_TRY(exf_correct_routed(r, &b, own.outputs, own.routed, w, err));
    EXF_TRY(show(s, p->lanes[lane].observer, &b, e, &own, w, err));
out:
    return rc;
}

exf_code exf_probe_run(const exf_step *s, size_t sequence, int position, int n, const exf_experts_space *e, int worker, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 1; rc == EXF_OK && i < s->p->n_lanes; i++)
        if (s->p->probe[i].n) rc = probe_lane(s, i, sequence, position, n, e, worker, err);
    return rc;
}
