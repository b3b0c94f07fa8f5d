/* fault_place.h - says where in a run a device found a term that the exact sums cannot hold, in the words of the host's engine. */
#ifndef EXF_ACCUMULATE_FAULT_PLACE_H
#define EXF_ACCUMULATE_FAULT_PLACE_H
#include "base/err.h"
#include "pass/batch.h"

/* Prefixes sequence and token, which is counted from the beginning of its block of `block` tokens; batch NULL: the row.
 * token 0: only the block is known. */
void exf_fault_prefix_row(exf_err *err, const exf_batch *batch, size_t row, int block, int token);
#endif
