/* check_parallel.c - base/parallel: every item once, the lowest failure, loops within and beside loops, few threads. */
#define _GNU_SOURCE /* pthread_setattr_default_np, sched_setaffinity */
#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "tests/support/fixtures.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/resource.h>
#endif
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, ITEMS = 1000 };

static void sleep_ms(long ms)
{
    struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

/* A loop as the callers of base/parallel.h write it. */
typedef exf_code (*item_fn)(void *self, size_t i, int worker, exf_err *err);

static exf_code run_loop(size_t n, int n_threads, item_fn fn, void *self, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, n_threads))
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && fn(self, i, omp_get_thread_num(), &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

/* ---- items and workers ---------------------------------------------------------------------- */

typedef struct {
    int done[ITEMS + 1];
    atomic_int busy[THREADS]; /* the worker is within an item */
    atomic_int wrong_worker, most_at_once, at_once;
} counts;

static exf_code count(void *self, size_t i, int worker, exf_err *err)
{
    counts *c = self;
    (void)err;
    if (worker < 0 || worker >= THREADS || atomic_exchange(&c->busy[worker], 1)) atomic_store(&c->wrong_worker, 1);
    int now = atomic_fetch_add(&c->at_once, 1) + 1, most = atomic_load(&c->most_at_once);
    while (now > most && !atomic_compare_exchange_weak(&c->most_at_once, &most, now)) continue;
    c->done[i]++;
    if (i < 2 * THREADS) sleep_ms(2);
    atomic_fetch_sub(&c->at_once, 1);
    if (worker >= 0 && worker < THREADS) atomic_store(&c->busy[worker], 0);
    return EXF_OK;
}

static void check_counts(const counts *c, size_t n)
{
    for (size_t i = 0; i < n; i++) ck_assert_int_eq(c->done[i], 1);
    for (size_t i = n; i <= ITEMS; i++) ck_assert_int_eq(c->done[i], 0);
    ck_assert_int_eq(c->wrong_worker, 0);
}

START_TEST(every_item_runs_once)
{
    static const size_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 64, ITEMS};
    static const int threads[] = {-1, 0, 1, 2, THREADS};
    for (int k = 0; k < COUNT(threads); k++) {
        counts c = {.wrong_worker = 0};
        exf_err err = {.code = EXF_OK};
        ck_ok(run_loop(sizes[_i], threads[k], count, &c, &err), err);
        check_counts(&c, sizes[_i]);
        ck_assert_int_le(c.most_at_once, threads[k] < 1 ? 1 : threads[k]);
    }
}
END_TEST

START_TEST(items_run_at_the_same_time)
{
    counts c = {.wrong_worker = 0};
    exf_err err = {.code = EXF_OK};
    for (int tries = 0; c.most_at_once < 2 && tries < 1000; tries++) {
        memset(&c, 0, sizeof c);
        ck_ok(run_loop(2 * THREADS, THREADS, count, &c, &err), err);
    }
    ck_assert_int_ge(c.most_at_once, 2);
}
END_TEST

/* ---- failures ------------------------------------------------------------------------------- */

typedef struct {
    size_t first;    /* the lowest item that fails */
    int done[ITEMS]; /* written by the item's own thread */
    int slow;        /* the lowest failure comes last */
} failing;

static exf_code fail_from(void *self, size_t i, int worker, exf_err *err)
{
    failing *f = self;
    (void)worker;
    f->done[i]++;
    if (i == f->first && f->slow) sleep_ms(5);
    return i < f->first ? EXF_OK : exf_fail(err, EXF_NUMERIC, "item %zu failed", i);
}

/* Under ThreadSanitizer this also shows that nothing is read while another thread writes it. */
START_TEST(the_lowest_failure_is_reported)
{
    static const size_t firsts[] = {0, 1, 2, 3, 17, 500, ITEMS - 1};
    for (int turn = 0; turn < 40; turn++) {
        failing f = {.first = firsts[_i], .slow = turn % 2};
        exf_err err = {.code = EXF_OK};
        char text[64];
        snprintf(text, sizeof text, "item %zu failed", f.first);
        ck_fails(run_loop(ITEMS, THREADS, fail_from, &f, &err), EXF_NUMERIC, err, text);
        ck_assert_str_eq(err.msg, text);
        for (size_t i = 0; i < ITEMS; i++) ck_assert_int_eq(f.done[i], i <= f.first ? 1 : f.done[i] != 0);
    }
}
END_TEST

START_TEST(on_one_thread_nothing_runs_above_a_failure)
{
    failing f = {.first = 3};
    exf_err err = {.code = EXF_OK};
    ck_fails(run_loop(ITEMS, 1, fail_from, &f, &err), EXF_NUMERIC, err, "3");
    for (size_t i = 0; i < ITEMS; i++) ck_assert_int_eq(f.done[i], i <= 3);
}
END_TEST

static exf_code ask_for_a_stop(void *self, size_t i, int worker, exf_err *err)
{
    (void)worker;
    (void)err;
    atomic_int *done = self;
    while (i > 5 && !exf_stop_requested()) sleep_ms(1); /* item 5 has been taken */
    for (size_t k = 0; i == 5 && k < 5; k++)
        while (!atomic_load(&done[k])) sleep_ms(1); /* a thread that has taken it would see the stop before it runs it */
    atomic_fetch_add(&done[i], 1);
    if (i == 5) exf_stop_request(SIGTERM);
    return EXF_OK;
}

START_TEST(a_stop_ends_the_loop_between_two_items)
{
    atomic_int done[ITEMS] = {0};
    int n = 0;
    exf_err err = {.code = EXF_OK};
    ck_fails(run_loop(ITEMS, _i ? THREADS : 1, ask_for_a_stop, done, &err), EXF_SIGTERM, err, "");
    for (size_t i = 0; i < ITEMS; i++) n += done[i];
    if (_i == 0) ck_assert_int_eq(n, 6);
    ck_assert_int_ge(n, 6);
    exf_stop_request(0);
}
END_TEST

/* ---- loops within and beside loops ----------------------------------------------------------- */

typedef struct {
    pthread_t thread;
    atomic_int n, moved;
} nested;

static exf_code count_inner(void *self, size_t i, int worker, exf_err *err)
{
    nested *s = self;
    (void)i;
    (void)err;
    if (worker != 0 || !pthread_equal(s->thread, pthread_self())) atomic_store(&s->moved, 1);
    atomic_fetch_add(&s->n, 1);
    return EXF_OK;
}

static exf_code run_inner(void *self, size_t i, int worker, exf_err *err)
{
    nested *s = &((nested *)self)[i];
    (void)worker;
    s->thread = pthread_self();
    return run_loop(10, THREADS, count_inner, s, err);
}

START_TEST(a_loop_within_an_item_stays_on_its_thread)
{
    nested s[2 * THREADS] = {{.n = 0}};
    exf_err err = {.code = EXF_OK};
    ck_ok(run_loop(2 * THREADS, THREADS, run_inner, s, &err), err);
    for (int i = 0; i < 2 * THREADS; i++) ck_assert(s[i].n == 10 && !s[i].moved);
}
END_TEST

typedef struct {
    pthread_t thread;
    exf_code rc;
    int wrong;
} caller;

static void *call_often(void *self)
{
    caller *c = self;
    exf_err err = {.code = EXF_OK};
    for (int turn = 0; turn < 50 && c->rc == EXF_OK; turn++) {
        counts s = {.wrong_worker = 0};
        c->rc = run_loop(40, THREADS, count, &s, &err);
        for (int i = 0; i < 40; i++) c->wrong |= s.done[i] != 1;
        c->wrong |= s.wrong_worker;
    }
    return NULL;
}

START_TEST(several_threads_run_loops_at_the_same_time)
{
    caller c[3] = {{.rc = EXF_OK}};
    for (int i = 0; i < 3; i++) ck_assert_int_eq(pthread_create(&c[i].thread, NULL, call_often, &c[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(c[i].thread, NULL);
        ck_assert(c[i].rc == EXF_OK && !c[i].wrong);
    }
}
END_TEST

/* ---- what the system gives --------------------------------------------------------------------- */

#if defined(__GLIBC__) && SIZE_MAX > UINT32_MAX
/* No address space has room for such a stack, so that pthread_create fails. */
START_TEST(threads_that_cannot_be_created_are_done_without)
{
    counts c = {.wrong_worker = 0};
    exf_err err = {.code = EXF_OK};
    pthread_attr_t huge;
    pthread_t thread;
    pthread_attr_init(&huge);
    ck_assert_int_eq(pthread_attr_setstacksize(&huge, (size_t)1 << 47), 0);
    ck_assert_int_eq(pthread_setattr_default_np(&huge), 0);
    ck_assert_int_ne(pthread_create(&thread, NULL, call_often, NULL), 0);
    ck_ok(run_loop(ITEMS, THREADS, count, &c, &err), err);
    check_counts(&c, ITEMS);
    ck_assert_int_eq(c.most_at_once, 1);
}
END_TEST

#ifndef EXF_SANITIZED /* a sanitizer ends the process where it gets no memory */
/* A thread's first loop asks OpenMP's runtime for memory, also where the loop stays on that thread; the runtime would end the
 * process with status 1.  Nothing is freed, so that no arena has a byte left. */
START_TEST(a_loop_without_memory_ends_the_program_as_any_lack_of_memory_does)
{
    struct rlimit none = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
    counts c = {.wrong_worker = 0};
    exf_err err = {.code = EXF_OK};
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &none), 0);
    none.rlim_cur = 1 << 20;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &none), 0);
    for (size_t n = 1 << 20; n >= 8; n /= 2)
        while (malloc(n)) continue;
    (void)run_loop(_i ? ITEMS : 1, THREADS, count, &c, &err);
    _exit(0);
}
END_TEST
#endif
#endif

#ifdef __linux__
static void *lower(void *priority)
{
    for (int i = 0; i < 4; i++) {
        exf_lower_priority();
        ((int *)priority)[i] = getpriority(PRIO_PROCESS, 0);
    }
    return NULL;
}

/* It is the thread's alone, and ends at the lowest there is. */
START_TEST(a_thread_lowers_its_own_priority)
{
    int before = getpriority(PRIO_PROCESS, 0), now[4];
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, lower, now), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(now[i], before + 10 * (i + 1) < 19 ? before + 10 * (i + 1) : 19);
    ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), before);
}
END_TEST
#endif

START_TEST(a_team_is_no_larger_than_its_loop)
{
    ck_assert(exf_team(0, THREADS) == 1 && exf_team(1, THREADS) == 1 && exf_team(2, THREADS) == 2 && exf_team(ITEMS, -1) == 1);
    ck_assert_int_eq(exf_team(SIZE_MAX, THREADS), THREADS);
}
END_TEST

START_TEST(the_environment_and_the_affinity_say_how_many)
{
    cpu_set_t one;
    unsetenv("OMP_NUM_THREADS");
    ck_assert_int_ge(exf_default_threads(), 1);
    setenv("OMP_NUM_THREADS", "3", 1);
    ck_assert(exf_default_threads() == 3 && exf_background_threads() == 3);
    setenv("OMP_NUM_THREADS", "12,2", 1);
    ck_assert(exf_default_threads() == 12 && exf_background_threads() == 8);
    unsetenv("OMP_NUM_THREADS");
    ck_assert_int_eq(sched_getaffinity(0, sizeof one, &one), 0);
    int first = 0, all = CPU_COUNT(&one);
    ck_assert_int_eq(exf_default_threads(), all);
    while (!CPU_ISSET(first, &one)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_int_eq(exf_default_threads(), 1);
    setenv("OMP_NUM_THREADS", "none", 1);
    ck_assert_int_eq(exf_default_threads(), 1);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, every_item_runs_once, 0, 9);
    tcase_add_test(t, items_run_at_the_same_time);
    tcase_add_loop_test(t, the_lowest_failure_is_reported, 0, 7);
    tcase_add_test(t, on_one_thread_nothing_runs_above_a_failure);
    tcase_add_loop_test(t, a_stop_ends_the_loop_between_two_items, 0, 2);
    tcase_add_test(t, a_loop_within_an_item_stays_on_its_thread);
    tcase_add_test(t, several_threads_run_loops_at_the_same_time);
#if defined(__GLIBC__) && SIZE_MAX > UINT32_MAX
    tcase_add_test(t, threads_that_cannot_be_created_are_done_without);
#ifndef EXF_SANITIZED
    tcase_add_loop_exit_test(t, a_loop_without_memory_ends_the_program_as_any_lack_of_memory_does, EXF_NOSPACE, 0, 2);
#endif
#endif
#ifdef __linux__
    tcase_add_test(t, a_thread_lowers_its_own_priority);
#endif
    tcase_add_test(t, a_team_is_no_larger_than_its_loop);
    tcase_add_test(t, the_environment_and_the_affinity_say_how_many);
}
