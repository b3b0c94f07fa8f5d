/* thread_pool.c - see thread_pool.h.
 *
 * A loop lies on its caller's stack and is listed while it runs.  It offers seats, one for
 * each worker beside the caller; an idle thread takes a seat, runs items until none is
 * left and sleeps again.  The caller unlists its loop and waits for the seats taken. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/stop.h"
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_THREADS = 4096, MOST_BACKGROUND = 8 };

typedef struct loop {
    exf_parallel_fn fn;
    void *self;
    size_t n;
    atomic_size_t next;   /* the next item to be taken */
    atomic_size_t failed; /* the lowest item that failed; n: none has */
    exf_err err;          /* of item `failed`; under the pool's lock, as all below */
    int n_seats, n_taken; /* seats offered to the pool's threads, and taken so far */
    int n_working;        /* seats whose thread has not finished */
    struct loop *other;   /* the next loop of the list */
} loop;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t offered, finished; /* seats, for idle threads; a loop's last worker, for its caller */
    loop *loops;
    int n_idle; /* threads that have no seat */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .offered = PTHREAD_COND_INITIALIZER, .finished = PTHREAD_COND_INITIALIZER};

static _Thread_local int inside; /* this thread is running an item of a loop that has several workers */

/* ---- fork -------------------------------------------------------------------------------- */

static void lock_pool(void)
{
    pthread_mutex_lock(&pool.lock);
}

static void unlock_pool(void)
{
    pthread_mutex_unlock(&pool.lock);
}

/* The child has none of the parent's threads, and nobody in it waits. */
static void empty_pool(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.offered, NULL);
    pthread_cond_init(&pool.finished, NULL);
    pool.loops = NULL;
    pool.n_idle = 0;
}

static int fork_is_handled;

static void handle_fork(void)
{
    fork_is_handled = pthread_atfork(lock_pool, unlock_pool, empty_pool) == 0;
}

/* ---- items ------------------------------------------------------------------------------- */

static void note_failure(loop *l, size_t i, const exf_err *err)
{
    lock_pool();
    if (i < atomic_load(&l->failed)) {
        l->err = *err;
        atomic_store(&l->failed, i);
    }
    unlock_pool();
}

/* Items are taken in rising order, so that all below a failed one have been taken. */
static void run_items(loop *l, int worker)
{
    exf_err err = {.code = EXF_OK};
    size_t i;
    while ((i = atomic_fetch_add(&l->next, 1)) < l->n && i < atomic_load(&l->failed)) {
        exf_code rc = exf_stop_check(&err);
        if (rc == EXF_OK) rc = l->fn(l->self, i, worker, &err);
        if (rc == EXF_OK) continue;
        note_failure(l, i, &err);
        return; /* this thread's next items are above i */
    }
}

/* ---- the pool's threads -------------------------------------------------------------------- */

static loop *loop_with_a_seat(void)
{
    for (loop *l = pool.loops; l; l = l->other)
        if (l->n_taken < l->n_seats && atomic_load(&l->next) < l->n) return l;
    return NULL;
}

/* With the lock held, which it gives up while items run. */
static void work_on(loop *l)
{
    int worker = ++l->n_taken;
    l->n_working++;
    pool.n_idle--;
    unlock_pool();
    run_items(l, worker);
    lock_pool();
    pool.n_idle++;
    if (--l->n_working == 0) pthread_cond_broadcast(&pool.finished);
}

static void *serve(void *unused)
{
    (void)unused;
    inside = 1;
    lock_pool();
    for (;;) {
        loop *l = loop_with_a_seat();
        if (l)
            work_on(l);
        else
            pthread_cond_wait(&pool.offered, &pool.lock);
    }
    return NULL;
}

/* 0: the system creates no more threads. */
static int create_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, NULL) != 0) return 0;
    pthread_detach(thread);
    pool.n_idle++;
    return 1;
}

/* With the lock held: as many idle threads as seats are free, if the system creates them. */
static void create_for_free_seats(void)
{
    int free_seats = 0;
    for (const loop *l = pool.loops; l; l = l->other) free_seats += l->n_seats - l->n_taken;
    while (pool.n_idle < free_seats && create_thread()) continue;
}

/* ---- loops ------------------------------------------------------------------------------- */

static void list(loop *l)
{
    lock_pool();
    l->other = pool.loops;
    pool.loops = l;
    create_for_free_seats();
    unlock_pool();
    for (int i = 0; i < l->n_seats; i++) pthread_cond_signal(&pool.offered);
}

/* No thread takes a seat any more; those that did finish their last item. */
static void unlist(loop *l)
{
    loop **at = &pool.loops;
    lock_pool();
    while (*at != l) at = &(*at)->other;
    *at = l->other;
    while (l->n_working > 0) pthread_cond_wait(&pool.finished, &pool.lock);
    unlock_pool();
}

static int seats_of(size_t n, int n_threads)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (inside || n <= 1 || n_threads <= 1) return 0;
    pthread_once(&once, handle_fork);
    if (!fork_is_handled) return 0;
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    return (n < (size_t)n_threads ? (int)n : n_threads) - 1;
}

exf_code exf_parallel_for(size_t n, int n_threads, exf_parallel_fn fn, void *self, exf_err *err)
{
    loop l = {.fn = fn, .self = self, .n = n, .n_seats = seats_of(n, n_threads)};
    atomic_init(&l.next, 0);
    atomic_init(&l.failed, n);
    if (l.n_seats == 0) {
        run_items(&l, 0);
    } else {
        list(&l);
        inside = 1;
        run_items(&l, 0);
        inside = 0;
        unlist(&l);
    }
    if (atomic_load(&l.failed) == n) return EXF_OK;
    *err = l.err;
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

/* ---- background -------------------------------------------------------------------------------- */

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
