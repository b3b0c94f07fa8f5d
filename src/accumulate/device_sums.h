/* device_sums.h - adds up a layer's sums in device memory, so that no expert output is copied to the host for them: layer
 * sums (kernels/statistics/layer_sums.h). */
#ifndef EXF_ACCUMULATE_DEVICE_SUMS_H
#define EXF_ACCUMULATE_DEVICE_SUMS_H
#include "accumulate/cross_check.h"
#include "accumulate/sampler.h"
#include "artifact/statistics.h"
#include "kernels/backend.h"
#include "kernels/statistics/layer_sums.h"
#include "pass/forward.h"

/* Prefixes where in a run a device found a term that the exact sums cannot hold, in the words of the host's engine: sequence
 * and token, which is counted from the beginning of its block of `block` tokens; batch NULL: the row.  token 0: only the
 * block is known. */
void exf_fault_prefix_row(exf_err *err, const exf_batch *batch, size_t row, int block, int token);

/* ---- layer sums --------------------------------------------------------------------------------- */

/* A pass has a set of sums that it takes, and two that wait to be written. */
enum { EXF_PINNED_SETS = 3 };

typedef struct {
    const exf_backend *b;
    int n_experts;
    exf_weighting weighting;
    const exf_sequence_list *sequences; /* borrowed; NULL: no sums over sequences or of a half are wanted */
    size_t first_sequence; /* of the run, that the first row belongs to */
    int common_input;        /* 1: pairs are those of common input; blocks give the experts' own sums only */
    size_t next_row;   /* the row with which the next block begins, where sums over sequences are wanted */
    int out_of_order;  /* 1: a block began with another one */
    int in_half;       /* 1: the terms since the last turn are of the half whose sums are kept */
    void *sums;        /* in device memory */
    void *pinned[EXF_PINNED_SETS]; /* memory of sets on the host; NULL: it is the set's own */
    double *sq;                /* [n, K] in device memory gets the squared norms of the next block's outputs; NULL: it does not */
    void *gram_matrices;       /* in device memory, for common input: products of exf_gram_tokens() tokens */
    const exf_batch *batch; /* of the last block, for messages */
    exf_queue *q;      /* queue of the last block */
    exf_cross_check check; /* zeroed: nothing is checked */
} exf_device_sums;

/* Bytes of GPU memory that open takes. */
uint64_t exf_device_sums_bytes(const exf_backend *b, int n_experts, int common_input);
/* sequences: of the whole run, borrowed; without lengths: no sums over sequences are wanted. */
exf_code exf_device_sums_open(exf_device_sums *s, const exf_backend *b, int n_experts, exf_weighting weighting,
                              const exf_sequence_list *sequences, size_t first_sequence, int common_input,
                              exf_err *err) EXF_CHECKED;
/* From then on the terms of a few tokens of each layer are checked on the host (cross_check.h). */
exf_code exf_device_sums_check(exf_device_sums *s, int top_k, int d_model, exf_err *err) EXF_CHECKED;
/* Moves the i-th set of a layer's sums, zeroed, into pinned memory that s keeps, so that take copies at the bus's rate.  Sets may
 * be moved by several threads. */
exf_code exf_device_sums_pin(exf_device_sums *s, int i, exf_layer_statistics *to, exf_err *err) EXF_CHECKED;
/* Queues the block's terms.  Blocks come in order of rows, from 0 on, each row once a layer; else take fails with
 * EXF_INTERNAL where sums over sequences are wanted. */
void exf_device_sums_add(exf_device_sums *s, const exf_moe_block *b);
/* Queues the terms of common input. */
void exf_device_sums_add_common_input(exf_device_sums *s, const exf_common_input_block *b);
/* Waits and gives `to` the sums of the terms since the last call; does nothing if no block came.  EXF_NUMERIC names layer,
 * sequence, token and expert, or the pair of a sequence, whose terms are out of range; EXF_DEVICE what the check of an earlier
 * layer found (exf_cross_check_finish). */
exf_code exf_device_sums_take(exf_device_sums *s, const exf_layer_statistics *to, int layer, exf_err *err) EXF_CHECKED;
void exf_device_sums_free(exf_device_sums *s); /* accepts zeroed memory */

#endif
