/* check_near_copies.c - sketches estimate how alike documents are, copies of one are found, and what follows for a corpus. */
#include "capture/capture.h"

#include "tests/support/corpus_fixtures.h"

#include "artifact/data.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "capture/near_copies.h"

/* Appends n words of a language of its own for each seed; every `change`-th is another word in copy `copy`. */
static void add_words(exf_text *t, unsigned seed, int n, int change, int copy)
{
    for (int i = 0; i < n; i++) {
        unsigned other = change && i % change == change - 1 ? (unsigned)copy : 0;
        exf_text_appendf(t, "w%u ", (seed * 7919u + (unsigned)i * 104729u + other * 31u) % 99991u);
    }
}

static exf_sketch sketch_of(unsigned seed, int n, int change, int copy)
{
    exf_text t = {0};
    exf_sketch s;
    add_words(&t, seed, n, change, copy);
    exf_sketch_of_text(&s, t.s, t.len);
    exf_text_free(&t);
    return s;
}

START_TEST(similarity_is_that_of_the_shingles)
{
    exf_sketch whole = sketch_of(1, 2000, 0, 0), other = sketch_of(2, 2000, 0, 0), changed = sketch_of(1, 2000, 50, 1), blank;
    ck_assert_double_eq(exf_sketch_similarity(&whole, &whole), 1);
    ck_assert_double_lt(exf_sketch_similarity(&whole, &other), 0.1);
    /* one word in 50 changes 3 shingles in 50: 47 in common of 53 */
    ck_assert_double_eq_tol(exf_sketch_similarity(&whole, &changed), 47.0 / 53, 0.11);
    exf_sketch_of_text(&blank, " \n\t ", 4);
    ck_assert_double_eq(exf_sketch_similarity(&blank, &blank), 0);
    exf_sketch packed[2]; /* the same by the lowest bytes, which files have */
    unsigned char byte[EXF_SKETCH_BYTES];
    for (int i = 0; i < 2; i++) {
        exf_sketch_pack(byte, i ? &changed : &whole);
        exf_sketch_unpack(&packed[i], byte);
    }
    ck_assert_double_eq_tol(exf_sketch_similarity(&packed[0], &packed[1]), exf_sketch_similarity(&whole, &changed), 0.03);
    exf_sketch few = sketch_of(3, 2, 0, 0); /* fewer words than a shingle */
    ck_assert_double_eq(exf_sketch_similarity(&few, &few), 1);
    ck_assert_double_lt(exf_sketch_similarity(&few, &whole), 0.1);
}
END_TEST

/* Blanks are no words, and characters of scripts without blanks are words. */
START_TEST(words_are_of_any_script)
{
    static const char a[] = "one two  three\nfour", b[] = "one\ttwo three four  \n",
                      c[] = "\xe4\xb8\x80\xe4\xba\x8c\xe4\xb8\x89\xe5\x9b\x9b",
                      d[] = "\xe4\xb8\x80 \xe4\xba\x8c\xe4\xb8\x89\n\xe5\x9b\x9b", cut[] = "\xe4\xb8\x80\xe4\xba";
    exf_sketch x, y;
    exf_sketch_of_text(&x, a, sizeof a - 1);
    exf_sketch_of_text(&y, b, sizeof b - 1);
    ck_assert_mem_eq(&x, &y, sizeof x);
    exf_sketch_of_text(&x, c, sizeof c - 1);
    exf_sketch_of_text(&y, d, sizeof d - 1);
    ck_assert_mem_eq(&x, &y, sizeof x);
    exf_sketch_of_text(&x, cut, sizeof cut - 1);
}
END_TEST

/* Copies are found among others, whatever the order; a document is in one group with what its group's first is like. */
START_TEST(copies_are_found_in_any_order)
{
    enum { N = 60, COPIES = 20 };
    exf_sketch s[N];
    size_t group[N], place[N];
    for (int turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < N; i++) place[i] = i;
        for (size_t i = N - 1; turn && i > 0; i--) {
            size_t k = (size_t)exf_rng_below(i + 1, 5, (uint64_t)turn, i), kept = place[i];
            place[i] = place[k];
            place[k] = kept;
        }
        for (size_t i = 0; i < N; i++)
            s[place[i]] = i < COPIES ? sketch_of(1000, 1500, 300, (int)i) : sketch_of((unsigned)i, 300 + 10 * (int)i, 0, 0);
        ck_ok(exf_near_copies_find(group, s, N, &e), e);
        for (size_t i = 0; i < N; i++) {
            if (i < COPIES) ck_assert_uint_eq(group[place[i]], group[place[0]]);
            else ck_assert_uint_eq(group[place[i]], place[i]);
            ck_assert_uint_le(group[place[i]], place[i]);
        }
    }
}
END_TEST

/* ---- of a corpus ----------------------------------------------------------------------------------------- */

/* Writes lines of ids: document d has n ids that begin with d; copies of it differ in the last one. */
static void put_documents(const int *document, const int *last, size_t n, int length)
{
    exf_text t = {0};
    for (size_t i = 0; i < n; i++) {
        exf_text_appendf(&t, "{\"input_ids\": [");
        for (int k = 0; k < length; k++)
            exf_text_appendf(&t, "%s%d", k ? ", " : "",
                             k == length - 1 ? last[i] : (document[i] * 37 + k * (3 + document[i])) % 97);
        exf_text_appendf(&t, "]}\n");
    }
    put("ids.jsonl", t.s);
    exf_text_free(&t);
}

static exf_corpus *load_documents(const int *document, const int *last, size_t n, int length)
{
    put_documents(document, last, n, length);
    exf_corpus_request q = ask(HEAD "  - path: ids.jsonl\n    format: ids\n");
    q.max_tokens = 16;
    return load(&q);
}

START_TEST(sequences_of_a_document_are_of_one_half)
{
    exf_corpus *c = load_documents((int[]){1, 2, 3, 4}, (int[]){1, 2, 3, 4}, 4, 40);
    exf_sequence_list s;
    exf_batch batch;
    size_t documents;
    ck_assert_uint_eq(c->n_sequences, 12);
    ck_assert_uint_eq(c->near_copies, 0);
    ck_assert_uint_eq(c->n_groups, 4);
    ck_ok(exf_batch_of_corpus(&batch, c, &e), e);
    ck_ok(exf_sequences_of_batch(&s, &batch, c, &e), e);
    for (size_t i = 0; i < 12; i++) ck_assert_int_eq(exf_sequence_half(&s, i), exf_sequence_half(&s, i / 3 * 3));
    ck_ok(exf_sequence_list_documents(&s, &documents, &e), e);
    ck_assert_uint_eq(documents, 4);
    ck_assert_uint_eq(s.sketches.n, 4);
    for (size_t i = 0; i < 4; i++) { /* each document's is there */
        unsigned char packed[EXF_SKETCH_BYTES];
        size_t k = 0;
        exf_sketch_pack(packed, &c->sketch[c->sequence[3 * i].sketch]);
        while (k < 4 && memcmp(packed, s.sketches.sketch[k], sizeof packed) != 0) k++;
        ck_assert_uint_lt(k, 4);
    }
    exf_sequence_list_free(&s);
    exf_mem_free((void *)(uintptr_t)batch.span);
    exf_corpus_free(c);
}
END_TEST

/* Documents of one sequence keep the half that the sequence's own digest gives, and nothing more is known of them. */
START_TEST(a_sequence_that_is_a_document_keeps_its_half)
{
    exf_corpus *c = load_documents((int[]){1, 2, 3, 4}, (int[]){1, 2, 3, 4}, 4, 16);
    for (size_t i = 0; i < 4; i++) {
        unsigned char own[32];
        ck_ok(exf_sequence_sha256(own, c->ids + c->sequence[i].offset, c->sequence[i].n_tokens, &e), e);
        ck_assert_mem_eq(c->sequence[i].group_sha256, own, sizeof own);
    }
    exf_corpus_free(c);
}
END_TEST

/* Near copies are one document, whose identity does not depend on which comes first; exact copies are left out as before. */
START_TEST(near_copies_are_one_document)
{
    unsigned char first[32];
    for (int turn = 0; turn < 2; turn++) {
        int document[] = {1, 1, 2, 1}, last[] = {5, 6, 7, 5}, turned[] = {2, 1, 1, 1}, turned_last[] = {7, 6, 5, 5};
        exf_corpus *c = load_documents(turn ? turned : document, turn ? turned_last : last, 4, 90);
        const exf_sequence *s = &c->sequence[turn ? 6 : 0], *other = &c->sequence[turn ? 0 : c->n_sequences - 1];
        ck_assert_uint_eq(c->near_copies, 2);
        ck_assert_uint_eq(c->largest_group, 2);
        ck_assert_uint_eq(c->n_documents, 3);
        ck_assert_uint_eq(c->n_groups, 2);
        for (size_t i = turn ? 6 : 0; i < (turn ? c->n_sequences : 7); i++)
            ck_assert_mem_eq(c->sequence[i].group_sha256, s->group_sha256, sizeof first);
        ck_assert(memcmp(other->group_sha256, s->group_sha256, sizeof first) != 0);
        if (turn) ck_assert_mem_eq(first, s->group_sha256, sizeof first);
        memcpy(first, s->group_sha256, sizeof first);
        exf_corpus_free(c);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, similarity_is_that_of_the_shingles);
    tcase_add_test(t, words_are_of_any_script);
    tcase_add_test(t, copies_are_found_in_any_order);
    tcase_add_test(t, sequences_of_a_document_are_of_one_half);
    tcase_add_test(t, a_sequence_that_is_a_document_keeps_its_half);
    tcase_add_test(t, near_copies_are_one_document);
}
