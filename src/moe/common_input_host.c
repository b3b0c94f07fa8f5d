/* common_input_host.c - runs common input on the CPU: a worker takes a sequence and runs all
 * experts on EXF_COMMON_INPUT_UNIT of its tokens at a time. */
#include "base/log.h"
#include "moe/common_input.h"
#include "moe/moe_sequences.h"

#include <string.h>

static exf_code show(const exf_moe_layer *l, size_t sequence, const size_t *row, int n, const float *outputs, int worker,
                     exf_err *err)
{
    const exf_observer *o = l->lane->observer;
    const exf_architecture *a = &l->model->arch;
    size_t k = (size_t)a->top_k;
    int32_t ids[EXF_COMMON_INPUT_UNIT * EXF_MAX_TOP_K];
    float weights[EXF_COMMON_INPUT_UNIT * EXF_MAX_TOP_K];
    exf_common_input_block b = {.layer = l->layer, .moe_index = l->moe_index, .sequence = sequence, .n_tokens = n,
                                .n_experts = a->n_experts,
                          .top_k = a->top_k, .d_model = a->d_model, .worker = worker, .row = row, .router_ids = ids,
                          .router_weights = weights, .outputs = outputs};
    for (int i = 0; i < n; i++) {
        memcpy(ids + (size_t)i * k, l->router_routes->ids + row[i] * k, k * sizeof *ids);
        memcpy(weights + (size_t)i * k, l->router_routes->weights + row[i] * k, k * sizeof *weights);
    }
    exf_code rc = o->common_input(o->self, &b, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, common input: ", l->layer, sequence);
    return rc;
}

static exf_code run_rows(const exf_moe_layer *l, size_t sequence, const size_t *row, int n, int worker, exf_err *err)
{
    exf_workspace *w = &l->space[worker];
    int n_experts = l->model->arch.n_experts;
    exf_arena arena = {w->floats, 0};
    exf_common_arrays c;
    double start = exf_clock();
    exf_common_carve(&c, &arena, w->b, w->compute, &l->model->arch, n);
    for (int i = 0; i < n; i++) c.row[i] = (int32_t)(row[i] - l->group.row);
    for (int i = 0; i < n * n_experts; i++) c.ids[i] = i % n_experts;
    exf_common_compute(l, w, &c, n);
    double ran = exf_clock();
    exf_code rc = show(l, sequence, row, n, c.outputs.p, worker, err);
    exf_progress_add(n);
    w->times.experts += ran - start;
    w->times.observe += exf_clock() - ran;
    return rc;
}

static exf_code run_sequence(void *self, size_t sequence, int worker, exf_err *err)
{
    const exf_moe_layer *l = self;
    const exf_span *span = &l->batch->span[sequence];
    int n = exf_common_input_tokens(l, sequence);
    size_t row[EXF_COMMON_INPUT_UNIT];
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_COMMON_INPUT_UNIT) {
        int rows = n - at < EXF_COMMON_INPUT_UNIT ? n - at : EXF_COMMON_INPUT_UNIT;
        for (int i = 0; i < rows; i++) row[i] = span->offset + (size_t)exf_common_input_position(l, sequence, at + i);
        rc = run_rows(l, sequence, row, rows, worker, err);
    }
    return rc;
}

exf_code exf_common_input_host(exf_moe_layer *l, exf_err *err)
{
    return exf_moe_each_sequence(l, run_sequence, err);
}
