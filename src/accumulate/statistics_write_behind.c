/* statistics_write_behind.c - see statistics_write_behind.h. */
#include "accumulate/statistics_write_behind.h"

#include "accumulate/layer_record.h"

static void *put(void *self)
{
    exf_statistics_write_behind *p = self;
    p->err.code = exf_statistics_put(p->w, p->layer, p->sums, &p->err);
    if (p->err.code == EXF_OK && p->resume) p->err.code = exf_layer_record_put(p->resume, p->layer, p->sums, NULL, &p->err);
    exf_layer_statistics_zero(p->sums);
    return NULL;
}

exf_code exf_statistics_write_behind_start(exf_statistics_write_behind *p, exf_statistics_writer *w, exf_resume *resume, int layer,
                                           exf_layer_statistics *sums, exf_err *err)
{
    *p = (exf_statistics_write_behind){.w = w, .resume = resume, .layer = layer, .sums = sums};
    p->running = pthread_create(&p->thread, NULL, put, p) == 0;
    if (p->running) return EXF_OK;
    put(p);
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
