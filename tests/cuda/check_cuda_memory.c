/* check_cuda_memory.c - queues that follow each other, copies to and from pinned memory,
 * and what the device says of its memory. */
#include "tests/support/device_fixtures.h"
#include "tests/support/pairwise.h"

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

/* ---- staging memory of every size ------------------------------------------------------------ */

enum { BYTES, AT, DIMENSIONS };
static const dimension dimensions[] = {{"bytes", 1, 5 << 20}, {"at", 0, 1}};

static const boundary boundaries[] = {
    {"backend_cuda.cu", "PAGE", BYTES, 4096},
    {"backend_cuda.cu", "PAGE", BYTES, 2 * 4096},
    {"backend_cuda.cu", "HUGE_PAGE", BYTES, 2 << 20},
    {"backend_cuda.cu", "HUGE_PAGE", BYTES, 4 << 20},
};

static pairwise cases;

/* It is zeros at first, and its bytes reach the device and come back; those before `at` and after the last stay. */
START_TEST(staging_memory_is_whole)
{
    size_t n = (size_t)cases.shapes[_i].at[BYTES], at = (size_t)cases.shapes[_i].at[AT], wrong = 0;
    const char *what = pairwise_name(dimensions, DIMENSIONS, &cases.shapes[_i]);
    exf_err err;
    device d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    unsigned char *out, *back;
    ck_ok(d.b->gpu->alloc_staging((void *)&out, n, "test", &err), err);
    ck_ok(d.b->gpu->alloc_staging((void *)&back, n, "test", &err), err);
    while (wrong < n && !out[wrong] && !back[wrong]) wrong++;
    ck_assert_msg(wrong == n, "%s: byte %zu is not 0", what, wrong);
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)exf_rng_u64(1, 7, i), back[i] = 0xa5;
    void *there = device_put(&d, NULL, n);
    d.b->copy(d.q, there, out + at, n - at);
    d.b->copy(d.q, back + at, there, n - at);
    ck_ok(d.b->finish(d.q, &err), err);
    for (wrong = 0; wrong < n && back[wrong] == (wrong < at ? 0xa5 : out[wrong]);) wrong++;
    ck_assert_msg(wrong == n, "%s: byte %zu", what, wrong);
    d.b->free(there);
    d.b->gpu->free_staging(out);
    d.b->gpu->free_staging(back);
    device_close(&d);
}
END_TEST

START_TEST(allocations_are_zeros_or_refused)
{
    static const size_t sizes[] = {0, 1, 255, 256, 257, (2 << 20) - 1, 2 << 20, (2 << 20) + 1};
    exf_err err;
    device d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    void *p, *old = device_put(&d, NULL, 2 << 20);
    d.b->free(old);
    for (int k = 0; k < COUNT(sizes); k++) {
        ck_ok(d.b->alloc(&p, sizes[k], 1, "test", &err), err);
        unsigned char *got = device_get(&d, p, sizes[k]);
        for (size_t i = 0; i < sizes[k]; i++)
            if (got[i]) ck_abort_msg("byte %zu of %zu is not 0", i, sizes[k]);
        exf_mem_free(got);
        d.b->free(p);
    }
    ck_assert_int_eq(d.b->alloc(&p, SIZE_MAX / 2 + 1, 2, "test", &err), EXF_NOSPACE);
    ck_assert_ptr_null(p);
    ck_assert_int_eq(d.b->alloc(&p, (size_t)1 << 50, 1, "test", &err), EXF_NOSPACE);
    ck_assert_ptr_null(p);
    ck_ok(d.b->alloc(&p, 1, 1, "test", &err), err);
    d.b->free(p);
    device_close(&d);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "staging", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, NULL);
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_queue_follows_another);
    tcase_add_test(t, memory_is_counted);
    tcase_add_loop_test(t, staging_memory_is_whole, 0, cases.n_shapes);
    tcase_add_test(t, allocations_are_zeros_or_refused);
}
