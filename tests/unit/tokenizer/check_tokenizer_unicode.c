/* check_tokenizer_unicode.c - what characters are to patterns and to Digits: the same whatever PCRE2 is installed, against what
 * the tokenizers library makes of all code points and of texts with code points of Unicode 15 and 16
 * (scripts/make_tokenizer_goldens.py). */
#include "tests/support/tokenizer_fixtures.h"
#include "tests/support/tokenizer_ids.h"

#include "format/json.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdio.h>

#define UNICODE "tests/golden/tokenizers/unicode/"

static exf_json *load(const char *name, const char *suffix)
{
    exf_err e;
    exf_json *doc;
    char path[128];
    snprintf(path, sizeof path, UNICODE "%s%s.json", name, suffix);
    ck_ok(exf_json_load(&doc, path, 1 << 20, &e), e);
    return doc;
}

/* ---- texts ------------------------------------------------------------ */

static const char *const shape[] = {"qwen3", "qwen3_5", "glm4", "deepseek_v2", "deepseek_coder", "deepseek_v3_v4", "llama3",
                                    "o200k", "gpt_neox"};
enum { SHAPES = sizeof shape / sizeof *shape, TEXTS = 500 };

START_TEST(texts_of_younger_characters)
{
    exf_err e;
    exf_tokenizer *t;
    char path[128];
    exf_json *texts = load("texts", ""), *want = load(shape[_i], ".ids");
    snprintf(path, sizeof path, UNICODE "%s.json", shape[_i]);
    ck_ok(exf_tokenizer_load(&t, path, EXF_BOS_AUTO, &e), e);
    expect_texts(t, texts, want, TEXTS, 0, shape[_i]);
    exf_tokenizer_free(t);
    exf_json_free(texts);
    exf_json_free(want);
}
END_TEST

/* ---- all code points ---------------------------------------------------- */

static void append_character(exf_text *out, unsigned c)
{
    char b[4] = {(char)(0xf0 | c >> 18), (char)(0x80 | (c >> 12 & 63)), (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63))};
    if (c < 0x80) b[3] = (char)c;
    else if (c < 0x800) b[2] = (char)(0xc0 | c >> 6);
    else if (c < 0x10000) b[1] = (char)(0xe0 | c >> 12);
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    exf_text_append(out, b + 4 - n, n);
}

static exf_code gather(void *ctx, const char *piece, size_t len, exf_err *err)
{
    (void)err;
    exf_text_append(ctx, piece, len);
    return EXF_OK;
}

/* What of the text the step keeps, which is JSON of a pre-tokenizer's step. */
static void keep(exf_text *kept, const char *step, const exf_text *text)
{
    exf_err e;
    exf_json *doc;
    exf_splitter *s;
    exf_split_work *w;
    exf_text pre = {0};
    exf_text_appendf(&pre, "{\"type\":\"Sequence\",\"pretokenizers\":[%s," BYTE_LEVEL "]}", step);
    ck_ok(exf_json_parse(&doc, pre.s, pre.len, "test", &e), e);
    ck_ok(exf_splitter_load(&s, doc, "test", &e), e);
    ck_ok(exf_split_work_new(&w, &e), e);
    exf_text_append(kept, "", 0);
    ck_ok(exf_splitter_run(s, w, text->s, text->len, gather, kept, &e), e);
    ck_ok(exf_text_end(kept, &e), e);
    exf_split_work_free(w);
    exf_splitter_free(s);
    exf_json_free(doc);
    exf_text_free(&pre);
}

static void expect_swept(const exf_json *golden, const char *name, const exf_text *kept)
{
    exf_err e;
    char hex[EXF_SHA256_HEX];
    size_t n = 0;
    for (size_t i = 0; i < kept->len; i++) n += ((unsigned char)kept->s[i] & 0xc0) != 0x80;
    ck_assert_msg((int64_t)n == exf_json_int(exf_json_at(golden, 0)), "%s: %zu code points", name, n);
    ck_ok(exf_hash_bytes(kept->s, kept->len, hex, &e), e);
    ck_assert_msg(strcmp(hex, exf_json_string(exf_json_at(golden, 1), NULL)) == 0, "%s: other code points", name);
}

START_TEST(every_code_point_has_its_category)
{
    exf_json *golden = load("categories", "");
    exf_text all = {0}, kept = {0}, step = {0};
    ck_assert_uint_eq(exf_json_size(golden), 29 + 7 + 4);
    ck_assert_str_eq(exf_unicode_version, "16.0.0");
    for (unsigned c = 0; c < 0x110000; c++)
        if (c < 0xd800 || c >= 0xe000) append_character(&all, c);
    for (void *it = exf_json_first(golden); it; it = exf_json_next(golden, it)) {
        const char *name = exf_json_key(it);
        if (strcmp(name, "Digits") == 0) continue;
        kept.len = step.len = 0;
        exf_text_appendf(&step, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s%s+\"},\"behavior\":\"Removed\",\"invert\":true}",
                         *name == '\\' ? "\\" : "", name);
        keep(&kept, step.s, &all);
        expect_swept(exf_json_value(it), name, &kept);
    }
    exf_text_free(&all);
    exf_text_free(&kept);
    exf_text_free(&step);
    exf_json_free(golden);
}
END_TEST

/* Pieces of a text "a?a?a?..." that are one character other than "a". */
static exf_code gather_lone(void *ctx, const char *piece, size_t len, exf_err *err)
{
    return *piece == 'a' ? EXF_OK : gather(ctx, piece, len, err);
}

START_TEST(digits_are_of_a_younger_unicode)
{
    exf_err e;
    exf_json *golden = load("categories", ""), *doc;
    exf_splitter *s;
    exf_split_work *w;
    exf_text all = {0}, kept = {0};
    const char *pre = STEPS("{\"type\":\"Digits\",\"individual_digits\":true}");
    for (unsigned c = 0; c < 0x20000; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        exf_text_append(&all, "a", 1);
        append_character(&all, c);
    }
    ck_ok(exf_json_parse(&doc, pre, strlen(pre), "test", &e), e);
    ck_ok(exf_splitter_load(&s, doc, "test", &e), e);
    ck_ok(exf_split_work_new(&w, &e), e);
    ck_ok(exf_splitter_run(s, w, all.s, all.len, gather_lone, &kept, &e), e);
    ck_ok(exf_text_end(&kept, &e), e);
    expect_swept(exf_json_get(golden, "Digits"), "Digits", &kept);
    exf_split_work_free(w);
    exf_splitter_free(s);
    exf_json_free(doc);
    exf_json_free(golden);
    exf_text_free(&all);
    exf_text_free(&kept);
}
END_TEST

START_TEST(alphabets_have_an_end)
{
    exf_err e;
    exf_tokenizer *t;
    exf_text pre = {0};
    exf_text_appendf(&pre, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\"");
    for (unsigned c = 0x4e00; c < 0x4e00 + 254 + (unsigned)_i; c++) append_character(&pre, c); /* and '\n', and all others */
    exf_text_appendf(&pre, "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "]}");
    exf_code rc = exf_tokenizer_load(&t, make((parts){.pre = pre.s}), EXF_BOS_AUTO, &e);
    if (_i) ck_fails(rc, EXF_MODEL, e, "pre_tokenizer 256");
    else ck_ok(rc, e);
    exf_tokenizer_free(t);
    exf_text_free(&pre);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, texts_of_younger_characters, 0, SHAPES);
    tcase_add_test(t, every_code_point_has_its_category);
    tcase_add_test(t, digits_are_of_a_younger_unicode);
    tcase_add_loop_test(t, alphabets_have_an_end, 0, 2);
}
