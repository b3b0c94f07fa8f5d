/* check_background.c - a function on a thread of its own: its result is returned once. */
#include "tests/support/fixtures.h"

#include "base/parallel.h"

static exf_err e; /* of the last call */

static exf_code count(void *self, exf_err *err)
{
    int *n = self;
    return ++*n < 3 ? EXF_OK : exf_fail(err, EXF_IO, "the disk fails at call %d", *n);
}

START_TEST(a_result_is_returned_once)
{
    exf_background b = {.worker.open = 0};
    int n = 0;
    ck_ok(exf_background_wait(&b, &e), e); /* nothing was started */
    for (int i = 0; i < 2; i++) {
        ck_ok(exf_background_start(&b, count, &n, &e), e);
        ck_ok(exf_background_wait(&b, &e), e);
        ck_assert_int_eq(n, i + 1);
    }
    ck_ok(exf_background_start(&b, count, &n, &e), e);
    ck_fails(exf_background_wait(&b, &e), EXF_IO, e, "3");
    ck_ok(exf_background_wait(&b, &e), e);
    ck_ok(exf_background_start(&b, count, &n, &e), e);
    exf_background_end(&b);
    ck_assert_int_eq(n, 4);
    ck_ok(exf_background_wait(&b, &e), e);
    exf_background_end(&b);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "thread");
    tcase_add_test(t, a_result_is_returned_once);
}
