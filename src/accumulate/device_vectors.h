/* device_vectors.h - what low-rank and diagonal projectors are made from, kept in device memory: the samples of a layer's first
 * sweep with the moments of their residuals, and the sums of the second.  Only what the file holds, or a basis is made from,
 * crosses to the host, once a layer. */
#ifndef EXF_ACCUMULATE_DEVICE_VECTORS_H
#define EXF_ACCUMULATE_DEVICE_VECTORS_H
#include "accumulate/device_basis.h"
#include "accumulate/sampler.h"
#include "artifact/vector_sums.h"
#include "kernels/backend.h"
#include "pass/hooks.h"

/* ---- sums (device_vectors.c) ----------------------------------------------------------------------- */

enum { EXF_VECTOR_ARRAYS = 5 }; /* vu, vv, zz, zu, zv */

typedef struct {
    const exf_backend *b;
    int d_model, rank;
    exf_weighting weighting;
    size_t pairs;               /* that fit into the allocated memory */
    const exf_vector_sums *of;  /* the layer's pairs, basis and grids, in host memory */
    exf_diagonal_sums diagonal; /* in device memory, as all arrays but host; vu NULL: none */
    exf_lowrank_sums lowrank;   /* zz NULL: none */
    int32_t *pair, *grid;
    double *basis;
    double *root;               /* [EXF_MOE_BLOCK, K] */
    void *host[2];              /* staging memory for the sums of the last two layers; NULL: one is enough, or none is needed */
    int turn;                   /* which the next take fills */
    exf_ranks *ranks;           /* whose GPUs share their sums; NULL: they do not */
    void **peer;                /* [ranks, EXF_VECTOR_ARRAYS] the sums of the others' GPUs, on rank 0; NULL: none is open */
    uint64_t *wrapped;          /* [EXF_VECTOR_ARRAYS] of which sum left its range when another rank's were added (shared_sums.h) */
    int is_last;                /* 1: no layer comes after this one */
    const exf_batch *batch;     /* of the last block, for messages */
    exf_queue *q;               /* of the last block; NULL: none came */
} exf_device_vectors;

/* diagonal: 1 for their sums; rank: R, 0: no low-rank sums.  ranks: NULL or those of the run, collective: where they are on one
 * host and its GPUs can read each other's memory, take adds all ranks' sums up; rank 0 lends the sums of two layers at a time. */
uint64_t exf_device_vectors_bytes(uint64_t pairs, int top_k, int d_model, int diagonal, int rank);
exf_code exf_device_vectors_open(exf_device_vectors *s, const exf_backend *b, size_t pairs, int top_k, int d_model, int diagonal,
                                 int rank, exf_weighting weighting, exf_ranks *ranks, exf_err *err) EXF_CHECKED;
/* Sets the layer's pairs, basis and grids, before its blocks; borrows them: at most as many pairs as were allocated.  is_last: no
 * layer comes after it. */
void exf_device_vectors_begin(exf_device_vectors *s, const exf_vector_sums *sums, int is_last);
/* Queues the block's terms.  Blocks come in order of rows; the unit of diagonal sums is that of the host, EXF_MOE_BLOCK tokens of a
 * sequence, that of low-rank sums a token, however blocks are cut. */
void exf_device_vectors_add(exf_device_vectors *s, const exf_moe_block *b);
/* Waits, and lends `sums` the arrays with the terms added since the beginning, until the next take or the one after it.  Collective
 * for ranks that share their sums: rank 0 gets those of all, the others none.  EXF_NUMERIC names sequence, block and pair of a sum
 * that is out of range, or a weight without a root. */
exf_code exf_device_vectors_take(exf_device_vectors *s, exf_vector_sums *sums, exf_err *err) EXF_CHECKED;
/* For take, and tests: adds a rank's sums of these pairs, and waits.  peer: its arrays, as opened memory or another's.  EXF_NUMERIC
 * names a sum that leaves its range when the rank's is added. */
exf_code exf_device_vectors_add_peer(const exf_device_vectors *s, size_t pairs, int rank, void *const peer[EXF_VECTOR_ARRAYS],
                                     exf_err *err) EXF_CHECKED;
void exf_device_vectors_free(exf_device_vectors *s); /* accepts zeroed memory */

/* ---- samples of the low-rank basis (device_vectors_samples.c) ------------------------------------------- */

typedef struct {
    const exf_backend *b;
    int d_model;
    size_t cap;                 /* samples that fit */
    exf_number number;          /* of source and target */
    void *source, *target;      /* [cap, H] in device memory, by the sampler's order of rows */
    int32_t *slot, *ids;        /* [2, cap] in device memory: of sources, of targets */
    int32_t *place;             /* [cap], as scalar, for the moments */
    double *scalar;
    exf_device_basis search;
    exf_device_gatherer gatherer; /* of several ranks */
    int32_t *slot_host, *ids_host;
    size_t first, end;          /* samples [first, end) by row have been gathered */
    exf_queue *q;               /* on which they were; NULL: none */
    exf_queue *last;            /* of the last block */
} exf_device_samples;

/* Returns bytes of device memory.  rank: columns of the basis. */
uint64_t exf_device_samples_bytes(uint64_t samples, int d_model, int rank);
exf_code exf_device_samples_open(exf_device_samples *s, exf_ranks *ranks, const exf_backend *b, size_t samples, int d_model,
                                 int rank, uint64_t seed, exf_err *err) EXF_CHECKED;
void exf_device_samples_begin(exf_device_samples *s); /* called before a layer */
/* Gathers the chosen samples of a block, on its queue; blocks come in order of rows. */
void exf_device_samples_keep(exf_device_samples *s, const exf_sampler *of, const exf_moe_block *b);
/* Waits, and gathers on rank 0 what all ranks' blocks gave: experts in the sampler's pairs, outputs on its device. */
exf_code exf_device_samples_gather(exf_device_samples *s, const exf_sampler *to, exf_err *err) EXF_CHECKED;
/* Computes the basis [H, rank] of the samples' residuals in the sampler's order, less their mean.  scalar [n]: of each sample; NaN:
 * it is left out.  Overwrites scalar. */
exf_code exf_device_samples_basis(exf_device_samples *s, double *basis, const exf_sampler *of, double *scalar,
                                  exf_err *err) EXF_CHECKED;
void exf_device_samples_free(exf_device_samples *s); /* accepts zeroed memory */
#endif
