/* check_unpack.c - format/unpack: gzip and zstd, whole, in several parts, damaged, cut, and bombs. */
#include "tests/support/scratch_fixtures.h"

#include "base/hash.h"
#include "format/unpack.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { N = 300000, ROOM = 400000 };

static exf_err e;
static char text[N];
static unsigned char packed[2 * ROOM];

static void make_text(void)
{
    for (size_t i = 0; i < N; i++) text[i] = (char)('a' + exf_rng_below(i % 1000 < 500 ? 2 : 20, 7, 0, i));
}

/* Appends the text's bytes [from, to) as a member or frame of its own. */
static size_t pack(exf_packing kind, size_t at, const char *bytes, size_t n)
{
    if (kind == EXF_ZSTD) {
        ZSTD_CCtx *c = ZSTD_createCCtx();
        (void)ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
        at += ZSTD_compress2(c, packed + at, sizeof packed - at, bytes, n);
        ZSTD_freeCCtx(c);
        return at;
    }
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)bytes, .avail_in = (uInt)n, .next_out = packed + at,
                  .avail_out = (uInt)(sizeof packed - at)};
    ck_assert_int_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    at += z.total_out;
    deflateEnd(&z);
    return at;
}

/* Reads all of a file, `step` bytes at a time, into out. */
static exf_code unpack_file(const char *path, size_t step, char *out, size_t room, size_t *n, exf_err *err)
{
    exf_file *f = NULL;
    exf_unpacker *u = NULL;
    exf_code rc;
    *n = 0;
    EXF_TRY(exf_file_open(&f, path, err));
    EXF_TRY(exf_unpack_open(&u, f, err));
    for (size_t got = step; got == step;) {
        EXF_TRY(exf_unpack_read(u, *n + step <= room ? out + *n : out, step, &got, err));
        *n += got;
    }
out:
    exf_unpack_close(u);
    exf_file_close(f);
    return rc;
}

static exf_code read_packed(size_t len, size_t step, char *out, size_t *n, exf_err *err)
{
    exf_write_file(exf_scratch("p"), packed, len);
    return unpack_file(exf_scratch("p"), step, out, N + step, n, err);
}

static const exf_packing kinds[] = {EXF_GZIP, EXF_ZSTD};

START_TEST(what_was_packed_comes_back)
{
    static const size_t steps[] = {1 << 20, 4096, 333, N};
    char *out = malloc(N + (1 << 20));
    size_t n;
    make_text();
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < 4; i++)
            for (size_t parts = 1; parts <= 3; parts++) { /* the last of three is empty */
                size_t len = pack(kinds[k], 0, text, parts > 1 ? N / 3 : N);
                if (parts > 1) len = pack(kinds[k], len, text + N / 3, N - N / 3);
                if (parts > 2) len = pack(kinds[k], len, text, 0);
                ck_ok(read_packed(len, steps[i], out, &n, &e), e);
                ck_assert_uint_eq(n, N);
                ck_assert_mem_eq(out, text, N);
            }
    exf_write_file(exf_scratch("plain"), text, N);
    ck_ok(unpack_file(exf_scratch("plain"), 1000, out, N + 1000, &n, &e), e);
    ck_assert(n == N && memcmp(out, text, N) == 0);
    exf_write_file(exf_scratch("plain"), text, 0);
    ck_ok(unpack_file(exf_scratch("plain"), 1000, out, N + 1000, &n, &e), e);
    ck_assert_uint_eq(n, 0);
    free(out);
}
END_TEST

/* Appends a frame of n bytes that unpackers of zstd pass over, as pzstd writes one before each of its frames. */
static size_t skippable(size_t at, unsigned kind, size_t n)
{
    unsigned char head[8] = {(unsigned char)(0x50 | kind), 0x2a, 0x4d, 0x18, (unsigned char)n, (unsigned char)(n >> 8)};
    memcpy(packed + at, head, sizeof head);
    memset(packed + at + sizeof head, 'x', n);
    return at + sizeof head + n;
}

START_TEST(frames_that_zstd_skips_are_passed_over)
{
    char *out = malloc(N + 4096);
    size_t n;
    make_text();
    size_t len = pack(EXF_ZSTD, skippable(0, 0, 4), text, N / 3);
    len = skippable(pack(EXF_ZSTD, skippable(len, 15, 20000), text + N / 3, N - N / 3), 7, 0);
    for (size_t step = 100; step <= 4096; step += 3996) {
        ck_ok(read_packed(len, step, out, &n, &e), e);
        ck_assert(n == N && memcmp(out, text, N) == 0);
    }
    ck_ok(read_packed(skippable(0, 3, 9), 4096, out, &n, &e), e);
    ck_assert_uint_eq(n, 0);
    ck_fails(read_packed(skippable(0, 3, 9) - 1, 4096, out, &n, &e), EXF_FORMAT, e, "truncated");
    free(out);
}
END_TEST

/* What copies in blocks leaves zeros after a gzip file; gzip -t accepts them, to the end. */
START_TEST(zeros_after_gzip_are_passed_over)
{
    char *out = malloc(N + 4096);
    size_t n;
    make_text();
    for (size_t zeros = 1; zeros <= 100000; zeros = zeros * 10 + 1) {
        size_t len = pack(EXF_GZIP, 0, text, N);
        memset(packed + len, 0, zeros);
        ck_ok(read_packed(len + zeros, 4096, out, &n, &e), e);
        ck_assert(n == N && memcmp(out, text, N) == 0);
        packed[len + zeros] = 'x';
        ck_fails(read_packed(len + zeros + 1, 4096, out, &n, &e), EXF_FORMAT, e, "what follows its gzip");
        ck_fails(read_packed(pack(EXF_GZIP, len + zeros, text, N), 4096, out, &n, &e), EXF_FORMAT, e, "what follows its gzip");
    }
    size_t len = pack(EXF_ZSTD, 0, text, N);
    memset(packed + len, 0, 100);
    ck_fails(read_packed(len + 100, 4096, out, &n, &e), EXF_FORMAT, e, "what follows its zstd"); /* as for zstd -t */
    free(out);
}
END_TEST

START_TEST(damage_is_named)
{
    char *out = malloc(N + 4096);
    size_t n;
    make_text();
    for (int k = 0; k < 2; k++) {
        const char *name = exf_packing_name(kinds[k]);
        size_t len = pack(kinds[k], 0, text, N);
        for (size_t cut = 8; cut < len; cut += len / 23)
            ck_fails(read_packed(cut, 4096, out, &n, &e), EXF_FORMAT, e, "truncated");
        ck_fails(read_packed(len - 1, 4096, out, &n, &e), EXF_FORMAT, e, "truncated");
        memcpy(packed + len, "what is this?", 13);
        ck_fails(read_packed(len + 13, 4096, out, &n, &e), EXF_FORMAT, e, "what follows its");
        packed[len / 2] ^= 4;
        ck_fails(read_packed(len, 4096, out, &n, &e), EXF_FORMAT, e, name); /* in the stream or, at its end, by the checksum */
        packed[len / 2] ^= 4;
    }
    free(out);
}
END_TEST

/* Writes a mebibyte of zeros, n times. */
static void write_bomb(exf_packing kind, size_t n)
{
    static const char zeros[1 << 20];
    size_t len = pack(kind, 0, zeros, sizeof zeros);
    for (size_t i = 1; i < n; i++) memcpy(packed + i * len, packed, len);
    exf_write_file(exf_scratch("bomb"), packed, n * len);
}

START_TEST(a_bomb_is_refused)
{
    char *out = malloc(1 << 20);
    size_t n;
    for (int k = 0; k < 2; k++) {
        write_bomb(kinds[k], (EXF_UNPACK_FREE >> 20) + 1);
        ck_fails(unpack_file(exf_scratch("bomb"), 1 << 20, out, 1 << 20, &n, &e), EXF_MODEL, e, "256 times");
        ck_assert_uint_eq(n, EXF_UNPACK_FREE);
        write_bomb(kinds[k], EXF_UNPACK_FREE >> 20);
        ck_ok(unpack_file(exf_scratch("bomb"), 1 << 20, out, 1 << 20, &n, &e), e);
        ck_assert_uint_eq(n, EXF_UNPACK_FREE);
    }
    free(out);
}
END_TEST

START_TEST(names_and_kinds)
{
    ck_assert_int_eq(exf_packing_of("\x1f\x8b\x08", 3), EXF_GZIP);
    ck_assert_int_eq(exf_packing_of("\x1f\x8b", 2), EXF_PLAIN);
    ck_assert_int_eq(exf_packing_of("\x28\xb5\x2f\xfd", 4), EXF_ZSTD);
    ck_assert_int_eq(exf_packing_of("\x50\x2a\x4d\x18", 4), EXF_ZSTD);
    ck_assert_int_eq(exf_packing_of("\x60\x2a\x4d\x18", 4), EXF_PLAIN);
    ck_assert_int_eq(exf_packing_of("text", 4), EXF_PLAIN);
    ck_assert_uint_eq(exf_unpacked_name("a.jsonl.gz"), 7);
    ck_assert_uint_eq(exf_unpacked_name("a.zst"), 1);
    ck_assert_uint_eq(exf_unpacked_name(".gz"), 3);
    ck_assert_uint_eq(exf_unpacked_name("a.txt"), 5);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, what_was_packed_comes_back);
    tcase_add_test(t, frames_that_zstd_skips_are_passed_over);
    tcase_add_test(t, zeros_after_gzip_are_passed_over);
    tcase_add_test(t, damage_is_named);
    tcase_add_test(t, a_bomb_is_refused);
    tcase_add_test(t, names_and_kinds);
}
