/* device_warm_up.c - see device_warm_up.h. */
#include "tool/device_warm_up.h"

static void *open_queue(void *self)
{
    const exf_device_warm_up *w = self;
    exf_queue *q = NULL;
    exf_err ignored;
    if (w->backend->open(&q, w->compute, &ignored) == EXF_OK) w->backend->close(q);
    return NULL;
}

void exf_device_warm_up_start(exf_device_warm_up *w, const exf_backend *b, exf_compute compute)
{
    *w = (exf_device_warm_up){.backend = b, .compute = compute};
    w->running = b->gpu && pthread_create(&w->thread, NULL, open_queue, w) == 0;
}

void exf_device_warm_up_wait(exf_device_warm_up *w)
{
    if (w->running) pthread_join(w->thread, NULL);
    w->running = 0;
}
