/* check_stage_clock.c - a GPU's stages by a GPU that the test makes up: stamps come late, and are read once. */
#include "tests/support/fixtures.h"

#include "pass/workspace.h"

#include <stdlib.h>
#include <string.h>

static uint64_t *asked[16]; /* stamps that were queued, and not yet written */
static size_t n_asked;

static void stamp(exf_queue *q, uint64_t *ns)
{
    (void)q;
    asked[n_asked++] = ns;
}

static exf_code alloc_staging(void *out, size_t bytes, const char *what, exf_err *err)
{
    void *p = malloc(bytes);
    (void)what, (void)err;
    memcpy(out, &p, sizeof p);
    return p ? EXF_OK : EXF_NOSPACE;
}

static const exf_gpu_operations gpu = {.alloc_staging = alloc_staging, .free_staging = free, .stamp = stamp};
static const exf_backend backend = {.name = "made up", .gpu = &gpu};

START_TEST(stages_are_read_in_order_when_both_stamps_are_there)
{
    exf_stage_clock *c;
    exf_eta eta = {.kind = {[1] = {.planned = 10, .prior = 1}, [2] = {.planned = 4, .prior = 1}}};
    double experts = 1, observe = 0;
    exf_err e;
    n_asked = 0;
    ck_ok(exf_stage_clock_new(&c, &backend, &e), e);
    exf_progress_begin("", 0, &eta, 0);
    exf_stage_begin(c, NULL);
    exf_stage_end(c, NULL, &experts, 1, 5);
    exf_stage_begin(c, NULL);
    exf_stage_end(c, NULL, &observe, -1, 7);
    ck_assert_uint_eq(n_asked, 4);
    *asked[2] = 4000000000, *asked[3] = 4500000000; /* the second stage alone: it waits for the first */
    *asked[0] = 1000000000;
    exf_stage_clock_read(c);
    ck_assert_double_eq(experts, 1);
    ck_assert_double_eq(observe, 0);
    *asked[1] = 3000000000;
    exf_stage_clock_read(c);
    exf_stage_clock_read(c);
    exf_progress_end();
    ck_assert_double_eq_tol(experts, 3, 1e-12);
    ck_assert_double_eq_tol(observe, 0.5, 1e-12);
    ck_assert_double_eq_tol(eta.kind[1].done, 5, 1e-12);
    ck_assert_double_eq_tol(eta.kind[1].spent, 2, 1e-12);
    ck_assert_double_eq(eta.kind[2].done, 0);
    exf_stage_clock_free(c);
}
END_TEST

START_TEST(no_clock_does_nothing)
{
    double seconds = 0;
    exf_stage_begin(NULL, NULL);
    exf_stage_end(NULL, NULL, &seconds, 0, 1);
    exf_stage_clock_read(NULL);
    exf_stage_clock_free(NULL);
    ck_assert_double_eq(seconds, 0);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "stage_clock");
    tcase_add_test(t, stages_are_read_in_order_when_both_stamps_are_there);
    tcase_add_test(t, no_clock_does_nothing);
}
