/* check_cuda_shared_sums.c - the sums of several GPUs, added up on one: the bits of the host's additions, sums that leave their
 * range among them, which are refused; and memory of other processes. */
#include "tests/support/one_device_fixtures.h"
#include "tests/support/pairwise.h"
#include "tests/support/peer_sums_fixtures.h"

static exf_err e;

enum { N, ARRAY, DIMENSIONS };
static const dimension dimensions[] = {{"sums", 1, 100000}, {"kind", 0, 1}};

static const boundary boundaries[] = {
    {"statistics/shared_sums_cuda.cu", "THREADS", N, 256},
    {"statistics/shared_sums_cuda.cu", "THREADS", N, 2 * 256},
    {"statistics/shared_sums_cuda.cu", "THREADS", N, 65536}, /* blocks of them */
};

static pairwise cases;

enum { BEYOND = 3 }; /* elements after the last, which stay */

static void add_on_host(char *to, const char *from, size_t n, int exact, uint64_t *wrapped)
{
    for (size_t i = n; i-- > 0;) {
        int wraps = exact ? exf_exact_merge((exf_exact *)(void *)to + i, (const exf_exact *)(const void *)from + i)
                          : __builtin_add_overflow(((int64_t *)(void *)to)[i], ((const int64_t *)(const void *)from)[i],
                                                   (int64_t *)(void *)to + i);
        if (wraps) *wrapped = ~(uint64_t)i;
    }
}

/* Carries, both signs, and at the ends of the range; `most` 1: a part of the sums is there. */
static void fill(uint64_t *x, size_t words, uint64_t seed, int most)
{
    for (size_t i = 0; i < words; i++) {
        uint64_t v = exf_rng_u64(seed, 3, i), how = exf_rng_below(8, seed, 4, i);
        x[i] = how == 0 ? 0 : how == 1 ? UINT64_MAX : how == 2 ? v >> 40 : most ? v : (uint64_t)((int64_t)v >> 2);
    }
}

/* How many sums wrap depends on the values: none, where they are a quarter of the range. */
static void check_sums(size_t n, int exact, int most)
{
    size_t size = exact ? sizeof(exf_exact) : sizeof(int64_t), bytes = (n + BEYOND) * size;
    char *to = test_memory(bytes, 1), *from = test_memory(bytes, 1);
    uint64_t noted = 0, expected = 0;
    fill((uint64_t *)(void *)to, bytes / 8, 81, most);
    fill((uint64_t *)(void *)from, bytes / 8, 82, most);
    void *sum = device_put(&d, to, bytes), *term = device_put(&d, from, bytes);
    uint64_t *wrapped = device_put(&d, &noted, sizeof noted);
    if (exact)
        d.b->gpu->add_exact(d.q, sum, term, n, wrapped);
    else
        d.b->gpu->add_integers(d.q, sum, term, n, wrapped);
    add_on_host(to, from, n, exact, &expected);
    ck_assert_int_eq(expected != 0, most && n > 100);
    char *got = device_get(&d, sum, bytes);
    ck_ok(d.b->download(d.q, &noted, wrapped, sizeof noted, &e), e);
    ck_assert_msg(memcmp(got, to, bytes) == 0, "%zu sums of %zu bytes differ", n, size);
    ck_assert_msg(noted == expected, "%zu sums of %zu bytes: sum %llu is said to have wrapped, expected %llu", n, size,
                  (unsigned long long)~noted, (unsigned long long)~expected);
    d.b->free(sum);
    d.b->free(term);
    d.b->free(wrapped);
    exf_mem_free(got);
    exf_mem_free(to);
    exf_mem_free(from);
}

START_TEST(sums_of_gpus_add_as_on_the_host)
{
    const shape *s = &cases.shapes[_i];
    if (s->at[N] > 100) check_sums((size_t)s->at[N], s->at[ARRAY], 1);
    check_sums((size_t)s->at[N], s->at[ARRAY], 0);
}
END_TEST

/* The smallest of several calls' is noted, and the first sum of all is one. */
START_TEST(the_smallest_that_wraps_is_noted)
{
    enum { SUMS = 3000 };
    static int64_t to[SUMS], from[SUMS];
    uint64_t noted = ~(uint64_t)2000; /* of a call before */
    for (int i = 0; i < SUMS; i++) from[i] = i % 2 ? 1 : -1;
    uint64_t *wrapped = device_put(&d, &noted, sizeof noted);
    static const int at[] = {2500, 1999, 300, 0};
    for (int i = 0; i < COUNT(at); i++) {
        to[at[i]] = at[i] % 2 ? INT64_MAX : INT64_MIN;
        int64_t *sum = device_put(&d, to, sizeof to), *term = device_put(&d, from, sizeof from);
        d.b->gpu->add_integers(d.q, sum, term, SUMS, wrapped);
        ck_ok(d.b->download(d.q, &noted, wrapped, sizeof noted, &e), e);
        ck_assert_uint_eq(~noted, (uint64_t)(at[i] < 2000 ? at[i] : 2000));
        d.b->free(sum);
        d.b->free(term);
    }
    d.b->free(wrapped);
}
END_TEST

START_TEST(a_sum_that_wraps_is_refused)
{
    ck_peers_add(d.b, d.q, _i / 2, _i % 2 ? -1 : 1);
}
END_TEST

START_TEST(the_first_is_named)
{
    ck_the_first_is_named(d.b, d.q);
}
END_TEST

/* A process opens what others share, not its own; what is refused leaves the queue as it was. */
START_TEST(memory_is_opened_by_other_processes)
{
    exf_memory_handle h;
    int64_t *sum = device_put(&d, (int64_t[]){5}, sizeof *sum);
    uint64_t *wrapped = device_put(&d, (uint64_t[]){0}, sizeof *wrapped);
    void *opened;
    ck_ok(d.b->gpu->share_memory(&h, sum, &e), e);
    ck_fails(d.b->gpu->open_memory(&opened, &h, &e), EXF_DEVICE, e, "processes");
    ck_assert_ptr_null(opened);
    d.b->gpu->close_memory(opened);
    d.b->gpu->add_integers(d.q, sum, sum, 1, wrapped);
    ck_ok(d.b->finish(d.q, &e), e);
    int64_t *got = device_get(&d, sum, sizeof *sum);
    ck_assert_int_eq(*got, 10);
    exf_mem_free(got);
    d.b->free(sum);
    d.b->free(wrapped);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "sums of ranks", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, NULL);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, sums_of_gpus_add_as_on_the_host, 0, cases.n_shapes);
    tcase_add_test(t, the_smallest_that_wraps_is_noted);
    tcase_add_loop_test(t, a_sum_that_wraps_is_refused, 0, 2 * EXF_VECTOR_ARRAYS);
    tcase_add_test(t, the_first_is_named);
    tcase_add_test(t, memory_is_opened_by_other_processes);
}
