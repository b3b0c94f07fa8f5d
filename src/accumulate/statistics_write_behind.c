/* statistics_write_behind.c - see statistics_write_behind.h. */
#include "accumulate/statistics_write_behind.h"

static void *run(void *self)
{
    exf_statistics_write_behind *p = self;
    p->err.code = p->put(p->self, p->layer, p->sums, &p->err);
    exf_layer_statistics_zero(p->sums);
    return NULL;
}

exf_code exf_statistics_write_behind_start(exf_statistics_write_behind *p, exf_statistics_put_layer put, void *self, int layer,
                                           exf_layer_statistics *sums, exf_err *err)
{
    *p = (exf_statistics_write_behind){.put = put, .self = self, .layer = layer, .sums = sums};
    p->running = pthread_create(&p->thread, NULL, run, p) == 0;
    if (p->running) return EXF_OK;
    run(p);
    if (p->err.code != EXF_OK) *err = p->err;
    return p->err.code;
}

exf_code exf_statistics_write_behind_wait(exf_statistics_write_behind *p, exf_err *err)
{
    if (!p->running) return EXF_OK;
    pthread_join(p->thread, NULL);
    p->running = 0;
    if (p->err.code != EXF_OK) *err = p->err;
    return p->err.code;
}
