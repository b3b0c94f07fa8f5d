/* device_sums.h - one layer's sums while they are kept in a device's memory
 * (kernels/statistics/layer_sums.h): no expert output comes to the host. */
#ifndef EXF_ACCUMULATE_DEVICE_SUMS_H
#define EXF_ACCUMULATE_DEVICE_SUMS_H
#include "artifact/statistics.h"
#include "forward/forward.h"
#include "kernels/backend.h"

typedef struct {
    const exf_backend *b;
    int n_experts;
    exf_weighting weighting;
    int by_sequence;   /* sums over sequences are wanted */
    int common_input;        /* pairs are those of common input: blocks give the experts' own sums */
    size_t sequence;   /* the next row's */
    void *sums, *host; /* the device's; room for bringing them home */
    void *gram_matrices;       /* the device's, of common input: exf_gram_tokens() tokens' products */
    exf_queue *q;      /* of the last block */
} exf_device_sums;

/* Bytes of GPU memory that open takes. */
uint64_t exf_device_sums_bytes(const exf_backend *b, int n_experts, int common_input);
exf_code exf_device_sums_open(exf_device_sums *s, const exf_backend *b, int n_experts, exf_weighting weighting, int by_sequence,
                              int common_input, exf_err *err) EXF_CHECKED;
/* Queues the block's terms.  Blocks come in order of rows, each row once a layer. */
void exf_device_sums_add(exf_device_sums *s, const exf_device_block *b);
/* The same of common input. */
void exf_device_sums_add_common_input(exf_device_sums *s, const exf_device_common_input *b);
/* Waits, adds what came since the last call to `to`.  Nothing where nothing came. */
exf_code exf_device_sums_take(exf_device_sums *s, const exf_layer_statistics *to, int layer, exf_err *err) EXF_CHECKED;
void exf_device_sums_free(exf_device_sums *s); /* what is zero is fine */
#endif
