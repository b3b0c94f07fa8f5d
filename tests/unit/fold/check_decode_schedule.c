/* check_decode_schedule.c - fold/spans: decode steps over sequences of unequal lengths. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "fold/fold_rewriter.h"

#include <string.h>

enum { MOST = 8 };

typedef struct {
    exf_span span[MOST];
    exf_batch batch;
} sample;

/* lengths as digits: "312". */
static sample sample_of(const char *lengths)
{
    sample s = {.batch = {.n_sequences = strlen(lengths)}};
    for (size_t i = 0; i < s.batch.n_sequences; i++) {
        s.span[i] = (exf_span){s.batch.n_tokens, lengths[i] - '0'};
        s.batch.n_tokens += (size_t)s.span[i].n_tokens;
        if (s.span[i].n_tokens > s.batch.max_tokens) s.batch.max_tokens = s.span[i].n_tokens;
    }
    return s;
}

/* steps: rows as digits, steps apart by blanks: "03 14 25". */
static void expect(const char *lengths, int size, int prefill, size_t n_batches, int widest, const char *steps)
{
    exf_err e;
    exf_decode_schedule schedule;
    sample s = sample_of(lengths);
    char seen[128] = "";
    size_t at = 0;
    s.batch.span = s.span;
    ck_ok(exf_decode_schedule_new(&schedule, &s.batch, size, prefill, 3, &e), e);
    for (size_t i = 0; i < schedule.n_steps; i++) {
        ck_assert(i == 0 || schedule.first[i] > schedule.first[i - 1]); /* no step without a token */
        if (i) seen[at++] = ' ';
        for (size_t k = schedule.first[i]; k < schedule.first[i + 1]; k++) seen[at++] = (char)('0' + (int)schedule.row[k]);
    }
    seen[at] = '\0';
    ck_assert_str_eq(seen, steps);
    ck_assert_uint_eq(schedule.n_batches, n_batches);
    ck_assert_int_eq(schedule.widest, widest);
    ck_assert(schedule.batch == &s.batch && schedule.prefill_tokens == prefill && schedule.threads == 3 &&
              schedule.size == size && schedule.first_row == 0);
    exf_decode_schedule_free(&schedule);
    ck_assert_ptr_null(schedule.row);
    exf_decode_schedule_free(&schedule);
}

START_TEST(steps_of_batches)
{
    expect("3", 1, 0, 1, 1, "0 1 2");
    expect("3", 9, 0, 1, 1, "0 1 2");
    expect("33", 2, 0, 1, 2, "03 14 25");
    expect("33", 1, 0, 2, 1, "0 1 2 3 4 5");
    expect("312", 3, 0, 1, 3, "034 15 2");
    expect("132", 16, 0, 1, 3, "014 25 3");
    expect("312", 2, 0, 2, 2, "03 1 2 4 5"); /* the last one has fewer */
    expect("1111", 4, 0, 1, 4, "0123");
    expect("1111", 2, 0, 2, 2, "01 23");
    expect("11111", 2, 0, 3, 2, "01 23 4");
}
END_TEST

START_TEST(prefill_takes_the_first_positions)
{
    expect("33", 2, 1, 1, 2, "14 25");
    expect("33", 2, 2, 1, 2, "25");
    expect("33", 2, 3, 1, 2, "");
    expect("33", 2, 100, 1, 2, "");
    expect("312", 3, 1, 1, 3, "15 2");
    expect("312", 1, 2, 3, 1, "2");
    expect("132", 2, 2, 2, 2, "3");
}
END_TEST

START_TEST(prefill_positions_of_a_sequence)
{
    exf_decode_schedule s = {.prefill_tokens = 0};
    ck_assert_int_eq(exf_decode_schedule_prefill(&s, 5), 5); /* both */
    s.prefill_tokens = 3;
    ck_assert_int_eq(exf_decode_schedule_prefill(&s, 5), 3);
    ck_assert_int_eq(exf_decode_schedule_prefill(&s, 3), 3);
    ck_assert_int_eq(exf_decode_schedule_prefill(&s, 2), 2);
}
END_TEST

/* Each row after the prefill positions is in just one step, with rows of its batch and position. */
START_TEST(every_row_decodes_once)
{
    exf_err e;
    sample s = sample_of("51372461");
    s.batch.span = s.span;
    for (int prefill = 0; prefill < 8; prefill++) {
        exf_decode_schedule schedule;
        int count[64] = {0}, sequence_of[64], position_of[64];
        for (size_t i = 0; i < MOST; i++)
            for (int q = 0; q < s.span[i].n_tokens; q++) {
                sequence_of[s.span[i].offset + (size_t)q] = (int)i;
                position_of[s.span[i].offset + (size_t)q] = q;
            }
        ck_ok(exf_decode_schedule_new(&schedule, &s.batch, 3, prefill, 1, &e), e);
        for (size_t i = 0; i < schedule.n_steps; i++)
            for (size_t k = schedule.first[i]; k < schedule.first[i + 1]; k++) {
                size_t first = schedule.row[schedule.first[i]], row = schedule.row[k];
                count[row]++;
                ck_assert_int_eq(position_of[row], position_of[first]);
                ck_assert_int_eq(sequence_of[row] / 3, sequence_of[first] / 3);
            }
        for (size_t row = 0; row < s.batch.n_tokens; row++) ck_assert_int_eq(count[row], position_of[row] >= prefill);
        exf_decode_schedule_free(&schedule);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, steps_of_batches);
    tcase_add_test(t, prefill_takes_the_first_positions);
    tcase_add_test(t, prefill_positions_of_a_sequence);
    tcase_add_test(t, every_row_decodes_once);
}
