/* check_yaml.c - format/yaml: the subset that is read, and every refusal with its message. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "format/yaml.h"

#include <stdio.h>
#include <string.h>

static exf_code parse(exf_yaml **out, const char *text, exf_err *e)
{
    return exf_yaml_parse(out, text, strlen(text), "demo.yaml", e);
}

static exf_yaml *good(const char *text)
{
    exf_err e;
    exf_yaml *y;
    ck_ok(parse(&y, text, &e), e);
    ck_assert_ptr_nonnull(y);
    return y;
}

/* The bytes are refused as the user's mistake, with a message that starts and goes on like this. */
static void bad_bytes(const char *bytes, size_t len, const char *start, const char *part)
{
    exf_err e;
    exf_yaml *y = (exf_yaml *)&e;
    ck_fails(exf_yaml_parse(&y, bytes, len, "demo.yaml", &e), EXF_USAGE, e, part);
    ck_assert_msg(strncmp(e.msg, start, strlen(start)) == 0, "message \"%s\" does not start with \"%s\"", e.msg, start);
    ck_assert_ptr_null(y);
    ck_assert_int_eq(exf_yaml_parse(&y, bytes, len, "demo.yaml", NULL), EXF_USAGE);
}

static void bad(const char *text, const char *start, const char *part)
{
    bad_bytes(text, strlen(text), start, part);
}

static const char *text_of(const exf_yaml *map, const char *key)
{
    const exf_yaml *v = exf_yaml_get(map, key);
    ck_assert_msg(v && v->kind == EXF_YAML_SCALAR, "no scalar %s", key);
    return v->text;
}

static const char recipe[] = "# a recipe\n"
                             "model: {path: /m, layers: [1, 2,\n"
                             "  3]}\n"
                             "calibrate:\n"
                             "  ridge: 1.0e-3   # small\n"
                             "  note: \"a # b\"\n"
                             "  domains:\n"
                             "  - code\n"
                             "  - name: prose\n"
                             "    share: 'it''s'\n"
                             "  text: |\n"
                             "    one\n"
                             "    two\n"
                             "  folded: >-\n"
                             "    one\n"
                             "    two\n";

START_TEST(block_and_flow_style_become_one_tree)
{
    exf_yaml *y = good(recipe);
    ck_assert_str_eq(exf_yaml_kind_name(y), "a map");
    ck_assert_uint_eq(y->n, 2);
    ck_assert_str_eq(y->key[0], "model");
    ck_assert_str_eq(y->key[1], "calibrate");
    const exf_yaml *layers = exf_yaml_get(exf_yaml_get(y, "model"), "layers");
    ck_assert_str_eq(exf_yaml_kind_name(layers), "a list");
    ck_assert_uint_eq(layers->n, 3);
    ck_assert_str_eq(layers->child[2]->text, "3");
    const exf_yaml *c = exf_yaml_get(y, "calibrate");
    ck_assert_str_eq(text_of(c, "ridge"), "1.0e-3");
    ck_assert_str_eq(text_of(c, "note"), "a # b");
    ck_assert_str_eq(text_of(c, "text"), "one\ntwo\n");
    ck_assert_str_eq(text_of(c, "folded"), "one two");
    const exf_yaml *domains = exf_yaml_get(c, "domains");
    ck_assert_str_eq(domains->child[0]->text, "code");
    ck_assert_str_eq(text_of(domains->child[1], "share"), "it's");
    ck_assert_str_eq(exf_yaml_kind_name(domains->child[0]), "a scalar");
    exf_yaml_free(y);
}
END_TEST

START_TEST(nodes_know_their_lines)
{
    exf_yaml *y = good(recipe);
    const exf_yaml *c = exf_yaml_get(y, "calibrate");
    ck_assert_int_eq(y->line, 2);
    ck_assert_int_eq(exf_yaml_get(exf_yaml_get(y, "model"), "layers")->child[2]->line, 3);
    ck_assert_int_eq(c->line, 5);
    ck_assert_int_eq(exf_yaml_get(c, "ridge")->line, 5);
    ck_assert_int_eq(exf_yaml_get(c, "domains")->child[1]->line, 9);
    ck_assert_int_eq(exf_yaml_get(exf_yaml_get(c, "domains")->child[1], "share")->line, 10);
    exf_yaml_free(y);
    y = good("a:\nb: 1\r\nc: 2\n");
    ck_assert_int_eq(exf_yaml_get(y, "a")->line, 1);
    ck_assert_int_eq(exf_yaml_get(y, "b")->line, 2);
    ck_assert_int_eq(exf_yaml_get(y, "c")->line, 3);
    exf_yaml_free(y);
}
END_TEST

START_TEST(json_and_lone_scalars_and_markers_are_read)
{
    exf_yaml *y = good("{\"a\": [1, true, null, \"x\\u00e9\"],\n \"b\": {}, \"c\": []}");
    ck_assert_str_eq(exf_yaml_get(y, "a")->child[3]->text, "x\xc3\xa9");
    ck_assert_uint_eq(exf_yaml_get(y, "b")->n + exf_yaml_get(y, "c")->n, 0);
    exf_yaml_free(y);
    y = good("word");
    ck_assert_int_eq(y->kind, EXF_YAML_SCALAR);
    ck_assert_ptr_null(exf_yaml_get(y, "word"));
    exf_yaml_free(y);
    y = good("%YAML 1.1\n---\na: 1\n...\n# the end\n");
    ck_assert_str_eq(text_of(y, "a"), "1");
    exf_yaml_free(y);
    y = good("\xef\xbb\xbf" "a: \xc3\xa9\n"); /* an editor's byte order mark */
    ck_assert_str_eq(text_of(y, "a"), "\xc3\xa9");
    exf_yaml_free(y);
    y = good("- [a: 1]\n- \"<<\": 2\n");
    ck_assert_str_eq(text_of(y->child[0]->child[0], "a"), "1");
    ck_assert_str_eq(text_of(y->child[1], "<<"), "2");
    exf_yaml_free(y);
}
END_TEST

START_TEST(null_is_unquoted)
{
    exf_yaml *y = good("- \n- ~\n- null\n- Null\n- NULL\n- \"\"\n- '~'\n- \"null\"\n- nULL\n- |\n- none\n");
    ck_assert_uint_eq(y->n, 11);
    for (size_t i = 0; i < y->n; i++) ck_assert_int_eq(y->child[i]->is_null, i < 5);
    ck_assert_str_eq(y->child[0]->text, "");
    ck_assert_str_eq(y->child[1]->text, "~");
    ck_assert_str_eq(y->child[7]->text, "null");
    exf_yaml_free(y);
}
END_TEST

START_TEST(duplicate_keys_are_refused)
{
    bad("a: 1\nb: 2\na: 3\n", "demo.yaml:3: ", "key \"a\" is given twice, first on line 1");
    bad("x:\n  ridge: 1\n  clip: 2\n  \"ridge\": 1\n", "demo.yaml:4: ", "key \"ridge\" is given twice, first on line 2");
    bad("{a: 1, b: 2, a: 3}", "demo.yaml:1: ", "key \"a\" is given twice, first on line 1");
    exf_yaml_free(good("a: {k: 1}\nb: {k: 1}\nA: 2\n"));
}
END_TEST

START_TEST(keys_must_be_words)
{
    bad("? [a, b]\n: 1\n", "demo.yaml:1: ", "a key is a list, expected a word");
    bad("x: 1\n? {a: b}\n: 1\n", "demo.yaml:2: ", "a key is a map, expected a word");
    bad("? |\n  a\n: 1\n", "demo.yaml:1: ", "a key is a block of text, expected a word");
    bad("a: 1\n~: 2\n", "demo.yaml:2: ", "a key is null or empty, expected a word");
    bad("a: 1\n?\n: 2\n", "demo.yaml:2: ", "a key is null or empty, expected a word");
    bad("{a: 1,\n ? : 2}\n", "demo.yaml:2: ", "a key is null or empty, expected a word");
    bad("\"\": 2\n", "demo.yaml:1: ", "a key is null or empty, expected a word");
    exf_yaml *y = good("\"null\": 1\n? b\n: 2\n");
    ck_assert_str_eq(text_of(y, "null"), "1");
    ck_assert_str_eq(text_of(y, "b"), "2");
    exf_yaml_free(y);
}
END_TEST

START_TEST(anchors_aliases_tags_and_merges_are_refused)
{
    bad("a: &x 1\n", "demo.yaml:1: ", "anchor &x: anchors are not accepted");
    bad("a: &x\n  b: 1\n", "demo.yaml:1: ", "anchor &x");
    bad("a:\n- &x [1]\n", "demo.yaml:2: ", "anchor &x");
    bad("&k a: 1\n", "demo.yaml:1: ", "anchor &k");
    bad("&r {a: 1}\n", "demo.yaml:1: ", "anchor &r");
    bad("a: *x\n", "demo.yaml:1: ", "alias *x: aliases are not accepted, write the value out");
    bad("b: 1\n*x : 1\n", "demo.yaml:2: ", "alias *x");
    bad("*x", "demo.yaml:1: ", "alias *x");
    bad("a: !!int 1\n", "demo.yaml:1: ", "tag tag:yaml.org,2002:int: tags are not accepted");
    bad("a: ! 1\n", "demo.yaml:1: ", "tag !: tags");
    bad("a: !mine [1]\n", "demo.yaml:1: ", "tag !mine: tags");
    bad("a: 1\nb: !mine {c: 1}\n", "demo.yaml:2: ", "tag !mine: tags");
    bad("!!str a: 1\n", "demo.yaml:1: ", "tag tag:yaml.org,2002:str");
    bad("%TAG !e! tag:e.org,2000:\n---\na: 1\n", "demo.yaml:1: ", "%TAG directive: tags are not accepted");
    bad("b: 1\n<<: {a: 1}\n", "demo.yaml:2: ", "merge key <<: not accepted, write the keys out");
}
END_TEST

START_TEST(one_document_that_is_not_empty)
{
    bad("a: 1\n---\nb: 2\n", "demo.yaml:2: ", "a second document starts, expected one document");
    bad("a: 1\n...\n---\nb: 2\n", "demo.yaml:3: ", "a second document starts");
    bad("", "demo.yaml:1: ", "the document is empty");
    bad_bytes(NULL, 0, "demo.yaml:1: ", "the document is empty");
    bad("# only a comment\n\n", "demo.yaml:1: ", "the document is empty");
    bad("---\n", "demo.yaml:", "the document is empty");
    bad("\n\n~\n", "demo.yaml:3: ", "the document is empty");
}
END_TEST

START_TEST(depth_is_bounded)
{
    char text[120];
    exf_err e;
    exf_yaml *y;
    memset(text, '[', 32);
    memset(text + 32, ']', 32);
    ck_ok(exf_yaml_parse(&y, text, 64, "demo.yaml", &e), e);
    exf_yaml_free(y);
    memset(text, '[', 33);
    memset(text + 33, ']', 33);
    bad_bytes(text, 66, "demo.yaml:1: ", "lists and maps nested deeper than 32");
    memset(text, '[', sizeof text);
    bad_bytes(text, sizeof text, "demo.yaml:1: ", "nested deeper than 32");
    char block[33 * 40] = "";
    for (size_t i = 0, at = 0; i < 34; i++) at += (size_t)sprintf(block + at, "%*sa:\n", (int)i, "");
    bad(block, "demo.yaml:33: ", "nested deeper than 32");
}
END_TEST

START_TEST(size_is_bounded)
{
    enum { LIMIT = 1 << 20 };
    static char text[LIMIT + 1];
    exf_err e;
    exf_yaml *y;
    memset(text, '#', sizeof text);
    memcpy(text, "a: 1\n", 5);
    ck_ok(exf_yaml_parse(&y, text, LIMIT, "demo.yaml", &e), e);
    exf_yaml_free(y);
    bad_bytes(text, LIMIT + 1, "demo.yaml: ", "1048577 bytes, at most 1048576 are accepted");
    const char *path = exf_scratch("big.yaml");
    exf_write_file(path, text, LIMIT + 1);
    ck_fails(exf_yaml_load(&y, path, &e), EXF_USAGE, e, "big.yaml 1048577 1048576");
    ck_assert_ptr_null(y);
}
END_TEST

/* The largest document of many small parts; quadratic work would show. */
START_TEST(a_full_size_map_is_read_quickly)
{
    enum { KEYS = 100000 };
    static char text[KEYS * 10 + 1];
    size_t len = 0;
    for (int i = 0; i < KEYS; i++) len += (size_t)sprintf(text + len, "k%05x: 1\n", i);
    exf_yaml *y = good(text);
    ck_assert_uint_eq(y->n, KEYS);
    ck_assert_str_eq(y->key[KEYS - 1], "k1869f");
    exf_yaml_free(y);
    memcpy(strrchr(text, 'k'), "k00000", 6);
    bad(text, "demo.yaml:100000: ", "key \"k00000\" is given twice, first on line 1");
}
END_TEST

START_TEST(bytes_must_be_utf8_without_nul)
{
    bad_bytes("a: 1\nb: \xff\n", 10, "demo.yaml:2: ", "byte 0xff is not valid UTF-8");
    bad_bytes("a: \xc3", 4, "demo.yaml:1: ", "byte 0xc3 is not valid UTF-8");
    bad_bytes("a: \xed\xa0\x80", 6, "demo.yaml:1: ", "byte 0xed is not valid UTF-8");
    bad_bytes("\xff\xfe" "a\0:\0", 6, "demo.yaml:1: ", "byte 0xff is not valid UTF-8"); /* UTF-16 */
    bad_bytes("a: 1\n\0b: 2\n", 11, "demo.yaml:2: ", "a NUL character");
    bad_bytes("a\0:\0 \0", 6, "demo.yaml:1: ", "a NUL character");
    bad("a: \"x\\0y\"\n", "demo.yaml:1: ", "a NUL character inside \"x\"");
    bad("b: 1\n\"a\\0\": 1\n", "demo.yaml:2: ", "a NUL character inside \"a\"");
    bad("a: 1\nb: \x01\n", "demo.yaml:2: not valid YAML: ", "control characters are not allowed");
}
END_TEST

/* ---- writing ---------------------------------------------------------------------------- */

/* Writes the text into every place of a document in which a scalar stands, and reads it back. */
static void round_trip(exf_code (*add)(exf_text *, const char *, exf_err *), const char *scalar)
{
    exf_err e;
    exf_text t = {0}, doc = {0};
    exf_yaml *y;
    ck_ok(add(&t, scalar, &e), e);
    ck_assert_ptr_null(strchr(t.s, '\n'));
    exf_text_appendf(&doc, "map:\n  key: %s # remark\n  next: 1\nlist: [%s, %s]\nitems:\n  - %s\n  - x\nend: %s\n",
                        t.s, t.s, t.s, t.s, t.s);
    exf_code rc = parse(&y, doc.s, &e);
    ck_assert_msg(rc == EXF_OK, "%s: %s", doc.s, e.msg);
    const exf_yaml *list = exf_yaml_get(y, "list"), *items = exf_yaml_get(y, "items"),
                   *all[] = {exf_yaml_get(exf_yaml_get(y, "map"), "key"), list->child[0], list->child[1], items->child[0],
                             exf_yaml_get(y, "end")};
    ck_assert(list->n == 2 && items->n == 2 && y->n == 4 && exf_yaml_get(y, "map")->n == 2);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ck_assert(all[i]->kind == EXF_YAML_SCALAR && !all[i]->is_null);
        ck_assert_msg(strcmp(all[i]->text, scalar) == 0, "\"%s\" written as %s is read as \"%s\"", scalar, t.s, all[i]->text);
    }
    exf_yaml_free(y);
    exf_text_free(&doc);
    exf_text_free(&t);
}

/* Names that a reader of YAML 1.1 or 1.2 takes for something other than text, or for another text. */
static const char *const hostile[] = {
    "", "~", "null", "Null", "NULL", "y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off",
    "OFF", "true", "True", "TRUE", "false", "False", "FALSE", "0", "1", "12", "-1", "+1", "1.5", ".5", "1.", "-.5", "1e3",
    "1E3", "1e+3", "1.5e-3", "+12e03", "1_000", "1_0.5_0", "1.2.3", "0x10", "0X1f", "-0x1F", "0o17", "017", "0b101", "0_0",
    ".inf", "-.inf", "+.Inf", ".INF", ".nan", ".NaN", ".NAN", "2001-01-01", "2001-1-1", "2001-12-14t21:59:43.10-05:00",
    "2001-12-14 21:59:43", "190:20:30", "1:30", "123e4567890", "0123456789", "-", "--", "---", "...", "-.", "- a", "-- a",
    "--- a", "? a", "?", ":", ": a", "a: b", "a:", "a :b", "#x", "a #x", "a# x", " lead", "trail ", "  ", "\t", "a\tb",
    "\ttab", "=", "<<", "!tag", "!!str a", "!", "&a", "&", "*a", "*", "%x", "%YAML 1.2", "@x", "`x", "'", "''", "\"", "\"\"",
    "it's", "say \"x\"", "\\", "a\\", "\\n", "[", "]", "{", "}", "[a]", "{a: b}", ",", "a,b", "|", ">", "|-", "> x", "\n",
    "a\nb", "a\n", "\r", "a\r\nb", "\x01", "\x1b[31m", "\x7f", "\xc2\x80", "\xc2\x85", "\xc2\xa0", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xef\xbb\xbf", "\xef\xbb\xbfx", "x\xef\xbb\xbf", "\xef\xbf\xbe", "\xef\xbf\xbf", "\xc3\xa9",
    "na\xc3\xafve", "\xe6\x97\xa5\xe6\x9c\xac", "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80: x", "\xe2\x80\xae" "abc",
    "it's\na \"line\"\\",
};

START_TEST(hostile_text_is_read_back)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        exf_err e;
        exf_text t = {0};
        round_trip(exf_yaml_add_scalar, hostile[i]);
        if (hostile[i][0]) round_trip(exf_yaml_add_value, hostile[i]);
        ck_ok(exf_yaml_add_scalar(&t, hostile[i], &e), e);
        ck_assert_msg(t.s[0] == '\'' || t.s[0] == '"', "%s stands without quotes", t.s);
        exf_text_free(&t);
    }
}
END_TEST

START_TEST(any_two_bytes_are_read_back)
{
    for (int a = 1; a < 128; a++)
        for (int b = 0; b < 128; b++) round_trip(exf_yaml_add_scalar, (char[]){(char)a, (char)b, 0});
}
END_TEST

/* What is text to every reader stands as it is; numbers do where their reader expects some. */
START_TEST(plain_words_have_no_quotes)
{
    static const char *const words[] = {"a", ".", "..", "pair", "source_norm", "none", "exfold-recipe/1", "/data/set 1",
                                        "../x.yaml", "./x", "P4", "8x", "a1e3", "1e3x", "nullable", "Nil", "yess", "0xg", "e5",
                                        "x-", "_", "_1a", "1-2", "2001-01-01x", "1e", "+",
                                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"};
    static const char *const values[] = {"0", "64", "-4", "0.001", "1e-3", "true", "auto", "2048"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        exf_err e;
        exf_text t = {0};
        ck_ok(exf_yaml_add_scalar(&t, words[i], &e), e);
        if (!strchr(words[i], ' ') && strcmp(words[i], "+") != 0) ck_assert_str_eq(t.s, words[i]);
        exf_text_free(&t);
        round_trip(exf_yaml_add_scalar, words[i]);
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        exf_err e;
        exf_text t = {0};
        ck_ok(exf_yaml_add_value(&t, values[i], &e), e);
        ck_assert_str_eq(t.s, values[i]);
        exf_text_free(&t);
        round_trip(exf_yaml_add_value, values[i]);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, block_and_flow_style_become_one_tree);
    tcase_add_test(t, nodes_know_their_lines);
    tcase_add_test(t, json_and_lone_scalars_and_markers_are_read);
    tcase_add_test(t, null_is_unquoted);
    tcase_add_test(t, duplicate_keys_are_refused);
    tcase_add_test(t, keys_must_be_words);
    tcase_add_test(t, anchors_aliases_tags_and_merges_are_refused);
    tcase_add_test(t, one_document_that_is_not_empty);
    tcase_add_test(t, depth_is_bounded);
    tcase_add_test(t, size_is_bounded);
    tcase_add_test(t, a_full_size_map_is_read_quickly);
    tcase_add_test(t, bytes_must_be_utf8_without_nul);
    tcase_add_test(t, hostile_text_is_read_back);
    tcase_add_test(t, any_two_bytes_are_read_back);
    tcase_add_test(t, plain_words_have_no_quotes);
}
