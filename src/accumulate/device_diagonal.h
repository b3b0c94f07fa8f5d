/* device_diagonal.h - keeps the diagonal sums of a layer in the memory of the device
 * (kernels/statistics/diagonal.h), so that no output need come to the host for them. */
#ifndef EXF_ACCUMULATE_DEVICE_DIAGONAL_H
#define EXF_ACCUMULATE_DEVICE_DIAGONAL_H
#include "artifact/vector_sums.h"
#include "forward/forward.h"
#include "kernels/backend.h"

typedef struct {
    const exf_backend *b;
    int d_model;
    exf_weighting weighting;
    size_t pairs;         /* that there is room for */
    size_t sequence;      /* the next row's */
    exf_diagonal_sums to; /* the device's, as is root */
    int32_t *pair;
    const int32_t *pair_host; /* the layer's, on the host */
    double *root;         /* [EXF_MOE_BLOCK, K] */
    exf_queue *q;         /* of the last block */
} exf_device_diagonal;

uint64_t exf_device_diagonal_bytes(uint64_t pairs, int top_k, int d_model);
exf_code exf_device_diagonal_open(exf_device_diagonal *s, const exf_backend *b, size_t pairs, int top_k, int d_model,
                                  exf_weighting weighting, exf_err *err) EXF_CHECKED;
/* The pairs of a layer's sums, before its blocks; borrowed: at most as many as there is room for. */
void exf_device_diagonal_begin(exf_device_diagonal *s, const exf_vector_sums *sums);
/* Queues the block's terms.  Blocks come in order of rows; the unit is that of the host's,
 * EXF_MOE_BLOCK tokens of a sequence, wherever blocks are cut. */
void exf_device_diagonal_add(exf_device_diagonal *s, const exf_device_block *b);
/* Waits; vu and vv of sums become what came since the beginning. */
exf_code exf_device_diagonal_take(exf_device_diagonal *s, const exf_vector_sums *sums, exf_err *err) EXF_CHECKED;
void exf_device_diagonal_free(exf_device_diagonal *s);
#endif
