/* check_corpus_text.c - sequences that are cut from documents. */
#include "tests/support/scratch_fixtures.h"

#include "tests/support/corpus_fixtures.h" /* whose `e` shadows none of the others' */

#include "base/text.h"

#define BOS "<\xef\xbd\x9c" "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"

/* What the tokenizer makes of a text on its own. */
static exf_ids encoded(const char *text)
{
    static exf_tokenizer *t;
    exf_ids ids = {0};
    if (!t) ck_ok(exf_tokenizer_load(&t, TOKENIZER, EXF_BOS_AUTO, &e), e);
    if (!text) {
        exf_tokenizer_free(t);
        t = NULL;
        return ids;
    }
    ck_ok(exf_tokenizer_encode(t, text, strlen(text), &ids, &e), e);
    return ids;
}

/* From sequence i on, the corpus holds the pieces of this text; returns the next. */
static size_t pieces_equal(const exf_corpus *c, size_t i, const char *text, size_t max, size_t min)
{
    exf_ids ids = encoded(text);
    for (size_t at = 0; at < ids.n; at += max) {
        size_t n = ids.n - at < max ? ids.n - at : max;
        if (n >= min) ids_equal(c, i++, ids.id + at, (int32_t)n);
    }
    exf_ids_free(&ids);
    return i;
}

static const char *const doc[] = {
    "The sea comes and goes twice a day, and nobody has ever asked it to stop for a moment.",
    "int main(void) { return 0; }",
    "caf\xc3\xa9 \xe2\x82\xac 12 and some more words to fill the line",
};

START_TEST(documents_are_cut_and_never_joined)
{
    put("docs.jsonl", "{\"text\": \"The sea comes and goes twice a day, and nobody has ever asked it to stop for a moment.\"}\n"
                      "\n  \t\r\n{\"text\": \"\"}\n"
                      "{\"kind\": 1, \"text\": \"int main(void) { return 0; }\"}\r\n"
                      "{\"text\": \"caf\\u00e9 \xe2\x82\xac 12 and some more words to fill the line\"}");
    for (int64_t min = 1; min <= 8; min++) {
        exf_corpus_request q = ask(HEAD "  - {path: docs.jsonl, format: jsonl}\n");
        q.vocab = 1504;
        q.min_tokens = min;
        exf_corpus *c = load(&q);
        size_t i = 0, tokens = 0, cut = 0;
        for (int d = 0; d < 3; d++) {
            i = pieces_equal(c, i, doc[d], 8, (size_t)min);
            exf_ids ids = encoded(doc[d]);
            tokens += ids.n;
            cut += (ids.n + 7) / 8;
            exf_ids_free(&ids);
        }
        ck_assert_uint_eq(c->n_sequences, i);
        ck_assert_int_eq(c->sequence[i - 1].row, (int64_t)i - 1);
        ck_assert_uint_eq(c->domains[0].sequences_kept, i);
        ck_assert_uint_eq(c->domains[0].sequences_dropped, cut - i);
        ck_assert_uint_eq(c->domains[0].tokens_kept, c->n_tokens);
        ck_assert_uint_eq(c->domains[0].tokens_kept + c->domains[0].tokens_dropped, tokens);
        exf_corpus_free(c);
    }
    encoded(NULL);
}
END_TEST

START_TEST(where_takes_the_lines_that_match)
{
    put("docs.jsonl", "{\"domain\": \"c\", \"lang\": \"en\", \"body\": \"int main(void) { return 0; }\"}\n"
                      "{\"domain\": \"c\", \"lang\": \"de\", \"body\": 5}\n"
                      "{\"domain\": \"prose\", \"lang\": \"en\"}\n"
                      "{\"domain\": 1, \"lang\": \"en\"}\n"
                      "{\"domain\": \"c\\u0000\", \"lang\": \"en\"}\n");
    exf_corpus_request q = ask(HEAD "  - path: docs.jsonl\n    format: jsonl\n    field: body\n    where: {domain: c, lang: en}\n");
    q.vocab = 1504;
    exf_corpus *c = load(&q);
    ck_assert_uint_eq(c->n_sequences, pieces_equal(c, 0, doc[1], 8, 1));
    exf_corpus_free(c);
    q = ask(HEAD "  - {path: docs.jsonl, format: jsonl, field: body, where: {domain: python}}\n");
    refused(&q, EXF_MODEL, "source 1 (docs.jsonl): empty: none of its 5 lines is what \"where\" asks for");
    q = ask(HEAD "  - {path: docs.jsonl, format: jsonl, field: body, where: {lang: de}}\n");
    refused(&q, EXF_MODEL, "source 1 (docs.jsonl): line 2: \"body\" is an integer, expected a string");
    q = ask(HEAD "  - {path: docs.jsonl, format: jsonl, where: {domain: prose}}\n");
    refused(&q, EXF_MODEL, "line 3: \"text\" is missing; the line's members are \"domain\", \"lang\"");
    encoded(NULL);
}
END_TEST

START_TEST(a_text_file_is_one_document)
{
    put("sea.txt", doc[0]);
    put("empty.txt", "");
    exf_corpus_request q = ask(HEAD "  - {path: sea.txt, format: text, domain: prose}\n");
    q.vocab = 1504;
    exf_corpus *c = load(&q);
    ck_assert_uint_eq(c->n_sequences, pieces_equal(c, 0, doc[0], 8, 1));
    exf_corpus_free(c);
    q = ask(HEAD "  - {path: empty.txt, format: text, domain: prose}\n");
    refused(&q, EXF_MODEL, "source 1 (empty.txt, domain \"prose\"): empty: no sequence of at least 1 tokens, 0 shorter ones");
    exf_write_file(exf_scratch("empty.txt"), "one\ntwo\n\xff\n", 10);
    refused(&q, EXF_MODEL, "(empty.txt, domain \"prose\"): line 3: byte 0xff is not valid UTF-8");
    exf_write_file(exf_scratch("empty.txt"), "one\ntwo\n\0three\n", 15);
    refused(&q, EXF_MODEL, "(empty.txt, domain \"prose\"): line 3: holds a NUL");
    const char lines[] = "{\"text\": \"one\"}\n{\"text\": \"two\\u0000three\"}\n";
    exf_write_file(exf_scratch("nul.jsonl"), lines, sizeof lines - 1);
    q = ask(HEAD "  - {path: nul.jsonl, format: jsonl, domain: prose}\n");
    refused(&q, EXF_MODEL, "(nul.jsonl, domain \"prose\"): line 2: holds a NUL");
    encoded(NULL);
}
END_TEST

/* Documents count on from source to source; a shard keeps their numbers, and a row of token ids is one too. */
START_TEST(sequences_know_their_document)
{
    put("docs.jsonl", "{\"text\": \"The sea comes and goes twice a day, and nobody has ever asked it to stop for a moment.\"}\n"
                      "{\"text\": \"\"}\n{\"text\": \"int main(void) { return 0; }\"}\n");
    put("sea.txt", doc[2]);
    put_ids("ids.safetensors", "x", 2, 8);
    exf_corpus_request q = ask(HEAD "  - {path: docs.jsonl, format: jsonl}\n  - {path: sea.txt, format: text}\n"
                                    "  - {path: ids.safetensors, format: tokens}\n");
    q.vocab = 2000;
    exf_corpus *c = load(&q);
    size_t sea = pieces_equal(c, 0, doc[0], 8, 1), main_ = pieces_equal(c, sea, doc[1], 8, 1);
    size_t cafe = pieces_equal(c, main_, doc[2], 8, 1);
    size_t end[] = {sea, sea, main_, cafe, cafe + 1, cafe + 2}, i = 0;
    for (int64_t d = 0; d < 6; d++)
        for (; i < end[d]; i++) ck_assert_int_eq(c->sequence[i].document, d);
    ck_assert_uint_eq(i, c->n_sequences);
    ck_assert(c->documents_known && sea > 1);
    ck_ok(exf_corpus_take_shard(c, sea - 1, main_ + 1, 2, 3, &e), e);
    ck_assert(c->sequence[0].document == 0 && c->sequence[1].document == 2 && c->sequence[c->n_sequences - 1].document == 3);
    exf_corpus_free(c);
    q = ask(HEAD "  - {path: ids.safetensors, format: tokens}\n");
    q.vocab = 2000;
    c = load(&q);
    ck_assert(!c->documents_known && c->sequence[0].document == 0 && c->sequence[1].document == 1);
    exf_corpus_free(c);
    encoded(NULL);
}
END_TEST

START_TEST(short_documents_leave_a_source_empty)
{
    put("docs.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    put_ids("ids.safetensors", "x", 3, 6);
    exf_corpus_request q = ask(HEAD "  - {path: docs.jsonl, format: jsonl}\n");
    q.min_tokens = 8;
    refused(&q, EXF_MODEL, "empty: no sequence of at least 8 tokens, 2 shorter ones");
    q = ask(HEAD SILENT);
    q.min_tokens = 8;
    refused(&q, EXF_MODEL, "empty: no sequence of at least 8 tokens, 3 shorter ones");
    put("docs.jsonl", "\n\n");
    refused_manifest(HEAD "  - {path: docs.jsonl, format: jsonl}\n", EXF_MODEL, "empty: no sequence");
    put("docs.jsonl", "");
    refused_manifest(HEAD "  - {path: docs.jsonl, format: jsonl}\n", EXF_MODEL, "empty: no sequence");
}
END_TEST

START_TEST(lines_may_be_long_but_not_endless)
{
    enum { LIMIT = 64 << 20 };
    char *big = malloc(LIMIT + 2);
    size_t words = 30000, n = 0;
    memcpy(big, "{\"text\": \"", 10);
    for (n = 10; n < 10 + 5 * words; n += 5) memcpy(big + n, " word", 5);
    memcpy(big + n, "\"}\n{\"text\": \" word\"}\n", 21);
    exf_write_file(exf_scratch("docs.jsonl"), big, n + 21);
    exf_corpus_request q = ask(JSONL);
    q.vocab = 1504;
    q.max_tokens = 1 << 20;
    exf_corpus *c = load(&q);
    ck_assert_uint_eq(c->n_sequences, 2);
    exf_ids one = encoded(" word");
    ck_assert_uint_eq(c->sequence[0].n_tokens, words * one.n);
    ids_equal(c, 1, one.id, (int32_t)one.n);
    exf_ids_free(&one);
    exf_corpus_free(c);
    memset(big, ' ', LIMIT + 1);
    exf_write_file(exf_scratch("docs.jsonl"), big, LIMIT + 1);
    refused(&q, EXF_MODEL, "line 1: longer than 67108864 bytes");
    exf_write_file(exf_scratch("docs.jsonl"), big, LIMIT);
    refused(&q, EXF_MODEL, "empty");
    q = ask(HEAD "  - {path: docs.jsonl, format: text}\n");
    exf_write_file(exf_scratch("docs.jsonl"), big, LIMIT + 1);
    refused(&q, EXF_MODEL, "67108865 bytes, a document has at most 67108864");
    free(big);
    encoded(NULL);
}
END_TEST

/* Before a document, not before the pieces that it is cut into. */
START_TEST(a_token_before_every_document)
{
    static const char *const said[] = {"256 (add_bos_token)", "256 (data.bos: always)", "none (data.bos: never)"};
    put("docs.jsonl", "{\"text\": \"abcdefghij\"}\n{\"text\": \"k\"}\n");
    exf_corpus_request q = ask(JSONL);
    q.tokenizer = "tests/golden/tokenizers/bos/deepseek_v3/tokenizer.json";
    q.vocab = 258;
    q.bos = (exf_bos)_i;
    exf_corpus *c = load(&q);
    size_t put_before = q.bos != EXF_BOS_NEVER;
    ck_assert_str_eq(c->tokenizer_bos, said[_i]);
    ck_assert_uint_eq(c->n_tokens, 11 + 2 * put_before);
    for (size_t i = 0; i < c->n_tokens; i++)
        ck_assert_int_eq(c->ids[i] == 256, put_before && (i == 0 || i == 11));
    ck_assert_uint_eq(c->n_sequences, 3); /* of 8 tokens at most */
    exf_corpus_free(c);
}
END_TEST

/* A rendered conversation begins with the token itself; a second one is a text that the model never saw. */
START_TEST(a_document_has_the_token_before_it_once)
{
    put("docs.jsonl", "{\"text\": \"" BOS "abcdef\"}\n{\"text\": \"ab\"}\n{\"text\": \"" BOS BOS "c\"}\n{\"text\": \"" BOS "\"}\n");
    exf_corpus_request q = ask(JSONL);
    q.tokenizer = "tests/golden/tokenizers/bos/deepseek_v3/tokenizer.json";
    q.vocab = 258;
    q.bos = (exf_bos)_i;
    exf_corpus *c = load(&q);
    static const int32_t once[] = {256, 64, 65, 66, 67, 68, 69}, twice[] = {256, 256, 66}; /* "a" is 64 */
    ck_assert_uint_eq(c->n_sequences, 4);
    ids_equal(c, 0, once, 7);
    if (q.bos == EXF_BOS_NEVER) ids_equal(c, 1, once + 1, 2);
    else ids_equal(c, 1, once, 3);
    ids_equal(c, 2, twice, 3); /* one of them is its own */
    ids_equal(c, 3, once, 1);
    exf_corpus_free(c);
}
END_TEST

START_TEST(a_byte_order_mark_is_left_out)
{
    put("sea.txt", "\xef\xbb\xbf" "int main(void) { return 0; }");
    put("docs.jsonl", "\xef\xbb\xbf{\"text\": \"The sea comes and goes\"}\n{\"text\": \"\xef\xbb\xbfx\"}\n");
    exf_corpus_request q = ask(HEAD "  - {path: sea.txt, format: text}\n  - {path: docs.jsonl, format: jsonl}\n");
    exf_corpus *c = load(&q);
    size_t i = pieces_equal(c, 0, doc[1], 8, 1);
    i = pieces_equal(c, i, "The sea comes and goes", 8, 1);
    i = pieces_equal(c, i, "\xef\xbb\xbfx", 8, 1); /* within a document it is a character like any other */
    ck_assert_uint_eq(c->n_sequences, i);
    exf_corpus_free(c);
    encoded(NULL);
}
END_TEST

START_TEST(members_are_joined)
{
    put("docs.jsonl", "{\"prompt\": \"int main\", \"completion\": \"(void) { return 0; }\"}\n");
    exf_corpus_request q = ask(HEAD "  - {path: docs.jsonl, format: jsonl, field: prompt+completion}\n");
    exf_corpus *c = load(&q);
    ck_assert_uint_eq(c->n_sequences, pieces_equal(c, 0, doc[1], 8, 1));
    exf_corpus_free(c);
    put("docs.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"int main\"}\n");
    refused(&q, EXF_MODEL, "line 2: \"completion\" is missing; the line's members are \"prompt\"");
    put("docs.jsonl", "{\"prompt\": \"a\", \"completion\": 7}\n");
    refused(&q, EXF_MODEL, "line 1: \"completion\" is an integer, expected a string");
    encoded(NULL);
}
END_TEST

START_TEST(lines_of_token_ids)
{
    put("docs.jsonl", "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"attention_mask\": [1, 1, 1, 1, 1, 1, 1, 1, 1]}\n\n"
                      "{\"input_ids\": []}\n{\"input_ids\": [1503]}\n");
    exf_corpus_request q = ask(HEAD "  - {path: docs.jsonl, format: ids}\n");
    q.tokenizer = NULL; /* needs none */
    exf_corpus *c = load(&q);
    static const int32_t want[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1503};
    ck_assert_uint_eq(c->n_sequences, 3);
    ids_equal(c, 0, want, 8);
    ids_equal(c, 1, want + 8, 1);
    ids_equal(c, 2, want + 9, 1);
    ck_assert(c->documents_known && c->sequence[1].document == 0 && c->sequence[2].document == 2);
    exf_corpus_free(c);
    static const struct { const char *line, *named; } bad[] = {
        {"{\"input_ids\": [1, 1504]}", "line 1: \"input_ids\"[1]: token id 1504, the vocabulary has 1504"},
        {"{\"input_ids\": [-1]}", "token id -1"},
        {"{\"input_ids\": [1, 2.5]}", "\"input_ids\"[1] is a real number, expected a token id"},
        {"{\"input_ids\": [[1]]}", "\"input_ids\"[0] is an array"},
        {"{\"input_ids\": \"a\"}", "\"input_ids\" is a string, expected a list of token ids"},
        {"{\"ids\": [1]}", "\"input_ids\" is missing"},
        {"{\"input_ids\": [1, 0], \"attention_mask\": [1, 0]}", "line 1: \"attention_mask\" 0 position 1 padded"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("docs.jsonl", bad[i].line);
        refused(&q, EXF_MODEL, bad[i].named);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, documents_are_cut_and_never_joined);
    tcase_add_loop_test(t, a_token_before_every_document, 0, 3);
    tcase_add_loop_test(t, a_document_has_the_token_before_it_once, 0, 3);
    tcase_add_test(t, a_byte_order_mark_is_left_out);
    tcase_add_test(t, members_are_joined);
    tcase_add_test(t, lines_of_token_ids);
    tcase_add_test(t, where_takes_the_lines_that_match);
    tcase_add_test(t, a_text_file_is_one_document);
    tcase_add_test(t, sequences_know_their_document);
    tcase_add_test(t, short_documents_leave_a_source_empty);
    tcase_add_test(t, lines_may_be_long_but_not_endless);
}
