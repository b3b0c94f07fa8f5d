/* device_diagonal.h - adds up the diagonal sums of a layer in device memory
 * (kernels/statistics/layer_sums.h), so that no expert output is copied to the host for them. */
#ifndef EXF_ACCUMULATE_DEVICE_DIAGONAL_H
#define EXF_ACCUMULATE_DEVICE_DIAGONAL_H
#include "accumulate/sampler.h"
#include "artifact/vector_sums.h"
#include "kernels/backend.h"
#include "pass/forward.h"

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

/* Fetches the samples of the low-rank basis from a device, a few at a time, so
 * that no other expert output is copied to the host for them. */

/* Buffers in device memory, and their host copies. */
typedef struct {
    const exf_backend *b;
    int d_model, cap; /* cap: slots fetched at a time, two per sample */
    int32_t *slot, *ids;         /* [cap] in device memory */
    float *raw, *rows;           /* [cap, H] in device memory: outputs as stored, outputs as float32 */
    int32_t *slot_host, *ids_host;
    float *rows_host;
    size_t *sample;              /* [cap / 2] number of each fetched sample */
} exf_device_samples;

uint64_t exf_device_samples_bytes(int d_model); /* bytes of device memory */
exf_code exf_device_samples_open(exf_device_samples *s, const exf_backend *b, int d_model, exf_err *err) EXF_CHECKED;
/* Copies the chosen samples of a device block to the sampler, as exf_sampler_keep() does; waits if the block has any. */
exf_code exf_device_samples_keep(exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, exf_err *err) EXF_CHECKED;
void exf_device_samples_free(exf_device_samples *s); /* accepts zeroed memory */
#endif
