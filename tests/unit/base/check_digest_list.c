/* check_digest_list.c - src/base/digest_list: names with a SHA-256 each, as text. */
#include "tests/support/fixtures.h"

#include "base/hash.h"

#define A64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

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

Suite *exf_suite(void)
{
    Suite *s = suite_create("digest_list");
    TCase *t = tcase_create("all");
    tcase_add_test(t, entries_come_in_order);
    tcase_add_test(t, entries_are_found_by_their_whole_name);
    tcase_add_test(t, malformed_lists_are_refused);
    suite_add_tcase(s, t);
    return s;
}
