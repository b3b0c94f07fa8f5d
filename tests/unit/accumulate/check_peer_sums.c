/* check_peer_sums.c - the sums of several ranks' devices, added up on one: a sum that leaves its range is refused, as it is where
 * files are merged. */
#include "tests/support/fake_device.h"
#include "tests/support/peer_sums_fixtures.h"

static const exf_backend *b;
static exf_queue *q;

static void open_fake(void)
{
    exf_err e;
    b = fake_device((uint64_t)1 << 30);
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &e), e);
}

static void close_fake(void)
{
    b->close(q);
}

START_TEST(a_sum_that_wraps_is_refused)
{
    ck_peers_add(b, q, _i / 2, _i % 2 ? -1 : 1);
}
END_TEST

START_TEST(the_first_is_named)
{
    ck_the_first_is_named(b, q);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_fake, close_fake);
    tcase_add_loop_test(t, a_sum_that_wraps_is_refused, 0, 2 * EXF_VECTOR_ARRAYS);
    tcase_add_test(t, the_first_is_named);
}
