/* check_worker.c - jobs on a thread of their own: in order, and none after one that failed. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include "tests/support/fixtures.h"

#include "base/worker.h"

enum { JOBS = 40 };

typedef struct {
    int done[JOBS], n;   /* numbers of the jobs in the order in which they were done */
    int fails;           /* the number of one that fails; -1: none */
    pthread_mutex_t gate; /* a job waits for it */
} record;

typedef struct {
    record *r;
    int number;
    exf_job job;
} task;

static exf_err e; /* of the last call */

static exf_code note(void *self, exf_err *err)
{
    task *t = self;
    pthread_mutex_lock(&t->r->gate);
    pthread_mutex_unlock(&t->r->gate);
    t->r->done[t->r->n++] = t->number;
    return t->number == t->r->fails ? exf_fail(err, EXF_IO, "the disk fails at job %d", t->number) : EXF_OK;
}

START_TEST(jobs_are_done_in_order)
{
    record r = {.fails = -1, .gate = PTHREAD_MUTEX_INITIALIZER};
    task t[JOBS];
    exf_worker w;
    exf_worker_open(&w);
    ck_ok(exf_worker_wait(&w, 0, &e), e); /* nothing was given */
    pthread_mutex_lock(&r.gate);
    for (int i = 0; i < JOBS; i++) {
        t[i] = (task){.r = &r, .number = i};
        ck_ok(exf_worker_give(&w, &t[i].job, note, &t[i], &e), e);
        ck_ok(exf_worker_wait(&w, JOBS, &e), e);
    }
    pthread_mutex_unlock(&r.gate);
    ck_ok(exf_worker_wait(&w, 1, &e), e);
    ck_assert_uint_le(w.left, 1);
    ck_ok(exf_worker_wait(&w, 0, &e), e);
    ck_assert_int_eq(r.n, JOBS);
    for (int i = 0; i < JOBS; i++) ck_assert_int_eq(r.done[i], i);
    exf_worker_close(&w);
    exf_worker_close(&w); /* of zeroed memory */
}
END_TEST

START_TEST(jobs_after_a_failure_are_left_out)
{
    record r = {.fails = 2, .gate = PTHREAD_MUTEX_INITIALIZER};
    task t[JOBS];
    exf_worker w;
    exf_worker_open(&w);
    pthread_mutex_lock(&r.gate);
    for (int i = 0; i < 5; i++) {
        t[i] = (task){.r = &r, .number = i};
        ck_ok(exf_worker_give(&w, &t[i].job, note, &t[i], &e), e);
    }
    pthread_mutex_unlock(&r.gate);
    ck_fails(exf_worker_wait(&w, 1, &e), EXF_IO, e, "job 2");
    ck_assert_uint_eq(w.left, 0);
    ck_assert_int_eq(r.n, 3);
    ck_fails(exf_worker_give(&w, &t[0].job, note, &t[0], &e), EXF_IO, e, "job 2");
    ck_fails(exf_worker_wait(&w, 0, &e), EXF_IO, e, "job 2"); /* whenever it is asked */
    ck_assert_int_eq(r.n, 3);
    exf_worker_close(&w);
}
END_TEST

/* What was given and has not begun is left out by a close; what has begun is waited for. */
START_TEST(a_close_waits_for_the_job_that_has_begun)
{
    for (int round = 0; round < 20; round++) {
        record r = {.fails = -1, .gate = PTHREAD_MUTEX_INITIALIZER};
        task t[JOBS];
        exf_worker w;
        exf_worker_open(&w);
        for (int i = 0; i < JOBS; i++) {
            t[i] = (task){.r = &r, .number = i};
            ck_ok(exf_worker_give(&w, &t[i].job, note, &t[i], &e), e);
        }
        exf_worker_close(&w);
        for (int i = 0; i < r.n; i++) ck_assert_int_eq(r.done[i], i);
    }
}
END_TEST

#if defined(__GLIBC__) && SIZE_MAX > UINT32_MAX
/* No address space has room for such a stack, so that pthread_create fails. */
START_TEST(without_a_thread_a_job_is_done_at_once)
{
    record r = {.fails = 1, .gate = PTHREAD_MUTEX_INITIALIZER};
    task t = {.r = &r};
    exf_worker w;
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    ck_assert_int_eq(pthread_attr_setstacksize(&huge, (size_t)1 << 47), 0);
    ck_assert_int_eq(pthread_setattr_default_np(&huge), 0);
    exf_worker_open(&w);
    ck_ok(exf_worker_give(&w, &t.job, note, &t, &e), e);
    ck_assert(r.n == 1 && !w.started);
    t.number = 1;
    ck_fails(exf_worker_give(&w, &t.job, note, &t, &e), EXF_IO, e, "job 1");
    ck_fails(exf_worker_wait(&w, 0, &e), EXF_IO, e, "job 1");
    exf_worker_close(&w);
}
END_TEST
#endif

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "jobs");
    tcase_add_test(t, jobs_are_done_in_order);
    tcase_add_test(t, jobs_after_a_failure_are_left_out);
    tcase_add_test(t, a_close_waits_for_the_job_that_has_begun);
#if defined(__GLIBC__) && SIZE_MAX > UINT32_MAX
    tcase_add_test(t, without_a_thread_a_job_is_done_at_once);
#endif
}
