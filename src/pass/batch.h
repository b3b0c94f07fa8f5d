/* batch.h - the token sequences that a pass runs on, and how they are divided.
 *
 * All sequences lie one after the other in one array of token ids.  The row of a token is its index in that array;
 * hidden states, routes and recorded tensors of a run are indexed by the same row. */
#ifndef EXF_PASS_BATCH_H
#define EXF_PASS_BATCH_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* One sequence. */
typedef struct {
    size_t offset; /* row of its first token */
    int n_tokens;  /* >= 1 */
} exf_span;

typedef struct {
    const int32_t *ids; /* [n_tokens] token ids, sequence after sequence; each in [0, vocab) */
    const exf_span *span; /* [n_sequences] */
    size_t n_sequences, n_tokens;
    int max_tokens; /* tokens of the longest sequence */
} exf_batch;

/* Consecutive sequences of a batch. */
typedef struct {
    size_t first, n;    /* sequences [first, first + n) */
    size_t row, n_rows; /* their tokens are rows [row, row + n_rows) */
} exf_sequence_group;

/* ---- blocks: the tokens that go through the experts at a time on the CPU ------------------- */

/* The most tokens of a block.  A block lies within one sequence and begins at a multiple of this in it. */
enum { EXF_MOE_BLOCK = 1024 };

/* Returns the sequence of a row, the last one that begins at or before it, which is `from` or one after it. */
size_t exf_sequence_of(const exf_batch *batch, size_t from, size_t row);
/* Returns the row after the last token of a call that begins at `row`, in sequence `sequence`, and takes at most `most` of
 * the rows before `end`.  Unless `most` is less than a block, calls end between blocks, so that the blocks which
 * observers see in host memory do not depend on `most` or on the sequences before. */
size_t exf_moe_call_end(const exf_batch *batch, size_t sequence, size_t row, size_t end, size_t most);

/* ---- parts: consecutive sequences for each rank of a job (ranks/ranks.h), or for each shard --------- */

/* Sets first [n + 1]: part i has sequences [first[i], first[i + 1]), at least one.  Parts are balanced by tokens: the k-th
 * cut is the one whose tokens before it are nearest to k/n of all, the lower of two equal ones; equal sequences give equal
 * parts.  group_of: [n_sequences] ascending, sequences of equal numbers stay together, such as those of a decode batch;
 * NULL: each is a group.  EXF_USAGE if there are fewer groups than parts. */
exf_code exf_deal(size_t *first, const exf_batch *all, const size_t *group_of, size_t n, exf_err *err) EXF_CHECKED;
/* Makes a batch of sequences [first, end) of another one: `ids` is borrowed, `span`, whose rows begin at 0, is
 * allocated; exf_mem_free() frees it.  Row r of the part is row exf_part_row() + r of the whole. */
exf_code exf_batch_part(exf_batch *part, exf_span **span, const exf_batch *all, size_t first, size_t end, exf_err *err) EXF_CHECKED;
size_t exf_part_row(const exf_batch *all, size_t first);
#endif
