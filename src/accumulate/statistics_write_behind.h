/* statistics_write_behind.h - writes a layer's statistics while the next layer computes.
 *
 * Compressing a layer takes tens of milliseconds, as long as a GPU may need for a layer.
 * Used only if the forward pass runs on a device: HDF5 serves one thread at a time, and
 * between start and wait that is the writing one. */
#ifndef EXF_ACCUMULATE_STATISTICS_WRITE_BEHIND_H
#define EXF_ACCUMULATE_STATISTICS_WRITE_BEHIND_H
#include "artifact/statistics.h"
#include "resume/resume.h"

#include <pthread.h>

typedef struct {
    exf_statistics_writer *w;
    exf_resume *resume;         /* gets the layer's record; NULL: none is kept */
    exf_layer_statistics *sums; /* no other thread touches them until wait */
    int layer, running;
    pthread_t thread;
    exf_err err;
} exf_statistics_write_behind;

/* Starts writing; nothing may be running.  Zeroes the sums when they are written, for the layer after next. */
exf_code exf_statistics_write_behind_start(exf_statistics_write_behind *p, exf_statistics_writer *w, exf_resume *resume, int layer,
                                           exf_layer_statistics *sums, exf_err *err) EXF_CHECKED;
/* Returns the result of the last start; EXF_OK if nothing runs. */
exf_code exf_statistics_write_behind_wait(exf_statistics_write_behind *p, exf_err *err) EXF_CHECKED;
#endif
