/* device_warm_up.c - see device_warm_up.h. */
#include "tool/device_warm_up.h"

static exf_code open_queue(void *self, exf_err *err)
{
    const exf_device_warm_up *w = self;
    exf_queue *q = NULL;
    exf_code rc = w->backend->open(&q, w->compute, err);
    if (rc == EXF_OK) w->backend->close(q);
    return rc;
}

void exf_device_warm_up_start(exf_device_warm_up *w, const exf_backend *b, exf_compute compute)
{
    exf_err left_to_the_pass;
    *w = (exf_device_warm_up){.backend = b, .compute = compute};
    if (b->gpu && exf_background_start(&w->opening, open_queue, w, &left_to_the_pass) != EXF_OK) left_to_the_pass.code = EXF_OK;
}

void exf_device_warm_up_wait(exf_device_warm_up *w)
{
    exf_background_end(&w->opening);
}
