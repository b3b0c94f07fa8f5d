/* moe_host.c - the engine for host memory; see moe_engine.h. */
#include "moe/common_input.h"
#include "moe/moe_engine.h"
#include "moe/moe_sequences.h"

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

static exf_code run(exf_moe_layer *l, exf_err *err)
{
    if (l->recorded) return exf_parallel_for(exf_moe_blocks(l->batch), l->n_workers, run_numbered_block, l, err);
    return exf_moe_each_sequence(l, run_sequence, err);
}

static exf_code watch(const exf_moe_layer *l, exf_workspace *w, const exf_moe_view *v, const float *rows, exf_err *err)
{
    size_t width = exf_moe_row_width(l);
    int64_t at;
    exf_code rc = w->b->first_not_finite(w->q, rows, (size_t)v->n * width, &at, err);
    if (rc != EXF_OK || at < 0) return rc;
    return exf_moe_not_finite(l, v->row + (size_t)at / width, err);
}

static exf_code check(const exf_moe_layer *l, exf_err *err)
{
    (void)l; /* watch has reported */
    (void)err;
    return EXF_OK;
}

const exf_moe_engine exf_moe_host = {"host", run, exf_common_input_host, watch, check};
