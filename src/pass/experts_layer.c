/* experts_layer.c - what all parts of the experts ask of a layer: where its rows are, how its workers go over the sequences, and
 * whether hidden states are finite; see experts.h. */
#include "pass/experts.h"

#include "base/err.h"
#include "base/parallel.h"

#include <omp.h>

size_t exf_moe_row_width(const exf_moe_layer *l)
{
    return l->recorded ? (size_t)l->model->arch.d_model : exf_row_width(&l->model->arch);
}

float *exf_moe_rows(const exf_moe_layer *l, size_t row)
{
    return l->rows + (row - l->group.row) * exf_row_width(&l->model->arch);
}

float *exf_moe_mixing(const exf_moe_layer *l, size_t row)
{
    return l->mixing ? l->mixing + row * (size_t)exf_residual_mixing(&l->model->arch) : NULL;
}

exf_code exf_moe_wait_if_timed(const exf_moe_layer *l, exf_workspace *w, exf_err *err)
{
    return l->timed ? w->b->finish(w->q, err) : EXF_OK;
}

exf_code exf_moe_each_sequence(exf_moe_layer *l, exf_sequence_fn fn, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(l->group.n, l->n_workers))
    for (size_t i = 0; i < l->group.n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && fn(l, l->group.first + i, omp_get_thread_num(), &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

/* ---- finite hidden states ------------------------------------------------------------------------ */

exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err)
{
    size_t sequence = exf_sequence_of(l->batch, 0, row);
    return exf_fail(err, EXF_NUMERIC, "layer %d: the %s of sequence %zu at position %d is not finite", l->layer,
                    l->recorded ? "output" : "hidden state", sequence, (int)(row - l->batch->span[sequence].offset));
}

exf_code exf_moe_not_finite_new(uint64_t **not_finite, const exf_backend *b, exf_queue *q, exf_err *err)
{
    uint64_t none = ~(uint64_t)0;
    exf_code rc = b->alloc(not_finite, 1, sizeof none, "finite check", err);
    if (rc != EXF_OK) return rc;
    b->upload(q, *not_finite, &none, sizeof none);
    return b->finish(q, err);
}

exf_code exf_moe_watch_finite(const exf_moe_layer *l, exf_workspace *w, size_t row, int n, const float *rows, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    int64_t at;
    if (w->b->gpu) {
        w->b->gpu->watch_finite(w->q, l->not_finite, rows, (size_t)n * width, row * width);
        return EXF_OK;
    }
    exf_code rc = w->b->first_not_finite(w->q, rows, (size_t)n * width, &at, err);
    return rc != EXF_OK || at < 0 ? rc : exf_moe_not_finite(l, row + (size_t)at / width, err);
}

exf_code exf_moe_check_finite(const exf_moe_layer *l, exf_err *err)
{
    const exf_workspace *w = &l->space[0];
    uint64_t at;
    if (!w->b->gpu) return EXF_OK;
    exf_code rc = w->b->download(w->q, &at, l->not_finite, sizeof at, err);
    return rc != EXF_OK || at == ~(uint64_t)0 ? rc : exf_moe_not_finite(l, (size_t)at / exf_moe_row_width(l), err);
}
