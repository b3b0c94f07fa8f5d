/* workspace.h - one worker's queue, scratch memory and clocks.
 *
 * The mixer works on a whole sequence, the experts on a block of tokens, the head on a
 * few rows; a worker never does two of these at a time, so they share one arena in the
 * backend's memory (base/arena.h).  Sizes come from forward/workspace_size.h, which runs
 * the same carving functions that use the arena. */
#ifndef EXF_MOE_WORKSPACE_H
#define EXF_MOE_WORKSPACE_H
#include "base/arena.h"
#include "kernels/backend.h"
#include "model/architecture.h"
#include "moe/stage_clock.h"

/* Seconds and floating-point operations of one worker. */
typedef struct {
    double mixer, router, experts, observe, head, flops;
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
