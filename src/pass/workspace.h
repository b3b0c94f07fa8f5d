/* workspace.h - one worker's queue, scratch memory and clocks.
 *
 * The mixer works on a whole sequence, the experts on a block of tokens, the head on a few rows; a worker never does two of
 * these at a time, so they share one arena in the backend's memory (base/mem.h).  Its size comes from the functions that
 * carve arrays from it.
 *
 * A stage clock measures on a GPU how long each stage of a pass takes, by the GPU's own clock and without waiting: host
 * seconds would say where the host waits, not what the GPU computes.  Two stamps of a queue
 * (kernels/backend.h) enclose a stage.  They are read when they have been written, between blocks and by the
 * thread that draws progress. */
#ifndef EXF_PASS_WORKSPACE_H
#define EXF_PASS_WORKSPACE_H
#include "base/mem.h"
#include "base/progress.h"
#include "kernels/backend.h"
#include "model/architecture.h"

typedef struct exf_stage_clock exf_stage_clock;

/* Makes a clock for a backend that is a GPU. */
exf_code exf_stage_clock_new(exf_stage_clock **out, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* NULL is allowed in every function from here on, and does nothing.  No queue may still write stamps. */
void exf_stage_clock_free(exf_stage_clock *c);
/* Begins a stage on q; the stage before has ended. */
void exf_stage_begin(exf_stage_clock *c, exf_queue *q);
/* Ends it.  Its seconds are added to *seconds, which outlives the clock, and credited with `units` to a kind of
 * progress.h; kind -1: to none. */
void exf_stage_end(exf_stage_clock *c, exf_queue *q, double *seconds, int kind, double units);
/* Reads the stamps that were written so far; any thread. */
void exf_stage_clock_read(exf_stage_clock *c);

/* Seconds and floating-point operations of one worker. */
typedef struct {
    double mixer, router, rewrite, experts, observe, head, flops;
} exf_part_times;

typedef struct {
    const exf_backend *b;
    exf_queue *q;
    exf_compute compute;
    float *floats;   /* the arena, in the backend's memory */
    size_t capacity; /* floats of the arena */
    double *router;  /* exf_router_scratch(), in the backend's memory */
    float *mirror;   /* host copy of arrays that an observer reads; NULL if memory is the host's or nothing is copied */
    exf_part_times times;
    exf_stage_clock *clock; /* borrowed; NULL on the CPU and in a pass that is `timed`: host seconds are true */
} exf_workspace;

/* Adds host seconds to a part of the times, unless the GPU's clock measures the parts. */
static inline void exf_add_time(const exf_workspace *w, double *part, double seconds)
{
    if (!w->clock) *part += seconds;
}

/* Allocates a workspace with an arena of `floats` floats and a mirror of `mirror` floats. */
exf_code exf_workspace_new(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, size_t floats,
                           size_t mirror, exf_err *err) EXF_CHECKED;
/* Returns the bytes of a workspace with such an arena in the backend's memory. */
size_t exf_workspace_bytes(const exf_architecture *a, size_t floats);
void exf_workspace_free(exf_workspace *w); /* a zeroed workspace is allowed */

/* Makes n floats of the backend's memory readable on the host: *out is x itself or a copy at
 * *mirror, which is advanced past it.  Waits for the queue if it copies. */
exf_code exf_visible(exf_workspace *w, const float *x, size_t n, float **mirror, const float **out, exf_err *err) EXF_CHECKED;
#endif
