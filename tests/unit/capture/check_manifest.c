/* check_manifest.c - data manifests: what is read, what is refused, checksums, shares. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "capture/manifest.h"

#include <stdio.h>
#include <string.h>

#define HEAD "schema: exfold-manifest/1\nsources:\n"
#define SHA_OF_ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

static exf_err e;

static const char *written(const char *text)
{
    const char *path = exf_scratch("m.yaml");
    exf_write_file(path, text, strlen(text));
    return path;
}

static exf_manifest *load(const char *text)
{
    exf_manifest *m = NULL;
    ck_ok(exf_manifest_load(&m, written(text), &e), e);
    return m;
}

/* Text that no file holds is read as the file's bytes would be. */
START_TEST(text_is_read_as_a_file_is)
{
    static const char text[] = HEAD "  - {path: a.txt, format: text}\n";
    exf_manifest *file = load(text), *m;
    ck_ok(exf_manifest_parse(&m, text, strlen(text), exf_scratch("none/m.yaml"), &e), e);
    ck_assert_str_eq(m->sha256, file->sha256);
    ck_assert_str_eq(m->source[0].file, exf_scratch("none/a.txt"));
    exf_manifest_free(m);
    exf_manifest_free(file);
}
END_TEST

static void refused(const char *text, const char *part)
{
    exf_manifest *m = (exf_manifest *)1;
    ck_fails(exf_manifest_load(&m, written(text), &e), EXF_USAGE, e, part);
    ck_assert_ptr_null(m);
    ck_assert_msg(strstr(e.msg, "m.yaml:") != NULL, "no file and line in \"%s\"", e.msg);
}

START_TEST(a_manifest_is_read_as_written)
{
    exf_manifest *m = load(HEAD "  - path: sub/ids\n    format: tokens\n  - path: /abs/x.jsonl\n    format: jsonl\n"
                                    "    where: {a: b, c: '7'}\n    sequences: 3\n    sha256: unpinned\n");
    ck_assert_uint_eq(m->n, 2);
    ck_assert_str_eq(m->source[0].file, exf_scratch("sub/ids"));
    ck_assert_str_eq(m->source[0].path, "sub/ids");
    ck_assert_str_eq(m->source[0].domain, "source-1");
    ck_assert_ptr_null(m->source[0].tensor);
    ck_assert_int_eq(m->source[0].sequences, 0);
    ck_assert_str_eq(m->source[1].file, "/abs/x.jsonl");
    ck_assert_str_eq(m->source[1].field, "text");
    ck_assert_uint_eq(m->source[1].n_where, 2);
    ck_assert_str_eq(m->source[1].where_key[1], "c");
    ck_assert_str_eq(m->source[1].where_value[1], "7");
    ck_assert_int_eq(m->source[1].sequences, 3);
    ck_assert_str_eq(m->source[1].sha256, "");
    char hex[EXF_SHA256_HEX];
    ck_ok(exf_hash_file(m->path, hex, &e), e);
    ck_assert_str_eq(m->sha256, hex);
    exf_manifest_free(m);
    exf_manifest_free(NULL);
}
END_TEST

START_TEST(mistakes_in_a_manifest_are_named_with_their_line)
{
#define SRC(x) HEAD "  - path: a\n    format: jsonl\n" x
    static const struct { const char *text, *part; } bad[] = {
        {"- a\n", "m.yaml:1: is a list, expected a map with \"schema: exfold-manifest/1\""},
        {"sources: []\n", "m.yaml:1: no \"schema\" is given"},
        {"# x\nschema: exfold-manifest/2\n", "m.yaml:2: schema \"exfold-manifest/2\", expected \"exfold-manifest/1\""},
        {"schema:\n", "\"schema\" is empty"},
        {"schema: exfold-manifest/1\n", "\"sources\" is missing, expected a list"},
        {"schema: exfold-manifest/1\nsources: []\n", "m.yaml:2: \"sources\" is empty, expected a list"},
        {"schema: exfold-manifest/1\nsources: {}\n", "m.yaml:2: \"sources\" is a map, expected a list"},
        {"schema: exfold-manifest/1\nsource: []\n", "m.yaml:2: unknown key \"source\"; did you mean \"sources\"?"},
        {HEAD "  - a\n", "m.yaml:3: source 1: is a scalar, expected a map"},
        {HEAD "  - format: text\n", "m.yaml:3: source 1: no \"path\" is given"},
        {HEAD "  - path: a\n", "m.yaml:3: source 1: no \"format\" is given"},
        {HEAD "  - {path: a, format: json}\n", "m.yaml:3: source 1: unknown format \"json\"; did you mean \"jsonl\"?"},
        {HEAD "  - {path: a, format: parquet}\n", "unknown format \"parquet\"; known are jsonl, text, tokens"},
        {HEAD "  - {path: a, format: [text]}\n", "\"format\" is a list, expected a word"},
        {HEAD "  - {path: '', format: text}\n", "\"path\" is empty"},
        {HEAD "  - {path: a, format: text}\n  - path: a\n    format: text\n    domian: c\n",
         "m.yaml:6: source 2: unknown key \"domian\"; did you mean \"domain\"?"},
        {SRC("    colour: red\n"), "m.yaml:5: source 1: unknown key \"colour\"; known are path, format, "},
        {SRC("    tensor: x\n"), "m.yaml:5: source 1: \"tensor\" belongs to format tokens, this source is jsonl"},
        {HEAD "  - {path: a, format: tokens, field: x}\n", "\"field\" belongs to format jsonl, this source is tokens"},
        {HEAD "  - {path: a, format: text, where: {a: b}}\n", "\"where\" belongs to format jsonl, this source is text"},
        {SRC("    where: c\n"), "m.yaml:5: source 1: \"where\" is a scalar, expected a map such as {domain: c}"},
        {SRC("    where: {}\n"), "\"where\" is empty, expected a map"},
        {SRC("    where: {domain: [c]}\n"), "\"domain\" is a list, expected a word"},
        {SRC("    where: {domain: }\n"), "\"domain\" is empty"},
        {SRC("    domain: ~\n"), "\"domain\" is empty"},
        {SRC("    sequences: 0\n"), "m.yaml:5: source 1: \"sequences\" is \"0\", expected a whole number from 1 to 1000000000"},
        {SRC("    sequences: 1000000001\n"), "\"sequences\" is \"1000000001\""},
        {SRC("    sequences: many\n"), "\"sequences\" is \"many\""},
        {SRC("    sequences: 1.5\n"), "\"sequences\" is \"1.5\""},
        {SRC("    sha256: abc\n"), "m.yaml:5: source 1: \"sha256\" is \"abc\", expected 64 hexadecimal digits or unpinned"},
        {SRC("    sha256: g" SHA_OF_ABC "\n"), "expected 64 hexadecimal digits"},
        {SRC("    path: b\n"), "m.yaml:5"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) refused(bad[i].text, bad[i].part);
}
END_TEST

START_TEST(an_origin_is_checked_and_forgotten)
{
#define ORIGIN(x) SRC("    origin:\n      dataset: a/b\n      split: c\n" x)
    static const struct { const char *text, *part;
    } bad[] = {
        {HEAD "  - {path: a, format: text, origin: {dataset: a/b, split: c}}\n",
         "\"origin\" belongs to format jsonl, this source is text"},
        {SRC("    origin: a/b\n"),
         "m.yaml:5: source 1: \"origin\" is a scalar, expected a map such as {dataset: NAME, split: train}"},
        {SRC("    origin: {split: c}\n"), "m.yaml:5: source 1: origin: no \"dataset\" is given"},
        {SRC("    origin: {dataset: a/b}\n"), "source 1: origin: no \"split\" is given"},
        {ORIGIN("      spilt: d\n"), "m.yaml:8: source 1: origin: unknown key \"spilt\"; did you mean \"split\"?"},
        {ORIGIN("      revision: []\n"), "\"revision\" is a list, expected a word"},
        {ORIGIN("      subset:\n"), "origin: \"subset\" is empty"},
        {ORIGIN("      where: x\n"), "origin: \"where\" is a scalar, expected a map such as {source: [a, b]}"},
        {ORIGIN("      where: {}\n"), "origin: \"where\" is empty, expected a map"},
        {ORIGIN("      where: {source: []}\n"), "origin: \"source\" is an empty list"},
        {ORIGIN("      where: {source: [x, '']}\n"), "origin: \"source\" is empty"},
        {ORIGIN("      where: {source: {x: y}}\n"), "origin: \"source\" is a map, expected a word"},
        {ORIGIN("      skip: -1\n"), "m.yaml:8: source 1: origin: \"skip\" is \"-1\", expected a whole number from 0"},
        {ORIGIN("      take: 0\n"), "origin: \"take\" is \"0\", expected a whole number from 1"},
        {ORIGIN("      take: few\n"), "origin: \"take\" is \"few\", expected"},
        {ORIGIN("      messages: m\n      text: t\n"), "m.yaml:6: source 1: origin: \"messages\" and \"text\" are both given"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) refused(bad[i].text, bad[i].part);
    exf_manifest_free(load(ORIGIN("      revision: unpinned\n      subset: s\n      where: {source: [x, y], kind: z}\n"
                                  "      skip: 0\n      take: 9\n      messages: m\n")));
    exf_manifest_free(load(ORIGIN("      text: t\n")));
}
END_TEST

/* Verifies a manifest of three sources; the message goes to e. */
static exf_code verify(const char *sha1, const char *file2, const char *sha2)
{
    char text[800];
    snprintf(text, sizeof text,
             HEAD "  - {path: a.txt, format: text, sha256: %s}\n"
                  "  - {path: %s, format: text, domain: d, sha256: %s}\n"
                  "  - {path: not-there, format: text}\n",
             sha1, file2, sha2);
    exf_manifest *m = load(text);
    exf_code rc = exf_manifest_verify(m, 0, &e);
    exf_manifest_free(m);
    return rc;
}

START_TEST(checksums_are_compared)
{
    static const char upper[] = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    exf_write_file(exf_scratch("a.txt"), "abc", 3);
    exf_write_file(exf_scratch("b.txt"), "abc", 3);
    ck_ok(verify(SHA_OF_ABC, "a.txt", upper), e);
    ck_ok(verify("unpinned", "a.txt", SHA_OF_ABC), e);
    ck_ok(verify(SHA_OF_ABC, "b.txt", "unpinned"), e);
    ck_fails(verify(SHA_OF_ABC, "a.txt", zeros), EXF_MODEL, e,
             "m.yaml: source 2 (a.txt, domain \"d\"): the file's sha256 is " SHA_OF_ABC ", the manifest says 00000000");
    ck_fails(verify(zeros, "a.txt", SHA_OF_ABC), EXF_MODEL, e, "1 a.txt file's sha256");
    ck_fails(verify(SHA_OF_ABC, "c.txt", SHA_OF_ABC), EXF_IO, e, "m.yaml 2 c.txt \"d\"");
    exf_write_file(exf_scratch("b.txt"), "abd", 3);
    ck_fails(verify(SHA_OF_ABC, "b.txt", SHA_OF_ABC), EXF_MODEL, e, "2 b.txt \"d\" file's sha256");
}
END_TEST

/* A file that differs from the manifest that --text made of it a moment ago is being written: nobody has given a manifest. */
START_TEST(a_text_that_grows_is_told)
{
    exf_write_file(exf_scratch("a.txt"), "abc", 3);
    exf_manifest *m = load(HEAD "  - {path: a.txt, format: text, sha256: " SHA_OF_ABC "}\n");
    ck_ok(exf_manifest_verify(m, 1, &e), e);
    exf_write_file(exf_scratch("a.txt"), "abcd", 4);
    ck_fails(exf_manifest_verify(m, 1, &e), EXF_MODEL, e, "--text: a.txt changed while it was read ba7816bf8f01 88d4266fd4e6");
    ck_assert_msg(!strstr(e.msg, "manifest"), "%s", e.msg);
    exf_manifest_free(m);
}
END_TEST

/* What is read must be what was hashed: a file that changes between, or meanwhile, has other tokens than its checksum says. */
START_TEST(a_file_that_changes_after_its_checksum_is_told)
{
    exf_file *f;
    exf_write_file(exf_scratch("a.txt"), "abc", 3);
    exf_manifest *m = load(HEAD "  - {path: a.txt, format: text, sha256: " SHA_OF_ABC "}\n  - {path: a.txt, format: text}\n"
                                "  - {path: a.txt, format: text, sha256: " SHA_OF_ABC "}\n");
    ck_ok(exf_manifest_verify(m, 0, &e), e);
    ck_assert(m->source[0].state && !m->source[1].state && m->source[2].state);
    ck_ok(exf_source_open(&f, m->source[0].file, &e), e);
    for (int i = 0; i < 3; i++) ck_ok(exf_source_unchanged(&m->source[i], f, &e), e);
    exf_write_file(exf_scratch("a.txt"), "abcd", 4);
    for (int i = 0; i < 3; i++)
        ck_fails(exf_source_unchanged(&m->source[i], f, &e), EXF_MODEL, e, "a.txt: changed 3 bytes 4 bytes");
    exf_file_close(f);
    ck_ok(exf_source_open(&f, m->source[0].file, &e), e);
    ck_fails(exf_source_unchanged(&m->source[0], f, &e), EXF_MODEL, e, "source 1 (a.txt) changed 3 bytes 4 bytes");
    ck_ok(exf_source_unchanged(&m->source[1], f, &e), e); /* unpinned: what is there counts */
    ck_fails(exf_source_unchanged(&m->source[2], f, &e), EXF_MODEL, e, "source 3 (a.txt) changed");
    exf_file_close(f);
    exf_manifest_free(m);
}
END_TEST

START_TEST(totals_are_shared)
{
#define S(n) "  - {path: a, format: text, sequences: " #n "}\n"
#define SILENT "  - {path: a, format: text}\n"
    static const struct { const char *sources; int total, want[3]; } run[] = {
        {S(5) S(3) S(3), 0, {5, 3, 3}},  {S(5) S(3) S(3), 11, {5, 3, 3}},     {S(5) S(3) S(3), 7, {3, 2, 2}},
        {S(5) S(3) S(3), 4, {2, 1, 1}},  {S(5) S(3) S(3), 22, {10, 6, 6}},    {S(5) S(3) S(3), 1, {1, 0, 0}},
        {S(4) S(4) S(4), 5, {2, 2, 1}},  {S(3) S(3) S(5), 1, {0, 0, 1}},      {S(1) S(1) S(20), 2, {0, 0, 2}},
        {S(4) SILENT SILENT, 9, {4, 3, 2}}, {SILENT S(4) SILENT, 9, {3, 4, 2}}, {S(4) SILENT SILENT, 0, {4, -1, -1}},
        {S(4) SILENT SILENT, 4, {4, 0, 0}}, {S(4) SILENT S(4), 3, {2, 0, 1}},   {SILENT SILENT SILENT, 7, {3, 2, 2}},
        {SILENT SILENT SILENT, 0, {-1, -1, -1}},
        {S(1000000000) S(999999999) S(1), 1000000000, {500000000, 500000000, 0}},
    };
    for (size_t i = 0; i < sizeof run / sizeof run[0]; i++) {
        char text[800];
        int64_t want[3];
        snprintf(text, sizeof text, HEAD "%s", run[i].sources);
        exf_manifest *m = load(text);
        ck_ok(exf_manifest_shares(m, run[i].total, want, &e), e);
        for (int k = 0; k < 3; k++)
            ck_assert_msg(want[k] == run[i].want[k], "run %zu, source %d: %d, expected %d", i, k + 1, (int)want[k], run[i].want[k]);
        exf_manifest_free(m);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_manifest_is_read_as_written);
    tcase_add_test(t, text_is_read_as_a_file_is);
    tcase_add_test(t, mistakes_in_a_manifest_are_named_with_their_line);
    tcase_add_test(t, an_origin_is_checked_and_forgotten);
    tcase_add_test(t, checksums_are_compared);
    tcase_add_test(t, a_text_that_grows_is_told);
    tcase_add_test(t, a_file_that_changes_after_its_checksum_is_told);
    tcase_add_test(t, totals_are_shared);
}
