/* check_crew.c - base/crew: every piece once, whatever their number. */
#include "base/crew.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"

static void count(void *self, size_t i)
{
    ((int *)self)[i]++;
}

START_TEST(every_piece_is_done_once)
{
    static const size_t sizes[] = {0, 1, 2, 7, 8, 9, 1000};
    int *done;
    exf_err err;
    size_t n = sizes[_i];
    ck_ok(exf_mem_new(&done, n + 1, sizeof *done, "test", &err), err);
    exf_crew_run(n, count, done);
    for (size_t i = 0; i < n; i++) ck_assert_int_eq(done[i], 1);
    ck_assert_int_eq(done[n], 0);
    exf_mem_free(done);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("crew");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, every_piece_is_done_once, 0, 7);
    suite_add_tcase(s, t);
    return s;
}
