/* device_diagonal.h - adds up the diagonal sums of a layer in device memory
 * (kernels/statistics/diagonal.h), so that no expert output is copied to the host for them. */
#ifndef EXF_ACCUMULATE_DEVICE_DIAGONAL_H
#define EXF_ACCUMULATE_DEVICE_DIAGONAL_H
#include "artifact/vector_sums.h"
#include "pass/forward.h"
#include "kernels/backend.h"

typedef struct {
    const exf_backend *b;
    int d_model;
    exf_weighting weighting;
    size_t pairs;         /* pairs that fit into the allocated memory */
    size_t sequence;      /* sequence of the next row */
    exf_diagonal_sums to; /* in device memory, as is root */
    int32_t *pair;
    const int32_t *pair_host; /* pairs of the layer, in host memory */
    double *root;         /* [EXF_MOE_BLOCK, K] */
    const exf_batch *batch; /* of the last block, for messages */
    exf_queue *q;         /* queue of the last block */
} exf_device_diagonal;

uint64_t exf_device_diagonal_bytes(uint64_t pairs, int top_k, int d_model);
exf_code exf_device_diagonal_open(exf_device_diagonal *s, const exf_backend *b, size_t pairs, int top_k, int d_model,
                                  exf_weighting weighting, exf_err *err) EXF_CHECKED;
/* Sets the pairs of a layer's sums, before its blocks; borrows them: at most as many as were allocated. */
void exf_device_diagonal_begin(exf_device_diagonal *s, const exf_vector_sums *sums);
/* Queues the block's terms.  Blocks come in order of rows; the unit is that of the host,
 * EXF_MOE_BLOCK tokens of a sequence, however blocks are cut. */
void exf_device_diagonal_add(exf_device_diagonal *s, const exf_device_block *b);
/* Waits; sets vu and vv of sums to the terms added since the beginning.  EXF_NUMERIC names sequence, block and pair of a sum that
 * is out of range. */
exf_code exf_device_diagonal_take(exf_device_diagonal *s, const exf_vector_sums *sums, exf_err *err) EXF_CHECKED;
void exf_device_diagonal_free(exf_device_diagonal *s);
#endif
