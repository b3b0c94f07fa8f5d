/* background.c - see background.h. */
#include "base/background.h"

static void *run(void *self)
{
    exf_background *b = self;
    b->err.code = b->fn(b->self, &b->err);
    return NULL;
}

exf_code exf_background_start(exf_background *b, exf_background_fn fn, void *self, exf_err *err)
{
    *b = (exf_background){.fn = fn, .self = self};
    b->running = pthread_create(&b->thread, NULL, run, b) == 0;
    return b->running ? EXF_OK : fn(self, err);
}

exf_code exf_background_wait(exf_background *b, exf_err *err)
{
    if (!b->running) return EXF_OK;
    exf_background_end(b);
    if (b->err.code != EXF_OK) *err = b->err;
    return b->err.code;
}

void exf_background_end(exf_background *b)
{
    if (b->running) pthread_join(b->thread, NULL);
    b->running = 0;
}
