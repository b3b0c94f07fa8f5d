/* check_tokenizer.c - tokenizer.json to ids: against what the tokenizers library
 * made of the same texts.  Refusals: check_tokenizer_refusals.c. */
#include "tests/support/tokenizer_fixtures.h"
#include "tests/support/tokenizer_ids.h"

#include "base/err.h"
#include "format/json.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the released shapes -------------------------------------------- */

static const char *const shape[] = {"qwen3", "qwen3_5", "glm4", "deepseek_v2", "deepseek_v3_v4"};
enum { SHAPES = sizeof shape / sizeof shape[0], GOLDEN_TEXTS = 229 };

static void open_golden(int i, exf_tokenizer **t, exf_json **texts)
{
    exf_err e;
    char path[128];
    snprintf(path, sizeof path, "tests/golden/tokenizers/%s/tokenizer.json", shape[i]);
    ck_ok(exf_tokenizer_load(t, path, EXF_BOS_AUTO, &e), e);
    snprintf(path, sizeof path, "tests/golden/tokenizers/%s/golden.json", shape[i]);
    ck_ok(exf_json_load(texts, path, 1 << 20, &e), e);
    ck_assert_uint_eq(exf_json_size(*texts), GOLDEN_TEXTS);
}

/* 1 if the text encodes to the ids that are written beside it. */
static int agrees(const exf_tokenizer *t, const exf_json *golden, exf_ids *ids)
{
    exf_err e;
    size_t len;
    const char *text = exf_json_string(exf_json_get(golden, "text"), &len);
    ids->n = 0;
    return exf_tokenizer_encode(t, text, len, ids, &e) == EXF_OK && ids_are(ids, exf_json_get(golden, "ids"), 0);
}

START_TEST(golden_texts)
{
    exf_tokenizer *t;
    exf_json *texts;
    exf_ids ids = {0};
    open_golden(_i, &t, &texts);
    for (size_t i = 0; i < GOLDEN_TEXTS; i++)
        ck_assert_msg(agrees(t, exf_json_at(texts, i), &ids), "%s: golden text %zu differs", shape[_i], i);
    ck_assert_int_eq(exf_tokenizer_facts_of(t)->size, 1504);
    exf_ids_free(&ids);
    exf_json_free(texts);
    exf_tokenizer_free(t);
}
END_TEST

typedef struct { const exf_tokenizer *t; const exf_json *texts; int agreed; } job;

static void *encode_all(void *arg)
{
    job *j = arg;
    exf_ids ids = {0};
    for (size_t i = 0; i < GOLDEN_TEXTS; i++) j->agreed += agrees(j->t, exf_json_at(j->texts, i), &ids);
    exf_ids_free(&ids);
    return NULL;
}

START_TEST(one_tokenizer_serves_many_threads)
{
    exf_tokenizer *t;
    exf_json *texts;
    pthread_t thread[4];
    job jobs[4];
    open_golden(3, &t, &texts);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){t, texts, 0};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, encode_all, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(jobs[i].agreed, GOLDEN_TEXTS);
    exf_json_free(texts);
    exf_tokenizer_free(t);
}
END_TEST

/* Longer runs than any piece of prose; quadratic work would take hours. */
START_TEST(a_megabyte_of_one_character)
{
    static const char *const unit[] = {"a", " ", "\n", "1", "!", "\xe4\xb8\x80", "\xcc\xa3\xcc\x80"};
    enum { LEN = 1 << 20 };
    exf_err e;
    exf_tokenizer *t;
    exf_json *texts;
    exf_ids ids = {0};
    char *text = malloc(LEN);
    ck_assert_ptr_nonnull(text);
    open_golden(_i, &t, &texts);
    for (size_t u = 0; u < sizeof unit / sizeof unit[0]; u++) {
        size_t n = strlen(unit[u]), len = LEN / n * n;
        for (size_t i = 0; i < len; i++) text[i] = unit[u][i % n];
        ids.n = 0;
        ck_ok(exf_tokenizer_encode(t, text, len, &ids, &e), e);
        ck_assert_uint_gt(ids.n, 1000);
    }
    free(text);
    exf_ids_free(&ids);
    exf_json_free(texts);
    exf_tokenizer_free(t);
}
END_TEST

START_TEST(demo_tokenizer)
{
    static const int32_t want[] = {311, 532, 262, 10, 1091, 88, 394, 261, 391, 223, 18, 223, 374, 280, 67, 72, 130, 105, 0};
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    char hex[EXF_SHA256_HEX];
    const char *path = "examples/demo-model/tokenizer.json", *text = "def main(argv):\n    return 0  # caf\xc3\xa9<|endoftext|>";
    ck_ok(exf_tokenizer_load(&t, path, EXF_BOS_AUTO, &e), e);
    ck_ok(exf_tokenizer_encode(t, text, strlen(text), &ids, &e), e);
    ck_assert_uint_eq(ids.n, sizeof want / sizeof want[0]);
    ck_assert_mem_eq(ids.id, want, sizeof want);
    ck_assert_int_eq(exf_tokenizer_facts_of(t)->size, 2048);
    ck_ok(exf_hash_file(path, hex, &e), e);
    ck_assert_str_eq(exf_tokenizer_facts_of(t)->sha256, hex);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

/* ---- a tiny tokenizer: the id of a byte is the byte ----------------- */

static void expect_bytes(parts p, const char *text, size_t len, const char *want)
{
    expect_ids(make(p), text, len, want);
}

static void expect(parts p, const char *text, const char *want)
{
    expect_bytes(p, text, strlen(text), want);
}

START_TEST(bytes_nul_and_nothing)
{
    expect((parts){0}, "", "");
    expect_bytes((parts){0}, "a\0b\xc3\xa9", 5, "97 0 98 195 169");
    expect_bytes((parts){.pre = REGEX("b"), .vocab = "\"a\xc4\x80\":256", .merges = "[\"a\",\"\xc4\x80\"]"}, "a\0b\0", 4,
                 "256 98 0");
}
END_TEST

/* Many short pre-tokens, and a single one of which half a million merges are made. */
START_TEST(tokenizing_stops)
{
    enum { STOPPED_TEXT = 1 << 18 };
    exf_err e;
    parts p = {.pre = _i ? REGEX("a") : NULL, .vocab = "\"aa\":256", .merges = "[\"a\",\"a\"]"};
    exf_tokenizer *t;
    exf_ids ids = {0};
    char *text = malloc(STOPPED_TEXT);
    ck_assert_ptr_nonnull(text);
    memset(text, 'a', STOPPED_TEXT);
    ck_ok(exf_tokenizer_load(&t, make(p), EXF_BOS_AUTO, &e), e);
    exf_stop_request(SIGINT);
    ck_fails(exf_tokenizer_encode(t, text, STOPPED_TEXT, &ids, &e), EXF_SIGINT, e, "2");
    ck_assert_uint_eq(ids.n, 0);
    exf_stop_request(0);
    ck_ok(exf_tokenizer_encode(t, text, STOPPED_TEXT, &ids, &e), e);
    ck_assert_uint_eq(ids.n, _i ? STOPPED_TEXT : STOPPED_TEXT / 2);
    free(text);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

START_TEST(text_must_be_utf8)
{
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    ck_ok(exf_tokenizer_load(&t, make((parts){0}), EXF_BOS_AUTO, &e), e);
    ck_ok(exf_tokenizer_encode(t, "ab", 2, &ids, &e), e);
    ck_fails(exf_tokenizer_encode(t, "abc\xff", 4, &ids, &e), EXF_FORMAT, e, "3 0xff");
    ck_fails(exf_tokenizer_encode(t, "\xed\xa0\x80", 3, &ids, &e), EXF_FORMAT, e, "0 0xed");
    ck_ok(exf_tokenizer_encode(t, "c", 1, &ids, &e), e);
    ck_assert_uint_eq(ids.n, 3); /* appended; nothing from the failures */
    ck_assert_int_eq(ids.id[2], 'c');
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

START_TEST(merges_by_rank_then_from_the_left)
{
    parts p = {.vocab = "\"aa\":256,\"aaa\":257,\"bc\":258,\"ab\":259,\"abc\":260",
               .merges = "[\"b\",\"c\"],[\"a\",\"b\"],[\"a\",\"a\"],[\"aa\",\"a\"],[\"ab\",\"c\"]"};
    expect(p, "abc", "97 258");
    expect(p, "abab", "259 259");
    expect(p, "aaa", "257");
    expect(p, "aaaaa", "256 257"); /* pairs first, then the one that is left of "a" */
    p.merges = "\"#version: 0.2\",\"b c\",\"a b\",\"a a\",\"aa a\",\"ab c\"";
    expect(p, "abcaaaaa", "97 258 256 257");
    p.merges = "\"b c\",\"a b\",\"b c\""; /* the second mention counts */
    expect(p, "abc", "259 99");
}
END_TEST

START_TEST(ignore_merges_takes_whole_pieces)
{
    parts p = {.options = "\"type\":\"BPE\",\"continuing_subword_prefix\":\"\",\"ignore_merges\":true",
               .vocab = "\"\xc4\xa0"
                        "abc\":256,\"ab\":257",
               .merges = "\"a b\"",
               .pre = REGEX(" ?[a-z]+")};
    expect(p, " abc abcd", "256 32 257 99 100");
}
END_TEST

START_TEST(added_tokens_leftmost_longest)
{
    parts p = {.vocab = "\"the\":256",
               .added = ADDED("<a>", "257", "false") "," ADDED("<a><b>", "258", "false") "," ADDED("the", "256", "false") "," ADDED(
                   "hen", "259", "false")};
    expect(p, "<a><b><a><b", "258 257 60 98");
    expect(p, "then<a", "256 110 60 97"); /* "the" begins further left than "hen" */
}
END_TEST

/* Raw tokens are looked for in the text as given, the others in its NFC. */
START_TEST(added_tokens_before_and_after_nfc)
{
    parts p = {.normalizer = NFC,
               .added = ADDED("e\\u0301", "256", "true") "," ADDED("o\\u0301", "257", "false") "," ADDED(
                   "ab", "258", "true") "," ADDED("abc", "259", "false")};
    expect(p, "e\xcc\x81 \xc3\xa9", "256 32 256");
    expect(p, "o\xcc\x81 \xc3\xb3", "257 32 195 179");
    expect(p, "abcab", "259 258"); /* raw ones go first, wherever they are */
    expect(p, "abcabx\xcc\x81", "259 258 120 204 129");
    expect(p, "o\xcc\x81\xcc\x81""e\xcc\x81", "257 204 129 256"); /* no joining across a token */
    p.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[]}";
    expect(p, "\xc3\xa9""e\xcc\x81", "195 169 256");
}
END_TEST

START_TEST(nfc_is_the_librarys)
{
    parts p = {.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[" NFC "]}"};
    expect(p, "e\xcc\x81", "195 169");
    expect(p, "\xe2\x84\xab\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "195 133 234 176 129"); /* Angstrom, Hangul jamo */
    expect(p, "a\xcc\x81\xcc\xa3", "225 186 161 204 129");                                 /* U+0323 sorts first and joins */
    expect(p, "\xe0\xa5\x98", "224 164 149 224 164 188");                                  /* excluded from composition */
    /* U+1DF6 (class 232) is younger than the library's data: it stays where it is,
     * and the U+0323 after it (class 220) too. */
    expect(p, "a\xe1\xb7\xb6\xcc\xa3", "97 225 183 182 204 163");
    expect(p, "a\xcc\x80\xe1\xb7\xb6\xcc\xa3\xcc\x81", "195 160 225 183 182 204 163 204 129");
}
END_TEST

/* "ab" shows as 256 where no cut falls into it, "\na" as 257, " b" as 258. */
static const char *const seam_vocab = "\"ab\":256,\"\xc4\x8a"
                                      "a\":257,\"\xc4\xa0"
                                      "b\":258,\"12\":259,\"  \":260,\"\xc4\xa0\xc4\xa0\":261,\"\xc4\xa0\xc4\x8a\":262";
static const char *const seam_merges = "\"a b\",\"\xc4\x8a a\",\"\xc4\xa0 b\",\"1 2\",\"\xc4\xa0 \xc4\xa0\",\"\xc4\xa0 \xc4\x8a\"";

static void expect_seams(const char *pre, const char *text, const char *want)
{
    expect((parts){.pre = pre, .vocab = seam_vocab, .merges = seam_merges}, text, want);
}

START_TEST(splits_cut_where_the_library_does)
{
    expect_seams(BYTE_LEVEL, "ab\nab b", "256 10 256 258");
    expect_seams(REGEX("b"), "abab", "97 98 97 98");
    expect_seams(STEPS(SPLIT("Regex", "b", "Isolated", "true")), "ab", "97 98");
    expect_seams(STEPS(SPLIT("Regex", "[a-z]+", "Removed", "true")), "1ab 2ab", "256 256");
    expect_seams(STEPS(SPLIT("String", "a.", "Isolated", "false")), "aba.ab", "256 97 46 256");
    expect_seams(STEPS(SPLIT("String", "", "Isolated", "false")), "ab\xc3\xa9",
                 "97 98 195 169"); /* an empty match cuts everywhere */
    expect_seams(REGEX("x*"), "abxab", "97 98 120 97 98");
    expect_seams(STEPS(SPLIT("Regex", "c", "Isolated", "false") "," SPLIT("Regex", "^a", "Isolated", "false")), "abcab",
                 "97 98 99 97 98"); /* each piece has its own ^ */
}
END_TEST

START_TEST(patterns_mean_what_oniguruma_reads)
{
    expect_seams(REGEX("\\\\s+$"), "x  \n b", "120 261 10 258");        /* $ is at every line's end, here before \n and */
    expect_seams(REGEX("\\\\s+$"), "x \n\n", "120 262 10");             /* at the very end */
    expect_seams(REGEX("^a"), "\nab\na", "10 97 98 10 97");             /* ^ at every line's start */
    expect_seams(REGEX(".+"), "ab\rab\nab", "256 13 256 10 256");       /* only \n is a newline */
    expect_seams(REGEX("a(?=\\\\s)|\\\\S+"), "a\xe1\xa0\x8e""b", "97 225 160 142 98"); /* U+180E is no space */
    expect_seams(REGEX("[^\\\\S\\n]"), "  \n", "32 32 10");
    expect_seams(REGEX("(?i:'s)"), "x'\xc5\xbf", "120 39 197 191");     /* U+017F folds to s */
    expect_seams(REGEX("[b-d-z]|[-a]"), "ab-az", "97 98 45 97 122");       /* a hyphen after a range, or first, is itself */
    expect_seams(REGEX("[^\\\\x{0}-\\\\x{10ffff}]|a"), "ab", "97 98");      /* nothing is in it */
    expect_seams(REGEX("(?i:[^A])"), "abAB", "97 98 65 66");
    expect_seams(REGEX("\\\\p{^L}{1,2}|\\\\x61|\\\\x{62}"), "ab12", "97 98 259");
}
END_TEST

START_TEST(byte_level_splits_itself)
{
    const char *pre = _i ? "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}" /* the default */
                         : "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}";
    expect_seams(pre, "ab's  b", "256 39 115 32 258");
    expect_seams(pre, "ab12ab", "256 259 256");
    expect_seams(STEPS(SPLIT("String", "b", "Isolated", "false")), "ab", "97 98");
}
END_TEST

START_TEST(digits_alone_or_in_runs)
{
    expect_seams(STEPS("{\"type\":\"Digits\",\"individual_digits\":true}"), "ab12", "256 49 50");
    expect_seams(STEPS("{\"type\":\"Digits\",\"individual_digits\":false}"), "ab12\xc2\xbd", "256 259 194 189");
}
END_TEST

START_TEST(templates_surround)
{
    parts p = {
        .post =
            "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{"
            "\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
            "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</"
            "s>\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{"
            "\"<s>\":{\"id\":\"<s>\",\"ids\":[300,301],\"tokens\":[]},\"</s>\":{\"id\":\"</s>\",\"ids\":[1],\"tokens\":[]}}}]}"};
    expect(p, "ab", "300 301 97 98 1");
    expect(p, "", "300 301 1");
    exf_err e;
    exf_tokenizer *t;
    ck_ok(exf_tokenizer_load(&t, make(p), EXF_BOS_AUTO, &e), e);
    ck_assert_int_eq(exf_tokenizer_facts_of(t)->size, 302);
    exf_tokenizer_free(t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, golden_texts, 0, SHAPES);
    tcase_add_loop_test(t, a_megabyte_of_one_character, 0, SHAPES);
    tcase_add_test(t, one_tokenizer_serves_many_threads);
    tcase_add_test(t, demo_tokenizer);
    tcase_add_test(t, bytes_nul_and_nothing);
    tcase_add_test(t, text_must_be_utf8);
    tcase_add_loop_test(t, tokenizing_stops, 0, 2);
    tcase_add_test(t, merges_by_rank_then_from_the_left);
    tcase_add_test(t, ignore_merges_takes_whole_pieces);
    tcase_add_test(t, added_tokens_leftmost_longest);
    tcase_add_test(t, added_tokens_before_and_after_nfc);
    tcase_add_test(t, nfc_is_the_librarys);
    tcase_add_test(t, splits_cut_where_the_library_does);
    tcase_add_test(t, patterns_mean_what_oniguruma_reads);
    tcase_add_loop_test(t, byte_level_splits_itself, 0, 2);
    tcase_add_test(t, digits_alone_or_in_runs);
    tcase_add_test(t, templates_surround);
}
