/* norm_directions.h - the inputs of a sample of a layer's tokens, and their principal directions: what the sums of a norm head are
 * over (accumulate/norm_sums.h). */
#ifndef EXF_ACCUMULATE_NORM_DIRECTIONS_H
#define EXF_ACCUMULATE_NORM_DIRECTIONS_H
#include "accumulate/accumulate_basis.h"
#include "accumulate/smallest_keys.h"
#include "accumulate/norm_sums.h"
#include "kernels/backend.h"
#include "pass/hooks.h"
#include "ranks/ranks.h"

/* Keeps the inputs of a sample of a layer's tokens, and finds their principal directions.  The keys depend on no seed. */
typedef struct {
    exf_smallest_keys keys;
    exf_run_rows own;     /* of this rank, whose blocks count from the first of them */
    int d_model;
    int directions;       /* q */
    float *input;         /* [n, H] by rising key; NULL: rows stay on the device */
    double *basis;        /* [H, q] */
    const exf_backend *b; /* a device's; NULL: blocks come in host memory */
    int split;            /* 1: inputs come in two parts (pass/hooks.h) */
    size_t first, end;    /* tokens [first, end) by row have been gathered */
    int32_t *row_host;    /* [n] */
    float *rows;          /* [n, H] in device memory */
    int32_t *row;         /* [n] in device memory */
    exf_device_basis search;
    exf_device_gatherer gatherer; /* of several ranks */
} exf_norm_sampler;

uint64_t exf_norm_sampler_bytes(const exf_run_shape *shape);
uint64_t exf_norm_sampler_device_bytes(const exf_run_shape *shape, int directions);
/* own: the rows of this rank, if it is one of several. */
exf_code exf_norm_sampler_new(exf_norm_sampler *s, const exf_run_shape *shape, int directions, exf_run_rows own,
                              exf_err *err) EXF_CHECKED;
void exf_norm_sampler_free(exf_norm_sampler *s); /* accepts zeroed memory */
exf_code exf_norm_sampler_open_device(exf_norm_sampler *s, exf_ranks *ranks, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Chooses the tokens of a layer; next: the layer after it, -1: there is none. */
exf_code exf_norm_sampler_begin(exf_norm_sampler *s, const exf_sequence_list *sequences, int layer, int next,
                                exf_err *err) EXF_CHECKED;
/* Keeps the chosen tokens of a block; blocks in host memory may come from several threads. */
void exf_norm_sampler_keep(const exf_norm_sampler *s, const exf_input_block *b);
void exf_norm_sampler_keep_device(exf_norm_sampler *s, const exf_input_block *b);
/* Sets the basis of `to`, which float32 holds; collective where there are ranks.  q: the blocks' queue on a device, for which this
 * waits; else NULL. */
exf_code exf_norm_sampler_find(exf_norm_sampler *s, exf_norm_sums *to, int layer, exf_ranks *ranks, exf_queue *q, int helpers,
                               exf_err *err) EXF_CHECKED;
#endif
