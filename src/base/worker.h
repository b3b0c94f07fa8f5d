/* worker.h - a thread that does one job after the other, in the order in which they are given to it.
 *
 * A thread that is started anew for each job waits for a processor each time, milliseconds where all are busy; and OpenMP's
 * runtime makes it another team.  A worker's thread begins with its first job and lasts until it is closed. */
#ifndef EXF_BASE_WORKER_H
#define EXF_BASE_WORKER_H
#include "base/err.h"

#include <pthread.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef exf_code (*exf_job_fn)(void *self, exf_err *err);

/* A job that was given and is not done; its memory is the giver's until it is. */
typedef struct exf_job {
    exf_job_fn fn;
    void *self;
    struct exf_job *next;
} exf_job;

typedef struct {
    int open, started, ends;
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    pthread_t thread;
    exf_job *first, **last; /* the jobs that are not done; the thread is at the first one */
    size_t left;            /* how many they are */
    exf_err err;            /* of the first that failed: those after it are left out */
} exf_worker;

void exf_worker_open(exf_worker *w);
/* Gives it fn(self).  Returns the failure of an earlier job, after which none is taken.  Where the system has no thread left, fn
 * runs at once and its result is returned. */
exf_code exf_worker_give(exf_worker *w, exf_job *job, exf_job_fn fn, void *self, exf_err *err) EXF_CHECKED;
/* Waits until at most `most` jobs are left, or one has failed and no other is left; returns that failure, whenever it is asked. */
exf_code exf_worker_wait(exf_worker *w, size_t most, exf_err *err) EXF_CHECKED;
/* Waits for the job that is being done, leaves out those after it, and ends the thread.  Accepts zeroed memory. */
void exf_worker_close(exf_worker *w);
#ifdef __cplusplus
}
#endif
#endif
