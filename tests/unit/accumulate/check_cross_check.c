/* check_cross_check.c - the cross-check of a device's sums on the host, on a device that is made up: what agrees passes, and one
 * flipped bit of one output stops the run with the layer, the experts and both values. */
#include "tests/support/cross_check_fixtures.h"
#include "tests/support/fake_device.h"

#include "accumulate/accumulate_internal.h"

#include <math.h>

static const exf_backend *b;
static exf_queue *q;
static exf_err e;

static const struct { int n, e, k, h; } shapes[] = {{1, 2, 1, 3}, {3, 8, 2, 16}, {40, 16, 4, 64}, {200, 32, 10, 72}};

static void open_fake(void)
{
    b = fake_device((uint64_t)1 << 30);
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &e), e);
}

static void close_fake(void)
{
    b->close(q);
}

static routed routed_of(int i, int empty)
{
    routed r = routed_reals(shapes[i].n, shapes[i].e, shapes[i].k, shapes[i].h, 5);
    if (empty) routed_with_empty_slots(&r);
    return r;
}

START_TEST(right_sums_pass)
{
    for (int empty = 0; empty < 2; empty++)
        for (int w = 0; w < 3; w++) {
            checked_run run;
            routed r = routed_of(_i, empty);
            int checked = 0;
            checked_open(&run, b, q, &r, 0, (exf_weighting)w);
            for (int layer = 0; layer < 5; layer++) {
                checked += checked_add(&run, layer)->routed.n_tokens;
                ck_ok(checked_take(&run, layer, &e), e);
            }
            ck_assert_int_ge(checked, 5); /* some token of every layer */
            checked_close(&run);
            routed_free(&r);
        }
}
END_TEST

START_TEST(a_flipped_bit_is_refused)
{
    checked_run run;
    routed r = routed_of(_i, 0);
    char named[32];
    checked_open(&run, b, q, &r, 0, EXF_WEIGHT_SOURCE_NORM);
    exf_checked_part *p = &checked_add(&run, 7)->routed;
    int slot = flip_a_bit(p, r.d_model);
    snprintf(named, sizeof named, "%d", (int)p->ids[slot]);
    ck_fails(checked_take(&run, 7, &e), EXF_DEVICE, e, "7");
    ck_assert_msg(strstr(e.msg, named) != NULL, "%s: expert %s is not named", e.msg, named);
    checked_close(&run);
    routed_free(&r);
}
END_TEST

/* The layer before is told when the next one is taken, as in a pass. */
START_TEST(a_layer_is_checked_while_the_next_one_runs)
{
    checked_run run;
    routed r = routed_of(2, 0);
    checked_open(&run, b, q, &r, 0, EXF_WEIGHT_NONE);
    flip_a_bit(&checked_add(&run, 3)->routed, r.d_model);
    ck_ok(exf_device_sums_take(&run.sums, &run.to, 3, &e), e);
    checked_add(&run, 4);
    ck_fails(exf_device_sums_take(&run.sums, &run.to, 4, &e), EXF_DEVICE, e, "3");
    checked_close(&run);
    routed_free(&r);
}
END_TEST

/* Outputs [n, E, H] of all experts: one part of all tokens. */
static exf_checked_layer *add_common(checked_run *run, const exf_common_input_part *part, int layer)
{
    exf_checked_layer *now = &run->sums.check.layer[run->sums.check.turn];
    exf_common_input_block c = {.layer = layer, .n_experts = run->block.n_experts, .d_model = run->block.d_model, .q = run->q,
                                 .outputs = run->outputs, .n_tokens = run->block.n_tokens, .part = part, .n_parts = 1,
                                 .device_row = run->ids};
    exf_device_sums_add_common_input(&run->sums, &c);
    ck_ok(run->b->finish(run->q, &e), e);
    return now;
}

START_TEST(common_input_is_checked)
{
    enum { EXPERTS = 12 };
    routed r = routed_reals(20, EXPERTS, EXPERTS, 24, 6);
    exf_common_input_part part = {.sequence = 0, .first = 0, .n_tokens = 20, .ends = 1};
    for (int flipped = 0; flipped < 2; flipped++) {
        checked_run run;
        checked_open(&run, b, q, &r, 1, EXF_WEIGHT_SOURCE_NORM);
        exf_checked_layer *now = add_common(&run, &part, 2);
        ck_assert_int_eq(now->common.n_tokens, EXF_COMMON_INPUT_UNIT);
        if (flipped) {
            flip_a_bit(&now->common, r.d_model);
            ck_fails(checked_take(&run, 2, &e), EXF_DEVICE, e, "2");
        } else {
            ck_ok(checked_take(&run, 2, &e), e);
        }
        checked_close(&run);
    }
    routed_free(&r);
}
END_TEST

/* A dead expert's outputs are so small that float32, in which a GPU makes the products of common input, has nothing of their
 * squares: sums without them are right, and one of another size is not. */
START_TEST(tiny_outputs_of_common_input_pass)
{
    enum { EXPERTS = 8, DEAD = 3, TOKENS = 20 };
    routed r = routed_reals(TOKENS, EXPERTS, EXPERTS, 24, 6);
    exf_common_input_part part = {.sequence = 0, .first = 0, .n_tokens = TOKENS, .ends = 1};
    for (int i = 0; i < TOKENS * EXPERTS * 24; i++)
        if (i / 24 % EXPERTS == DEAD) r.outputs[i] *= 1e-22f;
    for (int wrong = 0; wrong < 2; wrong++) {
        checked_run run;
        checked_open(&run, b, q, &r, 1, EXF_WEIGHT_SOURCE_NORM);
        exf_checked_part *p = &add_common(&run, &part, 2)->common;
        ck_assert_int_eq(p->width, EXPERTS);
        for (int s = 0; s < EXPERTS; s++)
            for (int t = 0; t < EXPERTS; t++)
                for (int i = 0; i < EXF_CELL_VALUES - 1; i++)
                    if (s != t && (s == DEAD || t == DEAD) && fabs(p->added[(s * EXPERTS + t) * EXF_CELL_VALUES + i]) < 1e-9)
                        p->added[(s * EXPERTS + t) * EXF_CELL_VALUES + i] = 0;
        if (wrong) {
            p->added[(DEAD * EXPERTS + 1) * EXF_CELL_VALUES + 2] = 1e-6; /* source_sq of the dead expert */
            ck_fails(checked_take(&run, 2, &e), EXF_DEVICE, e, "2 3 1 source_sq");
        } else {
            ck_ok(checked_take(&run, 2, &e), e);
        }
        checked_close(&run);
    }
    routed_free(&r);
}
END_TEST

/* Sums over sequences are told from the order of rows: blocks in another one are refused. */
START_TEST(blocks_come_in_order_of_their_rows)
{
    static const struct { size_t row[2]; exf_code code; } cases[] = {
        {{0, 20}, EXF_OK}, {{20, 0}, EXF_INTERNAL}, {{0, 0}, EXF_INTERNAL}, {{0, 10}, EXF_INTERNAL}};
    exf_sequence_list list;
    checked_run run;
    routed r = routed_of(2, 0);
    ck_ok(exf_sequence_list_new(&list, 1, &e), e);
    list.length[0] = r.n;
    checked_open(&run, b, q, &r, 0, EXF_WEIGHT_NONE);
    run.sums.sequences = &list;
    for (int i = 0; i < 2; i++) {
        run.block.row = cases[_i].row[i];
        run.block.n_tokens = 20;
        exf_device_sums_add(&run.sums, &run.block);
    }
    ck_assert_int_eq(exf_device_sums_take(&run.sums, &run.to, 0, &e), cases[_i].code);
    checked_close(&run);
    exf_sequence_list_free(&list);
    routed_free(&r);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_fake, close_fake);
    tcase_add_loop_test(t, right_sums_pass, 0, COUNT(shapes));
    tcase_add_loop_test(t, a_flipped_bit_is_refused, COUNT(shapes) - 1, COUNT(shapes));
    tcase_add_test(t, a_layer_is_checked_while_the_next_one_runs);
    tcase_add_test(t, common_input_is_checked);
    tcase_add_test(t, tiny_outputs_of_common_input_pass);
    tcase_add_loop_test(t, blocks_come_in_order_of_their_rows, 0, 4);
}
