/* check_file_read.c - the two ways to read a file: the same bytes from any place, the
 * same refusals; and what only one of them can refuse. */
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "tests/support/fixtures.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { A = EXF_FILE_ALIGN, SIZE = 5 * A + 123, N_WAYS = 2 };
static const exf_io ways[N_WAYS] = {EXF_IO_PREAD, EXF_IO_DIRECT};
static const char *const names[N_WAYS] = {"pread", "direct"};
static unsigned char bytes[SIZE];
static exf_err e;

/* The file, to be read in way i; NULL, said, where the scratch directory cannot. */
static exf_file *opened(int i, const char *path, size_t n)
{
    exf_file *f;
    for (size_t k = 0; k < n; k++) bytes[k] = (unsigned char)exf_rng_u64(3, 1, k);
    exf_write_file(path, bytes, n);
    ck_ok(exf_file_open(&f, path, &e), e);
    exf_code rc = exf_file_use(f, ways[i], &e);
    if (rc == EXF_OK) return f;
    ck_assert_msg(ways[i] == EXF_IO_DIRECT && strstr(e.msg, "choose pread"), "%s: %s", names[i], e.msg);
    printf("skipped: %s\n", e.msg);
    exf_file_close(f);
    return NULL;
}

/* Places around the borders of blocks, the first and the last bytes, nothing at all. */
static const struct {
    uint64_t offset;
    size_t n;
} parts[] = {
    {0, 1},         {0, A},         {0, SIZE},      {1, 1},         {A - 1, 1},        {A - 1, 2},    {A, 1},     {A, A},
    {A + 7, 3 * A},
    {SIZE - 1, 1},  {SIZE - 123, 123}, {SIZE - 124, 124}, {SIZE - 2 * A, 2 * A}, {3, SIZE - 3}, {5 * A, 123}, {SIZE, 0}, {0, 0},
    {2 * A + 511, 513},
};

START_TEST(the_same_bytes_from_any_place)
{
    exf_file *f = opened(_i, exf_scratch("bytes"), SIZE);
    if (!f) return;
    unsigned char *buf = test_memory(SIZE + 2, 1), *raw = test_memory(exf_file_aligned_size(SIZE) + 2 * A, 1);
    unsigned char *buffer = raw + (A - (uintptr_t)raw % A) % A;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const void *at;
        memset(buf, 0xee, SIZE + 2);
        ck_ok(exf_file_read(f, parts[i].offset, buf + 1, parts[i].n, &e), e);
        ck_assert_msg(memcmp(buf + 1, bytes + parts[i].offset, parts[i].n) == 0, "%s, part %zu: other bytes", names[_i], i);
        ck_assert_msg(buf[0] == 0xee && buf[parts[i].n + 1] == 0xee, "%s, part %zu: wrote beside its memory", names[_i], i);
        for (int shift = 0; shift < 2; shift++) { /* aligned room, and room that is not */
            memset(raw, 0xee, exf_file_aligned_size(SIZE) + 2 * A);
            ck_ok(exf_file_read_aligned(f, parts[i].offset, buffer + shift, parts[i].n, &at, &e), e);
            const unsigned char *p = at;
            ck_assert(p >= buffer + shift && p + parts[i].n <= buffer + shift + exf_file_aligned_size(parts[i].n));
            ck_assert_msg(memcmp(p, bytes + parts[i].offset, parts[i].n) == 0, "%s, part %zu, room + %d: other bytes", names[_i], i,
                          shift);
            ck_assert_msg(buffer[(size_t)shift + exf_file_aligned_size(parts[i].n)] == 0xee, "%s, part %zu: wrote after its room",
                          names[_i], i);
        }
    }
    exf_mem_free(buf);
    exf_mem_free(raw);
    exf_file_close(f);
}
END_TEST

/* Larger than the pieces that direct reading goes by. */
START_TEST(long_reads)
{
    enum { LONG = (2 << 20) + 77 };
    exf_file *f;
    unsigned char *want = test_memory(LONG, 1), *got = test_memory(LONG, 1);
    for (size_t k = 0; k < LONG; k++) want[k] = (unsigned char)exf_rng_u64(4, 1, k);
    exf_write_file(exf_scratch("long"), want, LONG);
    ck_ok(exf_file_open(&f, exf_scratch("long"), &e), e);
    if (exf_file_use(f, ways[_i], &e) == EXF_OK) {
        ck_ok(exf_file_read(f, 13, got, LONG - 13, &e), e);
        ck_assert(memcmp(got, want + 13, LONG - 13) == 0);
    }
    exf_file_close(f);
    exf_mem_free(want);
    exf_mem_free(got);
}
END_TEST

START_TEST(beyond_the_end_and_shrunk)
{
    const char *path = exf_scratch("shrinks");
    exf_file *f = opened(_i, path, SIZE);
    if (!f) return;
    unsigned char *raw = test_memory(exf_file_aligned_size(SIZE) + A, 1), *buffer = raw + (A - (uintptr_t)raw % A) % A;
    const void *at;
    ck_fails(exf_file_read(f, SIZE - 10, buffer, 11, &e), EXF_FORMAT, e, "20603 1");
    ck_fails(exf_file_read_aligned(f, SIZE - 10, buffer, 11, &at, &e), EXF_FORMAT, e,
             "20603 1");
    ck_fails(exf_file_read(f, SIZE + 3 * A, buffer, 1, &e), EXF_FORMAT, e, "");
    for (int k = 0; k < 3; k++) { /* cut inside a block, at a block's border, to nothing */
        static const int left[3] = {3 * A + 5, 2 * A, 0};
        ck_assert_int_eq(truncate(path, left[k]), 0);
        ck_fails(exf_file_read(f, A, buffer, 3 * A, &e), EXF_FORMAT, e, "");
        ck_fails(exf_file_read_aligned(f, 3 * A + 4, buffer, 2, &at, &e), EXF_FORMAT, e, "");
        if (left[k] == 0) break;
        ck_ok(exf_file_read(f, (uint64_t)left[k] - 1, buffer, 1, &e), e);
        ck_assert_uint_eq(buffer[0], bytes[left[k] - 1]);
    }
    exf_mem_free(raw);
    exf_file_close(f);
}
END_TEST

START_TEST(empty_and_tiny_files)
{
    unsigned char c;
    exf_file *f = opened(_i, exf_scratch("empty"), 0);
    if (!f) return;
    ck_ok(exf_file_read(f, 0, &c, 0, &e), e);
    ck_fails(exf_file_read(f, 0, &c, 1, &e), EXF_FORMAT, e, "0 1");
    exf_file_close(f);
    f = opened(_i, exf_scratch("one"), 1);
    ck_ok(exf_file_read(f, 0, &c, 1, &e), e);
    ck_assert_uint_eq(c, bytes[0]);
    exf_file_close(f);
}
END_TEST

START_TEST(refusals_of_a_way)
{
    exf_file *f;
    ck_ok(exf_file_open(&f, "/proc/version", &e), e); /* a regular file that can be read in one way only */
    ck_fails(exf_file_use(f, EXF_IO_DIRECT, &e), EXF_IO, e,
             "/proc/version O_DIRECT");
    exf_file_close(f);
    f = opened(1, exf_scratch("twice"), 1);
    if (!f) return;
    ck_ok(exf_file_use(f, EXF_IO_DIRECT, &e), e);
    ck_fails(exf_file_use(f, EXF_IO_PREAD, &e), EXF_INTERNAL, e, "");
    exf_file_close(f);
}
END_TEST

START_TEST(no_memory_for_aligned_blocks)
{
    unsigned char c[3];
    exf_file *f = opened(1, exf_scratch("bytes"), SIZE);
    if (!f) return;
    exf_mem_fail_at(1);
    exf_code rc = exf_file_read(f, 5, c, 3, &e);
    exf_mem_fail_at(0);
    ck_assert_int_eq(rc, EXF_NOSPACE);
    ck_ok(exf_file_read(f, 5, c, 3, &e), e);
    ck_assert(memcmp(c, bytes + 5, 3) == 0);
    exf_file_close(f);
}
END_TEST

/* Tensors that lie askew to every block: one element, the file's last bytes. */
START_TEST(tensors_askew)
{
    static uint16_t wide[3000];
    static const unsigned char one = 7, last[3] = {1, 2, 3};
    exf_tensor t[] = {{.name = "a", .dtype = EXF_DT_BF16, .rank = 2, .shape = {3, 1000}, .data = wide},
                      {.name = "b", .dtype = EXF_DT_U8, .rank = 0, .data = &one},
                      {.name = "c", .dtype = EXF_DT_U8, .rank = 1, .shape = {3}, .data = last}};
    exf_st_file *f;
    uint16_t got[1000];
    unsigned char c[3];
    for (int i = 0; i < 3000; i++) wide[i] = (uint16_t)(i * 17);
    ck_ok(exf_st_write(exf_scratch("askew.safetensors"), 1, t, 3, NULL, 0, NULL, &e), e);
    ck_ok(exf_st_open(&f, exf_scratch("askew.safetensors"), &e), e);
    if (exf_file_use(f->file, ways[_i], &e) == EXF_OK) {
        ck_ok(exf_st_read(f, exf_st_find(f, "a"), 2000, got, 2000, &e), e);
        ck_assert(memcmp(got, wide + 1000, 2000) == 0);
        ck_ok(exf_st_read(f, exf_st_find(f, "b"), 0, c, 1, &e), e);
        ck_assert_uint_eq(c[0], 7);
        ck_ok(exf_st_read(f, exf_st_find(f, "c"), 0, c, 3, &e), e);
        ck_assert(memcmp(c, last, 3) == 0);
        const void *at;
        ck_fails(exf_st_read_aligned(f, exf_st_find(f, "c"), 1, got, 3, &at, &e), EXF_INTERNAL, e,
                 "\"c\" 3 1 3");
    }
    exf_st_close(f);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, the_same_bytes_from_any_place, 0, N_WAYS);
    tcase_add_loop_test(t, long_reads, 0, N_WAYS);
    tcase_add_loop_test(t, beyond_the_end_and_shrunk, 0, N_WAYS);
    tcase_add_loop_test(t, empty_and_tiny_files, 0, N_WAYS);
    tcase_add_test(t, refusals_of_a_way);
    tcase_add_test(t, no_memory_for_aligned_blocks);
    tcase_add_loop_test(t, tensors_askew, 0, N_WAYS);
}
