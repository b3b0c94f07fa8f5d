/* tokenizer_ids.h - compares what a tokenizer makes of texts with ids that are written in a test, or in JSON beside the texts. */
#ifndef EXF_TESTS_TOKENIZER_IDS_H
#define EXF_TESTS_TOKENIZER_IDS_H
#include "tests/support/fixtures.h"

#include "base/text.h"
#include "format/json.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

/* 1 if the ids are those of a list of numbers from its member `from` on. */
static inline int ids_are(const exf_ids *ids, const exf_json *list, size_t from)
{
    if (ids->n != exf_json_size(list) - from) return 0;
    for (size_t i = 0; i < ids->n; i++)
        if (ids->id[i] != exf_json_int(exf_json_at(list, from + i))) return 0;
    return 1;
}

/* Fails unless each of n texts has the ids of its list, or is refused where that is null; from: ids of the list that do not
 * count, at its front. */
static inline void expect_texts(const exf_tokenizer *t, const exf_json *texts, const exf_json *want, size_t n, size_t from,
                                const char *name)
{
    exf_err e;
    exf_ids ids = {0};
    ck_assert_uint_eq(exf_json_size(texts), n);
    ck_assert_uint_eq(exf_json_size(want), n);
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *text = exf_json_string(exf_json_at(texts, i), &len);
        ids.n = 0;
        if (exf_json_type(exf_json_at(want, i)) == EXF_JSON_NULL) {
            ck_assert_int_eq(exf_tokenizer_encode(t, text, len, &ids, &e), EXF_MODEL);
            ck_assert_msg(strstr(e.msg, "the byte 0x") != NULL && ids.n == 0, "%s: text %zu: %s", name, i, e.msg);
            continue;
        }
        ck_ok(exf_tokenizer_encode(t, text, len, &ids, &e), e);
        ck_assert_msg(ids_are(&ids, exf_json_at(want, i), from), "%s: text %zu has other ids", name, i);
    }
    exf_ids_free(&ids);
}

/* Fails unless len bytes of text have the ids that are written in `want`, "97 256". */
static inline void expect_encoded(const exf_tokenizer *t, const char *text, size_t len, const char *want)
{
    exf_err e;
    exf_ids ids = {0};
    exf_text got = {0};
    ck_ok(exf_tokenizer_encode(t, text, len, &ids, &e), e);
    exf_text_append(&got, "", 0);
    for (size_t i = 0; i < ids.n; i++) exf_text_appendf(&got, "%s%d", i ? " " : "", ids.id[i]);
    ck_assert_str_eq(got.s, want);
    exf_text_free(&got);
    exf_ids_free(&ids);
}

/* The same of the tokenizer at path. */
static inline void expect_ids(const char *path, const char *text, size_t len, const char *want)
{
    exf_err e;
    exf_tokenizer *t;
    ck_ok(exf_tokenizer_load(&t, path, EXF_BOS_AUTO, &e), e);
    expect_encoded(t, text, len, want);
    exf_tokenizer_free(t);
}
#endif
