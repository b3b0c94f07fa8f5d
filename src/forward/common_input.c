/* common_input.c - every expert on the same tokens (exf_common_input_run in expert_step.h).
 *
 * Of a sequence of T tokens the n at positions (2 i + 1) T / (2 n) are taken, all of
 * them where T <= n; EXF_COMMON_INPUT_ROWS at a time, so that E outputs each fit. */
#include "forward/device_common_input.h"
#include "forward/each.h"
#include "forward/experts.h"

#include <string.h>

int exf_common_input_tokens(const exf_step *s, size_t sequence)
{
    int n = s->p->batch->span[sequence].n_tokens, wanted = s->p->lanes[s->lane].observer->common_input_tokens;
    return n < wanted ? n : wanted;
}

int exf_common_input_position(const exf_step *s, size_t sequence, int i)
{
    int n = s->p->batch->span[sequence].n_tokens, wanted = s->p->lanes[s->lane].observer->common_input_tokens;
    return n <= wanted ? i : (int)(((int64_t)2 * i + 1) * n / ((int64_t)2 * wanted));
}

/* Outputs as they lie on the device; rows, there too, count from the sequence's first. */
static exf_code show_device(const exf_step *s, const exf_common_input_part *part, const exf_common_input_space *c, exf_workspace *w, exf_err *err)
{
    const exf_observer *o = s->p->lanes[s->lane].observer;
    const exf_architecture *a = &s->p->model->arch;
    exf_device_common_input b = {.layer = s->layer, .moe_index = s->moe_index, .n_experts = a->n_experts, .d_model = a->d_model, .q = w->q,
                           .outputs = c->outputs, .n_tokens = EXF_COMMON_INPUT_ROWS, .part = part, .n_parts = 1, .row = c->rows,
                           .row_offset = s->p->batch->span[part->sequence].offset};
    return o->device_common_input(o->self, &b, err);
}

static exf_code show(const exf_step *s, size_t sequence, const size_t *row, int n, const float *outputs, exf_workspace *w, int worker, exf_err *err)
{
    const exf_observer *o = s->p->lanes[s->lane].observer;
    const exf_architecture *a = &s->p->model->arch;
    size_t k = (size_t)a->top_k;
    float *mirror = w->mirror;
    exf_common_input_block b = {.layer = s->layer, .moe_index = s->moe_index, .sequence = sequence, .n_tokens = n, .n_experts = a->n_experts,
                          .top_k = a->top_k, .d_model = a->d_model, .worker = worker, .row = row, .router_ids = w->common_input_ids,
                          .router_weights = w->common_input_weights};
    exf_code rc;
    for (int i = 0; i < n; i++) {
        memcpy(w->common_input_ids + (size_t)i * k, s->router_routes->ids + row[i] * k, k * sizeof *w->common_input_ids);
        memcpy(w->common_input_weights + (size_t)i * k, s->router_routes->weights + row[i] * k, k * sizeof *w->common_input_weights);
    }
    EXF_TRY(exf_visible(w, outputs, (size_t)n * (size_t)a->n_experts * (size_t)a->d_model, &mirror, &b.outputs, err));
    rc = o->common_input(o->self, &b, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, common input: ", s->layer, sequence);
out:
    return rc;
}

static exf_code run_rows(const exf_step *s, size_t sequence, const size_t *row, int n, int ends, int worker, exf_err *err)
{
    const exf_pass *p = s->p;
    exf_workspace *w = &p->space[worker];
    const exf_architecture *a = &p->model->arch;
    const exf_layer_weights *lw = &p->weights_now;
    size_t first = p->batch->span[sequence].offset;
    exf_arena arena = {w->floats, 0};
    exf_common_input_space c;
    double start = exf_clock();
    exf_carve_common_input(&c, &arena, a);
    for (int i = 0; i < n; i++) w->rows[i] = (int32_t)(row[i] - first);
    w->b->upload(w->q, c.rows, w->rows, (size_t)n * sizeof *w->rows);
    w->b->gather_rows(w->q, c.hidden, exf_step_rows(s, first), c.rows, n, (int)exf_row_width(a));
    exf_residual_site site = exf_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    const float *u = exf_residual_read(w->b, w->q, a, &site, c.hidden, n, c.u, c.mixing);
    exf_norm_rows(w, c.input, u, lw->w[EXF_W_FFN_NORM], n, a);
    exf_every_expert_run(w, n, a, lw, &c);
    double ran = exf_clock();
    exf_common_input_part part = {.sequence = sequence, .n_tokens = n, .ends = ends};
    int on_device = !w->b->host_memory && p->lanes[s->lane].observer->device_common_input;
    exf_code rc = on_device ? show_device(s, &part, &c, w, err) : show(s, sequence, row, n, c.outputs, w, worker, err);
    w->times.experts += ran - start;
    w->times.observe += exf_clock() - ran;
    return rc;
}

static exf_code run_sequence(void *self, size_t sequence, int worker, exf_err *err)
{
    const exf_step *s = self;
    const exf_span *span = &s->p->batch->span[sequence];
    int n = exf_common_input_tokens(s, sequence);
    size_t row[EXF_COMMON_INPUT_ROWS];
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_COMMON_INPUT_ROWS) {
        int rows = n - at < EXF_COMMON_INPUT_ROWS ? n - at : EXF_COMMON_INPUT_ROWS;
        for (int i = 0; i < rows; i++) row[i] = span->offset + (size_t)exf_common_input_position(s, sequence, at + i);
        rc = run_rows(s, sequence, row, rows, at + rows == n, worker, err);
    }
    return rc;
}

static exf_code run_group(exf_step *s, exf_err *err)
{
    return exf_each_sequence(s, run_sequence, err);
}

exf_code exf_common_input_run(exf_step *s, exf_err *err)
{
    if (s->p->weights_now.w[EXF_W_ROUTER_TABLE]) return EXF_OK;
    return exf_each_group(s, EXF_HIDDEN_READ, exf_device_common_input_serve(s) ? exf_device_common_input_run : run_group, err);
}
