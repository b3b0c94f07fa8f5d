/* check_cuda_route_counts_shapes.c - experts and slots counted in GPU memory, and small copies (kernels/fold/route_fold.h), at
 * shapes made from their constants. */
#include "tests/support/pairwise.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

static exf_err e;

/* ---- experts of rows and of steps ------------------------------------------------------------------------- */

/* ROWS in steps of WIDEST. */
enum { ROWS, TOP_K, EXPERTS, WIDEST, DIMENSIONS };
static const dimension dimensions[] = {{"rows", 1, 65537}, {"top-k", 1, 16}, {"experts", 1, 8193}, {"widest", 1, 257}};

static const boundary boundaries[] = {
    {"fold/route_fold_cuda.cu", "THREADS", ROWS, 256},
    {"fold/route_fold_cuda.cu", "(unsigned)s->n_steps", ROWS, 65536}, /* more steps than a grid's other axes have */
    {"fold/route_fold_cuda.cu", "(n_experts + 31) / 32", EXPERTS, 32},
    {"fold/route_fold_cuda.cu", "i < words; i += THREADS", EXPERTS, 256 * 32},
    {"fold/route_fold_cuda.cu", "i < slots; i += THREADS", WIDEST, 256 / 16},
    {"fold/route_fold_cuda.cu", "i < slots; i += THREADS", WIDEST, 256},
};

static int is_valid(const shape *s)
{
    return s->at[ROWS] * s->at[TOP_K] <= 1 << 18 && s->at[WIDEST] <= s->at[ROWS];
}

static pairwise cases, slot_cases, copies;

/* Ids in [-1, n_experts), some of them often. */
static int32_t *ids_of(size_t n, int n_experts)
{
    int32_t *ids = test_memory(n, sizeof *ids);
    for (size_t i = 0; i < n; i++) {
        uint64_t u = exf_rng_u64(31, 7, i);
        ids[i] = u % 5 == 0 ? -1 : u % 5 == 1 ? n_experts - 1 : (int32_t)(u / 8 % (uint64_t)n_experts);
    }
    return ids;
}

/* Distinct experts of rows [first, end) of `row`, counted with a mark for each. */
static uint64_t distinct(const int32_t *ids, const size_t *row, size_t first, size_t end, size_t k, unsigned char *seen,
                         int n_experts)
{
    uint64_t n = 0;
    memset(seen, 0, (size_t)n_experts);
    for (size_t i = first * k; i < end * k; i++) {
        int32_t id = ids[row[i / k] * k + i % k];
        if (id < 0) continue;
        n += !seen[id];
        seen[id] = 1;
    }
    return n;
}

static uint64_t fetch_count(const void *count)
{
    uint64_t *got = device_get(&d, count, sizeof *got), n = *got;
    exf_mem_free(got);
    return n;
}

START_TEST(experts_are_counted)
{
    const shape *s = &cases.shapes[_i];
    const char *what = pairwise_name(dimensions, DIMENSIONS, s);
    static const uint64_t before = 1000; /* counts are added to */
    size_t rows = (size_t)s->at[ROWS], k = (size_t)s->at[TOP_K], widest = (size_t)s->at[WIDEST], n = 0;
    size_t *row = test_memory(rows, sizeof *row), *first = test_memory(rows + 1, sizeof *first);
    unsigned char *seen = test_memory((size_t)s->at[EXPERTS], 1);
    int32_t *ids = ids_of(rows * k, s->at[EXPERTS]);
    uint64_t of_rows = before, of_steps = before;
    for (size_t i = 0; i < rows; i++) row[i] = rows - 1 - i;
    for (size_t at = 0; at < rows; at = first[n]) {
        first[n + 1] = rows - at < widest ? rows : at + widest;
        of_steps += distinct(ids, row, at, first[++n], k, seen, s->at[EXPERTS]);
    }
    for (size_t i = 0; i < rows; i++) /* a row's ids against one another: the marks of thousands of experts take longer */
        for (size_t j = 0; j < k; j++) {
            int fresh = ids[i * k + j] >= 0;
            for (size_t other = 0; other < j; other++) fresh &= ids[i * k + other] != ids[i * k + j];
            of_rows += (uint64_t)fresh;
        }
    exf_run_routes r = {.ids = device_put(&d, ids, rows * k * 4), .n_tokens = rows, .top_k = (int)k};
    uint64_t *counts[] = {device_put(&d, &before, sizeof before), device_put(&d, &before, sizeof before)};
    exf_route_steps steps = {n, rows, device_put(&d, first, (n + 1) * sizeof *first), device_put(&d, row, rows * sizeof *row),
                             first, s->at[WIDEST]};
    d.b->gpu->count_row_experts(d.q, counts[0], &r);
    d.b->gpu->count_step_experts(d.q, counts[1], &r, &steps, s->at[EXPERTS]);
    ck_ok(d.b->finish(d.q, &e), e);
    ck_assert_msg(fetch_count(counts[0]) == of_rows, "%s: %llu experts of rows, expected %llu", what,
                  (unsigned long long)fetch_count(counts[0]), (unsigned long long)of_rows);
    ck_assert_msg(fetch_count(counts[1]) == of_steps, "%s: %llu experts of steps, expected %llu", what,
                  (unsigned long long)fetch_count(counts[1]), (unsigned long long)of_steps);
    void *there[] = {r.ids, counts[0], counts[1], (void *)(uintptr_t)steps.first, (void *)(uintptr_t)steps.row};
    void *here[] = {row, first, seen, ids};
    for (int i = 0; i < COUNT(there); i++) d.b->free(there[i]);
    for (int i = 0; i < COUNT(here); i++) exf_mem_free(here[i]);
}
END_TEST

/* ---- slots -------------------------------------------------------------------------------------------------- */

enum { SLOTS, ALL, SLOT_DIMENSIONS };
static const dimension slot_dimensions[] = {{"slots", 1, 1024 * 2048 + 1}, {"all", 0, 1}};

static const boundary slot_boundaries[] = {
    {"fold/route_fold_cuda.cu", "THREADS", SLOTS, 256},
    {"fold/route_fold_cuda.cu", "THREADS * 8", SLOTS, 256 * 8},
    {"fold/route_fold_cuda.cu", "blocks < 1024", SLOTS, 1024 * 256 * 8},
};

START_TEST(slots_are_counted)
{
    const shape *s = &slot_cases.shapes[_i];
    size_t n = (size_t)s->at[SLOTS];
    int32_t *ids = ids_of(n, 7);
    uint64_t want = 0, *count = device_put(&d, &want, sizeof want);
    for (size_t i = 0; i < n; i++) {
        if (s->at[ALL]) ids[i] = 3;
        want += ids[i] >= 0;
    }
    int32_t *there = device_put(&d, ids, n * sizeof *ids);
    d.b->gpu->count_slots(d.q, count, there, n);
    ck_ok(d.b->finish(d.q, &e), e);
    ck_assert_msg(fetch_count(count) == want, "%s: %llu, expected %llu", pairwise_name(slot_dimensions, SLOT_DIMENSIONS, s),
                  (unsigned long long)fetch_count(count), (unsigned long long)want);
    d.b->free(there);
    d.b->free(count);
    exf_mem_free(ids);
}
END_TEST

/* ---- small copies ------------------------------------------------------------------------------------------ */

/* TO, FROM: bytes after a whole line of memory. */
enum { BYTES, TO, FROM, COPY_DIMENSIONS };
static const dimension copy_dimensions[] = {{"bytes", 0, 16 * 64 * 256 + 16}, {"to", 0, 17}, {"from", 0, 17}};

static const boundary copy_boundaries[] = {
    {"fold/route_fold_cuda.cu", "both % 16 == 0", BYTES, 16},
    {"fold/route_fold_cuda.cu", "THREADS", BYTES, 256},
    {"fold/route_fold_cuda.cu", "THREADS", BYTES, 4 * 256},
    {"fold/route_fold_cuda.cu", "THREADS", BYTES, 16 * 256},
    {"fold/route_fold_cuda.cu", "BLOCKS", BYTES, 64 * 256},
    {"fold/route_fold_cuda.cu", "BLOCKS", BYTES, 4 * 64 * 256},
    {"fold/route_fold_cuda.cu", "BLOCKS", BYTES, 16 * 64 * 256},
    {"fold/route_fold_cuda.cu", "carry<uint32_t>", BYTES, 4 * 64 * 256 + 4}, /* of whole units, one more than the blocks have */
    {"fold/route_fold_cuda.cu", "carry<uint4>", BYTES, 16 * 64 * 256 + 16},
    {"fold/route_fold_cuda.cu", "both % 4 == 0", TO, 4},
    {"fold/route_fold_cuda.cu", "both % 16 == 0", TO, 16},
    {"fold/route_fold_cuda.cu", "both % 4 == 0", FROM, 4},
    {"fold/route_fold_cuda.cu", "both % 16 == 0", FROM, 16},
};

START_TEST(copies_arrive_alone)
{
    enum { AROUND = 32 };
    const shape *s = &copies.shapes[_i];
    size_t n = (size_t)s->at[BYTES], all = n + 2 * AROUND, to = (size_t)s->at[TO], wrong = 0;
    unsigned char *here = test_memory(all, 1), *a, *b = device_put(&d, NULL, all);
    for (size_t i = 0; i < all; i++) here[i] = (unsigned char)(i * 7 + i / 251 + 1);
    a = device_put(&d, here, all);
    d.b->gpu->carry(d.q, b + to, a + s->at[FROM], n);
    ck_ok(d.b->finish(d.q, &e), e);
    unsigned char *got = device_get(&d, b, all);
    for (size_t i = 0; i < all; i++) wrong += got[i] != (i >= to && i < to + n ? here[i - to + (size_t)s->at[FROM]] : 0xff);
    ck_assert_msg(wrong == 0, "%s: %zu bytes are wrong", pairwise_name(copy_dimensions, COPY_DIMENSIONS, s), wrong);
    d.b->free(a);
    d.b->free(b);
    exf_mem_free(here);
    exf_mem_free(got);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    pairwise_shapes(&cases, "experts counted", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&slot_cases, "slots counted", slot_boundaries, COUNT(slot_boundaries), slot_dimensions, SLOT_DIMENSIONS, NULL);
    pairwise_shapes(&copies, "small copies", copy_boundaries, COUNT(copy_boundaries), copy_dimensions, COPY_DIMENSIONS, NULL);
    tcase_add_unchecked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, experts_are_counted, 0, cases.n_shapes);
    tcase_add_loop_test(t, slots_are_counted, 0, slot_cases.n_shapes);
    tcase_add_loop_test(t, copies_arrive_alone, 0, copies.n_shapes);
}
