/* chapter.h - what the chapters keep of a layer and call of each other, inside src/accumulate.  A chapter, chapter_<name>.c, is one
 * statistic: what it observes in host memory, then what it observes in GPU memory. */
#ifndef EXF_ACCUMULATE_CHAPTER_H
#define EXF_ACCUMULATE_CHAPTER_H
#include "accumulate/accumulate_basis.h"
#include "accumulate/accumulate_options.h"
#include "accumulate/cross_check.h"
#include "accumulate/smallest_keys.h"
#include "accumulate/statistics.h"
#include "kernels/backend.h"
#include "kernels/statistics/layer_sums.h"
#include "pass/forward.h"
#include "ranks/ranks.h"

/* The most tokens that chapters are shown in GPU memory at a time. */
enum { EXF_DEVICE_TOKENS = 16384 };

/* Returns a block's outputs in GPU memory. */
static inline exf_matrix exf_outputs_of(const exf_moe_block *b)
{
    return (exf_matrix){b->expert_outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32};
}

/* A layer whose arrays were read from a file. */
typedef struct {
    const exf_statistics_reader *r;
    int layer;            /* the model's number */
    int has[EXF_N_PARTS]; /* 1: the file has arrays of the part */
} exf_layer_read;

/* ---- chapter_stream.c ---------------------------------------------------------------------------------- */

/* A worker's sums over the tokens of a layer: squared norms, their inverses, and squared norms of the sequences' first tokens
 * alone.  Of blocks in GPU memory it counts the tokens. */
typedef struct {
    exf_exact sum, inverse, first;
    uint64_t count, first_count;
} exf_stream_sums;

typedef struct {
    exf_stream_sums *worker;    /* [n_workers] */
    const exf_backend *b;       /* a device's; NULL: blocks come in host memory */
    exf_row_energies *device;   /* [2] in device memory: of all tokens, and of the sequences' first */
    exf_queue *q;               /* queue of the last device block; NULL: none in this layer */
} exf_stream_energy;

/* ---- chapter_sequences.c ------------------------------------------------------------------------------- */

/* What a sequence has added to a cell of [E, E]. */
typedef struct {
    size_t at;
    exf_exact dot, target_sq;
    uint64_t count;
} exf_parked_cell;

/* A sequence of which some tokens were added, and of which others come after those of another sequence. */
typedef struct {
    size_t sequence;
    int seen;              /* tokens */
    size_t n;
    exf_parked_cell *cell; /* [n] */
} exf_parked_sequence;

/* A worker's. */
typedef struct {
    exf_exact *dot, *target_sq; /* [E, E] sums before the present sequence */
    uint64_t *count;            /* [E, E] */
    size_t sequence;
    int open, next_position;    /* next_position: where sequences mix, the tokens seen */
    int length;                 /* of the present sequence, where sequences mix; else 0 */
    exf_parked_sequence *parked;
    size_t n_parked, cap_parked;
    int in_half; /* 1: the present sequence is of the half whose sums are kept */
} exf_sequence_tracker;

/* ---- chapter_pairs.c ----------------------------------------------------------------------------------- */

/* Prefixes where in a run a device found a term that the exact sums cannot hold, in the words of the host's engine: sequence
 * and token, which is counted from the beginning of its block of `block` tokens; batch NULL: the row.  token 0: only the
 * block is known. */
void exf_fault_prefix_row(exf_err *err, const exf_batch *batch, size_t row, int block, int token);

/* A pass has a set of sums that it takes, and those that wait to be written. */
enum { EXF_PINNED_SETS = 1 + EXF_MOST_WAITING };

typedef struct {
    const exf_backend *b;
    int n_experts;
    exf_weighting weighting;
    const exf_sequence_list *sequences; /* borrowed; NULL: no sums over sequences or of a half are wanted */
    size_t first_sequence; /* of the run, that the first row belongs to */
    int common_input;        /* 1: pairs are those of common input; blocks give the experts' own sums only */
    size_t next_row;   /* the row with which the next block begins, where sums over sequences are wanted */
    int out_of_order;  /* 1: a block began with another one */
    int in_half;       /* 1: the terms since the last turn are of the half whose sums are kept */
    void *sums;        /* in device memory */
    void *pinned[EXF_PINNED_SETS]; /* memory of sets on the host; NULL: it is the set's own */
    double *sq;                /* [n, K] in device memory gets the squared norms of the next block's outputs; NULL: it does not */
    void *gram_matrices;       /* in device memory, for common input: products of exf_gram_tokens() tokens */
    const exf_batch *batch; /* of the last block, for messages */
    exf_queue *q;      /* queue of the last block */
    exf_cross_check check; /* zeroed: nothing is checked */
} exf_device_sums;

/* sequences: of the whole run, borrowed; without lengths: no sums over sequences are wanted. */
exf_code exf_device_sums_open(exf_device_sums *s, const exf_backend *b, int n_experts, exf_weighting weighting,
                              const exf_sequence_list *sequences, size_t first_sequence, int common_input,
                              exf_err *err) EXF_CHECKED;
/* Moves the i-th set of a layer's sums, zeroed, into pinned memory that s keeps, so that take copies at the bus's rate.  Sets may
 * be moved by several threads. */
exf_code exf_device_sums_pin(exf_device_sums *s, int i, exf_layer_statistics *to, exf_err *err) EXF_CHECKED;
/* Queues the block's terms.  Blocks come in order of rows, from 0 on, each row once a layer; else take fails with
 * EXF_INTERNAL where sums over sequences are wanted. */
void exf_device_sums_add(exf_device_sums *s, const exf_moe_block *b);
/* Waits and gives `to` the sums of the terms since the last call; does nothing if no block came.  EXF_NUMERIC names layer,
 * sequence, token and expert, or the pair of a sequence, whose terms are out of range; EXF_DEVICE what the check of an earlier
 * layer found (exf_cross_check_finish). */
exf_code exf_device_sums_take(exf_device_sums *s, const exf_layer_statistics *to, int layer, exf_err *err) EXF_CHECKED;
void exf_device_sums_free(exf_device_sums *s); /* accepts zeroed memory */
/* In chapter_sequences.c: queue what ends or begins a run of sequences of one half, before terms of a sequence; and its squares,
 * after its last. */
void exf_device_sums_enter_sequence(exf_device_sums *s, exf_queue *q, size_t sequence);
void exf_device_sums_close_sequence(const exf_device_sums *s, exf_queue *q, size_t sequence);
/* In chapter_common_input.c: queues the terms of common input. */
void exf_device_sums_add_common_input(exf_device_sums *s, const exf_common_input_block *b);

/* ---- chapter_norm_directions.c ------------------------------------------------------------------------- */

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

/* ---- chapter_norm_head.c ------------------------------------------------------------------------------- */

/* Fills what a route sample keeps of token t of a block: V'x, log ||x|| and the logits of its slots less the mean of all, as the
 * sums take them. */
void exf_norm_head_of_token(float *to, const double *basis, int q, const exf_moe_block *b, size_t t);
/* Adds a block's slots over that basis; concurrent for different sums. */
exf_code exf_norm_sums_add(const exf_norm_sums *to, const double *basis, const exf_moe_block *b, exf_err *err) EXF_CHECKED;

typedef struct {
    const exf_backend *b;       /* NULL: there are none */
    int d_model;
    exf_norm_products_sums sums;
    double *sq;                 /* [EXF_DEVICE_TOKENS, K] in device memory: squared norms of the outputs of the next tokens */
    double *basis_host;          /* [H, q] staging memory, as host */
    uint64_t *host;             /* the sums of the layer that was taken last */
    const exf_batch *batch;     /* of the last block, for messages */
    exf_queue *q;               /* of the last block; NULL: none came */
} exf_device_norms;

exf_code exf_device_norms_open(exf_device_norms *s, const exf_backend *b, int n_experts, int top_k, int d_model, int q,
                               exf_err *err) EXF_CHECKED;
/* Sets the layer's directions, which float32 holds, before its blocks. */
void exf_device_norms_begin(exf_device_norms *s, const double *basis);
/* Queues the terms of at most EXF_DEVICE_TOKENS tokens, after s->sq has their squared norms. */
void exf_device_norms_add(exf_device_norms *s, const exf_moe_block *b);
/* Waits and adds the terms since the beginning to `to`.  EXF_NUMERIC names layer, sequence and token of a number out of range. */
exf_code exf_device_norms_take(exf_device_norms *s, const exf_norm_sums *to, int layer, exf_err *err) EXF_CHECKED;
void exf_device_norms_free(exf_device_norms *s); /* accepts zeroed memory */

/* ---- chapter_routes.c ---------------------------------------------------------------------------------- */

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
static inline size_t exf_route_sampler_tokens(int64_t wanted, int64_t n_tokens)
{
    return (size_t)(wanted < n_tokens ? wanted : n_tokens);
}

#endif
