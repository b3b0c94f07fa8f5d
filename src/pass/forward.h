/* forward.h - the layer-major streaming forward pass.
 *
 *   tokens -> embed -> [ layer 0: norm, mixer, norm, router ->(rewriter)-> experts ->(observer) ] -> layer 1 ... -> head
 * ->(observer)
 *
 * The pass reads one layer's weights, runs every token of the run through that layer,
 * then goes on to the next: each weight byte is read once, and memory is one layer plus
 * the hidden states, whatever the model's size.
 *
 * The pass calls two hooks (lane.h, observer.h): a rewriter may change which experts run and
 * with what weight; an observer sees what the experts computed.  Several lanes
 * (pass/lane.h) share one reading of the weights.
 *
 * Reproducible: the arithmetic of one sequence runs on one thread and never depends on
 * the other sequences of the run, so any thread count and any split of the sequences
 * over runs gives the same bits. */
#ifndef EXF_PASS_FORWARD_H
#define EXF_PASS_FORWARD_H
#include "base/log.h"
#include "pass/demand.h"
#include "model/model.h"
#include "pass/workspace.h"

#include <stddef.h>
#include <stdint.h>

exf_code exf_forward(const exf_model *m, const exf_batch *batch, const exf_lane *lanes, size_t n_lanes,
                     const exf_forward_options *options, exf_forward_report *report, exf_err *err) EXF_CHECKED;

/* Returns the number of workers of a pass: one on a GPU, else at most one per sequence. */
int exf_forward_workers(const struct exf_backend *backend, const exf_batch *batch, int threads);
/* Returns the floating-point operations of one lane. */
double exf_forward_flops(const exf_architecture *a, const exf_batch *batch, int logits);
/* Returns the floating-point operations of a whole pass, with the sweeps and common input that
 * observers ask for.  Probes, and work that lanes share, are not counted. */
double exf_forward_demand_flops(const exf_architecture *a, const exf_batch *batch, const exf_demand *d);

/* The most memory that a pass holds: weights, hidden states, routes, workspaces, an observer's sums on a GPU. */
typedef struct {
    uint64_t device, host; /* bytes; host: ordinary and pinned memory */
    int reads;             /* times that routed experts are read: more than 1 if a GPU cannot hold those of one layer */
    size_t window;         /* 0: all hidden states stay in the backend's memory; else they stay in pinned host memory and
                            * at most this many tokens' are in GPU memory at a time */
} exf_forward_footprint;
/* Computes the footprint.  EXF_NOSPACE names the least memory that suffices if the options' limit,
 * or the GPU's free memory, is too small. */
exf_code exf_forward_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m,
                            const exf_batch *batch, const exf_demand *d, exf_err *err) EXF_CHECKED;

/* Adds the clocks of workers to the report of a pass or a replay. */

/* Adds the seconds and floating-point operations of n workspaces; space may be NULL. */
void exf_report_add_times(exf_forward_report *report, const exf_workspace *space, int n);
#endif
