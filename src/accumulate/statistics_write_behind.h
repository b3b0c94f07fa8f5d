/* statistics_write_behind.h - writes a layer's statistics while the next layer computes.
 *
 * Compressing, hashing and solving a layer takes tens of milliseconds, as long as a GPU may need for a layer.
 * Used only if the forward pass runs on a device: HDF5 serves one thread at a time, and
 * between start and wait that is the writing one. */
#ifndef EXF_ACCUMULATE_STATISTICS_WRITE_BEHIND_H
#define EXF_ACCUMULATE_STATISTICS_WRITE_BEHIND_H
#include "artifact/statistics.h"

#include <pthread.h>

/* Writes a layer's sums. */
typedef exf_code (*exf_statistics_put_layer)(void *self, int layer, const exf_layer_statistics *s, exf_err *err);

typedef struct {
    exf_statistics_put_layer put;
    void *self;
    exf_layer_statistics *sums; /* no other thread touches them until wait */
    int layer, running;
    pthread_t thread;
    exf_err err;
} exf_statistics_write_behind;

/* Starts put(self, layer, sums); nothing may be running.  Zeroes the sums when they are written, for the layer after next. */
exf_code exf_statistics_write_behind_start(exf_statistics_write_behind *p, exf_statistics_put_layer put, void *self, int layer,
                                           exf_layer_statistics *sums, exf_err *err) EXF_CHECKED;
/* Returns the result of the last start; EXF_OK if nothing runs. */
exf_code exf_statistics_write_behind_wait(exf_statistics_write_behind *p, exf_err *err) EXF_CHECKED;
#endif
