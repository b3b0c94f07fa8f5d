/* accumulate_internal.h - inside src/accumulate: the state of an accumulator.  accumulate.c is the observer,
 * accumulate_file.c the file around the layers. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_INTERNAL_H
#define EXF_ACCUMULATE_ACCUMULATE_INTERNAL_H
#include "accumulate/accumulate.h"

#include "accumulate/device_sums.h"
#include "accumulate/rank_sums.h"
#include "accumulate/sampler.h"
#include "accumulate/sequence_sums.h"
#include "accumulate/vector_accumulator.h"
#include "base/thread_pool.h"
#include "base/hash.h"

struct exf_accumulator {
    exf_observer observer;
    exf_statistics_writer writer;
    exf_accumulate_options options;
    exf_run_shape shape;
    exf_sequence_list sequences; /* sequences in order of their rows */
    int32_t *layer_number;
    int n_layers;
    int writes;     /* 1: there is a file */
    int active;     /* 1: the present layer is among layer_number */
    int first_done; /* 1: the first sweep is over, and the first worker has all sums */
    int n_workers;
    exf_layer_statistics *sums;    /* [n_workers] sums of the present layer */
    exf_sequence_tracker *tracker; /* [n_workers] */
    double *scratch;               /* [n_workers, scratch_each] */
    size_t scratch_each;
    exf_vector_accumulator *vectors; /* NULL: no vectors are wanted */
    exf_stream_energy stream;
    exf_route_sampler routes;     /* without room: no sample is kept */
    exf_device_sums device;       /* used if the forward pass runs on a device */
    exf_layer_statistics spare;  /* sums of the layer before, which are still being written */
    exf_background late;         /* writes them while the next layer is computed */
    int late_layer;
    exf_rank_sums shared;        /* sums of the layer before, on their way to rank 0 */
    exf_rank_vectors shared_vectors; /* its vector sums; its other sums are then in `spare` */
    size_t first_row;            /* of this rank's part of the run */
    exf_resume *resume;          /* NULL: no resume point */
    exf_layer_consumer consumer; /* gets the sums of each layer that is written */
    exf_hash *basis_hash;        /* running digest of what vector sums are added up over */
    char *target;                /* the file, for messages */
};

/* Starts the file.  If sequences are known, data facts describe the sequences, not the files that held them. */
exf_code exf_accumulator_start_file(exf_accumulator *a, const exf_accumulator_plan *plan, exf_err *err) EXF_CHECKED;
/* Waits for whatever other ranks and threads have yet to do. */
exf_code exf_accumulator_settle(exf_accumulator *a, exf_err *err) EXF_CHECKED;
#endif
