/* statistics_write_behind.h - a layer's statistics written while the next layer computes.
 *
 * Compressing a layer takes tens of milliseconds, as long as a GPU may need for it.
 * Only where the forward runs on a device: the library behind the file serves one
 * thread at a time, and between start and wait that is the writing one. */
#ifndef EXF_ACCUMULATE_STATISTICS_WRITE_BEHIND_H
#define EXF_ACCUMULATE_STATISTICS_WRITE_BEHIND_H
#include "artifact/statistics.h"

#include <pthread.h>

typedef struct {
    exf_statistics_writer *w;
    exf_layer_statistics *sums; /* untouched by others until wait */
    int layer, running;
    pthread_t thread;
    exf_err err;
} exf_statistics_write_behind;

/* Nothing may be running.  Once written the sums are zeroed, for the layer after next. */
exf_code exf_statistics_write_behind_start(exf_statistics_write_behind *p, exf_statistics_writer *w, int layer,
                                           exf_layer_statistics *sums, exf_err *err) EXF_CHECKED;
/* What the last start came to; EXF_OK where nothing runs. */
exf_code exf_statistics_write_behind_wait(exf_statistics_write_behind *p, exf_err *err) EXF_CHECKED;
#endif
