/* accumulate_internal.h - the parts of an accumulator, inside src/accumulate.
 *
 *   accumulate.c            the observer: blocks of a layer to its sums; accumulate_options.c: which of them
 *   accumulate_sequences.c  what each sequence added to the sums; the residual stream's energy
 *   accumulate_vectors.c    vector sums, in two sweeps; accumulate_pairs.c: one block's terms of a pair
 *   accumulate_basis.c      what low-rank sums and norm heads are over: the principal directions of rows in host memory;
 *                           device_basis.c: in device memory
 *   accumulate_norms.c      sums of the norm head; accumulate_norm_sample.c: what they are over
 *   accumulate_sinks.c      where a layer's sums go: the statistics file, now, later or by way of rank 0
 *   accumulate_arrays.c     a layer's sums as a list of arrays, for resume points and for ranks */
#ifndef EXF_ACCUMULATE_ACCUMULATE_INTERNAL_H
#define EXF_ACCUMULATE_ACCUMULATE_INTERNAL_H
#include "accumulate/accumulate.h"
#include "accumulate/device_basis.h"
#include "accumulate/device_norms.h"
#include "accumulate/device_sums.h"
#include "accumulate/device_vectors.h"
#include "accumulate/sampler.h"
#include "base/hash.h"
#include "base/worker.h"

#include <pthread.h>

/* ---- accumulate_options.c ------------------------------------------------------------------------- */

int exf_wants_vectors(const exf_accumulate_options *o);
/* Returns 1 if some sums are over what --basis-only makes. */
int exf_wants_basis(const exf_accumulate_options *o);
/* Returns the directions of the norm head that a run of this shape has. */
int exf_head_directions(const exf_run_shape *shape, const exf_accumulate_options *o);

/* ---- accumulate_sequences.c ----------------------------------------------------------------------- */

/* Squares each sequence's own pair sums and adds the squares up over sequences: the moments of a jackknife whose unit is
 * the sequence.  A sequence's own sum is the exact difference of the worker's sum before and after the sequence, rounded
 * once: it depends on no block, worker or other sequence.  One tracker per worker.
 *
 * The sums of one half of the sequences (artifact/statistics.h) come from the same walk: before a run of sequences of that half
 * the worker's sums are taken from s->half_*, after it they are added to them. */
typedef struct {
    exf_exact *dot, *target_sq; /* [E, E] sums before the present sequence */
    uint64_t *count;            /* [E, E] */
    size_t sequence;
    int open, next_position;
    int in_half; /* 1: the present sequence is of the half whose sums are kept */
} exf_sequence_tracker;

size_t exf_sequence_tracker_bytes(int n_experts);
exf_code exf_sequence_tracker_new(exf_sequence_tracker *k, int n_experts, exf_err *err) EXF_CHECKED;
void exf_sequence_tracker_free(exf_sequence_tracker *k);
/* Called before n tokens of `sequence` from `position` on are added to s; in_half: the sequence's half (exf_sequence_half). */
exf_code exf_sequence_tracker_enter(exf_sequence_tracker *k, const exf_layer_statistics *s, size_t sequence, int in_half,
                                    int position, int n, exf_err *err) EXF_CHECKED;
/* Adds the present sequence, if there is one, to s->seq_* and s->sequences, and ends the run of sequences of one half, which
 * completes s->half_*.  EXF_NUMERIC if a product leaves the range of exf_exact. */
exf_code exf_sequence_tracker_end(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;

/* Adds up the squared norms of a layer's residual stream and their inverses, exactly, over the blocks that show it
 * (pass/hooks.h), for the sensitivities of budgets per token (docs/method.md, section 9). */
typedef struct {
    exf_exact *sum, *inverse; /* [n_workers] */
    uint64_t *count;  /* [n_workers] tokens */
    int n_workers;
    const exf_backend *b;       /* a device's; NULL: blocks come in host memory */
    exf_row_energies *device;   /* in device memory */
    exf_queue *q;               /* queue of the last device block; NULL: none in this layer */
    uint64_t device_count;
} exf_stream_energy;

exf_code exf_stream_energy_new(exf_stream_energy *s, int n_workers, exf_err *err) EXF_CHECKED;
exf_code exf_stream_energy_open_device(exf_stream_energy *s, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Adds a block's energies if it shows the stream; blocks of different workers may come from several threads.  A token's
 * energy is a sum of products in double, eight lanes in fixed order.  EXF_NUMERIC: a finite energy is out of range. */
exf_code exf_stream_energy_add(exf_stream_energy *s, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
/* Queues a device block's energies; squares are added up in double. */
void exf_stream_energy_add_device(exf_stream_energy *s, const exf_moe_block *b);
/* Adds what came since the last call to `to`; waits for the device. */
exf_code exf_stream_energy_take(exf_stream_energy *s, const exf_layer_statistics *to, int layer, exf_err *err) EXF_CHECKED;
void exf_stream_energy_free(exf_stream_energy *s); /* accepts zeroed memory */

/* ---- accumulate_vectors.c ------------------------------------------------------------------------- */

typedef struct exf_vector_accumulator exf_vector_accumulator;

/* Chooses the grids of v's pairs from the layer's scalar sums. */
void exf_vector_sums_choose_grids(const exf_vector_sums *v, const exf_layer_statistics *s);

/* Makes an accumulator; borrows options and sequences.  ranks: it is one of theirs, whose rows are own:
 * pairs and basis are rank 0's for all, and prepare is collective; the sums are this rank's own.  NULL: one process. */
exf_code exf_vector_accumulator_new(exf_vector_accumulator **out, const exf_run_shape *shape, const exf_accumulate_options *o,
                                    const exf_sequence_list *sequences, int n_workers, exf_ranks *ranks, exf_run_rows own,
                                    exf_err *err) EXF_CHECKED;
void exf_vector_accumulator_free(exf_vector_accumulator *m); /* NULL is allowed */
/* Prepares a pass on a device, which takes the samples and adds up the sums: no block is copied to the host. */
exf_code exf_vector_accumulator_open_device(exf_vector_accumulator *m, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Returns the bytes of device memory that the accumulator takes. */
uint64_t exf_vector_accumulator_device_bytes(const exf_run_shape *shape, const exf_accumulate_options *o);

/* Called before the first sweep of a layer; next: the layer after it, -1: there is none. */
exf_code exf_vector_accumulator_begin(exf_vector_accumulator *m, int layer, int next, exf_err *err) EXF_CHECKED;
/* Takes samples from a block of the first sweep; concurrent. */
void exf_vector_accumulator_sample(const exf_vector_accumulator *m, const exf_moe_block *b);
void exf_vector_accumulator_sample_device(exf_vector_accumulator *m, const exf_moe_block *b);
/* Called between the sweeps; s has all of the layer's sums. */
exf_code exf_vector_accumulator_prepare(exf_vector_accumulator *m, const exf_layer_statistics *s, int layer,
                                        exf_err *err) EXF_CHECKED;
/* Adds a block of the second sweep; concurrent for different workers. */
exf_code exf_vector_accumulator_add(exf_vector_accumulator *m, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
void exf_vector_accumulator_add_device(exf_vector_accumulator *m, const exf_moe_block *b);
/* Called after the second sweep: copies sums on a device to the host. */
exf_code exf_vector_accumulator_end(exf_vector_accumulator *m, exf_err *err) EXF_CHECKED;
/* Returns 1 if rank 0 then has the sums of all ranks, whose GPUs share their memory, and the others have none. */
int exf_vector_accumulator_adds_ranks(const exf_vector_accumulator *m);
/* Returns the layer's sums, which the next layer frees; a caller that wants to keep them copies and zeroes *sums. */
exf_vector_sums *exf_vector_accumulator_sums(exf_vector_accumulator *m);

/* ---- accumulate_basis.c --------------------------------------------------------------------------- */

/* Computes q [d, r], r <= d: orthonormal columns, by falling singular value, of the rows x [n, d],
 * less their mean if `centred`; each column's largest element (the first of equals) is positive.
 * Columns beyond the rank of x complete the others.  Computes in double over fixed parts of
 * the rows in order: equal x gives equal bits for any number of helping threads (at least 1). */
exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, int centred, uint64_t seed, uint64_t stream,
                        int helpers, exf_err *err) EXF_CHECKED;
/* Returns the bytes of working memory of exf_basis_find(). */
uint64_t exf_basis_bytes(int r, int d, int helpers);
/* What the search on a device (device_basis.h) shares: steps of the subspace, its columns for r directions of d, the columns that
 * it starts from, and the sign of a direction. */
enum { EXF_BASIS_ITERATIONS = 6 };
int exf_basis_columns(int r, int d);
void exf_basis_start(double *g, int d, int k, uint64_t seed, uint64_t stream);
/* Makes the largest element of each column of q [d, r], the first of equals, positive. */
void exf_basis_choose_signs(double *q, int r, int d);

/* ---- accumulate_norm_sample.c ---------------------------------------------------------------------- */

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

/* ---- accumulate_norms.c --------------------------------------------------------------------------- */

/* Fills what a route sample keeps of token t of a block: V'x, log ||x|| and the logits of its slots less the mean of all, as the
 * sums take them. */
void exf_norm_head_of_token(float *to, const double *basis, int q, const exf_moe_block *b, size_t t);
/* Returns EXF_NUMERIC naming a number that the sums cannot hold. */
exf_code exf_norm_fault(exf_err *err, size_t feature, double value);
/* Adds a block's slots over that basis; concurrent for different sums. */
exf_code exf_norm_sums_add(const exf_norm_sums *to, const double *basis, const exf_moe_block *b, exf_err *err) EXF_CHECKED;

/* ---- accumulate_pairs.c --------------------------------------------------------------------------- */

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
void exf_pair_block_free(exf_pair_block *s);
void exf_pair_buffers_free(exf_pair_buffers *m);

/* ---- accumulate_bare.c ----------------------------------------------------------------------------- */

/* Tokens of common input with the outputs of all experts. */
typedef struct {
    int n, top_k, d_model;
    int renormalises;     /* 1: the model renormalises the weights of a token's experts */
    const size_t *row;    /* [n] of each token in the run */
    const float *logits;  /* [T of the run, E] */
    const float *outputs; /* [n, E, H] */
} exf_bare_tokens;

/* Add the terms of the bare router. */
exf_code exf_bare_sums_add(const exf_layer_statistics *s, const exf_bare_tokens *t, exf_err *err) EXF_CHECKED;
/* Does so for outputs in GPU memory, which it copies to the host a few tokens at a time. */
exf_code exf_bare_sums_add_device(const exf_layer_statistics *s, const exf_backend *b, const exf_common_input_block *c, int top_k,
                                  int renormalises, exf_err *err) EXF_CHECKED;

/* ---- accumulate_facts.c --------------------------------------------------------------------------- */

/* Joins the sequences of all parts, in order. */
exf_code exf_facts_join_sequences(exf_sequence_list *out, const exf_facts_part *part, size_t n, exf_err *err) EXF_CHECKED;
/* EXF_MODEL naming both files and their numbers unless they have the same experts, experts per token and width. */
exf_code exf_facts_same_sizes(const char *path, const exf_run_shape *s, const char *first_path, const exf_run_shape *first,
                              exf_err *err) EXF_CHECKED;

/* ---- accumulate_arrays.c -------------------------------------------------------------------------- */

/* Writes a layer's sums to a run's resume point, and reads them back with every bit (pass/resume.h).  The record `sums-<l>`
 * has a tensor for each array of exf_layer_statistics, exact sums as U64 [..., 3], and those of exf_vector_sums under
 * "vectors.".  put: v is NULL or without pairs if the layer has no vector sums. */
exf_code exf_layer_record_put(exf_resume *r, int layer, const exf_layer_statistics *s, const exf_vector_sums *v,
                              exf_err *err) EXF_CHECKED;
/* s was made by exf_layer_statistics_new(); v is filled and freed by the caller, NULL if no vectors are wanted. */
exf_code exf_layer_record_get(const exf_resume *r, int layer, exf_layer_statistics *s, exf_vector_sums *v, int d_model,
                              exf_err *err) EXF_CHECKED;

/* Lists the arrays that ranks add up, and returns how many.  v NULL: all sums of s.  Else what the sweeps after the first add:
 * the sums of v and the energy of the residual stream. */
enum { EXF_MOST_LAYER_ARRAYS = EXF_N_LAYER_ARRAYS + 16 };
size_t exf_layer_rank_arrays(exf_ranks_array out[EXF_MOST_LAYER_ARRAYS], const exf_layer_statistics *s, const exf_vector_sums *v);

/* ---- accumulate_sinks.c --------------------------------------------------------------------------- */

/* Where the sums of finished layers go.  The pass chooses one when it opens (exf_sink_open). */
typedef struct {
    /* Takes the layer's sums from a->sums[0] and a->vectors, and leaves a->sums[0] zero for the next layer. */
    exf_code (*take)(exf_accumulator *a, int layer, exf_err *err);
    /* Called before the layer's vector sums are made in host memory: waits for the previous write; NULL: nothing to wait for. */
    exf_code (*ready)(exf_accumulator *a, exf_err *err);
    /* Called between the sweeps of a layer with vectors: the first worker's scalar sums become those of all ranks on rank 0. */
    exf_code (*between)(exf_accumulator *a, exf_err *err);
    /* Waits until all that was taken is written; collective. */
    exf_code (*finish)(exf_accumulator *a, exf_err *err);
} exf_sink;

/* Starts the file.  If sequences are known, data facts describe the sequences, not the files that held them. */
exf_code exf_accumulator_start_file(exf_accumulator *a, const exf_accumulator_plan *plan, exf_err *err) EXF_CHECKED;
/* Allocates the sample of routes and the sums of the norm head of a set of sums. */
exf_code exf_accumulator_make_sample(const exf_accumulator *a, exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
/* Chooses the sink when the sums are allocated.  The second chooses again when the pass turns out to run on a device, and pins the
 * memory of all sets. */
exf_code exf_sink_open(exf_accumulator *a, exf_err *err) EXF_CHECKED;
exf_code exf_sink_open_device(exf_accumulator *a, exf_err *err) EXF_CHECKED;
/* Returns the first layer that is recorded as it is written, at the beginning of a run: 0, or INT_MAX if the first point records
 * all. */
int exf_accumulator_first_record(const exf_accumulator *a);
/* Ends what was taken, and writes the records of layers below `done` that have none. */
exf_code exf_accumulator_settle(exf_accumulator *a, int done, exf_err *err) EXF_CHECKED;
/* Copies the layers that the resume point has done to the file. */
exf_code exf_accumulator_restore(exf_accumulator *a, exf_err *err) EXF_CHECKED;

/* A finished layer whose sums wait to be written, or are being written or sent. */
typedef struct {
    exf_accumulator *a;
    int layer;
    exf_layer_statistics sums;
    exf_vector_sums vectors; /* its vector sums, not written yet, or on their way to rank 0 */
    int is_recorded;         /* 1: it is written to the resume point too */
    double seconds;          /* how long the last write of this set took; 0: it had none */
    exf_job job, write_job;
} exf_waiting_layer;

enum { EXF_MOST_WAITING = EXF_PINNED_SETS - 1 };
/* Returns how many layers wait while the next one adds up, where a pass runs on a device or on several ranks.  A slow write of
 * scalar sums does not stop the pass; vector sums, which are large, wait alone.  Of several ranks one layer is written while the
 * next one is added up. */
static inline int exf_waiting_layers(const exf_accumulate_options *o, int has_ranks)
{
    return has_ranks || !exf_wants_vectors(o) ? EXF_MOST_WAITING : 1;
}

struct exf_accumulator {
    exf_observer observer;
    exf_accumulate_options options;
    exf_run_shape shape;
    exf_sequence_list sequences; /* in order of their rows */
    int32_t *layer_number;
    int n_layers;
    exf_ranks *ranks;            /* NULL: one process */
    exf_run_rows own;            /* of this rank */
    size_t first_sequence;       /* the same part's first sequence */

    /* The present layer. */
    int active;     /* 1: it is among layer_number */
    int first_done; /* 1: the first sweep is over, and the first worker has all sums */
    int n_workers;
    exf_layer_statistics *sums;    /* [n_workers] */
    exf_sequence_tracker *tracker; /* [n_workers] */
    double *scratch;               /* [n_workers, scratch_each] */
    size_t scratch_each;
    exf_vector_accumulator *vectors; /* NULL: no vectors are wanted */
    exf_norm_sampler norms;          /* zeroed: no norm head is wanted, or its basis is given */
    exf_device_norms device_norms;   /* used if the forward pass runs on a device */
    exf_stream_energy stream;
    exf_route_sampler routes; /* of capacity 0: no sample is kept */
    exf_device_sums device;   /* used if the forward pass runs on a device */

    /* The layers before it. */
    const exf_sink *sink;        /* NULL: the pass has not begun */
    exf_waiting_layer waiting[EXF_MOST_WAITING]; /* sets of sums, which layers take in turn */
    int n_waiting;               /* how many there are; 0: layers are written at once */
    int turn;                    /* the set that the next layer takes */
    exf_worker layer_thread;     /* writes waiting layers, or adds them up over the ranks, while the next layer runs */
    exf_worker write_thread;     /* writes layers that were added up over the ranks */
    exf_worker consumer_thread;  /* gives a layer to the consumer while the file gets it */
    exf_worker record_thread;    /* writes a layer to the resume point while the file gets it */

    /* The file. */
    char *target;                /* NULL: none is written */
    exf_statistics_writer writer;
    exf_resume *resume;          /* NULL: no resume point */
    int first_record;            /* layers below it get their records when a point is saved, all others as they are written */
    double taken;                /* when the last layer was taken (exf_clock) */
    double record_ratio;         /* a layer that took so many times as long as a write is recorded as it is written */
    exf_layer_consumer consumer; /* gets the sums of each layer that is written */
    exf_hash *basis_hash;        /* running digest of what vector sums are added up over; NULL: there are none */
};
#endif
