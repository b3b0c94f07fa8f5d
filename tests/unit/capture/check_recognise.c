/* check_recognise.c - capture/recognise: kinds of files, what is refused and what the message names. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "capture/corpus.h"
#include "format/safetensors.h"

#include <string.h>

static exf_err e;

static const char *file(const char *name, const char *bytes, size_t len)
{
    const char *path = exf_scratch(name);
    exf_write_file(path, bytes, len);
    return path;
}

static void is(const char *path, const char *field, exf_source_format format, const char *taken)
{
    exf_recognised r;
    ck_ok(exf_recognise(&r, path, field, &e), e);
    ck_assert_int_eq(r.format, format);
    ck_assert_str_eq(r.field.len ? r.field.s : "", taken);
    ck_assert_uint_gt(r.about.len, 0);
    exf_recognised_free(&r);
}

static void refused(const char *path, const char *field, const char *part)
{
    exf_recognised r;
    ck_fails(exf_recognise(&r, path, field, &e), EXF_MODEL, e, part);
    ck_assert_msg(strstr(e.msg, path) == e.msg, "no file in \"%s\"", e.msg);
    exf_recognised_free(&r);
}

#define FILE_OF(name, text) file(name, text, sizeof text - 1)

START_TEST(kinds_of_text)
{
    is(FILE_OF("a.txt", "Once upon a time"), NULL, EXF_SOURCE_TEXT, "");
    is(FILE_OF("b.c", "{ int i; }\n"), NULL, EXF_SOURCE_TEXT, "");
    is(FILE_OF("c.txt", "[1] A chapter\n"), NULL, EXF_SOURCE_TEXT, "");
    is(FILE_OF("d.txt", "\n\n"), NULL, EXF_SOURCE_TEXT, "");
    is(FILE_OF("e.data", "\n \n{\"id\": 1, \"text\": \"a\"}\nanything"), NULL, EXF_SOURCE_JSONL, "text");
    is(FILE_OF("f.json", "{\"content\": \"a\"}\r\n"), "content", EXF_SOURCE_JSONL, "content");
    is(FILE_OF("g.jsonl", "{\"text\": \"cut"), NULL, EXF_SOURCE_JSONL, "text");
}
END_TEST

START_TEST(what_is_refused)
{
    refused(FILE_OF("a", ""), NULL, "is empty");
    refused(FILE_OF("b", "caf\xe9 au lait"), NULL, "byte 0xe9 at offset 3 is no UTF-8");
    refused(FILE_OF("c", "\x1f\x8b\x08"), NULL, "is compressed with gzip; unpack it first: gzip -d");
    refused(FILE_OF("d", "PAR1....PAR1"), NULL, "is a Parquet table");
    refused(FILE_OF("e.json", "[\n {\"text\": \"a\"}]"), NULL, "is one JSON array, expected an object a line; make lines with: jq");
    refused(FILE_OF("f.json", "{\n \"text\": \"a\"\n}"), NULL, "is one JSON document");
    refused(FILE_OF("g", "\n{\"prompt\": \"a\", \"messages\": []}"), NULL, "line 2 has no \"text\"; of its members \"prompt\"");
    refused(FILE_OF("h", "{\"text\": 7}"), NULL, "line 1: \"text\" is an integer, expected a string; of the members \"text\"");
    refused(FILE_OF("i", "{}"), NULL, "of its members none");
}
END_TEST

static const char *tensors(const char *name, size_t n)
{
    static const int32_t ids[4] = {1, 2, 3, 4};
    static const float reals[4] = {0};
    exf_tensor t[] = {{.name = "real", .dtype = EXF_DT_F32, .rank = 2, .shape = {2, 2}, .data = reals},
                      {.name = "ids", .dtype = EXF_DT_I32, .rank = 2, .shape = {2, 2}, .data = ids},
                      {.name = "more", .dtype = EXF_DT_I32, .rank = 2, .shape = {1, 4}, .data = ids}};
    ck_ok(exf_st_write(exf_scratch(name), 1, t, n, NULL, 0, &e), e);
    return exf_scratch(name);
}

START_TEST(token_ids)
{
    is(tensors("two.safetensors", 2), NULL, EXF_SOURCE_TOKENS, "ids");
    is(tensors("no-ending", 2), NULL, EXF_SOURCE_TOKENS, "ids");
    is(tensors("three.safetensors", 3), "more", EXF_SOURCE_TOKENS, "more");
    refused(tensors("three.safetensors", 3), NULL, "has 2 integer tensors; of its tensors \"ids\", \"more\", \"real\"");
    refused(tensors("three.safetensors", 3), "idz", "has no tensor \"idz\"; its tensors are");
    refused(tensors("one.safetensors", 1), NULL, "has no integer tensor, which would hold token ids; its tensors are \"real\"");
}
END_TEST

static const char *path_of;
static const char *field_of;

static exf_code recognise(exf_err *err)
{
    exf_recognised r;
    exf_code rc = exf_recognise(&r, path_of, field_of, err);
    exf_recognised_free(&r);
    return rc;
}

START_TEST(every_allocation_may_fail)
{
    const char *const paths[] = {FILE_OF("a.txt", "text"), FILE_OF("b.jsonl", "{\"text\": \"a\"}"), tensors("c.safetensors", 2)};
    for (size_t i = 0; i < 3; i++) {
        exf_code rc = EXF_NOSPACE;
        size_t n = 0;
        path_of = paths[i];
        while (rc != EXF_OK) {
            exf_mem_fail_at(++n);
            rc = recognise(&e);
            exf_mem_fail_at(0);
            ck_assert_msg(rc == EXF_OK || rc == EXF_NOSPACE, "%s: allocation %zu: %s", paths[i], n, e.msg);
        }
        ck_assert_uint_gt(n, 3);
    }
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("recognise");
    TCase *t = tcase_create("all");
    tcase_add_test(t, kinds_of_text);
    tcase_add_test(t, what_is_refused);
    tcase_add_test(t, token_ids);
    tcase_add_test(t, every_allocation_may_fail);
    suite_add_tcase(s, t);
    return s;
}
