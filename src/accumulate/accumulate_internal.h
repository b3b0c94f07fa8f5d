/* accumulate_internal.h - the state of an accumulator, of the present layer, which the chapters add up, and of those before it,
 * which wait in the queue; and what its parts do for each other, inside src/accumulate.
 *
 *   accumulate.c            the observer: shows what it is shown to the chapters, and hands a layer's sums on
 *   chapter_<name>.c        a statistic each (chapter.h)
 *   accumulate_options.c    which of them are wanted, and what they take
 *   accumulate_queue.c      where a finished layer's sums go: over the ranks, into the statistics file, to solver and resume point
 *   accumulate_arrays.c     a layer's sums as a list of arrays, for resume points and for ranks */
#ifndef EXF_ACCUMULATE_ACCUMULATE_INTERNAL_H
#define EXF_ACCUMULATE_ACCUMULATE_INTERNAL_H
#include "accumulate/accumulate.h"
#include "accumulate/chapter.h"
#include "base/hash.h"
#include "base/worker.h"

/* ---- the state --------------------------------------------------------------------------------------- */

typedef struct exf_vector_accumulator exf_vector_accumulator; /* chapter_vectors.c */

/* A layer whose sums are complete. */
typedef struct {
    exf_accumulator *a;
    int layer;
    exf_layer_statistics sums;
    exf_vector_sums vectors; /* without pairs where the run has none */
    int is_recorded;         /* 1: it is written to the resume point too */
    double seconds;          /* that ending the set's last layer took; 0: it had none */
    exf_job add, end, solve, record;
} exf_finished_layer;

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
    int mixed;                   /* 1: as of exf_accumulator_plan */

    /* The present layer. */
    int active;     /* 1: it is among layer_number */
    int next_layer; /* the layer after it that is accumulated; -1: there is none */
    int n_workers;
    exf_layer_statistics *sums;    /* [n_workers] */
    exf_sequence_tracker *tracker; /* [n_workers] */
    double *scratch;               /* [n_workers, scratch_each] */
    size_t scratch_each;
    struct exf_vector_accumulator *vectors; /* NULL: no vectors are wanted */
    exf_norm_sampler norms;          /* zeroed: no norm head is wanted */
    exf_device_norms device_norms;   /* used if the forward pass runs on a device */
    exf_stream_energy stream;
    exf_route_sampler routes; /* of capacity 0: no sample is kept */
    exf_device_sums device;   /* used if the forward pass runs on a device */

    /* The layers before it. */
    exf_finished_layer waiting[EXF_MOST_WAITING]; /* sets of sums, which layers take in turn */
    int depth;                   /* how many there are; 0: layers are ended at once */
    int turn;                    /* the set that the next layer takes */
    exf_worker adder, queue, beside; /* threads: one adds up ranks, one ends layers, one solves and records them meanwhile */

    /* The file. */
    char *target;                /* NULL: none is written */
    exf_statistics_writer file;
    exf_resume *resume;          /* NULL: no resume point */
    int first_record;            /* layers below it get their records when a point is saved, all others as they are written */
    double taken;                /* when the last layer was taken (exf_clock) */
    double record_ratio;         /* a layer that took so many times as long as a write is recorded as it is written */
    exf_layer_consumer consumer; /* gets the sums of each layer that is written */
    exf_hash *basis_hash;        /* running digest of what vector sums are added up over; NULL: there are none */
};

/* ---- the chapters ------------------------------------------------------------------------------------
 * Each adds to the sums of the worker that a block names; of blocks in GPU memory to those of the first worker, when the sweep or
 * the layer ends.  accumulate.c calls them in this order: begin_pass once a->sums are there, open_device after it
 * in a pass on a GPU, for which device_bytes says what that takes, and end_pass also where begin_pass was not called, or failed.
 * check_layer reads what a statistic has in a file beside the arrays of the table, and refuses what cannot be: EXF_FORMAT naming
 * file, layer, array and the values that disagree. */

/* chapter_stream.c */
exf_code exf_stream_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
exf_code exf_stream_end_layer(exf_accumulator *a, int layer, exf_err *err) EXF_CHECKED;
exf_code exf_stream_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;

/* chapter_pairs.c */
uint64_t exf_pairs_device_bytes(const exf_backend *b, const exf_run_shape *s, const exf_accumulate_options *o);
exf_code exf_pairs_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
exf_code exf_pairs_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;

/* chapter_sequences.c */
exf_code exf_sequences_begin_pass(exf_accumulator *a, exf_err *err) EXF_CHECKED;
/* Called by the chapters of pairs before a block's terms are added in host memory. */
exf_code exf_sequences_enter_block(const exf_accumulator *a, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
exf_code exf_sequences_enter_common_input(const exf_accumulator *a, const exf_common_input_block *b, exf_err *err) EXF_CHECKED;
exf_code exf_sequences_end_sweep(exf_accumulator *a, int layer, exf_err *err) EXF_CHECKED;
exf_code exf_sequences_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
void exf_sequences_end_pass(exf_accumulator *a);

/* chapter_common_input.c */
exf_code exf_common_input_add_block(exf_accumulator *a, const exf_common_input_block *b, exf_err *err) EXF_CHECKED;
exf_code exf_common_input_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;

/* chapter_norm_head.c */
exf_code exf_norms_begin_pass(exf_accumulator *a, exf_err *err) EXF_CHECKED;
uint64_t exf_norms_device_bytes(const exf_run_shape *s, const exf_accumulate_options *o);
exf_code exf_norms_open_device(exf_accumulator *a, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Finds the directions of the layer's inputs, of which a sample was kept. */
exf_code exf_norms_end_inputs(exf_accumulator *a, const exf_moment *m, exf_err *err) EXF_CHECKED;
exf_code exf_norms_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err) EXF_CHECKED;

/* chapter_routes.c */
exf_code exf_routes_begin_pass(exf_accumulator *a, exf_err *err) EXF_CHECKED;
uint64_t exf_routes_device_bytes(const exf_run_shape *shape, const exf_accumulate_options *o);
exf_code exf_routes_open_device(exf_accumulator *a, const exf_backend *b, exf_err *err) EXF_CHECKED;
exf_code exf_routes_begin_layer(exf_accumulator *a, int layer, exf_err *err) EXF_CHECKED; /* chooses the layer's tokens */
void exf_routes_add_block(exf_accumulator *a, const exf_moe_block *b);
exf_code exf_routes_end_sweep(exf_accumulator *a, exf_err *err) EXF_CHECKED;
void exf_routes_end_pass(exf_accumulator *a);

/* chapter_vectors.c: but for end_pass called only where there are vector sums (exf_wants_vectors) */
exf_code exf_vectors_begin_pass(exf_accumulator *a, exf_err *err) EXF_CHECKED;
uint64_t exf_vectors_device_bytes(const exf_run_shape *shape, const exf_accumulate_options *o);
exf_code exf_vectors_open_device(exf_accumulator *a, const exf_backend *b, exf_err *err) EXF_CHECKED;
exf_code exf_vectors_begin_layer(exf_accumulator *a, int layer, exf_err *err) EXF_CHECKED;
/* Takes samples in the first sweep, adds up in the second; concurrent for different workers. */
exf_code exf_vectors_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
/* Called when a->sums[0] has the sums of the first sweep of all workers, and on rank 0 of all ranks. */
exf_code exf_vectors_begin_second_sweep(exf_accumulator *a, int layer, exf_err *err) EXF_CHECKED;
exf_code exf_vectors_end_layer(exf_accumulator *a, int layer, exf_err *err) EXF_CHECKED;
void exf_vectors_end_pass(exf_accumulator *a);

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

/* ---- accumulate_queue.c --------------------------------------------------------------------------- */

/* Allocates the sample of routes and the sums of the norm head of a set of sums. */
exf_code exf_accumulator_make_sample(const exf_accumulator *a, exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
/* Allocates the queue's sets; the second function pins the memory of all sets in a pass on a device. */
exf_code exf_accumulator_open_queue(exf_accumulator *a, int on_device, exf_err *err) EXF_CHECKED;
exf_code exf_accumulator_pin_queue(exf_accumulator *a, exf_err *err) EXF_CHECKED;
/* Copies the layers that the resume point has done to the file. */
exf_code exf_accumulator_restore(exf_accumulator *a, exf_err *err) EXF_CHECKED;
/* Takes the layer's sums from a->sums[0] and a->vectors, and leaves a->sums[0] zero for the next layer. */
exf_code exf_accumulator_put(exf_accumulator *a, int layer, exf_err *err) EXF_CHECKED;
/* Waits until every layer has been added up, which counts as waiting for other ranks, then until at most `left` are to be ended. */
exf_code exf_accumulator_wait(exf_accumulator *a, int left, exf_err *err) EXF_CHECKED;
/* The observer's `settle` (pass/hooks.h): waits for all layers, and writes the records of those below `done` that have none. */
exf_code exf_accumulator_settle(void *self, int done, exf_err *err) EXF_CHECKED;
#endif
