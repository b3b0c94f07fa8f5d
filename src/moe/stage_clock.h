/* stage_clock.h - measures on a GPU how long each stage of a pass takes, by the GPU's own clock and without
 * waiting: host seconds would say where the host waits, not what the GPU computes.
 *
 * Two stamps of a queue (kernels/device/gpu_clock.h) enclose a stage.  They are read when they have been
 * written, between blocks and by the thread that draws progress, which is so told what is done. */
#ifndef EXF_MOE_STAGE_CLOCK_H
#define EXF_MOE_STAGE_CLOCK_H
#include "base/progress.h"
#include "kernels/backend.h"

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
#endif
