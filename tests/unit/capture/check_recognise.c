/* check_recognise.c - capture/recognise: kinds of files, what is refused and what the message names. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "capture/corpus.h"
#include "format/safetensors.h"
#include "format/unpack.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>

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
    is(FILE_OF("h", "\n{\"prompt\": \"a\", \"messages\": [{\"role\": \"user\"}]}"), NULL, EXF_SOURCE_CHAT, "messages");
    is(FILE_OF("i", "{\"turns\": []}"), "turns", EXF_SOURCE_CHAT, "turns");
    is(FILE_OF("j", "{\"text\": \"a\", \"messages\": []}"), NULL, EXF_SOURCE_JSONL, "text");
    is(FILE_OF("j", "{\"text\": \"a\", \"messages\": []}"), "messages", EXF_SOURCE_CHAT, "messages");
}
END_TEST

static const char *packed(const char *name, exf_packing kind, const char *text)
{
    static unsigned char out[1000];
    size_t n = ZSTD_compress(out, sizeof out, text, strlen(text), 3);
    if (kind == EXF_GZIP) {
        z_stream z = {.next_in = (unsigned char *)(uintptr_t)text, .avail_in = (uInt)strlen(text), .next_out = out,
                      .avail_out = sizeof out};
        ck_assert_int_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
        n = z.total_out;
        deflateEnd(&z);
    }
    return file(name, (const char *)out, n);
}

START_TEST(kinds_of_packed_text)
{
    is(packed("a.txt.gz", EXF_GZIP, "Once upon a time"), NULL, EXF_SOURCE_TEXT, "");
    is(packed("any.name", EXF_ZSTD, "{\"text\": \"a\"}\n"), NULL, EXF_SOURCE_JSONL, "text");
    is(packed("c.jsonl.zst", EXF_ZSTD, "{\"text\": \"cut"), NULL, EXF_SOURCE_JSONL, "text");
    refused(packed("d.json.gz", EXF_GZIP, "[]"), NULL, "is one JSON array");
    refused(packed("e", EXF_GZIP, "%PDF-1.4"), NULL, "is a PDF");
    refused(packed("f", EXF_ZSTD, ""), NULL, "is empty");
    refused(packed("g", EXF_GZIP, "\x1f\x8b\x08 again"), NULL, "is compressed with gzip twice");
}
END_TEST

static void found(const char *path, const char *no_text)
{
    exf_recognised r;
    ck_ok(exf_recognise_found(&r, path, NULL, &e), e);
    if (no_text) ck_assert_str_eq(r.no_text, no_text);
    else ck_assert_ptr_null(r.no_text);
    exf_recognised_free(&r);
}

/* What a directory holds beside texts is passed over, unless its name promises a text. */
START_TEST(files_that_are_found)
{
    static char tar[600];
    memcpy(tar + 257, "ustar", 5);
    found(FILE_OF("a.md", "# A"), NULL);
    found(FILE_OF("a.pdf", "%PDF-1.4"), "a PDF");
    found(FILE_OF("a.bin", "\xff\xfe"), "no UTF-8");
    found(FILE_OF("a.json", "{\n}"), "one JSON document");
    found(FILE_OF("b.json", "[1]"), "one JSON document");
    found(FILE_OF("a.txt", ""), "empty");
    found(file("a.tar", tar, sizeof tar), "a tar archive");
    exf_recognised r;
    ck_fails(exf_recognise_found(&r, FILE_OF("b.txt", "caf\xe9"), NULL, &e), EXF_MODEL, e, "b.txt: byte 0xe9 at offset 3");
    exf_recognised_free(&r);
    ck_fails(exf_recognise_found(&r, FILE_OF("b.jsonl", "{\"a\": 1}"), NULL, &e), EXF_MODEL, e, "b.jsonl: has no \"text\"");
    exf_recognised_free(&r);
}
END_TEST

START_TEST(what_is_refused)
{
    refused(FILE_OF("a", ""), NULL, "is empty");
    refused(FILE_OF("b", "caf\xe9 au lait"), NULL, "byte 0xe9 at offset 3 is no UTF-8");
    refused(FILE_OF("c", "\xfd" "7zXZ"), NULL, "is compressed with xz; unpack it first");
    refused(FILE_OF("d", "PAR1....PAR1"), NULL, "is a Parquet table");
    refused(FILE_OF("e.json", "[\n {\"text\": \"a\"}]"), NULL, "is one JSON array, expected an object a line; make lines with: jq");
    refused(FILE_OF("f.json", "{\n \"text\": \"a\"\n}"), NULL, "is one JSON document");
    refused(FILE_OF("g", "\n{\"prompt\": \"a\", \"messages\": [1]}"), NULL, "line 2 has no \"text\"; of its members \"prompt\"");
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
    ck_ok(exf_st_write(exf_scratch(name), 1, t, n, NULL, 0, NULL, &e), e);
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
    tcase_add_test(t, kinds_of_packed_text);
    tcase_add_test(t, files_that_are_found);
    tcase_add_test(t, what_is_refused);
    tcase_add_test(t, token_ids);
    tcase_add_test(t, every_allocation_may_fail);
    suite_add_tcase(s, t);
    return s;
}
