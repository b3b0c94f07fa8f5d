/* device_norms.h - the sums of a layer's norm head in device memory (kernels/statistics/norm_products.h): they cross to the host
 * once a layer. */
#ifndef EXF_ACCUMULATE_DEVICE_NORMS_H
#define EXF_ACCUMULATE_DEVICE_NORMS_H
#include "artifact/norm_sums.h"
#include "kernels/backend.h"
#include "pass/hooks.h"

/* The most tokens that are added at a time. */
enum { EXF_NORM_TOKENS = 16384 };

typedef struct {
    const exf_backend *b;       /* NULL: there are none */
    int d_model;
    exf_norm_products_sums sums;
    double *sq;                 /* [EXF_NORM_TOKENS, K] in device memory: squared norms of the outputs of the next tokens */
    double *basis_host;          /* [H, q] staging memory, as host */
    uint64_t *host;             /* the sums of the layer that was taken last */
    const exf_batch *batch;     /* of the last block, for messages */
    exf_queue *q;               /* of the last block; NULL: none came */
} exf_device_norms;

/* Bytes of GPU memory that open takes. */
uint64_t exf_device_norms_bytes(int n_experts, int top_k, int d_model, int q);
exf_code exf_device_norms_open(exf_device_norms *s, const exf_backend *b, int n_experts, int top_k, int d_model, int q,
                               exf_err *err) EXF_CHECKED;
/* Sets the layer's directions, which float32 holds, before its blocks. */
void exf_device_norms_begin(exf_device_norms *s, const double *basis);
/* Queues the terms of at most EXF_NORM_TOKENS tokens, after s->sq has their squared norms. */
void exf_device_norms_add(exf_device_norms *s, const exf_moe_block *b);
/* Waits and adds the terms since the beginning to `to`.  EXF_NUMERIC names layer, sequence and token of a number out of range. */
exf_code exf_device_norms_take(exf_device_norms *s, const exf_norm_sums *to, int layer, exf_err *err) EXF_CHECKED;
void exf_device_norms_free(exf_device_norms *s); /* accepts zeroed memory */
#endif
