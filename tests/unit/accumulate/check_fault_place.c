/* check_fault_place.c - where a device found a term out of range, in words. */
#include "tests/support/fixtures.h"

#include "accumulate/chapter.h"
#include "kernels/statistics/layer_sums.h"

START_TEST(rows_have_a_sequence_and_a_block)
{
    static const struct { size_t row; const char *says; } known[] = {
        {0, "sequence 0, block at position 0: token 0: pair 3 -> 5: a vector sum of 1e+30 is outside the range of the sums"},
        {24, "sequence 0, block at position 16: token 8: pair 3"},
        {25, "sequence 1, block at position 0: token 0: pair 3"},
        {26, "sequence 2, block at position 0: token 0: pair 3"},
        {99, "sequence 2, block at position 64: token 9: pair 3"},
    };
    const exf_span span[] = {{0, 25}, {25, 1}, {26, 74}};
    exf_batch batch = {.span = span, .n_sequences = 3, .n_tokens = 100};
    exf_err e;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        ck_assert_int_eq(exf_vector_fault(&e, 3, 5, 1e30), EXF_NUMERIC);
        exf_fault_prefix_row(&e, &batch, known[i].row, 16, 1);
        ck_assert_int_eq(strncmp(e.msg, known[i].says, strlen(known[i].says)), 0);
    }
    exf_fault_prefix_row(&e, NULL, 7, 16, 1);
    ck_assert_int_eq(strncmp(e.msg, "token 7 of the run: sequence 2", 30), 0);
}
END_TEST

START_TEST(an_output_has_its_router_weight_where_it_has_one)
{
    exf_err e;
    ck_assert_int_eq(exf_output_fault(&e, 9, 1e60, &(double){0.5}), EXF_NUMERIC);
    ck_assert_str_eq(e.msg, "the output of expert 9 has squared norm 1e+60 and router weight 0.5, outside the range of the sums");
    ck_assert_int_eq(exf_output_fault(&e, 9, 1e60, NULL), EXF_NUMERIC);
    ck_assert_str_eq(e.msg, "the output of expert 9 has squared norm 1e+60, outside the range of the sums");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, rows_have_a_sequence_and_a_block);
    tcase_add_test(t, an_output_has_its_router_weight_where_it_has_one);
}
