/* check_rearranged.c - stacks of experts whose rows lie otherwise in the file than in the forward pass: MXFP4, two roles' rows in
 * turn, rows stored as columns. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "model/weight_source.h"

#include <math.h>
#include <string.h>

enum { E = 3, ROWS = 5, COLS = 64, MOST = 2 * E * ROWS * COLS };

static exf_err e;
static float got[MOST];
static uint8_t blocks[MOST / 2], scales[MOST / 32];
static float plain[MOST];

/* The tensors as a checkpoint in the scratch directory, and the first of them as a weight. */
static exf_code open_weight(exf_checkpoint **c, exf_weight_source *w, const exf_tensor *t, size_t n, const int64_t *shape, int rank,
                            unsigned how)
{
    static const exf_quantization q = {.quantizer = EXF_QUANTIZER_MXFP4, .formats = EXF_FORMAT_MXFP4};
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, t, n, NULL, 0, NULL, &e), e);
    ck_ok(exf_checkpoint_open(c, exf_scratch("."), &e), e);
    return exf_weight_source_find(w, *c, &q, "config.json", t[0].name, shape, rank, how, &e);
}

/* ---- MXFP4 ------------------------------------------------------------------------------------- */

static double e2m1(unsigned nibble)
{
    static const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return nibble & 8 ? -magnitude[nibble & 7] : magnitude[nibble & 7];
}

/* Element [row, c] of the stored rows. */
static double packed_value(size_t row, size_t c)
{
    uint8_t byte = blocks[row * (COLS / 2) + c / 2];
    return e2m1(c % 2 ? byte >> 4 : byte & 15) * ldexp(1, (int)scales[row * (COLS / 32) + c / 32] - 127);
}

/* Opens a stack of `apart` roles; every byte of codes occurs, and scales of all sizes. */
static exf_code open_packed(exf_checkpoint **c, exf_weight_source *w, int apart, unsigned how)
{
    for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(i * 41 + i / 256);
    for (size_t i = 0; i < sizeof scales; i++) scales[i] = (uint8_t)(100 + i * 7 % 60);
    int64_t shape[4] = {E, apart * ROWS, COLS / 32, 16};
    exf_tensor t[2] = {{"x_blocks", EXF_DT_U8, 4, {E, apart * ROWS, COLS / 32, 16}, blocks},
                       {"x_scales", EXF_DT_U8, 3, {E, apart * ROWS, COLS / 32}, scales}};
    return open_weight(c, w, t, 2, shape, 4, EXF_MXFP4 | how);
}

static const struct { int apart; unsigned how; } turns[] = {{1, 0}, {2, EXF_EVEN_ROWS}, {2, EXF_ODD_ROWS}};

/* Each expert's rows, whole and in parts. */
START_TEST(mxfp4_rows_are_their_codes_times_scales)
{
    exf_checkpoint *c;
    exf_weight_source w;
    size_t apart = (size_t)turns[_i].apart, odd = turns[_i].how == EXF_ODD_ROWS;
    ck_ok(open_packed(&c, &w, turns[_i].apart, turns[_i].how), e);
    ck_assert_int_eq(exf_weight_source_fits_bf16(&w), 1);
    for (size_t first = 0; first < E * ROWS; first += 4) {
        size_t n = E * ROWS - first < 4 ? E * ROWS - first : 4;
        ck_ok(exf_weight_source_read(&w, first, n, COLS, got, &e), e);
        for (size_t r = 0; r < n; r++)
            for (size_t k = 0; k < COLS; k++)
                ck_assert_msg((double)got[r * COLS + k] == packed_value((first + r) * apart + odd, k), "row %zu, column %zu",
                              first + r, k);
    }
    exf_checkpoint_close(c);
}
END_TEST

/* A scale of 255 is no number; the other role's rows do not notice. */
START_TEST(a_scale_that_is_no_number_is_named)
{
    exf_checkpoint *c;
    exf_weight_source w;
    ck_ok(open_packed(&c, &w, 2, EXF_ODD_ROWS), e);
    exf_checkpoint_close(c);
    scales[3 * (COLS / 32) + 1] = 255; /* of stored row 3: odd row 1 */
    int64_t shape[4] = {E, 2 * ROWS, COLS / 32, 16};
    exf_tensor t[2] = {{"x_blocks", EXF_DT_U8, 4, {E, 2 * ROWS, COLS / 32, 16}, blocks},
                       {"x_scales", EXF_DT_U8, 3, {E, 2 * ROWS, COLS / 32}, scales}};
    ck_ok(open_weight(&c, &w, t, 2, shape, 4, EXF_MXFP4 | EXF_ODD_ROWS), e);
    ck_fails(exf_weight_source_read(&w, 0, ROWS, COLS, got, &e), EXF_NUMERIC, e, "\"x_scales\" [3, 1]");
    w.how = EXF_MXFP4 | EXF_EVEN_ROWS;
    ck_ok(exf_weight_source_read(&w, 0, ROWS, COLS, got, &e), e);
    exf_checkpoint_close(c);
}
END_TEST

/* ---- transposed, and in turn -------------------------------------------------------------------- */

START_TEST(transposed_rows_are_columns)
{
    exf_checkpoint *c;
    exf_weight_source w;
    size_t apart = (size_t)turns[_i].apart, odd = turns[_i].how == EXF_ODD_ROWS, width = apart * ROWS;
    int64_t shape[3] = {E, COLS, (int64_t)width};
    for (size_t i = 0; i < MOST; i++) plain[i] = (float)i;
    exf_tensor t = {"x", EXF_DT_F32, 3, {E, COLS, (int64_t)width}, plain};
    ck_ok(open_weight(&c, &w, &t, 1, shape, 3, EXF_TRANSPOSED | turns[_i].how), e);
    for (size_t x = 0; x < E; x++) {
        ck_ok(exf_weight_source_read(&w, x * ROWS, ROWS, COLS, got, &e), e);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t k = 0; k < COLS; k++) ck_assert(got[r * COLS + k] == plain[(x * COLS + k) * width + apart * r + odd]);
    }
    exf_checkpoint_close(c);
    plain[COLS * width + 3 * width + apart * 2 + odd] = INFINITY; /* expert 1, row 2, column 3 */
    ck_ok(open_weight(&c, &w, &t, 1, shape, 3, EXF_TRANSPOSED | turns[_i].how), e);
    ck_fails(exf_weight_source_read(&w, ROWS, ROWS, COLS, got, &e), EXF_NUMERIC, e, "\"x\" 3 7");
    exf_checkpoint_close(c);
}
END_TEST

/* Columns of two roles, each the half of a stored row. */
START_TEST(transposed_halves_are_columns)
{
    exf_checkpoint *c;
    exf_weight_source w;
    int64_t shape[3] = {E, COLS, 2 * ROWS};
    size_t half = _i ? ROWS : 0;
    for (size_t i = 0; i < MOST; i++) plain[i] = (float)i;
    exf_tensor t = {"x", EXF_DT_F32, 3, {E, COLS, 2 * ROWS}, plain};
    ck_ok(open_weight(&c, &w, &t, 1, shape, 3, EXF_TRANSPOSED | (_i ? EXF_SECOND_HALF : EXF_FIRST_HALF)), e);
    for (size_t x = 0; x < E; x++) {
        ck_ok(exf_weight_source_read(&w, x * ROWS, ROWS, COLS, got, &e), e);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t k = 0; k < COLS; k++) ck_assert(got[r * COLS + k] == plain[(x * COLS + k) * 2 * ROWS + half + r]);
    }
    exf_checkpoint_close(c);
}
END_TEST

/* Biases of gate and up: a vector of each expert, elements in turn. */
START_TEST(vectors_in_turn)
{
    exf_checkpoint *c;
    exf_weight_source w;
    int64_t shape[2] = {E, 2 * ROWS};
    for (size_t i = 0; i < 2 * E * ROWS; i++) plain[i] = (float)i;
    exf_tensor t = {"x", EXF_DT_F32, 2, {E, 2 * ROWS}, plain};
    for (int odd = 0; odd < 2; odd++) {
        ck_ok(open_weight(&c, &w, &t, 1, shape, 2, odd ? EXF_ODD_ROWS : EXF_EVEN_ROWS), e);
        ck_ok(exf_weight_source_read(&w, ROWS, ROWS, 1, got, &e), e);
        for (size_t r = 0; r < ROWS; r++) ck_assert(got[r] == (float)(2 * (ROWS + r) + (size_t)odd));
        exf_checkpoint_close(c);
    }
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------------- */

START_TEST(stacks_that_do_not_fit_are_refused)
{
    exf_checkpoint *c;
    exf_weight_source w;
    int64_t shape[4] = {E, ROWS, COLS / 32, 16};
    exf_tensor t[2] = {{"x_blocks", EXF_DT_U8, 4, {E, ROWS, COLS / 32, 16}, blocks},
                       {"x_scales", EXF_DT_U8, 3, {E, ROWS, COLS / 32}, scales}};
    ck_fails(open_weight(&c, &w, t, 1, shape, 4, EXF_MXFP4), EXF_MODEL, e, "\"x_blocks\" \"x_scales\" missing");
    exf_checkpoint_close(c);
    t[1].shape[1] = ROWS - 1;
    ck_fails(open_weight(&c, &w, t, 2, shape, 4, EXF_MXFP4), EXF_MODEL, e, "\"x_scales\" [3, 4, 2] [3, 5, 2]");
    exf_checkpoint_close(c);
    t[1].shape[1] = ROWS;
    ck_assert_int_eq(exf_checkpoint_open(&c, exf_scratch("."), &e), EXF_OK);
    ck_fails(exf_weight_source_find(&w, c, &(exf_quantization){0}, "config.json", "x_blocks", shape, 4, EXF_MXFP4, &e), EXF_MODEL,
             e, "\"x_blocks\" config.json no \"quantization_config\" \"mxfp4\"");
    exf_checkpoint_close(c);
    t[0].dtype = EXF_DT_I8;
    ck_fails(open_weight(&c, &w, t, 2, shape, 4, EXF_MXFP4), EXF_MODEL, e, "\"x_blocks\" I8 U8");
    exf_checkpoint_close(c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, mxfp4_rows_are_their_codes_times_scales, 0, 3);
    tcase_add_test(t, a_scale_that_is_no_number_is_named);
    tcase_add_loop_test(t, transposed_halves_are_columns, 0, 2);
    tcase_add_loop_test(t, transposed_rows_are_columns, 0, 3);
    tcase_add_test(t, vectors_in_turn);
    tcase_add_test(t, stacks_that_do_not_fit_are_refused);
}
