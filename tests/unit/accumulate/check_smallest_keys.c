/* check_smallest_keys.c - candidates of the smallest keys, against sorting all of them, whatever the order of the data. */
#include "tests/support/sequence_fixtures.h"

#include "accumulate/smallest_keys.h"
#include "base/hash.h"

#include <stdlib.h>

enum { LAYER = 3, MOST = 2000 * SEQ_K };

static const uint64_t seeds[][2] = {{9, 0}, {2, 2}};

static exf_err e; /* of the last call */

static int rising(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Lists all keys, sorted. */
static size_t all_keys(uint64_t *key, const exf_key_rule *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->sequences->n; i++) {
        uint64_t own;
        memcpy(&own, r->sequences->sha256[i], sizeof own);
        own = exf_rng_u64(own, r->seed, LAYER);
        for (int at = 0; at < r->sequences->length[i] * r->each; at++) key[n++] = exf_rng_u64(own, r->stream, (uint64_t)at);
    }
    qsort(key, n, sizeof *key, rising);
    return n;
}

static exf_smallest_keys choose(const exf_key_rule *r, size_t cap)
{
    exf_smallest_keys s;
    ck_ok(exf_smallest_keys_new(&s, cap, &e), e);
    ck_ok(exf_smallest_keys_choose(&s, r, -1, &e), e);
    return s;
}

/* A sample of one, of some, of nearly all, and room for more than there are. */
START_TEST(they_are_the_smallest_of_all)
{
    static uint64_t key[MOST];
    const size_t caps[] = {1, 40, 5000, MOST};
    exf_sequence_list list = seq_list(0, SEQ_N);
    exf_key_rule r = {.sequences = &list, .each = _i % 2 ? 1 : SEQ_K, .layer = LAYER, .seed = seeds[_i % 2][0],
                      .stream = seeds[_i % 2][1]};
    size_t n = all_keys(key, &r), cap = caps[_i / 2];
    exf_smallest_keys s = choose(&r, cap);
    ck_assert_uint_eq(s.n, cap < n ? cap : n);
    for (size_t i = 0; i < s.n; i++) ck_assert_uint_eq(s.chosen[i].key, key[i]);
    exf_smallest_keys_free(&s);
}
END_TEST

/* Rows rise in by_row, each candidate is listed once, and a search finds the first of a row. */
START_TEST(rows_are_indexed)
{
    exf_sequence_list list = seq_list(0, SEQ_N);
    exf_key_rule r = {.sequences = &list, .each = SEQ_K, .layer = LAYER, .seed = 9};
    exf_smallest_keys s = choose(&r, 500);
    for (size_t at = 1; at < s.n; at++) {
        const exf_keyed_candidate *a = &s.chosen[s.by_row[at - 1]], *b = &s.chosen[s.by_row[at]];
        ck_assert(a->row < b->row || (a->row == b->row && a->place < b->place));
        ck_assert_uint_eq(exf_smallest_keys_first(&s, a->row + 1), a->row == b->row ? exf_smallest_keys_first(&s, b->row + 1) : at);
    }
    ck_assert_uint_eq(exf_smallest_keys_first(&s, 0), 0);
    ck_assert_uint_eq(exf_smallest_keys_first(&s, s.chosen[s.by_row[s.n - 1]].row + 1), s.n);
    exf_smallest_keys_free(&s);
}
END_TEST

/* The sequences of the list, the last first. */
static exf_sequence_list backward(void)
{
    exf_sequence_list list = seq_list(0, SEQ_N), out;
    ck_ok(exf_sequence_list_new(&out, list.n, &e), e);
    for (size_t i = 0; i < list.n; i++) {
        out.length[i] = list.length[list.n - 1 - i];
        memcpy(out.sha256[i], list.sha256[list.n - 1 - i], sizeof *out.sha256);
    }
    return out;
}

START_TEST(the_order_of_the_data_changes_rows_only)
{
    exf_sequence_list list = seq_list(0, SEQ_N), other = backward();
    exf_key_rule r = {.sequences = &list, .each = SEQ_K, .layer = LAYER, .seed = 9}, q = r;
    q.sequences = &other;
    exf_smallest_keys a = choose(&r, 700), b = choose(&q, 700);
    for (size_t i = 0; i < 700; i++) {
        ck_assert_uint_eq(a.chosen[i].key, b.chosen[i].key);
        ck_assert_uint_eq(a.chosen[i].own, b.chosen[i].own);
        ck_assert_uint_eq(a.chosen[i].place, b.chosen[i].place);
    }
    exf_smallest_keys_free(&a);
    exf_smallest_keys_free(&b);
    exf_sequence_list_free(&other);
}
END_TEST

/* Layers chosen ahead, one that was not foreseen, and one after it: each has the keys of a choice by itself. */
START_TEST(those_chosen_ahead_are_the_same)
{
    static const struct { int layer, next;
    } calls[] = {{2, 3}, {3, 7}, {4, 5}, {5, -1}, {6, -1}};
    exf_sequence_list list = seq_list(0, SEQ_N);
    exf_smallest_keys s;
    ck_ok(exf_smallest_keys_new(&s, 300, &e), e);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        exf_key_rule r = {.sequences = &list, .each = SEQ_K, .layer = calls[i].layer, .seed = 9};
        ck_ok(exf_smallest_keys_choose(&s, &r, calls[i].next, &e), e);
        exf_smallest_keys alone = choose(&r, 300);
        ck_assert_uint_eq(s.n, alone.n);
        for (size_t k = 0; k < s.n; k++) {
            ck_assert_uint_eq(s.chosen[k].key, alone.chosen[k].key);
            ck_assert_uint_eq(s.chosen[k].row, alone.chosen[k].row);
            ck_assert_uint_eq(s.by_row[k], alone.by_row[k]);
        }
        exf_smallest_keys_free(&alone);
    }
    exf_smallest_keys_free(&s);
}
END_TEST

START_TEST(of_nothing_nothing_is_chosen)
{
    exf_sequence_list none = {0};
    exf_key_rule r = {.sequences = &none, .each = SEQ_K, .layer = LAYER};
    exf_smallest_keys s = choose(&r, 5);
    ck_assert_uint_eq(s.n, 0);
    ck_assert_uint_eq(exf_smallest_keys_first(&s, 0), 0);
    exf_smallest_keys_free(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, they_are_the_smallest_of_all, 0, 8);
    tcase_add_test(t, those_chosen_ahead_are_the_same);
    tcase_add_test(t, rows_are_indexed);
    tcase_add_test(t, the_order_of_the_data_changes_rows_only);
    tcase_add_test(t, of_nothing_nothing_is_chosen);
}
