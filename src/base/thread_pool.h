/* thread_pool.h - a parallel loop over independent items, on the process's one pool of threads.
 *
 * Threads are created when a loop first asks for them and then kept.  An idle thread sleeps
 * on a condition variable: it never spins, because loops run beside threads that read
 * weights and feed a GPU.  Any thread may start a loop, several at the same time too.
 * A child made by fork() starts with an empty pool and creates threads of its own. */
#ifndef EXF_BASE_THREAD_POOL_H
#define EXF_BASE_THREAD_POOL_H
#include "base/err.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Does item i as worker `worker`, in [0, n_threads): no two items of a loop run at the
 * same time as the same worker, so that `worker` may choose a scratch buffer. */
typedef exf_code (*exf_parallel_fn)(void *self, size_t i, int worker, exf_err *err);

/* Runs fn for i in [0, n), each i once, on at most n_threads threads: the caller's as
 * worker 0 and the pool's; fewer if the system creates no more.  Threads take items one
 * by one in rising order.  A loop within a loop's item runs on that item's thread alone.
 *
 * The failure of the lowest i is reported, whichever thread was faster: after a failure
 * the items below it still run, those above it may be left out.  A requested stop
 * (base/stop.h) ends the loop between two items.  fn must not fork and then return in
 * the child. */
exf_code exf_parallel_for(size_t n, int n_threads, exf_parallel_fn fn, void *self, exf_err *err) EXF_CHECKED;

/* How many threads a computation gets that names no number: the first number in the
 * environment's OMP_NUM_THREADS, as batch systems set it, else the processors on which
 * this process may run; at least 1. */
int exf_default_threads(void);
/* The same, but at most 8: for rounding and adding up beside a forward pass. */
int exf_background_threads(void);
/* Says that n processes share the processors: exf_default_threads() gives each its part, unless OMP_NUM_THREADS
 * names a number. */
void exf_share_processors(int n);
/* Returns on how many processors a process may run, 0 the calling one; 0 where the system does not say. */
int exf_processors_of(long pid);
/* Returns a number that processes have in common which may run on the same processors; 0 where the system does not say. */
uint64_t exf_processor_set(void);
#ifdef __cplusplus
}
#endif

/* Runs one function on a thread of its own, beside the work of the thread that starts it. */

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
