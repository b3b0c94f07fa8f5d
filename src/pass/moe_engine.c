/* moe_engine.c - see moe_engine.h. */
#include "pass/common_input.h"
#include "pass/moe_engine.h"
#include "pass/moe_layer.h"

#include "base/stop.h"

/* ---- host memory ------------------------------------------------------------------------------- */

/* Runs the block of the sequence that begins at position `at`. */
static exf_code run_block(const exf_moe_layer *l, size_t sequence, int at, int worker, exf_err *err)
{
    const exf_span *span = &l->batch->span[sequence];
    int left = span->n_tokens - at, n = left < EXF_MOE_BLOCK ? left : EXF_MOE_BLOCK;
    exf_code rc = exf_moe_block_run(l, worker, sequence, span->offset + (size_t)at, n, err);
    exf_progress_add(n);
    return rc;
}

static exf_code run_sequence(void *self, size_t sequence, int worker, exf_err *err)
{
    const exf_moe_layer *l = self;
    int n = l->batch->span[sequence].n_tokens;
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_MOE_BLOCK) rc = run_block(l, sequence, at, worker, err);
    return rc;
}

/* Runs the i-th block; blocks are numbered over all sequences. */
static exf_code run_numbered_block(void *self, size_t i, int worker, exf_err *err)
{
    const exf_moe_layer *l = self;
    size_t sequence = 0, blocks;
    while (i >= (blocks = exf_moe_blocks_of(&l->batch->span[sequence]))) {
        i -= blocks;
        sequence++;
    }
    return run_block(l, sequence, (int)i * EXF_MOE_BLOCK, worker, err);
}

static exf_code run_on_host(exf_moe_layer *l, exf_err *err)
{
    if (l->recorded) return exf_parallel_for(exf_moe_blocks(l->batch), l->n_workers, run_numbered_block, l, err);
    return exf_moe_each_sequence(l, run_sequence, err);
}

static exf_code watch_on_host(const exf_moe_layer *l, exf_workspace *w, const exf_moe_view *v, const float *rows, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    int64_t at;
    exf_code rc = w->b->first_not_finite(w->q, rows, (size_t)v->n * width, &at, err);
    if (rc != EXF_OK || at < 0) return rc;
    return exf_moe_not_finite(l, v->row + (size_t)at / width, err);
}

static exf_code check_on_host(const exf_moe_layer *l, exf_err *err)
{
    (void)l; /* watch_on_host has reported */
    (void)err;
    return EXF_OK;
}

const exf_moe_engine exf_moe_host = {"host", run_on_host, exf_common_input_host, watch_on_host, check_on_host};

/* ---- GPU memory -------------------------------------------------------------------------------- */

static exf_code run_on_gpu(exf_moe_layer *l, exf_err *err)
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

static exf_code watch_on_gpu(const exf_moe_layer *l, exf_workspace *w, const exf_moe_view *v, const float *rows, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    (void)err;
    w->b->gpu->watch_finite(w->q, l->not_finite, rows, (size_t)v->n * width, v->row * width);
    return EXF_OK;
}

static exf_code check_on_gpu(const exf_moe_layer *l, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    uint64_t at;
    exf_code rc = l->space[0].b->download(l->space[0].q, &at, l->not_finite, sizeof at, err);
    if (rc != EXF_OK || at == ~(uint64_t)0) return rc;
    return exf_moe_not_finite(l, (size_t)at / width, err);
}

const exf_moe_engine exf_moe_gpu = {"gpu", run_on_gpu, exf_common_input_gpu, watch_on_gpu, check_on_gpu};

/* ---- which one --------------------------------------------------------------------------------- */

const exf_moe_engine *exf_moe_engine_of(const exf_backend *b)
{
    return b->gpu ? &exf_moe_gpu : &exf_moe_host;
}

exf_code exf_moe_not_finite_new(uint64_t **not_finite, const exf_backend *b, exf_queue *q, exf_err *err)
{
    uint64_t none = ~(uint64_t)0;
    exf_code rc = b->alloc(not_finite, 1, sizeof none, "finite check", err);
    if (rc != EXF_OK) return rc;
    b->upload(q, *not_finite, &none, sizeof none);
    return b->finish(q, err);
}
