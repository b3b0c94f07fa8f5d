/* accumulator.h - the state of an accumulator, inside src/accumulate: of the present layer, which the chapters add up, and of those
 * before it, which wait in the queue. */
#ifndef EXF_ACCUMULATE_ACCUMULATOR_H
#define EXF_ACCUMULATE_ACCUMULATOR_H
#include "accumulate/accumulate_options.h"
#include "accumulate/chapter.h"
#include "base/hash.h"
#include "base/worker.h"
#include "pass/resume.h"

typedef struct exf_accumulator exf_accumulator;
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
#endif
