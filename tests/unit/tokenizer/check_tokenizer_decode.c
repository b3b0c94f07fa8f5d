/* check_tokenizer_decode.c - ids back to text: what was encoded comes back, in each kind of vocabulary. */
#include "tests/support/scratch_fixtures.h"
#include "tests/support/tokenizer_fixtures.h"

static const struct { const char *file, *front; } shape[] = { /* front: what the tokenizer puts before a text, as text */
    {"tests/golden/tokenizers/qwen3/tokenizer.json", ""},
    {"tests/golden/tokenizers/deepseek_v2/tokenizer.json", ""},
    {"tests/golden/tokenizers/released/gpt_oss/tokenizer.json", ""},
    {"tests/golden/tokenizers/released/kimi_k2/tiktoken.model", ""},
    {"tests/golden/tokenizers/released/mixtral/tokenizer.json", "<s> "},
};

START_TEST(what_was_encoded_comes_back)
{
    static const char *const text[] = {"The river ran.\n\n\tint main(void) { return 0; }", "caf\xc3\xa9 \xe2\x82\xac 12 345",
                                       "\xe6\x95\x8f\xe6\x8d\xb7 \xf0\x9f\x98\x80 \x01\x7f", "x"};
    exf_err e;
    exf_tokenizer *t;
    exf_decoder *d;
    ck_ok(exf_tokenizer_load(&t, shape[_i].file, EXF_BOS_AUTO, &e), e);
    ck_ok(exf_decoder_new(&d, t, &e), e);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        exf_ids ids = {0};
        exf_text got = {0};
        ck_ok(exf_tokenizer_encode(t, text[i], strlen(text[i]), &ids, &e), e);
        ck_ok(exf_decode(d, ids.id, ids.n, &got, &e), e);
        size_t n = strlen(shape[_i].front);
        ck_assert_msg(got.len >= n && strcmp(got.s + n, text[i]) == 0, "%s: \"%s\"", shape[_i].file, got.s);
        ck_assert(memcmp(got.s, shape[_i].front, n) == 0);
        exf_text_free(&got);
        exf_ids_free(&ids);
    }
    exf_decoder_free(d);
    exf_tokenizer_free(t);
}
END_TEST

/* A sample may end within a character; ids that no token has, and added tokens, are told. */
START_TEST(single_ids)
{
    static const int32_t id[] = {0xc3, 256, 300, -1, 'a'};
    exf_err e;
    exf_tokenizer *t;
    exf_decoder *d;
    exf_text got = {0};
    ck_ok(exf_tokenizer_load(&t, make((parts){.added = ADDED("<a>", "256", "false")}), EXF_BOS_AUTO, &e), e);
    ck_ok(exf_decoder_new(&d, t, &e), e);
    ck_ok(exf_decode(d, id, 5, &got, &e), e);
    ck_assert_str_eq(got.s, "\xc3<a><token 300><token -1>a");
    exf_text_free(&got);
    exf_decoder_free(d);
    exf_tokenizer_free(t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, what_was_encoded_comes_back, 0, (int)(sizeof shape / sizeof shape[0]));
    tcase_add_test(t, single_ids);
}
