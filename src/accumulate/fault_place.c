/* fault_place.c - see fault_place.h. */
#include "accumulate/fault_place.h"

/* The sequence of a row: the last one that begins at or before it. */
static size_t sequence_of(const exf_batch *batch, size_t row)
{
    size_t lo = 0, hi = batch->n_sequences;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (batch->span[mid].offset <= row) lo = mid;
        else hi = mid;
    }
    return lo;
}

void exf_fault_prefix_row(exf_err *err, const exf_batch *batch, size_t row, int block, int token)
{
    if (!batch || batch->n_sequences == 0) {
        exf_err_prefix(err, "token %zu of the run: ", row);
        return;
    }
    size_t sequence = sequence_of(batch, row), position = row - batch->span[sequence].offset, in_block = position % (size_t)block;
    if (token) exf_err_prefix(err, "token %zu: ", in_block);
    exf_err_prefix(err, "sequence %zu, block at position %zu: ", sequence, position - in_block);
}
