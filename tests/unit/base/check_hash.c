/* check_hash.c - src/base/hash: SHA-256 by a thread of its own; XXH3 as everyone computes it, whole and in pieces; digest lists. */
#include "tests/support/fixtures.h"

#include "base/hash.h"
#include "base/mem.h"

#define A64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* ---- SHA-256 ----------------------------------------------------------------------------- */

/* Adds what is more than a thread of its own begins with, in pieces smaller and larger than its buffers. */
START_TEST(a_thread_of_its_own_finds_the_same_hash)
{
    enum { N = 21 << 20 };
    char whole[EXF_SHA256_HEX], beside[EXF_SHA256_HEX], *bytes;
    const size_t step[] = {65521, 3 << 20, N};
    exf_err e;
    ck_ok(exf_mem_new(&bytes, N, 1, "test data", &e), e);
    for (size_t i = 0; i < N; i++) bytes[i] = (char)(i * i >> 5);
    ck_ok(exf_hash_bytes(bytes, N, whole, &e), e);
    for (int k = 0; k < 3; k++) {
        exf_hash *h = NULL;
        ck_ok(exf_hash_new(&h, &e), e);
        exf_hash_beside(h);
        for (size_t at = 0; at < N; at += step[k]) ck_ok(exf_hash_add(h, bytes + at, N - at < step[k] ? N - at : step[k], &e), e);
        ck_ok(exf_hash_end(h, beside, &e), e);
        ck_assert_str_eq(whole, beside);
        ck_ok(exf_hash_new(&h, &e), e);
        exf_hash_beside(h);
        ck_ok(exf_hash_add(h, bytes, N - 1, &e), e);
        exf_hash_free(h); /* waits for the thread */
    }
    exf_mem_free(bytes);
}
END_TEST

/* ---- XXH3 -------------------------------------------------------------------------------- */

START_TEST(xxh3_is_that_of_xxhsum)
{
    char hex[EXF_XXH3_HEX];
    exf_xxh3_bytes("", 0, hex);
    ck_assert_str_eq(hex, "99aa06d3014798d86001c324468d497f");
    exf_xxh3_bytes("a", 1, hex);
    ck_assert_str_eq(hex, "a96faf705af16834e6c632b61e964e1f");
}
END_TEST

START_TEST(xxh3_does_not_depend_on_the_pieces)
{
    static unsigned char bytes[70000];
    char whole[EXF_XXH3_HEX], pieces[EXF_XXH3_HEX];
    exf_err e;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * i >> 3);
    exf_xxh3_bytes(bytes, sizeof bytes, whole);
    for (size_t step = 1; step < sizeof bytes; step = 3 * step + 1) {
        exf_xxh3 *h = NULL;
        ck_ok(exf_xxh3_new(&h, &e), e);
        for (size_t at = 0; at < sizeof bytes; at += step)
            exf_xxh3_add(h, bytes + at, sizeof bytes - at < step ? sizeof bytes - at : step);
        exf_xxh3_end(h, pieces);
        ck_assert_str_eq(whole, pieces);
    }
    bytes[sizeof bytes - 1] ^= 1;
    exf_xxh3_bytes(bytes, sizeof bytes, pieces);
    ck_assert_str_ne(whole, pieces);
}
END_TEST

/* ---- digest lists ------------------------------------------------------------------------ */

START_TEST(entries_come_in_order)
{
    const char *text = "embedding:" A64 " 0.experts:" B64;
    exf_digest_entry entry;
    ck_assert_int_eq(exf_digest_list_next(&text, &entry), 1);
    ck_assert_str_eq(entry.name, "embedding");
    ck_assert_str_eq(entry.hex, A64);
    ck_assert_int_eq(exf_digest_list_next(&text, &entry), 1);
    ck_assert_str_eq(entry.name, "0.experts");
    ck_assert_str_eq(entry.hex, B64);
    ck_assert_int_eq(exf_digest_list_next(&text, &entry), 0);
}
END_TEST

START_TEST(entries_are_found_by_their_whole_name)
{
    const char *text = "10.experts:" A64 " 0.experts:" B64;
    char hex[EXF_SHA256_HEX];
    ck_assert_int_eq(exf_digest_list_find(text, "0.experts", hex), 1);
    ck_assert_str_eq(hex, B64);
    ck_assert_int_eq(exf_digest_list_find(text, "0.expert", hex), 0);
    ck_assert_int_eq(exf_digest_list_find("", "0.experts", hex), 0);
}
END_TEST

START_TEST(malformed_lists_are_refused)
{
    static const char *const lists[] = {"x", ":" A64, "x:" A64 "a", "x:abc", "x:" A64 ",y:" A64, "x:" A64 "  y:" A64, " x:" A64,
                                        "a-name-that-is-longer-than-thirty-one:" A64, "x:AAAA" A64};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const char *text = lists[i];
        exf_digest_entry entry;
        int more = 1;
        while (more == 1) more = exf_digest_list_next(&text, &entry);
        ck_assert_msg(more == -1, "accepted: %s", lists[i]);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_thread_of_its_own_finds_the_same_hash);
    tcase_add_test(t, xxh3_is_that_of_xxhsum);
    tcase_add_test(t, xxh3_does_not_depend_on_the_pieces);
    tcase_add_test(t, entries_come_in_order);
    tcase_add_test(t, entries_are_found_by_their_whole_name);
    tcase_add_test(t, malformed_lists_are_refused);
}
