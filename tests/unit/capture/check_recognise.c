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
    ck_ok(exf_recognise(&r, path, field, NULL, 0, &e), e);
    ck_assert_int_eq(r.format, format);
    ck_assert_str_eq(r.field.len ? r.field.s : "", taken);
    ck_assert_uint_gt(r.about.len, 0);
    exf_recognised_free(&r);
}

static void refused(const char *path, const char *field, const char *part)
{
    exf_recognised r;
    ck_fails(exf_recognise(&r, path, field, NULL, 0, &e), EXF_MODEL, e, part);
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

static void found(const char *path, const char *no_text)
{
    exf_recognised r;
    ck_ok(exf_recognise(&r, path, NULL, NULL, 1, &e), e);
    if (no_text) ck_assert_str_eq(r.no_text, no_text);
    else ck_assert_ptr_null(r.no_text);
    exf_recognised_free(&r);
}

/* The command that renders a conversation names the model, as a shell takes it. */
START_TEST(a_conversation_is_rendered_by_the_model)
{
    exf_recognised r;
    const char *path = FILE_OF("c", "{\"dialog\": [{\"role\": \"user\", \"content\": \"Hi\"}]}");
    ck_fails(exf_recognise(&r, path, NULL, "my model", 0, &e), EXF_MODEL, e, "dialog");
    ck_assert_msg(strstr(e.msg, "render_chat.py 'my model' ") != NULL, "%s", e.msg);
    exf_recognised_free(&r);
    ck_fails(exf_recognise(&r, path, NULL, NULL, 0, &e), EXF_MODEL, e, "dialog");
    ck_assert_msg(strstr(e.msg, "render_chat.py MODEL ") != NULL, "%s", e.msg);
    exf_recognised_free(&r);
}
END_TEST

/* The members by which data sets are known, without a name from the user. */
START_TEST(kinds_of_lines)
{
#define TURN "[{\"from\": \"human\", \"value\": \"a\"}]"
    is(FILE_OF("a", "{\"id\": 1, \"conversations\": " TURN "}"), NULL, EXF_SOURCE_CHAT, "conversations");
    is(FILE_OF("b", "{\"prompt\": \"a\", \"completion\": \"b\"}"), NULL, EXF_SOURCE_JSONL, "prompt+completion");
    is(FILE_OF("c", "{\"prompt\": " TURN ", \"completion\": " TURN "}"), NULL, EXF_SOURCE_CHAT, "prompt+completion");
    is(FILE_OF("d", "{\"instruction\": \"a\", \"input\": null, \"output\": \"b\"}"), NULL, EXF_SOURCE_CHAT,
       "instruction+input+output");
    is(FILE_OF("e", "{\"instruction\": \"a\", \"output\": \"b\"}"), NULL, EXF_SOURCE_CHAT, "instruction+output");
    is(FILE_OF("f", "{\"input_ids\": [1, 2], \"labels\": [1, 2]}"), NULL, EXF_SOURCE_IDS, "input_ids");
    is(FILE_OF("g", "{\"ids\": [1, 2]}"), "ids", EXF_SOURCE_IDS, "ids");
    is(FILE_OF("h", "{\"title\": \"a\", \"body\": \"b\"}"), "title+body", EXF_SOURCE_JSONL, "title+body");
    is(FILE_OF("i", "{\"a+b\": \"c\", \"text\": \"d\"}"), "a+b", EXF_SOURCE_JSONL, "a+b");
    is(FILE_OF("j", "{\"text\": \"a\", \"input_ids\": [1]}"), NULL, EXF_SOURCE_JSONL, "text");
    refused(FILE_OF("k", "{\"title\": \"a\"}"), "title+body", "has no \"title+body\" of its members \"title\"");
    refused(FILE_OF("l", "{\"prompt\": \"a\"}"), NULL, "has no \"text\"; of its members \"prompt\"");
}
END_TEST

/* A byte-order mark says that a file is UTF-8; it is neither text nor the beginning of JSON. */
START_TEST(a_byte_order_mark_is_no_text)
{
    is(FILE_OF("a.txt", "\xef\xbb\xbf" "Once upon a time"), NULL, EXF_SOURCE_TEXT, "");
    is(FILE_OF("b", "\xef\xbb\xbf" "{\"text\": \"a\"}\r\n"), NULL, EXF_SOURCE_JSONL, "text");
    refused(FILE_OF("c.txt", "\xef\xbb\xbf"), NULL, "is empty");
}
END_TEST

/* What Windows and old tools write gets the command that mends it. */
START_TEST(other_encodings_are_told)
{
    refused(FILE_OF("a.txt", "\xff\xfe" "O\0n\0c\0e\0"), NULL, "is UTF-16; iconv -f UTF-16 -t UTF-8");
    refused(FILE_OF("b.txt", "\xfe\xff\0O\0n\0c\0e"), NULL, "is UTF-16");
    refused(FILE_OF("c.txt", "O\0n\0c\0e\0"), NULL, "is UTF-16");
    refused(FILE_OF("d.jsonl", "{\"text\": \"caf\xe9\"}\n"), NULL,
            "byte 0xe9 at offset 13 is no UTF-8; Latin-1 iconv -f WINDOWS-1252 -t UTF-8");
    exf_recognised r;
    ck_fails(exf_recognise(&r, FILE_OF("e", "\x01\xe9\x02"), NULL, NULL, 0, &e), EXF_MODEL, e, "byte 0xe9");
    ck_assert_msg(!strstr(e.msg, "iconv"), "%s", e.msg); /* no text of any kind */
    exf_recognised_free(&r);
    found(FILE_OF("a.csv", "\xff\xfe" "O\0n\0c\0e\0"), "UTF-16");
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
    refused(packed("h", EXF_GZIP, "\x52\x2a\x4d\x18 again"), NULL, "is compressed twice");
}
END_TEST

/* What a directory holds beside texts is passed over, unless its name promises a text. */
START_TEST(files_that_are_found)
{
    static char tar[600];
    memcpy(tar + 257, "ustar", 5);
    found(FILE_OF("a.md", "# A"), NULL);
    found(FILE_OF("a.pdf", "%PDF-1.4"), "a PDF");
    found(FILE_OF("a.bin", "\xff\xfd"), "no UTF-8");
    found(FILE_OF("a.json", "{\n}"), "one JSON document");
    found(FILE_OF("b.json", "[1]"), "one JSON document");
    found(FILE_OF("b.csv", "a,b\n1,2\n"), "a table");
    found(FILE_OF("package.json", "{\"name\": \"a\", \"version\": \"1\"}\n"), "JSON without a text");
    found(FILE_OF("texts.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), NULL);
    found(tensors("w.safetensors", 1), "tensors, no token ids");
    found(tensors("x.safetensors", 3), "tensors, no token ids");
    found(tensors("y.safetensors", 2), NULL);
    found(FILE_OF("a.txt", ""), "empty");
    found(file("a.tar", tar, sizeof tar), "a tar archive");
    exf_recognised r;
    ck_fails(exf_recognise(&r, FILE_OF("b.txt", "caf\xe9"), NULL, NULL, 1, &e), EXF_MODEL, e, "b.txt: byte 0xe9 at offset 3");
    exf_recognised_free(&r);
    ck_fails(exf_recognise(&r, FILE_OF("b.jsonl", "{\"a\": 1}"), NULL, NULL, 1, &e), EXF_MODEL, e, "b.jsonl: has no \"text\"");
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
    refused(FILE_OF("e.csv", "id,text\n1,\"a\"\n"), NULL, "e.csv: is a table");
    refused(FILE_OF("e.tsv", "id\ttext\n1\ta\n"), NULL, "delimiter=\"\\t\"");
    refused(FILE_OF("f.json", "{\n \"text\": \"a\"\n}"), NULL, "is one JSON document");
    refused(FILE_OF("g", "\n{\"prompt\": \"a\", \"messages\": [1]}"), NULL, "line 2 has no \"text\"; of its members \"prompt\"");
    refused(FILE_OF("h", "{\"text\": 7}"), NULL, "line 1: \"text\" is an integer, expected a string; of the members \"text\"");
    refused(FILE_OF("i", "{}"), NULL, "of its members none");
}
END_TEST

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

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_conversation_is_rendered_by_the_model);
    tcase_add_test(t, kinds_of_text);
    tcase_add_test(t, kinds_of_packed_text);
    tcase_add_test(t, kinds_of_lines);
    tcase_add_test(t, a_byte_order_mark_is_no_text);
    tcase_add_test(t, other_encodings_are_told);
    tcase_add_test(t, files_that_are_found);
    tcase_add_test(t, what_is_refused);
    tcase_add_test(t, token_ids);
}
