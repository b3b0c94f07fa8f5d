/* check_tokenizer_hostile.c - tokenizers that are made to be slow: words that meet in one slot of an unkeyed
 * table, long added tokens, patterns that backtrack without end.  What is counted is steps, never seconds. */
#include "tests/support/tokenizer_fixtures.h"

#include "format/json.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- tables -------------------------------------------------------------- */

enum { WORDS = 4096, BITS = 13 };

/* The longest row of taken slots, which a search has to walk. */
#define LONGEST_ROW(longest, slots, taken)                                 \
    do {                                                                   \
        size_t row_ = 0;                                                   \
        for (size_t i = 0; i < (slots); i++) {                             \
            row_ = (taken) ? row_ + 1 : 0;                                 \
            if (row_ > (longest)) (longest) = row_;                        \
        }                                                                  \
    } while (0)

static uint64_t fnv1a(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* Words whose FNV-1a ends in the same bits. */
START_TEST(words_that_collide_unkeyed)
{
    exf_err e;
    exf_vocabulary w = {.n = 0};
    size_t longest = 0;
    char word[24];
    ck_ok(exf_vocabulary_new(&w, WORDS, &e), e);
    for (int32_t n = 0, i = 0; n < WORDS; i++) {
        snprintf(word, sizeof word, "%x", (unsigned)i);
        if ((fnv1a(word) & ((1 << BITS) - 1)) == 0) ck_ok(exf_vocabulary_put(&w, word, strlen(word), n++, &e), e);
    }
    ck_assert_uint_eq(w.mask, (1 << BITS) - 1);
    LONGEST_ROW(longest, w.mask + 1, w.slot[i].id_plus_1 != 0);
    ck_assert_uint_lt(longest, 400);
    ck_assert_int_eq(exf_vocabulary_find(&w, word, strlen(word)), WORDS - 1);
    exf_vocabulary_free(&w);
}
END_TEST

/* Pairs of ids whose product with a known factor starts with the same bits. */
START_TEST(pairs_that_collide_unkeyed)
{
    exf_err e;
    exf_merges m = {0};
    size_t longest = 0;
    uint32_t n = 0;
    ck_ok(exf_merges_new(&m, WORDS, &e), e);
    for (int32_t b = 0; n < WORDS; b++)
        if (((((uint64_t)7 << 32 | (uint32_t)b) + 1) * 0x9e3779b97f4a7c15u) >> (64 - BITS) == 0) exf_merges_put(&m, 7, b, n++, b);
    LONGEST_ROW(longest, m.mask + 1, m.slot[i].key != 0);
    ck_assert_uint_lt(longest, 400);
    exf_merges_free(&m);
}
END_TEST

/* ---- added tokens ---------------------------------------------------------- */

/* A tokenizer with added tokens "a" and n times "a" with a "b" after, on `text_len` times "a". */
static void encode_letters(size_t n, size_t text_len, const char *pre, exf_code want, const char *says)
{
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    exf_text added = {0};
    char *letters = malloc(n + 1), *text = malloc(text_len);
    ck_assert(letters && text);
    memset(letters, 'a', n);
    letters[n] = 0;
    memset(text, 'a', text_len);
    exf_text_appendf(&added, "%s,{\"id\":257,\"content\":\"", ADDED("ac", "256", "false"));
    exf_text_append(&added, letters, n);
    exf_text_appendf(&added, "b\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                        "\"special\":true}");
    exf_code rc = exf_tokenizer_load(&t, make((parts){.added = added.s, .pre = pre}), EXF_BOS_AUTO, &e);
    if (want == EXF_OK) {
        ck_ok(rc, e);
        ck_ok(exf_tokenizer_encode(t, text, text_len, &ids, &e), e);
        ck_assert_uint_eq(ids.n, text_len);
        exf_tokenizer_free(t);
    } else {
        ck_fails(rc, want, e, says);
    }
    exf_ids_free(&ids);
    exf_text_free(&added);
    free(letters);
    free(text);
}

/* 4e5 letters, each of which may begin the token: compared one by one, 8e10 bytes. */
START_TEST(an_added_token_of_200000_letters)
{
    encode_letters(200000, 400000, NULL, EXF_OK, NULL);
}
END_TEST

START_TEST(added_tokens_are_a_megabyte_at_most)
{
    encode_letters(1 << 20, 1, NULL, EXF_MODEL, "added tokens have 1048579 bytes together, at most 1048576 are accepted");
}
END_TEST

/* All texts of up to 9 letters a and b, against the definition: leftmost, of these longest. */
START_TEST(added_tokens_by_definition)
{
    static const char *const token[] = {"ba", "ab", "aab", "bb", "abab", "bba", "aabba"};
    enum { TOKENS = sizeof token / sizeof *token };
    exf_err e;
    exf_text added = {0};
    exf_tokenizer *t;
    for (int i = 0; i < TOKENS; i++)
        exf_text_appendf(&added, "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                            "\"normalized\":%s,\"special\":true}", i ? "," : "", 256 + i, token[i], _i ? "true" : "false");
    ck_ok(exf_tokenizer_load(&t, make((parts){.added = added.s}), EXF_BOS_AUTO, &e), e);
    for (unsigned len = 0; len < 10; len++)
        for (unsigned bits = 0; bits < 1u << len; bits++) {
            char text[10] = "";
            exf_ids ids = {0};
            size_t n = 0, at = 0;
            for (unsigned i = 0; i < len; i++) text[i] = bits >> i & 1 ? 'b' : 'a';
            ck_ok(exf_tokenizer_encode(t, text, len, &ids, &e), e);
            while (at < len) {
                int best = -1;
                for (int i = 0; i < TOKENS; i++)
                    if (strncmp(text + at, token[i], strlen(token[i])) == 0 && (best < 0 || strlen(token[i]) > strlen(token[best])))
                        best = i;
                ck_assert_uint_lt(n, ids.n);
                ck_assert_int_eq(ids.id[n++], best < 0 ? text[at] : 256 + best);
                at += best < 0 ? 1 : strlen(token[best]);
            }
            ck_assert_uint_eq(n, ids.n);
            exf_ids_free(&ids);
        }
    exf_text_free(&added);
    exf_tokenizer_free(t);
}
END_TEST

/* ---- patterns ------------------------------------------------------------------ */

/* A text of `len` letters is refused for what a pattern costs, one of `few` letters is cut into them. */
static void refuses(const char *pattern, size_t len, const char *says, size_t few)
{
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    exf_text pre = {0};
    char *text = malloc(len);
    ck_assert_ptr_nonnull(text);
    memset(text, 'a', len);
    exf_text_appendf(&pre, STEPS(SPLIT("Regex", "%s", "Isolated", "false")), pattern);
    ck_ok(exf_tokenizer_load(&t, make((parts){.pre = pre.s}), EXF_BOS_AUTO, &e), e);
    ck_fails(exf_tokenizer_encode(t, text, len, &ids, &e), EXF_MODEL, e, "pre_tokenizer");
    ck_assert_ptr_nonnull(strstr(e.msg, says));
    ck_assert_uint_eq(ids.n, 0);
    ck_ok(exf_tokenizer_encode(t, text, few, &ids, &e), e); /* a short text is no work */
    ck_assert_uint_eq(ids.n, few);
    free(text);
    exf_text_free(&pre);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}

/* Each letter is tried to the end of the text before it is a piece of its own: n squared steps. */
START_TEST(a_lazy_pattern_has_a_budget)
{
    static const char *const pattern[] = {"(?:.*?x)|.", "(?:a|aa)*?x|a", "(a+)+x|a"};
    refuses(pattern[_i], 30000, "steps on a text of 30000 bytes", 12);
}
END_TEST

/* Each place reads on to the end of the text in one step: without counting what is read, n squared letters. */
START_TEST(a_pattern_that_reads_far_has_a_budget)
{
    static const char *const pattern[] = {"a*b|a", "(?=a+b)a|a", "(?:a{9})*b|a"};
    refuses(pattern[_i], 100000, "120000000 steps on a text of 100000 bytes", 2000);
}
END_TEST

/* The ends of the pieces that a pattern cuts a text into. */
typedef struct { const char *text; size_t n, end[400]; } piece_ends;

static exf_code note_end(void *ctx, const char *piece, size_t len, exf_err *err)
{
    piece_ends *p = ctx;
    (void)err;
    ck_assert_uint_lt(p->n, sizeof p->end / sizeof *p->end);
    p->end[p->n++] = (size_t)(piece - p->text) + len;
    return EXF_OK;
}

static void cut(piece_ends *p, const char *pattern, const char *text, size_t len)
{
    exf_err e;
    exf_json *doc;
    exf_splitter *s;
    exf_split_work *w;
    exf_text pre = {0};
    *p = (piece_ends){.text = text};
    exf_text_appendf(&pre, STEPS(SPLIT("Regex", "%s", "Isolated", "false")), pattern);
    ck_ok(exf_json_parse(&doc, pre.s, pre.len, "test", &e), e);
    ck_ok(exf_splitter_load(&s, doc, "test", &e), e);
    ck_ok(exf_split_work_new(&w, &e), e);
    ck_ok(exf_splitter_run(s, w, text, len, note_end, p, &e), e);
    exf_split_work_free(w);
    exf_splitter_free(s);
    exf_json_free(doc);
    exf_text_free(&pre);
}

/* Runs of 1000 letters a, blanks, a, b: longer than what a pattern reads at first. */
START_TEST(pieces_longer_than_a_window)
{
    static const struct { const char *pattern; size_t end[5]; } known[] = {
        {"a+", {1000, 2000, 3000, 4000}},
        {"\\\\s+(?!\\\\S)|\\\\s+", {1000, 1999, 2000, 4000}},
        {"a+$|b+", {3000, 4000}},
        {"a+ |b+(?=a)|b+\\\\z", {1001, 3000, 4000}},
        {"(?<=a) +|(?<=b)a+", {1000, 2000, 4000}},
        {"^b+|^a+", {1000, 4000}},
    };
    enum { RUN = 1000 };
    char text[4 * RUN];
    piece_ends p;
    for (int i = 0; i < 4; i++) memset(text + i * RUN, "a ab"[i], RUN);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        size_t n = 0;
        cut(&p, known[k].pattern, text, sizeof text);
        while (known[k].end[n]) n++;
        ck_assert_uint_eq(p.n, n);
        for (size_t i = 0; i < n; i++) ck_assert_uint_eq(p.end[i], known[k].end[i]);
    }
}
END_TEST

/* A line break, and letters of several bytes, at every distance from what a pattern reads at first. */
START_TEST(pieces_where_a_window_ends)
{
    char text[1400];
    piece_ends p;
    for (size_t k = 1; k < 600; k++) {
        memset(text, 'a', k);
        memcpy(text + k, "\nbc", 3);
        cut(&p, "a\\\\n^b|c", text, k + 3);
        ck_assert_uint_eq(p.n, 2 + (k > 1));
        ck_assert_uint_eq(p.end[p.n - 2], k + 2);
        for (size_t i = 0; i < 300; i++) memcpy(text + k + 2 * i, "\xc3\xa9", 2);
        text[k + 600] = 'a';
        cut(&p, "\xc3\xa9+", text, k + 601);
        ck_assert_uint_eq(p.n, 3);
        ck_assert_uint_eq(p.end[1], k + 600);
    }
}
END_TEST

/* One hard place among many easy ones: what is skipped and what is found is as without a budget. */
START_TEST(a_hard_place_is_within_the_budget)
{
    enum { LEN = 5000 };
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    char text[LEN];
    memset(text, 'b', LEN);
    memset(text + 1000, 'a', 3000);
    ck_ok(exf_tokenizer_load(&t, make((parts){.pre = STEPS(SPLIT("Regex", "a*?c|b{3}", "Removed", "true"))}), EXF_BOS_AUTO, &e), e);
    ck_ok(exf_tokenizer_encode(t, text, LEN, &ids, &e), e);
    ck_assert_uint_eq(ids.n, 3 * (1000 / 3 + 1000 / 3));
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, words_that_collide_unkeyed);
    tcase_add_test(t, pairs_that_collide_unkeyed);
    tcase_add_test(t, an_added_token_of_200000_letters);
    tcase_add_test(t, added_tokens_are_a_megabyte_at_most);
    tcase_add_loop_test(t, added_tokens_by_definition, 0, 2);
    tcase_add_loop_test(t, a_lazy_pattern_has_a_budget, 0, 3);
    tcase_add_loop_test(t, a_pattern_that_reads_far_has_a_budget, 0, 3);
    tcase_add_test(t, pieces_longer_than_a_window);
    tcase_add_test(t, pieces_where_a_window_ends);
    tcase_add_test(t, a_hard_place_is_within_the_budget);
}
