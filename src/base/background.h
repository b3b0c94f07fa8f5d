/* background.h - runs one function on a thread of its own, beside the work of the thread that starts it. */
#ifndef EXF_BASE_BACKGROUND_H
#define EXF_BASE_BACKGROUND_H
#include "base/err.h"

#include <pthread.h>

typedef exf_code (*exf_background_fn)(void *self, exf_err *err);

typedef struct {
    exf_background_fn fn;
    void *self;
    int running;
    pthread_t thread;
    exf_err err; /* the result */
} exf_background;

/* Starts fn(self); b must not be running.  Where the system has no thread left, fn runs at once and its result is returned. */
exf_code exf_background_start(exf_background *b, exf_background_fn fn, void *self, exf_err *err) EXF_CHECKED;
/* Waits for fn and returns its result; EXF_OK if nothing runs, so that a result is returned once. */
exf_code exf_background_wait(exf_background *b, exf_err *err) EXF_CHECKED;
/* Waits for fn and drops its result. */
void exf_background_end(exf_background *b);
#endif
