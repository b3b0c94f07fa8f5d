/* forward_options.h - the options of a forward pass and the report on what it cost. */
#ifndef EXF_PASS_FORWARD_OPTIONS_H
#define EXF_PASS_FORWARD_OPTIONS_H
#include "base/eta.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const struct exf_backend *backend; /* kernels/backend.h; NULL: the CPU */
    int compute;  /* the compute mode, an exf_compute */
    int threads;  /* CPU workers; 0: one per processor */
    int n_layers; /* stop after this many layers; 0: all */
    int readers;  /* threads that read weights for a GPU; 0: one per processor, at most 16 */
    int mixer_queues;  /* CUDA streams on which sequences run through the mixers side by side; 0: 4, fewer where memory is short */
    int sample;        /* 1: a sample of a pass, for its speed: the head runs after n_layers layers too, and no progress is told */
    int timed;    /* 1: wait for the GPU after each part, so that the report's shares are true; slower */
    uint64_t max_device_memory; /* bytes; 0: all free memory */
    struct exf_shared_chunks *shared_chunks; /* weights/shared_chunks.h: ranks read weights together; NULL: they do not */
    struct exf_ranks *ranks;    /* ranks/ranks.h: this pass is one rank's part of a run; NULL: one process */
    size_t first_row, run_tokens; /* with ranks: row of the batch's first token in the whole run, and the run's tokens */
    struct exf_resume *resume;  /* pass/resume.h: where the pass begins and what it saves; NULL: it cannot be resumed */
} exf_forward_options;

/* Seconds of each part, summed over workers; `read` is wall time. */
typedef struct {
    double read, embed, mixer, router, experts, observe, head, wall;
    uint64_t weight_bytes; /* bytes of weights that the pass used */
    uint64_t own_bytes;    /* bytes that this process read from the checkpoint: fewer where ranks read together */
    exf_eta work;          /* units and seconds of each kind of work (work.h) */
    double flops;          /* floating-point operations of products and mixers */
    double open, close;    /* seconds of allocating and freeing what the pass holds */
    double reading, sending; /* seconds of the weight readers of a GPU pass, summed over threads */
    uint64_t device_bytes; /* the most GPU memory held at a time */
    int readers;           /* threads that read weights for a GPU; 0 on a CPU */
    int workers;
    int on_gpu;            /* 1: mixer includes the router, whose kernels run among the mixers' */
} exf_forward_report;
#endif
