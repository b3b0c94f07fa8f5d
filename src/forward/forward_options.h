/* forward_options.h - the options of a forward pass and the report on what it cost. */
#ifndef EXF_FORWARD_FORWARD_OPTIONS_H
#define EXF_FORWARD_FORWARD_OPTIONS_H
#include <stdint.h>

typedef struct {
    const struct exf_backend *backend; /* kernels/backend.h; NULL: the CPU */
    int compute;  /* the compute mode, an exf_compute */
    int threads;  /* CPU workers; 0: one per processor */
    int n_layers; /* stop after this many layers; 0: all */
    int readers;  /* threads that read weights for a GPU; 0: one per processor, at most 8 */
    int mixer_queues;  /* CUDA streams on which sequences run through the mixers side by side; 0: 4, fewer where memory is short */
    int timed;    /* 1: wait for the GPU after each part, so that the report's shares are true; slower */
    uint64_t max_device_memory; /* bytes; 0: all free memory */
} exf_forward_options;

/* Seconds of each part, summed over workers; `read` is wall time. */
typedef struct {
    double read, embed, mixer, router, experts, observe, head, wall;
    uint64_t weight_bytes; /* bytes read from the checkpoint */
    double flops;          /* floating-point operations of products and mixers */
    double open, close;    /* seconds of allocating and freeing what the pass holds */
    double reading, sending; /* seconds of the weight readers of a GPU pass, summed over threads */
    uint64_t device_bytes; /* the most GPU memory held at a time */
    int workers;
} exf_forward_report;
#endif
