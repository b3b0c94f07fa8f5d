/* vectors.h - what low-rank and diagonal projectors are made from: the samples of a layer's first sweep, and the sums of the second
 * (accumulate/vector_sums.h), in host memory and in GPU memory. */
#ifndef EXF_ACCUMULATE_VECTORS_H
#define EXF_ACCUMULATE_VECTORS_H
#include "accumulate/chapter.h"

#include <pthread.h>

/* ---- vectors_samples.c --------------------------------------------------------------------------------- */

/* A candidate is a token's slot a (the source) with another slot b of that token (the target). */
typedef struct {
    exf_smallest_keys keys;   /* the chosen, whose order is that of samples */
    size_t n;                 /* chosen in this layer */
    int32_t *slot;            /* [n, 2] slots a, b */
    float *source, *target;   /* [n, H] outputs u, v */
    int32_t *pair;            /* [n, 2] experts */
    exf_run_rows own;         /* of this rank, whose blocks count from the first of them */
} exf_sampler;

/* Allocates memory for `samples` samples of width d_model; 0: without their outputs. */
exf_code exf_sampler_new(exf_sampler *s, size_t samples, int d_model, exf_err *err) EXF_CHECKED;
/* Allocates memory for the outputs of a sampler that was made without. */
exf_code exf_sampler_make_room(exf_sampler *s, int d_model, exf_err *err) EXF_CHECKED;
void exf_sampler_free(exf_sampler *s);
/* Chooses the samples of one layer; next: the layer after it, -1: there is none. */
exf_code exf_sampler_choose(exf_sampler *s, const exf_sequence_list *sequences, int top_k, int layer, int next, uint64_t seed,
                            exf_err *err) EXF_CHECKED;
/* Copies the chosen samples of a block; blocks may come from several threads. */
void exf_sampler_keep(const exf_sampler *s, const exf_moe_block *b);

/* Those of a device. */
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

/* samples: as many fit; rank: columns of the basis. */
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

/* ---- vectors_terms.c ----------------------------------------------------------------------------------- */

/* Lists which tokens of a block belong to which pair.  Zeroed before the first block. */
typedef struct {
    struct exf_pair_entry *entry; /* by pair, then token */
    int64_t *first;               /* [n_pairs + 1] */
    double *weight;               /* [T, K] */
    size_t cap_entry, cap_first, cap_weight;
} exf_pair_block;

/* Buffers for one pair of a block.  Zeroed before the first. */
typedef struct {
    double *u, *v; /* [n, H] a pair's outputs, times sqrt(w) */
    double *z;     /* [n, R] */
    double *total; /* [R, H] or [2, H]: totals of this block */
    size_t cap_u, cap_v, cap_z, cap_total;
} exf_pair_buffers;

/* Sorts a block's slot pairs. index [E, E]: a pair's number, -1: it has no vectors. */
exf_code exf_pair_block_sort(exf_pair_block *s, const exf_moe_block *b, const int32_t *index, exf_weighting weighting,
                             int64_t n_pairs, exf_err *err) EXF_CHECKED;
/* Adds pair p's terms of the sorted block; concurrent for different buffers.  lock guards the pair's sums. */
exf_code exf_pair_block_add(const exf_pair_block *s, exf_pair_buffers *m, const exf_moe_block *b, int64_t p,
                            const exf_vector_sums *sums, pthread_mutex_t *lock, exf_err *err) EXF_CHECKED;

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

/* ---- vectors_ranks.c ----------------------------------------------------------------------------------- */

/* An array of sums in device memory, and how many it has of some pairs; from NULL: it is not wanted. */
typedef struct {
    void *from;
    size_t n, size;
} exf_summed;

void exf_device_vectors_list(exf_summed out[EXF_VECTOR_ARRAYS], const exf_device_vectors *s, size_t pairs);
/* Lets the GPUs of the ranks share their sums, if all can; else these go by way of MPI. */
exf_code exf_device_vectors_share(exf_device_vectors *s, exf_ranks *ranks, exf_err *err) EXF_CHECKED;
/* Adds the sums of all GPUs up on rank 0's, when all are complete. */
exf_code exf_device_vectors_add_peers(exf_device_vectors *s, size_t pairs, exf_err *err) EXF_CHECKED;
/* Waits until rank 0 needs this layer's sums no longer: the next layer's go to the same memory, and after the last one it is freed,
 * which nobody may have open then. */
exf_code exf_device_vectors_release(exf_device_vectors *s, exf_err *err) EXF_CHECKED;
void exf_device_vectors_close_peers(exf_device_vectors *s);

/* ---- chapter_vectors.c ----------------------------------------------------------------------------------- */

enum { EXF_VECTOR_LOCKS = 64 };

struct exf_vector_accumulator {
    exf_run_shape shape;
    const exf_accumulate_options *options;
    const exf_sequence_list *sequences;
    exf_sampler sampler; /* empty without lowrank */
    int32_t *index;      /* [E, E] number of a pair in sums, -1: it has no vectors */
    exf_vector_sums sums;
    exf_pair_block *block; /* [n_workers] */
    exf_pair_buffers *buffers;   /* [n_workers, n_helpers] */
    int n_workers, n_helpers;
    pthread_mutex_t lock[EXF_VECTOR_LOCKS]; /* each guards the sums of many pairs */
    exf_ranks *ranks;             /* NULL: one process */
    exf_device_samples samples;   /* on a device, with lowrank */
    exf_device_vectors device;    /* on a device */
    int is_last;                  /* 1: no layer comes after the present one */
};
#endif
