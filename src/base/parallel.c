/* parallel.c - see parallel.h. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/err.h"
#include "base/log.h"
#include "base/parallel.h"

#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/resource.h>
#endif

enum { MOST_THREADS = 4096, MOST_BACKGROUND = 8, NICER = 10 };

/* ---- the team of a loop ------------------------------------------------------------------ */

static void *wait_at(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Returns how many of n threads the system creates; they end at once. */
static int try_threads(int n)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread[MOST_THREADS];
    int made = 0;
    pthread_mutex_lock(&gate);
    while (made < n && pthread_create(&thread[made], NULL, wait_at, &gate) == 0) made++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < made; i++) pthread_join(thread[i], NULL);
    return made;
}

/* Ends the process with EXF_NOSPACE if this thread has no memory for a team.  OpenMP's runtime allocates for every team, of one
 * thread too, and where it cannot ends the process itself, with status 1.  The block is freed for the runtime, which asks the
 * same arena a moment later. */
static void require_team_memory(int n_threads)
{
    enum { OF_TEAM = 8 << 10, OF_THREAD = 512 }; /* more than libgomp and libomp take */
    size_t n = OF_TEAM + (size_t)n_threads * OF_THREAD;
    void *volatile p = malloc(n); /* volatile: else the compiler leaves it out */
    exf_err err;
    if (!p) {
        (void)exf_fail(&err, EXF_NOSPACE, "out of memory: %zu bytes for the threads of a loop", n);
        exf_log_error_and_exit(&err);
    }
    free(p);
}

/* OpenMP's runtime keeps the threads of the last team that a thread began outside of all other loops.  One thread more than
 * the team lacks is tried: the room of its stack is for what the runtime itself allocates. */
int exf_team(size_t n, int wanted)
{
    static _Thread_local int kept = 1;
    if (wanted > MOST_THREADS) wanted = MOST_THREADS;
    if (wanted > 0 && n < (size_t)wanted) wanted = (int)n;
    if (wanted < 1 || omp_in_parallel()) wanted = 1;
    require_team_memory(wanted);
    if (wanted == 1) return 1;
    int inner = omp_get_level() > 0, have = inner ? 1 : kept;
    if (wanted > have) {
        int made = try_threads(wanted - have + 1);
        if (made < wanted - have + 1) wanted = have + (made > 1 ? made - 1 : 0);
    }
    if (!inner) kept = wanted;
    return wanted;
}

/* ---- failures of items ------------------------------------------------------------------- */

int exf_loop_takes(exf_loop *l, size_t i)
{
    size_t failed;
    exf_err err;
#pragma omp atomic read
    failed = l->failed;
    if (i > failed) return 0;
    if (exf_stop_check(&err) == EXF_OK) return 1;
    exf_loop_fail(l, i, &err);
    return 0;
}

void exf_loop_fail(exf_loop *l, size_t i, const exf_err *err)
{
#pragma omp critical(exf_loop)
    if (i < l->failed) {
        l->err = *err;
#pragma omp atomic write
        l->failed = i;
    }
}

exf_code exf_loop_end(const exf_loop *l, exf_err *err)
{
    if (l->failed == SIZE_MAX) return EXF_OK;
    *err = l->err;
    return err->code;
}

/* ---- how many ------------------------------------------------------------------------------ */

int exf_processors_of(long pid)
{
#ifdef __linux__
    cpu_set_t set; /* too small where there are more than 1024 processors */
    if (sched_getaffinity((pid_t)pid, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    (void)pid;
    return 0;
}

static int processors(void)
{
    int own = exf_processors_of(0);
    if (own) return own;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MOST_THREADS ? MOST_THREADS : (int)n;
}

static int sharing = 1; /* processes that share the processors */

void exf_share_processors(int n)
{
    sharing = n > 1 ? n : 1;
}

uint64_t exf_processor_set(void)
{
    uint64_t mixed = 0;
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set)) mixed = (mixed ^ (i + 1)) * UINT64_C(0x100000001b3);
#endif
    return mixed;
}

int exf_default_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    char *end;
    long asked = text ? strtol(text, &end, 10) : 0;
    if (asked < 1) return processors() / sharing > 1 ? processors() / sharing : 1;
    return asked > MOST_THREADS ? MOST_THREADS : (int)asked;
}

int exf_background_threads(void)
{
    int n = exf_default_threads();
    return n < MOST_BACKGROUND ? n : MOST_BACKGROUND;
}

void exf_lower_priority(void)
{
#ifdef __linux__
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICER); /* 0: this thread; beyond the lowest is the lowest */
#endif
}

/* ---- background -------------------------------------------------------------------------------- */

exf_code exf_background_start(exf_background *b, exf_job_fn fn, void *self, exf_err *err)
{
    exf_worker_open(&b->worker);
    exf_code rc = exf_worker_give(&b->worker, &b->job, fn, self, err);
    if (rc != EXF_OK) exf_worker_close(&b->worker);
    return rc;
}

exf_code exf_background_wait(exf_background *b, exf_err *err)
{
    if (!b->worker.open) return EXF_OK;
    exf_code rc = exf_worker_wait(&b->worker, 0, err);
    exf_worker_close(&b->worker);
    return rc;
}

void exf_background_end(exf_background *b)
{
    exf_err dropped;
    if (exf_background_wait(b, &dropped) != EXF_OK) dropped.code = EXF_OK;
}
