/* worker.c - see worker.h. */
#include "base/worker.h"

#include <string.h>

void exf_worker_open(exf_worker *w)
{
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->given, NULL);
    pthread_cond_init(&w->done, NULL);
    w->last = &w->first;
    w->open = 1;
}

/* Does the first job; called with the lock held, which it releases meanwhile. */
static void do_first(exf_worker *w)
{
    exf_job *job = w->first;
    exf_err err = {.code = EXF_OK};
    if (w->err.code == EXF_OK && !w->ends) {
        pthread_mutex_unlock(&w->lock);
        exf_code rc = job->fn(job->self, &err);
        pthread_mutex_lock(&w->lock);
        if (rc != EXF_OK) w->err = err;
    }
    w->first = job->next;
    if (!w->first) w->last = &w->first;
    w->left--;
    pthread_cond_broadcast(&w->done);
}

static void *do_jobs(void *self)
{
    exf_worker *w = self;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->ends) pthread_cond_wait(&w->given, &w->lock);
        if (!w->first) break;
        do_first(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Returns the failure; called with the lock held. */
static exf_code failure_of(const exf_worker *w, exf_err *err)
{
    if (w->err.code != EXF_OK) *err = w->err;
    return w->err.code;
}

exf_code exf_worker_give(exf_worker *w, exf_job *job, exf_job_fn fn, void *self, exf_err *err)
{
    *job = (exf_job){fn, self, NULL};
    pthread_mutex_lock(&w->lock);
    exf_code rc = failure_of(w, err);
    if (rc == EXF_OK) {
        *w->last = job;
        w->last = &job->next;
        w->left++;
        if (!w->started) w->started = pthread_create(&w->thread, NULL, do_jobs, w) == 0;
        if (!w->started) do_first(w);
        rc = failure_of(w, err);
        pthread_cond_signal(&w->given);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

exf_code exf_worker_wait(exf_worker *w, size_t most, exf_err *err)
{
    pthread_mutex_lock(&w->lock);
    while (w->left > (w->err.code == EXF_OK ? most : 0)) pthread_cond_wait(&w->done, &w->lock);
    exf_code rc = failure_of(w, err);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

void exf_worker_close(exf_worker *w)
{
    if (!w->open) return;
    pthread_mutex_lock(&w->lock);
    w->ends = 1;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
    if (w->started) pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->given);
    pthread_cond_destroy(&w->done);
    memset(w, 0, sizeof *w);
}
