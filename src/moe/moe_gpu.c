/* moe_gpu.c - the engine for GPU memory; see moe_engine.h. */
#include "base/stop.h"
#include "moe/common_input.h"
#include "moe/moe_engine.h"
#include "moe/moe_sequences.h"

static exf_code run(exf_moe_layer *l, exf_err *err)
{
    size_t sequence = l->group.first, end = l->group.row + l->group.n_rows, last;
    const exf_span *span = l->batch->span;
    exf_code rc = EXF_OK;
    for (size_t row = l->group.row; row < end; row = last) {
        EXF_TRY(exf_stop_check(err));
        while (row >= span[sequence].offset + (size_t)span[sequence].n_tokens) sequence++;
        last = exf_moe_call_end(l->batch, sequence, row, end, (size_t)l->block_tokens);
        EXF_TRY(exf_moe_block_run(l, 0, sequence, row, (int)(last - row), err));
    }
out:
    return rc;
}

static exf_code watch(const exf_moe_layer *l, exf_workspace *w, const exf_moe_view *v, const float *rows, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    (void)err;
    w->b->gpu->watch_finite(w->q, l->not_finite, rows, (size_t)v->n * width, v->row * width);
    return EXF_OK;
}

static exf_code check(const exf_moe_layer *l, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    uint64_t at;
    exf_code rc = l->space[0].b->download(l->space[0].q, &at, l->not_finite, sizeof at, err);
    if (rc != EXF_OK || at == ~(uint64_t)0) return rc;
    return exf_moe_not_finite(l, (size_t)at / width, err);
}

const exf_moe_engine exf_moe_gpu = {"gpu", run, exf_common_input_gpu, watch, check};
