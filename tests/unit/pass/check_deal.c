/* check_deal.c - parts of a run: whole, contiguous, balanced, and cut between groups only. */
#include "tests/support/fixtures.h"

#include "base/hash.h"
#include "base/mem.h"
#include "pass/batch.h"

#include <string.h>

enum { MOST = 64 };

typedef struct {
    exf_span span[MOST];
    exf_batch batch;
} run;

static void make(run *r, const int *length, size_t n)
{
    *r = (run){.batch = {.n_sequences = n}};
    for (size_t i = 0; i < n; i++) {
        r->span[i] = (exf_span){r->batch.n_tokens, length[i]};
        r->batch.n_tokens += (size_t)length[i];
        if (length[i] > r->batch.max_tokens) r->batch.max_tokens = length[i];
    }
    r->batch.span = r->span;
}

static void deal_is(const int *length, size_t n, const size_t *group_of, size_t parts, const size_t *want)
{
    run r;
    size_t first[MOST + 1];
    exf_err err;
    make(&r, length, n);
    ck_ok(exf_deal(first, &r.batch, group_of, parts, &err), err);
    for (size_t i = 0; i <= parts; i++)
        ck_assert_msg(first[i] == want[i], "part %zu begins at %zu, expected %zu", i, first[i], want[i]);
}

START_TEST(cuts_are_nearest_to_even)
{
    deal_is((int[]){5, 5, 5, 5}, 4, NULL, 2, (size_t[]){0, 2, 4});
    deal_is((int[]){9, 1, 1, 1}, 4, NULL, 2, (size_t[]){0, 1, 4});
    deal_is((int[]){1, 1, 1, 9}, 4, NULL, 2, (size_t[]){0, 3, 4});
    deal_is((int[]){1, 2, 1}, 3, NULL, 2, (size_t[]){0, 1, 3}); /* 1 and 3 are as far from 2: the lower */
    deal_is((int[]){100, 1, 1}, 3, NULL, 3, (size_t[]){0, 1, 2, 3});
    deal_is((int[]){1, 1, 100}, 3, NULL, 3, (size_t[]){0, 1, 2, 3});
    deal_is((int[]){7}, 1, NULL, 1, (size_t[]){0, 1});
}
END_TEST

START_TEST(groups_stay_together)
{
    deal_is((int[]){1, 1, 1, 1, 1, 1}, 6, (size_t[]){0, 0, 0, 0, 1, 1}, 2, (size_t[]){0, 4, 6});
    deal_is((int[]){1, 1, 1, 1, 1, 1}, 6, (size_t[]){0, 0, 1, 1, 2, 2}, 3, (size_t[]){0, 2, 4, 6});
    deal_is((int[]){1, 1, 1, 1, 1, 9}, 6, (size_t[]){0, 0, 1, 1, 2, 2}, 2, (size_t[]){0, 4, 6});
}
END_TEST

START_TEST(more_parts_than_groups_are_refused)
{
    run r;
    size_t first[MOST + 1];
    exf_err err;
    make(&r, (int[]){3, 4, 5}, 3);
    ck_fails(exf_deal(first, &r.batch, NULL, 4, &err), EXF_USAGE, err, "4 3");
    ck_fails(exf_deal(first, &r.batch, (size_t[]){0, 0, 1}, 3, &err), EXF_USAGE, err, "3 2");
}
END_TEST

/* Of all runs and numbers of parts: parts are whole and not empty, and none exceeds its share by more than a sequence. */
START_TEST(parts_are_a_partition)
{
    for (uint64_t at = 0; at < 300; at++) {
        int length[MOST];
        run r;
        size_t n = 1 + (size_t)exf_rng_below(MOST - 1, 1, 0, at), parts = 1 + (size_t)exf_rng_below(n, 1, 1, at), first[MOST + 1];
        exf_err err;
        for (size_t i = 0; i < n; i++) length[i] = 1 + (int)exf_rng_below(200, 1, 2, at * MOST + i);
        make(&r, length, n);
        ck_ok(exf_deal(first, &r.batch, NULL, parts, &err), err);
        ck_assert_uint_eq(first[0], 0);
        ck_assert_uint_eq(first[parts], n);
        for (size_t k = 0; k < parts; k++) {
            size_t tokens = exf_part_row(&r.batch, first[k + 1]) - exf_part_row(&r.batch, first[k]);
            ck_assert(first[k + 1] > first[k]);
            if (first[k + 1] - first[k] > 1) ck_assert_uint_le(tokens, r.batch.n_tokens / parts + 1 + 200);
        }
    }
}
END_TEST

START_TEST(a_part_is_a_batch)
{
    run r;
    exf_batch part;
    exf_span *span;
    exf_err err;
    int32_t ids[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    make(&r, (int[]){3, 4, 5}, 3);
    r.batch.ids = ids;
    ck_ok(exf_batch_part(&part, &span, &r.batch, 1, 3, &err), err);
    ck_assert_uint_eq(part.n_sequences, 2);
    ck_assert_uint_eq(part.n_tokens, 9);
    ck_assert_int_eq(part.max_tokens, 5);
    ck_assert_int_eq(part.ids[0], 3);
    ck_assert(span[0].offset == 0 && span[1].offset == 4 && span[0].n_tokens == 4 && span[1].n_tokens == 5);
    ck_assert_uint_eq(exf_part_row(&r.batch, 1), 3);
    ck_assert_uint_eq(exf_part_row(&r.batch, 3), 12);
    exf_mem_free(span);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, cuts_are_nearest_to_even);
    tcase_add_test(t, groups_stay_together);
    tcase_add_test(t, more_parts_than_groups_are_refused);
    tcase_add_test(t, parts_are_a_partition);
    tcase_add_test(t, a_part_is_a_batch);
}
