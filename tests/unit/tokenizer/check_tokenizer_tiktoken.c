/* check_tokenizer_tiktoken.c - a tokenizer of tiktoken.model, tokenizer_config.json and the constants of a Python file: what it
 * makes of texts, the forms in which the constants may stand, and what is refused.  check_tokenizer_released.c compares it with
 * tiktoken. */
#include "tests/support/tokenizer_ids.h"

#include "base/mem.h"
#include "format/json.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLASS "\"auto_map\":{\"AutoTokenizer\":[\"own_module.TikTokenTokenizer\",null]}"
#define CONFIG TOKENS("\"259\":{\"content\":\"[B]\"},\"262\":{\"content\":\"<e>\",\"lstrip\":false}")
#define TOKENS(token) "{" CLASS ",\"added_tokens_decoder\":{" token "}}"
#define PYTHON                                             \
    "class T:\n    num_reserved_special_tokens = 4\n"      \
    "    pat_str = \"|\".join([r\"\"\"[a-z ]+\"\"\", r\"\"\"[\\s\\S]\"\"\"])\n"

/* The lines of all bytes, which are their own ranks, and what comes after. */
static void add_bytes_in_base64(exf_text *out, int lacks)
{
    exf_err e;
    for (unsigned c = 0; c < 256; c++) {
        unsigned char byte = (unsigned char)c;
        if ((int)c == lacks) continue;
        ck_ok(exf_base64_add(out, &byte, 1, &e), e);
        exf_text_appendf(out, " %u\n", c);
    }
}

/* ranks: lines after those of the bytes, or alone where they begin with "!"; NULL: "ab" 256, "abc" 257, "bc" 258. */
typedef struct { const char *ranks, *config, *python; int lacks; } files;

static const char *make_files(files f)
{
    exf_text s = {0};
    const char *path = exf_scratch("tiktoken.model");
    const char *ranks = f.ranks ? f.ranks : "YWI= 256\r\n\nYWJj 257\nYmM= 258";
    if (*ranks == '!') ranks++;
    else add_bytes_in_base64(&s, f.lacks ? f.lacks : -1);
    exf_text_appendf(&s, "%s", ranks);
    exf_write_file(path, s.s, s.len);
    exf_text_free(&s);
    if (!f.config) f.config = CONFIG;
    if (!f.python) f.python = PYTHON;
    exf_write_file(exf_scratch("tokenizer_config.json"), f.config, strlen(f.config));
    exf_write_file(exf_scratch("own_module.py"), f.python, strlen(f.python));
    return path;
}

static void expect(files f, const char *text, const char *want)
{
    expect_ids(make_files(f), text, strlen(text), want);
}

START_TEST(ranks_are_ids_and_order_merges)
{
    files f = {0};
    expect(f, "ab", "256");
    expect(f, "abc", "257"); /* the piece is a token */
    expect(f, "abcab", "257 256");
    expect(f, "bcabc", "258 257");
    expect(f, "a\xc3\xa9", "97 195 169");
    f.ranks = "YmM= 256\nYWI= 257\nYWJj 258\n";
    expect(f, "xabc", "120 258"); /* "bc" first, then "a" and "bc" */
    f = (files){.ranks = "YWJj 256\n", .config = TOKENS("\"257\":{\"content\":\"[B]\"}")};
    expect(f, "xabc", "120 97 98 99"); /* nothing leads there but the whole piece */
    expect(f, "abc", "256");
    f = (files){.ranks = "YWI= 113\n", .lacks = 'q', .config = TOKENS("\"256\":{\"content\":\"[B]\"}")};
    expect(f, "xab", "120 113"); /* a byte without token harms texts that have it, and no others */
}
END_TEST

START_TEST(special_tokens_are_named_or_numbered)
{
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    expect((files){0}, "a[B]<e>b", "97 259 262 98");
    expect((files){0}, "<|reserved_token_260|><|reserved_token_261|>", "260 261");
    expect((files){0}, "<|reserved_token_259|>|>", /* it has a name */
           "60 124 114 101 115 101 114 118 101 100 95 116 111 107 101 110 95 50 53 57 124 62 124 62");
    ck_ok(exf_tokenizer_load(&t, make_files((files){0}), EXF_BOS_AUTO, &e), e);
    ck_assert_int_eq(exf_tokenizer_facts_of(t)->size, 263);
    ck_assert_str_eq(exf_tokenizer_facts_of(t)->around.said.s, "none (tiktoken.model)");
    exf_tokenizer_free(t);
    const char *config = "{" CLASS ",\"added_tokens_decoder\":{\"259\":{\"content\":\"[B]\"}},\"bos_token\":\"[B]\"}";
    ck_ok(exf_tokenizer_load(&t, make_files((files){.config = config}), EXF_BOS_ALWAYS, &e), e);
    ck_ok(exf_tokenizer_encode(t, "a", 1, &ids, &e), e);
    ck_assert_uint_eq(ids.n, 2);
    ck_assert_int_eq(ids.id[0], 259);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

START_TEST(constants_in_other_forms)
{
    static const char *const form[] = {
        "pat_str='|'.join([r'[a-z ]+',r'''[\\s\\S]''',])\nnum_reserved_special_tokens=4",
        "# pat_str = is told below\n\tpat_str = \"|\" .join ( [ # parts\n r\"[a-z ]+\" , # of it\r\n\n r\"[\\s\\S]\" ] )\n"
        "num_reserved_special_tokens = 4# of them\npat_str_of_others = 1\n",
        "x = other.pat_str = 3\npat_str = \"|\".join([r\"\"\"[a-z ]+|\\\"\"\"\", r'[\\s\\S]'])\nnum_reserved_special_tokens = 4\n",
    };
    expect((files){.python = form[_i]}, "ab abc!", "256 32 257 33");
}
END_TEST

/* The file that a checkpoint without tokenizer.json has, and the Python file that belongs to it. */
START_TEST(paths_of_a_checkpoint)
{
    exf_err e;
    char *path, *python, dir[400];
    (void)make_files((files){0});
    snprintf(dir, sizeof dir, "%s", exf_scratch(""));
    ck_ok(exf_tokenizer_path(&path, dir, &e), e);
    ck_assert_ptr_nonnull(strstr(path, "/tiktoken.model"));
    ck_ok(exf_tokenizer_python(&python, path, &e), e);
    ck_assert_ptr_nonnull(strstr(python, "/own_module.py"));
    exf_mem_free(path);
    exf_mem_free(python);
    exf_write_file(exf_scratch("tokenizer.json"), "{}", 2);
    ck_ok(exf_tokenizer_path(&path, dir, &e), e);
    ck_assert_ptr_nonnull(strstr(path, "/tokenizer.json"));
    ck_ok(exf_tokenizer_python(&python, path, &e), e);
    ck_assert_ptr_null(python);
    exf_mem_free(path);
    unlink(exf_scratch("tokenizer.json"));
    unlink(exf_scratch("tiktoken.model"));
    ck_ok(exf_tokenizer_path(&path, dir, &e), e);
    ck_assert_ptr_nonnull(strstr(path, "/tokenizer.json"));
    exf_mem_free(path);
}
END_TEST

#define JOIN(parts) "pat_str = \"|\".join([" parts "])\n"
#define RESERVED "num_reserved_special_tokens = 4\n"
static const struct { files f; exf_code code; const char *named; } refusal[] = {
    {{.ranks = "!\n\n"}, EXF_FORMAT, "tiktoken.model 0 lines 1"},
    {{.ranks = "YWI=\n"}, EXF_FORMAT, "tiktoken.model line 257 base64"},
    {{.ranks = "YWI 256\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = "YW=I 256\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = "Y=== 256\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = " 256\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = "YWI= 256 7\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = "YWI= +256\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = "YWI= 0x1\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = "YWI= 1234567890123456789012\n"}, EXF_FORMAT, "line 257 base64"},
    {{.ranks = "YWI= 257\n"}, EXF_FORMAT, "tiktoken.model line 257 257 257 256"},
    {{.ranks = "YWI= 255\n"}, EXF_FORMAT, "tiktoken.model line 257 255"},
    {{.ranks = "YQ== 256\n"}, EXF_MODEL, "tiktoken.model 97 256"},
    {{.config = "[]"}, EXF_MODEL, "tokenizer_config.json auto_map AutoTokenizer \"missing\" TikTokenTokenizer tiktoken.model"},
    {{.config = "{"}, EXF_FORMAT, "tokenizer_config.json"},
    {{.config = "{\"auto_map\":{\"AutoTokenizer\":[\"m.QWenTokenizer\",null]}}"}, EXF_MODEL, "\"m.QWenTokenizer\""},
    {{.config = "{\"auto_map\":{\"AutoTokenizer\":\"../m.TikTokenTokenizer\"}}"}, EXF_MODEL, "\"../m.TikTokenTokenizer\""},
    {{.config = "{\"auto_map\":{\"AutoTokenizer\":\"a/b--m.TikTokenTokenizer\"}}"}, EXF_MODEL, "\"a/b--m.TikTokenTokenizer\""},
    {{.config = "{\"auto_map\":{\"AutoTokenizer\":\"absent.TikTokenTokenizer\"}}"}, EXF_IO, "absent.py"},
    {{.config = "{" CLASS "}"}, EXF_MODEL, "tokenizer_config.json added_tokens_decoder"},
    {{.config = TOKENS("\"259\":{}")}, EXF_MODEL, "added_tokens_decoder 259 \"content\""},
    {{.config = TOKENS("\"259\":\"[B]\"")}, EXF_MODEL, "added_tokens_decoder 259 \"content\""},
    {{.config = TOKENS("\"258\":{\"content\":\"x\"}")}, EXF_MODEL, "added_tokens_decoder \"x\" 258 4 259 tiktoken.model"},
    {{.config = TOKENS("\"263\":{\"content\":\"x\"}")}, EXF_MODEL, "\"x\" 263 4 259"},
    {{.config = TOKENS("\"y\":{\"content\":\"x\"}")}, EXF_MODEL, "\"x\" y 4 259"},
    {{.config = TOKENS("\"259\":{\"content\":\"x\",\"rstrip\":true}")}, EXF_MODEL, "rstrip true"},
    {{.config = TOKENS("\"259\":{\"content\":\"x\"},\"260\":{\"content\":\"x\"}")}, EXF_MODEL, "\"x\" 259 260"},
    {{.python = RESERVED}, EXF_MODEL, "own_module.py pat_str 0"},
    {{.python = JOIN("r'a'") JOIN("r'b'") RESERVED}, EXF_MODEL, "pat_str 2"},
    {{.python = "pat_str = r'a'\n" RESERVED}, EXF_MODEL, "pat_str \"|\".join([r\"...\", r\"...\"])"},
    {{.python = JOIN("") RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = JOIN("'a'") RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = JOIN("r'a' r'b'") RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = JOIN("r'a") RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = JOIN("r'''a''") RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = "pat_str = \"|\".join([r'a', *others])\n" RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = "pat_str = \"|\".join([r'a']\n" RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = "pat_str = \"|\".join([r'a']) + r'|b'\n" RESERVED}, EXF_MODEL, "pat_str \"|\".join"},
    {{.python = JOIN("r'\\w'") RESERVED}, EXF_MODEL, "own_module.py pat_str \"\\w\" 0 tiktoken PCRE2"},
    {{.python = JOIN("r'^a'") RESERVED}, EXF_MODEL, "pat_str \"^\" 0"},
    {{.python = JOIN("r'a$'") RESERVED}, EXF_MODEL, "pat_str \"$\" 1"},
    {{.python = JOIN("r'\\<'") RESERVED}, EXF_MODEL, "pat_str \"\\<\" 0"},
    {{.python = JOIN("r'(a'") RESERVED}, EXF_MODEL, "own_module.py pat_str \"(a\""},
    {{.python = JOIN("r'a'")}, EXF_MODEL, "own_module.py num_reserved_special_tokens 0"},
    {{.python = JOIN("r'a'") "num_reserved_special_tokens = 2 ** 8\n"}, EXF_MODEL, "num_reserved_special_tokens"},
    {{.python = JOIN("r'a'") "num_reserved_special_tokens = 4j\n"}, EXF_MODEL, "num_reserved_special_tokens 65536"},
    {{.python = JOIN("r'a'") "num_reserved_special_tokens = 70000\n"}, EXF_MODEL, "num_reserved_special_tokens 65536"},
    {{.python = JOIN("r'\xff'") RESERVED}, EXF_FORMAT, "own_module.py UTF-8"},
};

START_TEST(refusals_name_what_is_wrong)
{
    exf_err e;
    exf_tokenizer *t;
    ck_fails(exf_tokenizer_load(&t, make_files(refusal[_i].f), EXF_BOS_AUTO, &e), refusal[_i].code, e, refusal[_i].named);
    ck_assert_ptr_null(t);
}
END_TEST

/* Two tokens of 24000 letters, whose ways to be split take longer than any release's together. */
START_TEST(tokens_that_are_too_long_together)
{
    enum { LEN = 32000, LETTERS = LEN / 4 * 3 };
    exf_err e;
    exf_tokenizer *t;
    exf_text ranks = {0};
    char *digits = malloc(LEN + 1);
    ck_assert_ptr_nonnull(digits);
    digits[LEN] = 0;
    for (int i = 0; i < 2; i++) {
        memset(digits, i ? 'Y' : 'Z', LEN);
        exf_text_appendf(&ranks, "%s %d\n", digits, 256 + i);
    }
    ck_fails(exf_tokenizer_load(&t, make_files((files){.ranks = ranks.s}), EXF_BOS_AUTO, &e), EXF_FORMAT, e,
             "tiktoken.model 1152000256 1073741824");
    exf_text_free(&ranks);
    free(digits);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, ranks_are_ids_and_order_merges);
    tcase_add_test(t, special_tokens_are_named_or_numbered);
    tcase_add_loop_test(t, constants_in_other_forms, 0, 3);
    tcase_add_test(t, paths_of_a_checkpoint);
    tcase_add_loop_test(t, refusals_name_what_is_wrong, 0, COUNT(refusal));
    tcase_add_test(t, tokens_that_are_too_long_together);
}
