/* check_cuda_memory.c - queues that follow each other, copies to and from pinned memory,
 * and what the device says of its memory. */
#include "tests/support/device_fixtures.h"

enum { N = 2048, ROUNDS = 40, LONG = N * N };

/* Long work on one queue, the result fetched by a second that only follows, and brought back by
 * a third for the first: every round must see the one before. */
START_TEST(a_queue_follows_another)
{
    exf_err err;
    device d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    exf_queue *away, *back;
    float *ones = test_memory(LONG, sizeof *ones), *home;
    for (size_t i = 0; i < LONG; i++) ones[i] = 1;
    ck_ok(d.b->open(&away, EXF_COMPUTE_F32, &err), err);
    ck_ok(d.b->open(&back, EXF_COMPUTE_F32, &err), err);
    ck_ok(d.b->gpu->alloc_staging((void *)&home, LONG * sizeof *home, "test", &err), err);
    float *x = device_put(&d, ones, LONG * sizeof *x), *y = device_put(&d, NULL, LONG * sizeof *y),
          *z = device_put(&d, NULL, LONG * sizeof *z);
    d.b->zero(d.q, y, LONG * sizeof *y);
    for (int round = 0; round < ROUNDS; round++) {
        d.b->gemm_xwt(d.q, y, N, exf_f32(x), N, exf_f32(x), N, N, N, N, 1, 1); /* adds N */
        d.b->gpu->wait_for(away, d.q);
        d.b->copy(away, home, y, LONG * sizeof *home);
        d.b->zero(d.q, z, LONG * sizeof *z); /* meanwhile */
        d.b->gpu->wait_for(back, away);
        d.b->gpu->wait_for(back, d.q);
        d.b->copy(back, z, home, LONG * sizeof *home);
        d.b->gpu->wait_for(d.q, back);
        d.b->copy(d.q, y, z, LONG * sizeof *y);
    }
    float *got = device_get(&d, y, LONG * sizeof *y);
    for (size_t i = 0; i < LONG; i++) ck_assert_msg(got[i] == (float)(N * ROUNDS), "element %zu is %g", i, (double)got[i]);
    for (size_t i = 0; i < LONG; i++)
        ck_assert_msg(home[i] == (float)(N * ROUNDS), "element %zu at home is %g", i, (double)home[i]);
    exf_mem_free(got);
    exf_mem_free(ones);
    d.b->gpu->free_staging(home);
    d.b->free(x);
    d.b->free(y);
    d.b->free(z);
    d.b->close(away);
    d.b->close(back);
    device_close(&d);
}
END_TEST

START_TEST(memory_is_counted)
{
    enum { MIB = 1 << 20 };
    exf_err err;
    device d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    uint64_t now, peak, then, left, left_then;
    void *p;
    d.b->gpu->memory_reset_peak();
    d.b->gpu->memory(&then, &peak);
    ck_assert_uint_eq(then, peak);
    ck_ok(d.b->gpu->memory_left(&left_then, &err), err);
    ck_ok(d.b->alloc(&p, 64 * MIB, 1, "test", &err), err);
    ck_ok(d.b->gpu->memory_left(&left, &err), err);
    d.b->gpu->memory(&now, &peak);
    ck_assert(now == then + 64 * MIB && peak == now);
    ck_assert_msg(left + 64 * MIB <= left_then, "%llu bytes left, before %llu", (unsigned long long)left,
                  (unsigned long long)left_then);
    d.b->free(p);
    d.b->gpu->memory(&now, &peak);
    ck_assert(now == then && peak == then + 64 * MIB);
    d.b->gpu->memory_reset_peak();
    d.b->gpu->memory(&now, &peak);
    ck_assert(now == then && peak == then);
    device_close(&d);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_memory");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_queue_follows_another);
    tcase_add_test(t, memory_is_counted);
    suite_add_tcase(s, t);
    return s;
}
