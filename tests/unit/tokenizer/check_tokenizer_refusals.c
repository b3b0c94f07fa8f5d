/* check_tokenizer_refusals.c - what a tokenizer refuses. */
#include "tests/support/tokenizer_fixtures.h"

#include "base/mem.h"
#include "format/json.h"

#include <unistd.h>

#define LONE_TEMPLATE(single) "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{\"x\":{\"ids\":[-1]}}}"
#define SEQ_A "{\"Sequence\":{\"id\":\"A\"}}"

#define FALLBACK "\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<u>\""
#define UNK "\"<u>\":256"
#define METASPACE(replacement, more) "{\"type\":\"Metaspace\",\"replacement\":\"" replacement "\"" more "}"

static const struct { parts p; const char *part;
} refusal[] = {
    {{.top = "\"version\":\"2.0\","}, "tokenizer.json: version \"2.0\" is not supported (supported: 1.0)"},
    {{.top = "\"padding\":{},"}, "with padding is not supported"},
    {{.normalizer = "{\"type\":\"Lowercase\"}"},
     "tokenizer.json: normalizer \"Lowercase\" is not supported (supported: null, NFC, Prepend, Replace, Sequence)"},
    {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[" NFC ",{\"type\":\"NFKC\"}]}"}, "normalizer \"NFKC\""},
    {{.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"\"}"}, "normalizer Prepend: prepend is not a string"},
    {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" \"},\"content\":\"x\"}"},
     "normalizer Replace: its pattern is not {\"String\": ...}"},
    {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"\"}"}, "normalizer Replace: content"},
    {{.pre = STEPS("{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"}")}, "pre_tokenizer \"Punctuation\""},
    {{.pre = "null"},
     "pre_tokenizer \"null\" is not supported (supported: Split, Digits, ByteLevel, Sequence; with byte_fallback null, Metaspace)"},
    {{.pre = METASPACE("\xe2\x96\x81", ""), .options = FALLBACK, .vocab = UNK, .lacks = 'a', .merges = "\"a b\""},
     "merge \"a b\" (model.merges[0]): \"a\" is not in model.vocab"},
    {{.options = FALLBACK, .vocab = UNK},
     "pre_tokenizer \"ByteLevel\" is not supported with byte_fallback (supported: null, Metaspace)"},
    {{.pre = METASPACE("_", ""), .options = FALLBACK, .vocab = UNK}, "pre_tokenizer Metaspace with replacement \"_\""},
    {{.pre = "{\"type\":\"Metaspace\"}", .options = FALLBACK, .vocab = UNK}, "Metaspace with replacement \"missing\""},
    {{.pre = METASPACE("\xe2\x96\x81", ",\"split\":1"), .options = FALLBACK, .vocab = UNK}, "\"Metaspace\": split is an integer"},
    {{.pre = METASPACE("\xe2\x96\x81", ",\"prepend_scheme\":\"last\""), .options = FALLBACK, .vocab = UNK},
     "Metaspace with prepend_scheme \"last\" is not supported (supported: always, first, never)"},
    {{.pre = METASPACE("\xe2\x96\x81", ",\"prepend_scheme\":1"), .options = FALLBACK, .vocab = UNK}, "\"an integer\""},
    {{.pre = METASPACE("\xe2\x96\x81", ",\"add_prefix_space\":false"), .options = FALLBACK, .vocab = UNK},
     "Metaspace: add_prefix_space is false, but prepend_scheme is always"},
    {{.pre = "{\"type\":\"Sequence\"}"}, "pretokenizers is missing, not an array"},
    {{.pre = "{\"type\":\"Digits\",\"individual_digits\":true}"}, "pre_tokenizer \"Digits\" without a ByteLevel step"},
    {{.pre = STEPS(BYTE_LEVEL)}, "\"ByteLevel\" after ByteLevel is not supported (ByteLevel must be the last)"},
    {{.pre = STEPS("{\"type\":\"Digits\"}")}, "pre_tokenizer \"Digits\": individual_digits is missing, not true or false"},
    {{.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}"},
     "ByteLevel with add_prefix_space true is not supported (supported: false)"},
    {{.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":1}"}, "\"ByteLevel\": use_regex is an integer"},
    {{.pre = STEPS(SPLIT("Regex", "a", "Removed", "false"))},
     "behavior \"Removed\" and invert false is not supported (supported: Isolated; Removed with invert true)"},
    {{.pre = STEPS(SPLIT("Regex", "a", "MergedWithNext", "true"))}, "behavior \"MergedWithNext\" and invert true"},
    {{.pre = STEPS(SPLIT("Glob", "a", "Isolated", "false"))}, "its pattern is neither {\"Regex\": ...} nor {\"String\": ...}"},
    {{.pre = REGEX("(a")}, "does not compile: missing closing parenthesis: \"(a\""},
    {{.post = "{\"type\":\"BertProcessing\"}"},
     "post_processor \"BertProcessing\" is not supported (supported: null, ByteLevel, TemplateProcessing, Sequence)"},
    {{.post = "{\"type\":\"Sequence\"}"}, "processors is missing, not an array"},
    {{.post = LONE_TEMPLATE("")}, "single has Sequence \"A\" 0 times, not once"},
    {{.post = LONE_TEMPLATE("{\"Sequence\":{\"id\":\"B\"}}")}, "single[0] is neither a SpecialToken nor Sequence \"A\""},
    {{.post = LONE_TEMPLATE(SEQ_A ",{\"SpecialToken\":{\"id\":\"y\"}}")}, "special token \"y\" has no ids in special_tokens"},
    {{.post = LONE_TEMPLATE(SEQ_A ",{\"SpecialToken\":{\"id\":\"x\"}}")}, "special token of post_processor \"x\": its id is -1"},
    {{.post = "{\"type\":\"Sequence\",\"processors\":[" LONE_TEMPLATE(SEQ_A) "," LONE_TEMPLATE(SEQ_A) "]}"},
     "more than one post_processor TemplateProcessing"},
    {{.options = "\"type\":\"Unigram\""}, "model \"Unigram\" is not supported (supported: BPE)"},
    {{.options = "\"type\":\"BPE\",\"dropout\":0.1"},
     "model BPE with dropout is not supported (it must be null or false, it is a real number)"},
    {{.options = "\"type\":\"BPE\",\"unk_token\":\"<unk>\""}, "model BPE with unk_token"},
    {{.options = "\"type\":\"BPE\",\"byte_fallback\":1"}, "model \"BPE\": byte_fallback is an integer, not true or false"},
    {{.options = FALLBACK}, "model BPE: unk_token \"<u>\" is not in model.vocab"},
    {{.options = "\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":1"}, "unk_token is an integer, not a string"},
    {{.options = FALLBACK ",\"fuse_unk\":1", .vocab = UNK}, "model \"BPE\": fuse_unk is an integer, not true or false"},
    {{.options = "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\""},
     "model BPE with end_of_word_suffix \"</w>\" is not supported (supported: null or \"\")"},
    {{.options = "\"type\":\"BPE\",\"continuing_subword_prefix\":1"}, "continuing_subword_prefix \"an integer\""},
    {{.options = "\"type\":\"BPE\",\"ignore_merges\":1"}, "model \"BPE\": ignore_merges is an integer, not true or false"},
    {{.vocab = "\"xy\":255"}, "vocabulary token \"xy\": its id 255 belongs to another token already"},
    {{.vocab = "\"xy\":16777216"}, "vocabulary token \"xy\": its id is 16777216, not an integer from 0 to 16777215"},
    {{.merges = "\"a b\""}, "merge \"a b\" (model.merges[0]): \"ab\" is not in model.vocab"},
    {{.merges = "[\"a\",\"bc\"]"}, "merge \"a bc\" (model.merges[0]): \"bc\" is not in model.vocab"},
    {{.vocab = "\"ab\":256", .merges = "\"a b\",\"xx a\""}, "merge \"xx a\" (model.merges[1]): \"xx\" is not in"},
    {{.merges = "\"a b c\""}, "model.merges[0] is neither [\"a\", \"b\"] nor \"a b\""},
    {{.added = "1"}, "an added token is not an object with a \"content\""},
    {{.added = ADDED("<a>", "null", "false")}, "added token \"<a>\": its id is null"},
    {{.added = ADDED("<a>", "300", "false")},
     "added token \"<a>\" has id 300, but it is not in model.vocab and the next free id is 256"},
    {{.added = ADDED("a", "256", "false")}, "added token \"a\" has id 256, but model.vocab gives it 97"},
    {{.added = ADDED("<a>", "256", "0")}, "added token \"<a>\": normalized is an integer, not true or false"},
    {{.added = ADDED("a", "97", "false") "," ADDED("a", "97", "false")}, "added token \"a\" is there twice (ids 97 and 97)"},
    {{.normalizer = NFC, .added = ADDED("\\u1e0b", "256", "true") "," ADDED("d\\u0307", "257", "true")}, "is there twice"},
    {{.added = "{\"id\":256,\"content\":\"x\",\"single_word\":false,\"lstrip\":true,\"rstrip\":false,\"normalized\":false}"},
     "added token \"x\" with lstrip true is not supported (supported: false)"},
};

START_TEST(refusals_name_what_is_wrong)
{
    exf_err e;
    exf_tokenizer *t;
    ck_fails(exf_tokenizer_load(&t, make(refusal[_i].p), EXF_BOS_AUTO, &e), EXF_MODEL, e, refusal[_i].part);
    ck_assert_ptr_null(t);
}
END_TEST

/* Each compiles, or nearly so, in Oniguruma and in PCRE2 and means two things. */
START_TEST(patterns_that_two_engines_read_differently)
{
    static const struct { const char *pattern, *named;
    } bad[] = {
        {"a\\h", "\"\\h\" at byte 1"},
        {"\\w+", "\"\\w\""},
        {"\\bx", "\"\\b\""},
        {"\\v", "\"\\v\""},
        {"\\R", "\"\\R\""},
        {"\\1", "\"\\1\""},
        {"\\K", "\"\\K\""},
        {"\\Z", "\"\\Z\""},
        {"\\\xc3\xa9", "\"\\\xc3\xa9\""},
        {"\\x80", "\"\\x\""},
        {"\\x{110000000}", "\"\\x\""},
        {"\\u0041", "\"\\u\""},
        {"x\\", "\"\\\" at byte 1"},
        {"\\p{Greek}", "\"\\p\""},
        {"\\p{l}", "\"\\p\""},
        {"\\pL", "\"\\p\""},
        {"\\p{L", "\"\\p\""},
        {"\\p{}", "\"\\p\""},
        {"\\p{^}", "\"\\p\""},
        {"[a&&b]", "\"&&\" at byte 2"},
        {"[&&[b]]", "\"&&\" at byte 1"},
        {"[a&&[b]c]", "\"]c\" at byte 6"},
        {"[a&&[b&&[c]]]", "\"&&\" at byte 6"},
        {"[a&&[b[c]]]", "\"[c\" at byte 6"},
        {"[a&&[]]", "\"[]\" at byte 4"},
        {"[a&&[b]", "\"[a&&[b]\" at byte 0"},
        {"[a&&[b", "\"[a&&[b\" at byte 0"},
        {"[a&&[", "\"[a&&[\" at byte 0"},
        {"(?i:[a&&[b]])", "\"&&\" at byte 6"},
        {"[a~~b]", "\"~~\" at byte 2"},
        {"[a[b]]", "\"[b\""},
        {"[[:alpha:]]", "\"[:\""},
        {"[]a]", "\"[]\""},
        {"[^]a]", "\"[^]\""},
        {"[\\A]", "\"\\A\""},
        {"[+-\\s]", "\"\\s]\""},
        {"[\\s-z]", "\"\\s-z\""},
        {"[\\b]", "\"\\b\""},
        {"[a-\\d]", "\"\\d]\""},
        {"[z-a]", "\"z-a\""},
        {"[--b]", "\"--\""},
        {"[a", "\"[a\""},
        {"[a-", "\"[a-\""},
        {"\\x{d800}", "\"\\x\""},
        {"\\x{110000}", "\"\\x\""},
        {"(?i:[\xc3\x9f])", "\"\xc3\x9f\""},
        {"(?i)a", "\"(?i\""},
        {"(?m:.)", "\"(?m\""},
        {"(?<n>a)", "\"(?<\""},
        {"(?#x)", "\"(?#\""},
        {"(*FAIL)", "\"(*F\""},
        {"(?~a)", "\"(?~\""},
        {"a{,2}", "\"{,2}\""},
        {"a{1,2}+", "\"{1,2}+\""},
        {"a{2}?", "\"{2}?\""},
        {"{", "\"{\""},
        {"a{1", "\"{1\""},
        {"a{x}", "\"{x\""},
        {"(?i:ss)", "\"s\" at byte 5"},
        {"(?i:a|(?:sT))", "\"T\""},
        {"(?i:\xc3\x9f)", "\"\xc3\x9f\""},
        {"(?i:[a]s)", "\"s\""},
        {"(?i:s[a])", "\"[\""},
        {"(?i:\\p{Lu})", "\"\\p\""},
        {"(?i:\\xdf)", "\"\\x\""},
    };
    exf_err e;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        exf_text pre = {0};
        exf_tokenizer *t;
        exf_text_appendf(&pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        ck_ok(exf_json_quote(&pre, bad[i].pattern, &e), e);
        exf_text_appendf(&pre, "},\"behavior\":\"Isolated\",\"invert\":false}");
        ck_fails(exf_tokenizer_load(&t, make((parts){.pre = pre.s}), EXF_BOS_AUTO, &e), EXF_MODEL, e, bad[i].named);
        ck_assert_msg(strstr(e.msg, "is not supported (Oniguruma and PCRE2 may read it differently)") != NULL, "%s", e.msg);
        exf_text_free(&pre);
    }
}
END_TEST

static void expect_file_refused(const char *bytes, exf_code code, const char *part)
{
    exf_err e;
    exf_tokenizer *t;
    const char *path = exf_scratch("file.json");
    exf_write_file(path, bytes, strlen(bytes));
    ck_fails(exf_tokenizer_load(&t, path, EXF_BOS_AUTO, &e), code, e, part);
}

START_TEST(files_that_are_no_tokenizers)
{
    exf_err e;
    exf_tokenizer *t;
    ck_fails(exf_tokenizer_load(&t, exf_scratch("absent"), EXF_BOS_AUTO, &e), EXF_IO, e, "No");
    expect_file_refused("", EXF_FORMAT, "file.json: line");
    expect_file_refused("{\"a\":1,\"a\":2}", EXF_FORMAT, "duplicate");
    expect_file_refused("[]", EXF_MODEL, "file.json: not a tokenizer: the file is an array, not an object");
    expect_file_refused("{}", EXF_MODEL, "model \"missing\"");
    expect_file_refused("{\"pre_tokenizer\":" BYTE_LEVEL "}", EXF_MODEL, "model \"missing\"");
    expect_file_refused("{\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\"}}", EXF_MODEL,
                        "model.vocab is missing, not an object");
}
END_TEST

/* Released vocabularies lack bytes that their training never saw: only a text that has one is refused, and not where a longer token
 * or an added one holds it. */
START_TEST(a_byte_without_token_is_refused_where_a_text_has_it)
{
    static const struct { parts p; const char *good, *bad, *named; } row[] = {
        {{.lacks = 'q'}, "abc", "abqc", "0x71"},
        {{.lacks = 0x80}, "abc", "\xc2\x80", "0x80"},
        {{.lacks = 'q', .options = "\"type\":\"BPE\",\"ignore_merges\":true", .vocab = "\"qu\":256"}, "qu", "qa", "0x71"},
        {{.lacks = 'q', .vocab = "\"<q>\":256", .added = ADDED("<q>", "256", "false")}, "a<q>b", "<q", "0x71"},
        {{.pre = "null", .options = "\"type\":\"BPE\",\"byte_fallback\":true", .lacks = 'q'}, "abc", "aq", "0x71"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        exf_err e;
        exf_tokenizer *t;
        exf_ids ids = {0};
        ck_ok(exf_tokenizer_load(&t, make(row[i].p), EXF_BOS_AUTO, &e), e);
        ck_ok(exf_tokenizer_encode(t, row[i].good, strlen(row[i].good), &ids, &e), e);
        size_t n = ids.n;
        ck_assert_uint_gt(n, 0);
        ck_fails(exf_tokenizer_encode(t, row[i].bad, strlen(row[i].bad), &ids, &e), EXF_MODEL, e, row[i].named);
        ck_assert_uint_eq(ids.n, n);
        exf_ids_free(&ids);
        exf_tokenizer_free(t);
    }
}
END_TEST

START_TEST(runaway_patterns_and_many_steps_end)
{
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    exf_text pre = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    ck_ok(exf_tokenizer_load(&t, make((parts){.pre = REGEX("(?:a+)+(?:b|cd)")}), EXF_BOS_AUTO, &e), e);
    ck_fails(exf_tokenizer_encode(t, text, sizeof text, &ids, &e), EXF_MODEL, e,
             "100012800 64 0");
    ck_assert_uint_eq(ids.n, 0);
    exf_tokenizer_free(t);
    exf_text_appendf(&pre, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 33; i++) exf_text_appendf(&pre, "{\"type\":\"Digits\",\"individual_digits\":true},");
    exf_text_appendf(&pre, BYTE_LEVEL "]}");
    ck_fails(exf_tokenizer_load(&t, make((parts){.pre = pre.s}), EXF_BOS_AUTO, &e), EXF_MODEL, e, "pre_tokenizer 32");
    exf_text_free(&pre);
    exf_ids_free(&ids);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, refusals_name_what_is_wrong, 0, (int)(sizeof refusal / sizeof refusal[0]));
    tcase_add_test(t, patterns_that_two_engines_read_differently);
    tcase_add_test(t, files_that_are_no_tokenizers);
    tcase_add_test(t, runaway_patterns_and_many_steps_end);
    tcase_add_test(t, a_byte_without_token_is_refused_where_a_text_has_it);
}
