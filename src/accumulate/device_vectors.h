/* device_vectors.h - the parts of vector sums that need not see outputs on the host:
 * samples for the basis are fetched by themselves, diagonal sums are kept in the device's
 * memory (kernels/statistics/diagonal.h).  Low-rank sums are made on the host. */
#ifndef EXF_ACCUMULATE_DEVICE_VECTORS_H
#define EXF_ACCUMULATE_DEVICE_VECTORS_H
#include "accumulate/sampler.h"
#include "artifact/vector_sums.h"
#include "kernels/backend.h"

/* ---- samples: a few at a time, the device's arrays and what they become on the host ------ */
typedef struct {
    const exf_backend *b;
    int d_model, cap; /* slots at a time: two a sample */
    int32_t *slot, *ids;         /* [cap] there */
    float *raw, *rows;           /* [cap, H] there: as they were, as float32 */
    int32_t *slot_host, *ids_host;
    float *rows_host;
    size_t *sample;              /* [cap / 2] */
} exf_device_samples;

uint64_t exf_device_samples_bytes(int d_model); /* of the device's memory */
exf_code exf_device_samples_open(exf_device_samples *s, const exf_backend *b, int d_model, exf_err *err) EXF_CHECKED;
/* exf_sampler_keep() of a block on the device; waits if it has any of the chosen. */
exf_code exf_device_samples_keep(exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, exf_err *err) EXF_CHECKED;
void exf_device_samples_free(exf_device_samples *s); /* what is zero is fine */

/* ---- diagonal sums of a layer ------------------------------------------------------------- */
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
exf_code exf_device_diagonal_open(exf_device_diagonal *s, const exf_backend *b, size_t pairs, int top_k, int d_model, exf_weighting weighting,
                                  exf_err *err) EXF_CHECKED;
/* The pairs of a layer's sums, before its blocks; borrowed: at most as many as there is room for. */
void exf_device_diagonal_begin(exf_device_diagonal *s, const exf_vector_sums *sums);
/* Queues the block's terms.  Blocks come in order of rows; the unit is that of the host's,
 * EXF_MOE_BLOCK tokens of a sequence, wherever blocks are cut. */
void exf_device_diagonal_add(exf_device_diagonal *s, const exf_device_block *b);
/* Waits; vu and vv of sums become what came since the beginning. */
exf_code exf_device_diagonal_take(exf_device_diagonal *s, const exf_vector_sums *sums, exf_err *err) EXF_CHECKED;
void exf_device_diagonal_free(exf_device_diagonal *s);
#endif
