/* check_cuda_cross_check.c - the cross-check of a GPU's sums on the host: sums of every shape pass, of real outputs of very
 * different sizes, and one flipped bit of one output, after the GPU has read it, stops the run. */
#include "tests/support/cross_check_fixtures.h"
#include "tests/support/one_device_fixtures.h"
#include "tests/support/pairwise.h"

#include <math.h>

static exf_err e;

enum { N, E, K, H, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 40}, {"experts", 2, 65}, {"top-k", 1, 64}, {"hidden", 3, 4097}};
static const boundary boundaries[] = {
    {"accumulate/cross_check.h", "EXF_CHECKED_TOKENS", N, 8},
    {"accumulate/cross_check.h", "EXF_CHECKED_EXPERTS", E, 8},
    {"accumulate/cross_check.h", "EXF_CHECKED_EXPERTS", K, 8},
    {"model/architecture.h", "EXF_MAX_TOP_K", K, 64},
    {"statistics/layer_sums_cuda.cu", "SEGMENT", H, 2048},
    {"statistics/layer_sums_cuda.cu", "STEP", H, 8},
};

static int is_valid(const shape *s)
{
    return s->at[K] <= s->at[E];
}

static pairwise cases;

START_TEST(sums_of_every_shape_pass)
{
    const shape *s = &cases.shapes[_i];
    checked_run run;
    routed r = routed_reals(s->at[N], s->at[E], s->at[K], s->at[H], 21);
    if (_i % 2) routed_with_empty_slots(&r);
    checked_open(&run, d.b, d.q, &r, 0, (exf_weighting)(_i % 3));
    for (int layer = 0; layer < 3; layer++) {
        ck_assert_int_ge(checked_add(&run, layer)->routed.n_tokens, 1);
        ck_assert_msg(checked_take(&run, layer, &e) == EXF_OK, "%s: %s", pairwise_name(dimensions, DIMENSIONS, s), e.msg);
    }
    checked_close(&run);
    routed_free(&r);
}
END_TEST

START_TEST(a_flipped_bit_is_refused)
{
    const shape *s = &cases.shapes[_i];
    checked_run run;
    routed r = routed_reals(s->at[N], s->at[E], s->at[K], s->at[H], 22);
    checked_open(&run, d.b, d.q, &r, 0, EXF_WEIGHT_SOURCE_NORM);
    flip_a_bit(&checked_add(&run, 7)->routed, r.d_model);
    ck_assert_msg(checked_take(&run, 7, &e) == EXF_DEVICE, "%s: a flipped bit passes", pairwise_name(dimensions, DIMENSIONS, s));
    checked_close(&run);
    routed_free(&r);
}
END_TEST

/* Rounded outputs, and a term that the GPU has added twice. */
START_TEST(bfloat16_outputs_and_terms_added_twice)
{
    enum { TOKENS = 30, EXPERTS = 24, TOP_K = 10, WIDTH = 2304 };
    routed r = routed_reals(TOKENS, EXPERTS, TOP_K, WIDTH, 23);
    size_t n = (size_t)TOKENS * TOP_K * WIDTH;
    uint16_t *half = test_memory(n, sizeof *half);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(r.outputs[i]);
    for (int twice = 0; twice < 2; twice++) {
        checked_run run;
        checked_open(&run, d.b, d.q, &r, 0, EXF_WEIGHT_ROUTER);
        d.b->upload(d.q, run.outputs, half, n * sizeof *half);
        run.block.rounded = 1;
        exf_checked_layer *now = checked_add(&run, 1);
        if (twice) now->routed.added[EXF_CELL_VALUES] *= 2; /* dot of the first pair */
        if (twice)
            ck_fails(checked_take(&run, 1, &e), EXF_DEVICE, e, "1");
        else
            ck_ok(checked_take(&run, 1, &e), e);
        checked_close(&run);
    }
    exf_mem_free(half);
    routed_free(&r);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    pairwise_shapes(&cases, "cross-check", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, sums_of_every_shape_pass, 0, cases.n_shapes);
    tcase_add_loop_test(t, a_flipped_bit_is_refused, 0, cases.n_shapes);
    tcase_add_test(t, bfloat16_outputs_and_terms_added_twice);
}
