/* parallel.h - parallel loops over items that may fail, how many threads they get, and one function beside its caller.
 *
 * Loops are OpenMP's.  This adds what its pragma lacks: the failure that a loop reports, and a team that the system can
 * create, since OpenMP's runtime ends the process where it cannot.
 *
 *     exf_loop loop = EXF_LOOP;
 *     #pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, n_threads))
 *     for (size_t i = 0; i < n; i++) {
 *         exf_err e;
 *         if (exf_loop_takes(&loop, i) && do_item(i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
 *     }
 *     return exf_loop_end(&loop, err);
 *
 * The failure of the lowest i is reported, whichever thread was faster: after a failure the items below it still run, and
 * those above it are left out.  No sum of floating-point numbers crosses items, so that results do not depend on the team. */
#ifndef EXF_BASE_PARALLEL_H
#define EXF_BASE_PARALLEL_H
#include "base/worker.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the number of threads for a loop over n items that may have `wanted`: at most n, at least 1, 1 within an item of
 * another loop, and no more than the system creates now.  Where the calling thread has no memory for a team, which OpenMP's
 * runtime cannot report, this says so and ends the process with EXF_NOSPACE. */
int exf_team(size_t n, int wanted);

/* What became of a loop's items. */
typedef struct {
    size_t failed; /* the lowest item that failed; SIZE_MAX: none has */
    exf_err err;   /* its error */
} exf_loop;
#define EXF_LOOP {.failed = SIZE_MAX, .err = {.code = EXF_OK}}

/* Returns 1 if item i is to be done: no item below it failed, and no stop (base/err.h) was requested, which fails it. */
int exf_loop_takes(exf_loop *l, size_t i);
/* Notes that item i failed with *err. */
void exf_loop_fail(exf_loop *l, size_t i, const exf_err *err);
/* Returns the failure of the lowest item, or EXF_OK. */
exf_code exf_loop_end(const exf_loop *l, exf_err *err) EXF_CHECKED;

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

/* Lets the calling thread run after others where processors are short: 10 steps nicer, on Linux, where each thread has a priority.
 * Where that is refused, as by a sandbox, and on other systems, the thread runs like all others: only times depend on it. */
void exf_lower_priority(void);

/* A function on a thread of its own, while the thread that starts it goes on: a worker of one job. */
typedef struct {
    exf_worker worker;
    exf_job job;
} exf_background;

/* Starts fn(self); b is zeroed, or was waited for.  Where the system has no thread left, fn runs at once and its result is
 * returned. */
exf_code exf_background_start(exf_background *b, exf_job_fn fn, void *self, exf_err *err) EXF_CHECKED;
/* Waits for fn and returns its result; EXF_OK if nothing runs, so that a result is returned once. */
exf_code exf_background_wait(exf_background *b, exf_err *err) EXF_CHECKED;
/* Waits for fn and drops its result. */
void exf_background_end(exf_background *b);
#ifdef __cplusplus
}
#endif
#endif
