/* check_tokenizer_released.c - tokenizers in the shapes of releases, against what the tokenizers library, for Kimi-K2 tiktoken,
 * makes of the same texts (scripts/make_release_tokenizers.py); models of characters, whose blanks are U+2581. */
#include "tests/support/tokenizer_fixtures.h"
#include "tests/support/tokenizer_ids.h"

#include "base/mem.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>

#define RELEASED "tests/golden/tokenizers/released/"

/* ---- goldens ----------------------------------------------------------- */

static const struct { const char *name; int32_t size; } shape[] = {
    {"mixtral", 566}, {"mixtral_metaspace", 566}, {"mixtral_old_metaspace", 568}, {"mixtral_unknown", 565},
    {"mixtral_unfused", 563}, {"gpt_oss", 573}, {"minimax_m2", 568}, {"olmoe", 573}, {"kimi_k2", 816},
    {"smollm2", 564}, {"gemma", 574},
};
enum { SHAPES = sizeof shape / sizeof *shape, TEXTS = 260 };

static void open_shape(int i, exf_tokenizer **t)
{
    exf_err e;
    char dir[128], *path;
    snprintf(dir, sizeof dir, RELEASED "%s", shape[i].name);
    ck_ok(exf_tokenizer_path(&path, dir, &e), e);
    ck_ok(exf_tokenizer_load(t, path, EXF_BOS_AUTO, &e), e);
    exf_mem_free(path);
}

START_TEST(texts_as_the_libraries)
{
    exf_err e;
    exf_tokenizer *t;
    exf_json *texts, *want;
    char path[128];
    snprintf(path, sizeof path, RELEASED "%s/ids.json", shape[_i].name);
    ck_ok(exf_json_load(&texts, RELEASED "texts.json", 1 << 20, &e), e);
    ck_ok(exf_json_load(&want, path, 1 << 20, &e), e);
    open_shape(_i, &t);
    ck_assert_int_eq(exf_tokenizer_facts_of(t)->size, shape[_i].size);
    expect_texts(t, texts, want, TEXTS, 0, shape[_i].name);
    exf_tokenizer_free(t);
    exf_json_free(texts);
    exf_json_free(want);
}
END_TEST

/* Texts that are one piece to the library, where words may be cut off and where they may not; quadratic work would take hours. */
START_TEST(long_texts_of_one_kind)
{
    static const char *const unit[] = {"a", " ", "the ", "\xe4\xb8\x80", "\xf4\x8f\xbf\xbd", "\xe2\x96\x81", "\xe2\x80\xa6"};
    static const int long_shape[] = {0, 3, 8};
    enum { LEN = 1 << 18 };
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    char *text = malloc(LEN);
    ck_assert_ptr_nonnull(text);
    open_shape(long_shape[_i], &t);
    for (int u = 0; u < COUNT(unit); u++) {
        size_t n = strlen(unit[u]), len = LEN / n * n;
        for (size_t i = 0; i < len; i++) text[i] = unit[u][i % n];
        ids.n = 0;
        ck_ok(exf_tokenizer_encode(t, text, len, &ids, &e), e);
        ck_assert_uint_gt(ids.n, 0);
    }
    free(text);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

/* ---- a tiny model of characters -------------------------------------------
 * The id of a letter is its byte, as in the fixtures; 256 is "<u>", 257 U+2581, 258 U+2581 and "a", 259 "<0xE4>". */

#define MS "\xe2\x96\x81"
#define OPTIONS(more) "\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<u>\"" more
#define VOCAB "\"<u>\":256,\"" MS "\":257,\"" MS "a\":258,\"<0xE4>\":259,\"<0xB8>\":260,\"<0x80>\":261"
#define METASPACE(more) "{\"type\":\"Metaspace\",\"replacement\":\"" MS "\"" more "}"
#define PREPEND "{\"type\":\"Prepend\",\"prepend\":\"" MS "\"}"
#define REPLACE(from, to) "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to "\"}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"normalizers\":[" list "]}"

static void expect(parts p, const char *text, const char *want)
{
    if (!p.options) p.options = OPTIONS("");
    if (!p.pre) p.pre = "null";
    if (!p.vocab) p.vocab = VOCAB;
    if (!p.merges) p.merges = "\"" MS " a\"";
    expect_ids(make(p), text, strlen(text), want);
}

START_TEST(bytes_and_unknown_characters)
{
    parts fused = {.options = OPTIONS(",\"fuse_unk\":true")};
    expect((parts){0}, "a\xe4\xb8\x80" "b", "97 259 260 261 98");
    expect((parts){0}, "a\xe4\xb9\x80" "b", "97 256 98"); /* 0xb9 has no token, so none of the character's bytes counts */
    expect((parts){0}, "\xe4\xb9\x80\xe4\xb9\x80", "256 256");
    expect(fused, "\xe4\xb9\x80\xe4\xb9\x80" "b\xe4\xb9\x80", "256 98 256");
    expect(fused, "\xe4\xb9\x80\xe4\xb8\x80" "b", "259 260 261 256 98"); /* the library's order */
    expect(fused, " a", "256 97");                                       /* a blank is no token here */
}
END_TEST

START_TEST(metaspace_prepends_by_its_scheme)
{
    const char *added = ADDED("<s>", "262", "false") "," ADDED("bb", "263", "true");
    static const struct { const char *scheme, *plain, *blank, *after_raw, *after_normalized; } known[] = {
        {",\"prepend_scheme\":\"always\"", "258", "258", "262 258", "263 258"},
        {"", "258", "258", "262 258", "263 258"},
        {",\"add_prefix_space\":true", "258", "258", "262 258", "263 258"},
        {",\"prepend_scheme\":\"first\",\"split\":false", "258", "258", "262 97", "263 97"},
        {",\"prepend_scheme\":\"never\",\"add_prefix_space\":false", "97", "258", "262 97", "263 97"},
    };
    for (int i = 0; i < COUNT(known); i++) {
        char pre[200];
        snprintf(pre, sizeof pre, METASPACE("%s"), known[i].scheme);
        parts p = {.pre = pre, .added = added};
        expect(p, "a", known[i].plain);
        expect(p, " a", known[i].blank);
        expect(p, "<s>a", known[i].after_raw);
        expect(p, "bba", known[i].after_normalized);
        expect(p, "", "");
        expect(p, "<s>", "262");
    }
}
END_TEST

/* Merges over the front of a word count where the whole text is one piece, and not where Metaspace splits. */
START_TEST(merges_that_reach_over_words)
{
    parts p = {.vocab = VOCAB ",\"b" MS "\":262,\"" MS MS "\":263", .merges = "\"b " MS "\",\"" MS " " MS "\",\"" MS " a\""};
    p.pre = METASPACE(",\"prepend_scheme\":\"never\",\"split\":false");
    expect(p, "b a b", "262 97 257 98");
    expect(p, "  b  ", "263 262 257"); /* the merge of the lower rank first: "b" and a blank */
    p.pre = METASPACE(",\"prepend_scheme\":\"never\"");
    expect(p, "b a  b", "98 258 257 257 98");
    p.merges = "\"" MS " " MS "\",\"" MS " a\"";
    p.pre = METASPACE(",\"prepend_scheme\":\"never\",\"split\":false");
    expect(p, "b a   a", "98 258 263 258");
    p.options = OPTIONS(",\"ignore_merges\":true");
    p.vocab = VOCAB ",\"b" MS "c" MS "d\":262,\"" MS MS "\":263";
    expect(p, "b c d", "262");
    expect(p, "b c a", "98 257 99 258");
}
END_TEST

/* Each stretch between raw added tokens is normalized by itself, and so is an added token. */
START_TEST(normalizers_in_sequence)
{
    parts p = {.normalizer = SEQUENCE(PREPEND "," REPLACE(" ", MS)),
               .added = ADDED("<s>", "262", "false") "," ADDED("bb", "263", "true")};
    expect(p, "a", "258");
    expect(p, " a", "257 258");
    expect(p, "<s>a<s>", "262 258 262");
    expect(p, "bb bb", "263 263");
    expect(p, "abba", "258 98 98 97"); /* "bb" with the prefix is what is looked for */
    expect(p, "", "");
    p.added = NULL;
    p.normalizer = SEQUENCE(REPLACE("ab", "aab") "," REPLACE("aa", "b") "," PREPEND);
    expect(p, "abab", "257 98 98 98 98");
    p.normalizer = SEQUENCE(NFC "," REPLACE("x", "e\\u0301") "," NFC "," NFC);
    expect(p, "e\xcc\x81x\xc3\xa9", "233 233 233");
}
END_TEST

/* ---- memory --------------------------------------------------------- */

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, texts_as_the_libraries, 0, SHAPES);
    tcase_add_loop_test(t, long_texts_of_one_kind, 0, 3);
    tcase_add_test(t, bytes_and_unknown_characters);
    tcase_add_test(t, metaspace_prepends_by_its_scheme);
    tcase_add_test(t, merges_that_reach_over_words);
    tcase_add_test(t, normalizers_in_sequence);
}
