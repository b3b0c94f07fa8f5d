/* moe_sequences.c - see moe_sequences.h. */
#include "moe/moe_sequences.h"

size_t exf_moe_blocks_of(const exf_span *span)
{
    return ((size_t)span->n_tokens + EXF_MOE_BLOCK - 1) / EXF_MOE_BLOCK;
}

size_t exf_moe_blocks(const exf_batch *batch)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_sequences; i++) n += exf_moe_blocks_of(&batch->span[i]);
    return n;
}

size_t exf_moe_call_end(const exf_batch *batch, size_t sequence, size_t row, size_t end, size_t most)
{
    size_t last = end - row <= most ? end : row + most;
    if (last == end || most < EXF_MOE_BLOCK) return last;
    while (last >= batch->span[sequence].offset + (size_t)batch->span[sequence].n_tokens) sequence++;
    size_t first = batch->span[sequence].offset, between = first + (last - first) / EXF_MOE_BLOCK * EXF_MOE_BLOCK;
    return between > row ? between : last;
}

typedef struct {
    exf_moe_layer *layer;
    exf_parallel_fn fn;
} group_call;

static exf_code run_one(void *self, size_t i, int worker, exf_err *err)
{
    const group_call *g = self;
    return g->fn(g->layer, g->layer->group.first + i, worker, err);
}

exf_code exf_moe_each_sequence(exf_moe_layer *l, exf_parallel_fn fn, exf_err *err)
{
    group_call g = {l, fn};
    return exf_parallel_for(l->group.n, l->n_workers, run_one, &g, err);
}

exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err)
{
    size_t sequence = 0;
    while (row >= l->batch->span[sequence].offset + (size_t)l->batch->span[sequence].n_tokens) sequence++;
    return exf_fail(err, EXF_NUMERIC, "layer %d: the %s of sequence %zu at position %d is not finite", l->layer,
                    l->recorded ? "output" : "hidden state", sequence, (int)(row - l->batch->span[sequence].offset));
}
