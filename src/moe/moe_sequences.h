/* moe_sequences.h - visits the sequences and blocks of a layer's tokens. */
#ifndef EXF_MOE_MOE_SEQUENCES_H
#define EXF_MOE_MOE_SEQUENCES_H
#include "base/thread_pool.h"
#include "moe/moe_layer.h"

/* Return how many blocks of EXF_MOE_BLOCK tokens a sequence, or a batch, has. */
size_t exf_moe_blocks_of(const exf_span *span);
size_t exf_moe_blocks(const exf_batch *batch);
/* Returns the row after the last token of a call that begins at `row`, in sequence `sequence`, and takes at most `most` of
 * the rows before `end`.  Unless `most` is less than a block, calls end between blocks, so that the blocks which
 * observers see in host memory do not depend on `most` or on the sequences before. */
size_t exf_moe_call_end(const exf_batch *batch, size_t sequence, size_t row, size_t end, size_t most);
/* Calls fn(l, sequence, worker) for every sequence of the layer's group, on its workers. */
exf_code exf_moe_each_sequence(exf_moe_layer *l, exf_parallel_fn fn, exf_err *err) EXF_CHECKED;
/* Returns EXF_NUMERIC naming the sequence and position of a row whose result is not finite. */
exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err);
#endif
