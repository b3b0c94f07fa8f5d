/* sampler.h - chooses tokens of a layer and keeps what experts or router gave for them: the samples from which the low-rank
 * basis is made, and the routes from which budgets per token are solved (artifact/statistics.h).
 *
 * Which tokens they are smallest_keys.h says. */
#ifndef EXF_ACCUMULATE_SAMPLER_H
#define EXF_ACCUMULATE_SAMPLER_H
#include "accumulate/smallest_keys.h"
#include "artifact/statistics.h"
#include "kernels/backend.h"
#include "pass/forward.h"
#include "ranks/ranks.h"

/* ---- samples of several ranks --------------------------------------------------------------------------- */

/* Gathers on rank 0 what each rank has kept of its rows: values [n, bytes] of the chosen candidates, by rising key.  Collective. */
exf_code exf_gather_samples(exf_ranks *r, const exf_smallest_keys *keys, exf_run_rows own, void *values, size_t bytes,
                            exf_err *err) EXF_CHECKED;
/* Gathers values that lie in device memory, by way of pinned memory. */
typedef struct {
    exf_ranks *ranks; /* NULL: one process, for which nothing is gathered */
    const exf_backend *b;
    char *staging;
} exf_device_gatherer;

exf_code exf_device_gatherer_open(exf_device_gatherer *g, exf_ranks *ranks, const exf_backend *b, exf_err *err) EXF_CHECKED;
void exf_device_gatherer_free(exf_device_gatherer *g); /* accepts zeroed memory */
/* Gathers values [n, bytes] by rising row on rank 0; this rank has [first, end) of them.  Collective; waits for the queue. */
exf_code exf_device_gather(exf_device_gatherer *g, exf_queue *q, size_t first, size_t end, size_t n, void *values,
                           size_t bytes, exf_err *err) EXF_CHECKED;

/* ---- samples of the low-rank basis ------------------------------------------------------------------- */

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
/* Gathers on rank 0 what all ranks have kept. */
exf_code exf_sampler_gather(const exf_sampler *s, exf_ranks *ranks, int d_model, exf_err *err) EXF_CHECKED;

/* ---- routes -------------------------------------------------------------------------------------- */

/* A candidate is a token, whose routes are kept as the router made them.  The keys depend on no seed. */
typedef struct {
    exf_route_sample sample; /* of the present layer, filled block by block */
    exf_smallest_keys keys;  /* the chosen tokens, in the sample's order */
    size_t first_row;        /* row in the whole run of the first row that blocks count from: of a rank's part */
    int shared;              /* 1: other ranks keep the others; what is not kept is 0 */
    const exf_backend *b;    /* a device's; NULL: blocks come in host memory */
    int32_t *slot, *ids;     /* [cap], [cap, K] in device memory */
    float *weights;          /* [cap, K] in device memory */
    double *projected, *norm; /* [cap, q], [cap] in device memory: of the sample's head, as the next one; NULL without one */
    float *logits;           /* [cap, K] in device memory */
    int32_t *slot_host, *ids_host;
    float *weights_host, *logits_host;
    double *projected_host, *norm_host;
    size_t first, end;       /* tokens [first, end) of keys.by_row are in device memory and not fetched yet */
    struct exf_queue *q;     /* on which they were gathered */
} exf_route_sampler;

/* Returns how many of n_tokens tokens are kept where `wanted` are to be. */
size_t exf_route_sampler_tokens(int64_t wanted, int64_t n_tokens);
/* q: directions of the norm head, whose features of a token are kept too; 0: none. */
exf_code exf_route_sampler_new(exf_route_sampler *s, size_t tokens, int top_k, int q, exf_err *err) EXF_CHECKED;
void exf_route_sampler_free(exf_route_sampler *s); /* accepts zeroed memory */
/* Says that this is one rank of several, whose rows begin at first_row of the whole run. */
void exf_route_sampler_share(exf_route_sampler *s, size_t first_row);
/* Chooses the tokens of a layer; next: the layer after it, -1: there is none. */
exf_code exf_route_sampler_choose(exf_route_sampler *s, const exf_sequence_list *sequences, int layer, int next,
                                  exf_err *err) EXF_CHECKED;
/* Keeps the chosen tokens of a block; blocks may come from several threads.  basis [H, q]: of the norm head; NULL without one. */
void exf_route_sampler_keep(exf_route_sampler *s, const exf_moe_block *b, const double *basis);

uint64_t exf_route_sampler_device_bytes(size_t tokens, int top_k, int q);
exf_code exf_route_sampler_open_device(exf_route_sampler *s, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Gathers the chosen tokens of a block in device memory, on its queue; blocks come in order of rows.  projected [T, q], norm [T]:
 * the features that the norm head's sums took of the block's tokens; NULL without one. */
void exf_route_sampler_keep_device(exf_route_sampler *s, const exf_moe_block *b, const double *projected, const double *norm);
/* Fetches what was gathered of a layer; waits for the queue. */
exf_code exf_route_sampler_take_device(exf_route_sampler *s, exf_err *err) EXF_CHECKED;
#endif
