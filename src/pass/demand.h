/* demand.h - a demand lists what the lanes of a pass require, so that memory can be planned. */
#ifndef EXF_PASS_DEMAND_H
#define EXF_PASS_DEMAND_H
#include "base/eta.h"
#include "pass/lane.h"

#include <stddef.h>
#include <stdint.h>

/* The options of a forward pass and the report on what it cost. */

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

/* Requirements of the lanes; a plan states them before the lanes exist. */
typedef struct {
    size_t lanes;
    size_t probes;   /* lanes that compare their routed outputs with the first lane's */
    size_t pruned;   /* number of probing lanes that both prune experts and correct routed outputs */
    int logits;      /* arrays of router logits [T, E] in host memory: 2 with several lanes of which one wants them */
    int corrects;    /* 1: a rewriter corrects routed outputs */
    int head;        /* 1: logits are observed */
    int scored;      /* 1: logits are scored on the GPU, which keeps the first lane's logits for comparison */
    int common_input;      /* tokens of each sequence on which all experts run */
    int sweeps;      /* times that a layer's experts run; 0 means 1 */
    int host_blocks; /* 1: an observer reads blocks in host memory, also in a pass on a GPU */
    uint64_t observers; /* bytes of GPU memory that observers and rewriters hold */
} exf_demand;
struct exf_backend;
exf_demand exf_demand_of(const exf_lane *lanes, size_t n_lanes, const struct exf_backend *b);

/* Returns the number of route sets that a pass holds for such lanes. */
size_t exf_demand_route_sets(const exf_demand *d);
/* Returns the bytes of router logits that a pass holds in host memory. */
uint64_t exf_demand_logits_bytes(const exf_demand *d, size_t n_tokens, int n_experts);
/* Returns 1 for a probing lane whose retained experts make router routes of their own, which its correction reads. */
int exf_lane_keeps_router_routes(const exf_lane *lane);
#endif
