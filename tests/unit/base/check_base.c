/* check_base.c - err, mem, text, dtype, rng, file, hash. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/registry.h"
#include "base/tensor.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

START_TEST(err_keeps_one_line_and_prefixes)
{
    exf_err e;
    ck_assert_int_eq(exf_fail(&e, EXF_FORMAT, "bad \x1b[31m\nname"), EXF_FORMAT);
    ck_assert_str_eq(e.msg, "bad ?[31m?name");
    exf_err_prefix(&e, "%s: ", "file");
    ck_assert_str_eq(e.msg, "file: bad ?[31m?name");
    ck_assert_int_eq(exf_fail_errno(&e, ENOSPC, "x"), EXF_NOSPACE);
    ck_assert_int_eq(exf_fail_errno(&e, EACCES, "x"), EXF_IO);
    ck_assert_int_eq(exf_fail(NULL, EXF_IO, "x"), EXF_IO);
    ck_assert_str_eq(exf_code_name(EXF_THRESHOLD), "THRESHOLD");
}
END_TEST

START_TEST(mem_is_zeroed_aligned_and_can_fail)
{
    exf_err e;
    unsigned char *p = NULL;
    ck_ok(exf_mem_new(&p, 100, 3, "test", &e), e);
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    for (int i = 0; i < 300; i++) ck_assert_uint_eq(p[i], 0);
    exf_mem_free(p);
    ck_ok(exf_mem_raw(&p, 100, 3, "test", &e), e);
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    exf_mem_free(p);
    ck_fails(exf_mem_new(&p, (size_t)-1, 2, "huge thing", &e), EXF_NOSPACE, e, "18446744073709551615 2");
    ck_fails(exf_mem_raw(&p, (size_t)-1, 2, "huge room", &e), EXF_NOSPACE, e, "18446744073709551615 2");
    ck_assert_ptr_null(p);
    exf_mem_fail_at(2);
    ck_ok(exf_mem_new(&p, 1, 1, "first", &e), e);
    exf_mem_free(p);
    ck_fails(exf_mem_new(&p, 1, 1, "second", &e), EXF_NOSPACE, e, "0.0 MiB");
    ck_assert_ptr_null(p);
    exf_mem_fail_at(0);
}
END_TEST

START_TEST(mem_grow_keeps_contents)
{
    exf_err e;
    int *v = NULL;
    size_t cap = 0;
    for (int i = 0; i < 1000; i++) {
        ck_ok(exf_mem_grow(&v, &cap, (size_t)i + 1, sizeof *v, "test", &e), e);
        v[i] = i;
    }
    for (int i = 0; i < 1000; i++) ck_assert_int_eq(v[i], i);
    exf_mem_free(v);
}
END_TEST

START_TEST(numbers_are_parsed_strictly)
{
    int64_t i;
    double d;
    uint64_t b;
    ck_assert(exf_parse_i64("-12", &i) && i == -12);
    ck_assert(!exf_parse_i64("", &i) && !exf_parse_i64("1x", &i) && !exf_parse_i64(" 1", &i) &&
              !exf_parse_i64("99999999999999999999", &i));
    ck_assert(exf_parse_f64("1.0e-3", &d) && d == 1e-3);
    ck_assert(!exf_parse_f64("nan", &d) && !exf_parse_f64("inf", &d) && !exf_parse_f64("0x10", &d) && !exf_parse_f64("1e999", &d));
    ck_assert(exf_parse_bytes("8GiB", &b) && b == 8589934592u);
    ck_assert(exf_parse_bytes("1.5kB", &b) && b == 1500);
    ck_assert(!exf_parse_bytes("8 GiB", &b) && !exf_parse_bytes("GiB", &b) && !exf_parse_bytes("8Gib", &b));
}
END_TEST

START_TEST(nearest_is_near_or_nothing)
{
    static const char *const words[] = {"ridge", "clip", "weighting", NULL};
    ck_assert_str_eq(exf_nearest("rigde", words), "ridge");
    ck_assert_str_eq(exf_nearest("weigthing", words), "weighting");
    ck_assert_ptr_null(exf_nearest("temperature", words));
}
END_TEST

START_TEST(utf8_validity)
{
    ck_assert_uint_eq(exf_utf8_valid("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10), 10);
    ck_assert_uint_eq(exf_utf8_valid("ab\xc0\x80", 4), 2);         /* overlong */
    ck_assert_uint_eq(exf_utf8_valid("\xed\xa0\x80", 3), 0);       /* surrogate */
    ck_assert_uint_eq(exf_utf8_valid("\xf4\x90\x80\x80", 4), 0);   /* beyond U+10FFFF */
    ck_assert_uint_eq(exf_utf8_valid("x\xe2\x82", 3), 1);          /* cut */
}
END_TEST

START_TEST(number_formats)
{
    ck_assert_float_eq(exf_bf16_to_f32(0x3f80), 1.0f);
    ck_assert_float_eq(exf_f16_to_f32(0x3c00), 1.0f);
    ck_assert_float_eq(exf_f16_to_f32(0x0001), ldexpf(1, -24));
    ck_assert_float_eq(exf_f16_to_f32(0xc000), -2.0f);
    ck_assert_float_eq(exf_e4m3_to_f32(0x7e), 448.0f);
    ck_assert_float_eq(exf_e4m3_to_f32(0x01), ldexpf(1, -9));
    ck_assert(isnan(exf_e4m3_to_f32(0xff)));
    ck_assert_float_eq(exf_e8m0_to_f32(0), ldexpf(1, -127));
    ck_assert_float_eq(exf_e8m0_to_f32(127), 1.0f);
    ck_assert(isnan(exf_e8m0_to_f32(255)));
}
END_TEST

START_TEST(choosing_is_seeded_ascending_and_fair)
{
    size_t a[5], b[5], hits[20] = {0};
    exf_rng_choose(a, 5, 20, 42, 0);
    exf_rng_choose(b, 5, 20, 42, 0);
    ck_assert_mem_eq(a, b, sizeof a);
    for (int i = 1; i < 5; i++) ck_assert_uint_lt(a[i - 1], a[i]);
    for (uint64_t seed = 0; seed < 4000; seed++) {
        exf_rng_choose(a, 5, 20, seed, 1);
        for (int i = 0; i < 5; i++) hits[a[i]]++;
    }
    for (int i = 0; i < 20; i++) ck_assert(hits[i] > 850 && hits[i] < 1150); /* 1000 +- 5 sigma */
    exf_rng_choose(a, 5, 5, 7, 7);
    for (size_t i = 0; i < 5; i++) ck_assert_uint_eq(a[i], i);
}
END_TEST

START_TEST(output_appears_whole_or_not_at_all)
{
    exf_err e;
    exf_output_file *f;
    const char *path = exf_scratch("out");
    ck_ok(exf_output_file_begin(&f, path, 0, &e), e);
    ck_ok(exf_output_file_write(f, "hello", 5, &e), e);
    ck_assert(!exf_path_exists(path));
    exf_output_file_abort(f);
    ck_assert(!exf_path_exists(path));
    ck_ok(exf_output_file_begin(&f, path, 0, &e), e);
    ck_ok(exf_output_file_write(f, "hello", 5, &e), e);
    ck_ok(exf_output_file_patch(f, 0, "J", 1, &e), e);
    ck_ok(exf_output_file_commit(f, &e), e);
    ck_fails(exf_output_file_begin(&f, path, 0, &e), EXF_IO, e, "--force");
    char *bytes;
    size_t len;
    ck_ok(exf_file_slurp(path, 100, &bytes, &len, &e), e);
    ck_assert_str_eq(bytes, "Jello");
    exf_mem_free(bytes);
    ck_fails(exf_file_slurp(path, 4, &bytes, &len, &e), EXF_FORMAT, e, "4");
    ck_fails(exf_output_file_begin(&f, "/nowhere/at/all", 0, &e), EXF_IO, e, "/nowhere/at/all");
}
END_TEST

START_TEST(reading_past_the_end_is_truncation)
{
    exf_err e;
    exf_file *f;
    char buf[10];
    const char *path = exf_scratch("short");
    exf_write_file(path, "abc", 3);
    ck_ok(exf_file_open(&f, path, &e), e);
    ck_fails(exf_file_read(f, 1, buf, 10, &e), EXF_FORMAT, e, "3 8");
    exf_file_close(f);
    ck_fails(exf_file_open(&f, "/tmp", &e), EXF_IO, e, "");
}
END_TEST

START_TEST(sha256_known_answer)
{
    exf_err e;
    char hex[EXF_SHA256_HEX];
    ck_ok(exf_hash_bytes("abc", 3, hex, &e), e);
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *path = exf_scratch("abc");
    exf_write_file(path, "abc", 3);
    ck_ok(exf_hash_file(path, hex, &e), e);
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
END_TEST

START_TEST(what_cannot_be_looked_up_is_not_absent)
{
    exf_err e;
    int is;
    exf_path_kind kind;
    static const struct { const char *name; exf_path_kind kind; } there[] = {
        {"look-file", EXF_PATH_FILE}, {"look-loop", EXF_PATH_OTHER}, {".", EXF_PATH_DIRECTORY},
        {"look-none", EXF_PATH_NOTHING}, {"look-file/x", EXF_PATH_NOTHING}};
    exf_write_file(exf_scratch("look-file"), "x", 1);
    ck_assert_int_eq(symlink("look-loop", exf_scratch("look-loop")), 0);
    for (int i = 0; i < COUNT(there); i++) {
        ck_ok(exf_path_look_at(exf_scratch(there[i].name), &kind, &e), e);
        ck_assert_int_eq(kind, there[i].kind);
        ck_ok(exf_path_look(exf_scratch(there[i].name), &is, &e), e);
        ck_assert_int_eq(is, there[i].kind != EXF_PATH_NOTHING);
    }
    ck_fails(exf_path_look(exf_scratch("look-loop/x"), &is, &e), EXF_IO, e, "look-loop/x Too");
    ck_fails(exf_path_is_directory(exf_scratch("look-loop"), &is, &e), EXF_IO, e, "look-loop Too");
    ck_fails(exf_output_check(exf_scratch("look-loop/x"), 1, &e), EXF_IO, e, "look-loop/x Too");
    unlink(exf_scratch("look-loop"));
    unlink(exf_scratch("look-file"));
}
END_TEST

START_TEST(directories_that_were_made_are_counted)
{
    exf_err e;
    size_t n = 9;
    char deep[400];
    ck_ok(exf_make_new_dirs(exf_scratch("made"), &n, &e), e);
    ck_assert_uint_eq(n, 1);
    ck_ok(exf_make_new_dirs(exf_scratch("made/a//b/c/"), &n, &e), e);
    ck_assert_uint_eq(n, 3);
    ck_ok(exf_make_new_dirs(exf_scratch("made/a/b/c"), &n, &e), e);
    ck_assert_uint_eq(n, 0);
    /* what a failure made is unmade, and nothing else */
    snprintf(deep, sizeof deep, "made/d/e/%0300d", 1);
    ck_fails(exf_make_new_dirs(exf_scratch(deep), &n, &e), EXF_IO, e, "File");
    ck_assert_uint_eq(n, 0);
    ck_assert(!exf_path_exists(exf_scratch("made/d")) && exf_path_exists(exf_scratch("made/a/b/c")));
    for (const char *const *d = (const char *const[]){"made/a/b/c", "made/a/b", "made/a", "made", NULL}; *d; d++)
        ck_assert_int_eq(rmdir(exf_scratch(*d)), 0);
}
END_TEST

/* --force replaces files, and neither links nor devices. */
START_TEST(force_replaces_nothing_but_files)
{
    exf_err e;
    exf_write_file(exf_scratch("weights"), "w", 1);
    ck_assert_int_eq(symlink("weights", exf_scratch("link")), 0);
    ck_assert_int_eq(mkfifo(exf_scratch("fifo"), 0600), 0);
    for (const char *const *name = (const char *const[]){"link", "fifo", NULL}; *name; name++) {
        exf_output_file *f;
        ck_fails(exf_output_file_begin(&f, exf_scratch(*name), 1, &e), EXF_IO, e, *name);
        ck_assert(exf_path_exists(exf_scratch(*name)));
    }
    ck_ok(exf_output_check(exf_scratch("weights"), 1, &e), e);
    unlink(exf_scratch("link"));
    unlink(exf_scratch("fifo"));
    unlink(exf_scratch("weights"));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, err_keeps_one_line_and_prefixes);
    tcase_add_test(t, mem_is_zeroed_aligned_and_can_fail);
    tcase_add_test(t, mem_grow_keeps_contents);
    tcase_add_test(t, numbers_are_parsed_strictly);
    tcase_add_test(t, nearest_is_near_or_nothing);
    tcase_add_test(t, utf8_validity);
    tcase_add_test(t, number_formats);
    tcase_add_test(t, choosing_is_seeded_ascending_and_fair);
    tcase_add_test(t, output_appears_whole_or_not_at_all);
    tcase_add_test(t, reading_past_the_end_is_truncation);
    tcase_add_test(t, sha256_known_answer);
    tcase_add_test(t, what_cannot_be_looked_up_is_not_absent);
    tcase_add_test(t, directories_that_were_made_are_counted);
    tcase_add_test(t, force_replaces_nothing_but_files);
}
