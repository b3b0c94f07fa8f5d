/* device_sums.h - adds up one layer's sums in device memory (kernels/statistics/layer_sums.h), so that
 * no expert output is copied to the host. */
#ifndef EXF_ACCUMULATE_DEVICE_SUMS_H
#define EXF_ACCUMULATE_DEVICE_SUMS_H
#include "artifact/statistics.h"
#include "base/err.h"
#include "kernels/backend.h"
#include "pass/batch.h"
#include "pass/forward.h"

/* Says where in a run a device found a term that the exact sums cannot hold, in the words of the host's engine. */

/* Prefixes sequence and token, which is counted from the beginning of its block of `block` tokens; batch NULL: the row.
 * token 0: only the block is known. */
void exf_fault_prefix_row(exf_err *err, const exf_batch *batch, size_t row, int block, int token);

typedef struct {
    const exf_backend *b;
    int n_experts;
    exf_weighting weighting;
    int by_sequence;   /* 1: sums over sequences are wanted */
    int common_input;        /* 1: pairs are those of common input; blocks give the experts' own sums only */
    size_t sequence;   /* sequence of the next row */
    void *sums, *host; /* sums: in device memory; host: buffer for their copy */
    void *gram_matrices;       /* in device memory, for common input: products of exf_gram_tokens() tokens */
    const exf_batch *batch; /* of the last block, for messages */
    exf_queue *q;      /* queue of the last block */
} exf_device_sums;

/* Bytes of GPU memory that open takes. */
uint64_t exf_device_sums_bytes(const exf_backend *b, int n_experts, int common_input);
exf_code exf_device_sums_open(exf_device_sums *s, const exf_backend *b, int n_experts, exf_weighting weighting, int by_sequence,
                              int common_input, exf_err *err) EXF_CHECKED;
/* Queues the block's terms.  Blocks come in order of rows, each row once a layer. */
void exf_device_sums_add(exf_device_sums *s, const exf_device_block *b);
/* Queues the terms of common input. */
void exf_device_sums_add_common_input(exf_device_sums *s, const exf_device_common_input *b);
/* Waits and adds the terms since the last call to `to`; does nothing if no block came.  EXF_NUMERIC names layer, sequence, token
 * and expert, or the pair of a sequence, whose terms are out of range. */
exf_code exf_device_sums_take(exf_device_sums *s, const exf_layer_statistics *to, int layer, exf_err *err) EXF_CHECKED;
void exf_device_sums_free(exf_device_sums *s); /* accepts zeroed memory */
#endif
