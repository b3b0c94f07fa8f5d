/* batch.h - the token sequences that a pass runs on.
 *
 * All sequences lie one after the other in one array of token ids.  The row of a token
 * is its index in that array; hidden states, routes and recorded tensors of a run are
 * indexed by the same row. */
#ifndef EXF_PASS_BATCH_H
#define EXF_PASS_BATCH_H
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
#endif
