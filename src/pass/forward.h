/* forward.h - the layer-major streaming forward pass.
 *
 *   tokens -> embed -> [ norm, mixer, norm, router ->(rewriter)-> experts ->(observer) ] ... -> head ->(observer)
 *
 * The pass reads one layer's weights, runs every token of the run through that layer, then goes on to the next: each weight
 * byte is read once, and memory is one layer plus the hidden states, whatever the model's size.  It calls the two hooks of
 * its lanes (hooks.h), which share one reading of the weights.
 *
 * Reproducible: the arithmetic of one sequence runs on one thread and never depends on the other sequences of the run, so any
 * thread count and any split of the sequences over runs gives the same bits. */
#ifndef EXF_PASS_FORWARD_H
#define EXF_PASS_FORWARD_H
#include "artifact/provenance.h"
#include "base/progress.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "pass/hooks.h"

typedef struct {
    const struct exf_backend *backend; /* kernels/backend.h; NULL: the CPU */
    int compute;  /* the compute mode, an exf_compute */
    int threads;  /* CPU workers; 0: one per processor */
    int n_layers; /* stop after this many layers; 0: all */
    int readers;  /* threads that read weights for a GPU; 0: two fewer than processors, 1 to 16 */
    int mixer_queues;  /* CUDA streams on which sequences run through the mixers side by side; 0: 4, fewer where memory is short */
    int sample;        /* 1: a sample of a pass, for its speed: the head runs after n_layers layers too, and no progress is told */
    int timed;    /* 1: wait for the GPU after each part, so that the report's shares are true; slower */
    uint64_t max_device_memory; /* bytes; 0: all free memory */
    struct exf_shared_chunks *shared_chunks; /* weights/shared_chunks.h: ranks read weights together; NULL: they do not */
    struct exf_ranks *ranks;    /* ranks/ranks.h: this pass is one rank's part of a run; NULL: one process */
    size_t first_row, run_tokens; /* with ranks: row of the batch's first token in the whole run, and the run's tokens */
    const exf_eta *then;        /* the work of the longer pass that this is the pilot of, which progress counts; NULL: none */
    struct exf_resume *resume;  /* pass/resume.h: where the pass begins and what it saves; NULL: it cannot be resumed */
} exf_forward_options;

/* Adds the facts of the architecture that passes over a model compute (artifact/provenance.h). */
exf_code exf_forward_facts_add(exf_provenance *p, const exf_architecture *a, exf_err *err) EXF_CHECKED;

/* What a pass cost.  Seconds of each part are summed over workers; `read` is wall time. */
typedef struct {
    double read, embed, mixer, router, rewrite, experts, observe, head, wall;
    uint64_t weight_bytes; /* bytes of weights that the pass used */
    uint64_t own_bytes;    /* bytes that this process read from the checkpoint: fewer where ranks read together */
    exf_eta work;          /* units and seconds of each kind of work */
    double flops;          /* floating-point operations of products and mixers */
    double open, close;    /* seconds of allocating and freeing what the pass holds */
    double reading, sending; /* seconds of the weight readers of a GPU pass, summed; for which their sender waited for copies */
    uint64_t device_bytes; /* the most GPU memory held at a time */
    int readers;           /* threads that read weights for a GPU; 0 on a CPU */
    int workers;
    int on_gpu;            /* 1: mixer includes the router, whose kernels run among the mixers' */
} exf_forward_report;

exf_code exf_forward(const exf_model *m, const exf_batch *batch, const exf_lane *lanes, size_t n_lanes,
                     const exf_forward_options *options, exf_forward_report *report, exf_err *err) EXF_CHECKED;

/* Returns the number of workers: one on a GPU, else at most one per sequence. */
int exf_forward_workers(const struct exf_backend *backend, const exf_batch *batch, int threads);

/* ---- what a pass will hold ------------------------------------------------------------------ */

/* What the lanes of a pass require; a plan states it before the lanes exist. */
typedef struct {
    size_t lanes;
    size_t probes;   /* lanes that compare their routed outputs with the first lane's */
    size_t pruned;   /* number of probing lanes that both prune experts and correct routed outputs */
    int logits;      /* arrays of router logits [T, E] in host memory: 2 with several lanes of which one wants them */
    int corrects;    /* 1: a rewriter corrects routed outputs */
    int device_logits; /* the same in GPU memory, where a lane that wants them is rewritten there */
    int head;        /* 1: logits are observed */
    int scored;      /* 1: logits are scored on the GPU, which keeps the first lane's logits for comparison */
    int common_input;      /* tokens of each sequence on which all experts run */
    int sweeps;      /* times that a layer's experts run; 0 means 1 */
    int slot_logits; /* 1: a GPU keeps the router's logit of every slot */
    int host_blocks; /* 1: an observer reads blocks in host memory, also in a pass on a GPU */
    uint64_t observers; /* bytes of GPU memory that observers and rewriters hold */
} exf_demand;
exf_demand exf_demand_of(const exf_lane *lanes, size_t n_lanes, const struct exf_backend *b);
/* Returns the bytes of router logits that a pass holds in host memory. */
uint64_t exf_demand_logits_bytes(const exf_demand *d, size_t n_tokens, int n_experts);

/* The most memory that a pass holds: weights, hidden states, routes, workspaces, an observer's sums on a GPU. */
typedef struct {
    uint64_t device, host; /* bytes; host: ordinary and pinned memory */
    int reads;             /* times that routed experts are read: more than 1 if a GPU cannot hold those of one layer */
    size_t window;         /* 0: all hidden states stay in the backend's memory; else they stay in pinned host memory and
                            * at most this many tokens' are in GPU memory at a time */
} exf_forward_footprint;
/* Computes the footprint of a pass.  EXF_NOSPACE names the least memory that suffices if the options' limit, or the
 * GPU's free memory, is too small. */
exf_code exf_forward_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m,
                            const exf_batch *batch, const exf_demand *d, exf_err *err) EXF_CHECKED;
/* Returns the bytes of a pass's hidden states in a resume point, at most. */
uint64_t exf_pass_saved_bytes(const exf_architecture *a, const exf_batch *batch, size_t n_lanes);
/* Returns the rows for which the head computes logits at a time: more on a GPU, so that its matrix is read less often. */
int exf_head_rows(const exf_backend *b);

/* ---- what a pass will do -------------------------------------------------------------------- */

/* Kinds of work; the unit of each.  A plan multiplies these units with seconds per unit that a sample of the pass measured;
 * the estimate of the seconds left (base/progress.h) measures them while the pass runs.  A GPU works while the host goes on, so
 * its own clock measures every kind but READ and REST (workspace.h). */
enum {
    EXF_WORK_READ,    /* bytes of weights */
    EXF_WORK_MIXER,   /* floating-point operations; one kind for each exf_mixer_kind */
    EXF_WORK_ROUTE = EXF_WORK_MIXER + EXF_MIXER_KINDS, /* tokens of a lane or probe whose routes are rewritten or masked */
    EXF_WORK_DENSE,   /* tokens of a lane in a dense layer */
    EXF_WORK_EXPERTS, /* tokens of a lane in an MoE layer and sweep, observer and probes included */
    EXF_WORK_COMMON,  /* tokens of common input */
    EXF_WORK_HEAD,    /* tokens of a lane */
    EXF_WORK_REST,    /* layers: their end, in which observers add up and write */
    EXF_WORK_KINDS
};

/* Returns the planned units and priors of a pass over layers first .. n_layers - 1. */
exf_eta exf_work_of_pass(const exf_model *m, const exf_batch *batch, const exf_demand *d, int first, int n_layers);
/* Returns the number of first layers of the model in which every kind of layer occurs. */
int exf_work_sample_layers(const exf_architecture *a);

/* Returns the floating-point operations of one lane. */
double exf_forward_flops(const exf_architecture *a, const exf_batch *batch, int logits);
/* Returns the floating-point operations of a whole pass, with the sweeps and common input that
 * observers ask for.  Probes, and work that lanes share, are not counted. */
double exf_forward_demand_flops(const exf_architecture *a, const exf_batch *batch, const exf_demand *d);
#endif
