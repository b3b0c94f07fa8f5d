/* check_weight_source.c - number formats of checkpoints: every code, every scale,
 * ragged blocks, parts of a tensor, and everything that is refused. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "model/dequantize.h"
#include "model/quantization.h"
#include "model/weight_source.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 400000 };
static float got[ROOM], want[ROOM];
static uint8_t codes[ROOM], scales8[4096];
static float scales32[4096];

static exf_quantization fp8_blocks(int rows, int cols)
{
    return (exf_quantization){.quantizer = EXF_QUANTIZER_FP8, .fp8 = 1, .fp4 = 1, .block_rows = rows, .block_cols = cols};
}

/* The tensors as the checkpoint in the scratch directory. */
static exf_checkpoint *checkpoint_of(const exf_tensor *t, size_t n)
{
    exf_err e;
    exf_checkpoint *c;
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, t, n, NULL, 0, NULL, &e), e);
    ck_ok(exf_checkpoint_open(&c, exf_scratch("."), &e), e);
    return c;
}

/* Tensor a.weight [rows, cols] of the checkpoint, rows [row, row + n) into got. */
static exf_code read_part(const exf_tensor *t, size_t n_tensors, const exf_quantization *q, int64_t rows, int64_t cols, size_t row,
                          size_t n, exf_err *e)
{
    exf_checkpoint *c = checkpoint_of(t, n_tensors);
    exf_weight_source w;
    int64_t shape[2] = {rows, cols};
    exf_code rc = exf_weight_source_find(&w, c, q, "config.json", "a.weight", shape, 2, EXF_LINEAR, e);
    if (rc == EXF_OK) rc = exf_weight_source_read(&w, row, n, (size_t)cols, got, e);
    exf_checkpoint_close(c);
    return rc;
}

static exf_tensor tensor_of(const char *name, exf_dtype dtype, int64_t rows, int64_t cols, const void *data)
{
    return (exf_tensor){name, dtype, 2, {rows, cols}, data};
}

/* ---- values, from the formats' definitions ---------------------------------- */

static double e4m3(unsigned b)
{
    unsigned e = b >> 3 & 15, m = b & 7;
    double v = e ? (1 + m / 8.0) * pow(2, (int)e - 7) : m * pow(2, -9);
    return b & 0x80 ? -v : v;
}

static double e2m1(unsigned b)
{
    static const double v[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    return b & 8 ? -v[b & 7] : v[b & 7];
}

START_TEST(every_fp8_code)
{
    exf_err e;
    float one = 1;
    exf_quantization q = fp8_blocks(128, 128);
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)((i & 0x7f) == 0x7f ? 0 : i);
    exf_tensor t[] = {tensor_of("a.weight", EXF_DT_F8_E4M3, 16, 16, codes),
                      tensor_of("a.weight_scale_inv", EXF_DT_F32, 1, 1, &one)};
    ck_ok(read_part(t, 2, &q, 16, 16, 0, 16, &e), e);
    for (int i = 0; i < 256; i++) ck_assert_msg(got[i] == (float)e4m3(codes[i]), "0x%02x is %g", codes[i], (double)got[i]);
    ck_assert_double_eq(got[0x7e], 448);
    ck_assert(signbit(got[0x80]));
}
END_TEST

START_TEST(every_e8m0_scale)
{
    exf_err e;
    exf_quantization q = fp8_blocks(1, 1);
    memset(codes, 0x38, 255); /* 1.0 */
    for (int i = 0; i < 255; i++) scales8[i] = (uint8_t)i;
    exf_tensor t[] = {tensor_of("a.weight", EXF_DT_F8_E4M3, 255, 1, codes), tensor_of("a.scale", EXF_DT_F8_E8M0, 255, 1, scales8)};
    ck_ok(read_part(t, 2, &q, 255, 1, 0, 255, &e), e);
    for (int i = 0; i < 255; i++)
        ck_assert_msg(got[i] == (float)ldexp(1, i - 127) && got[i] > 0, "scale %d is %g", i, (double)got[i]);
}
END_TEST

START_TEST(every_fp4_byte)
{
    exf_err e;
    exf_quantization q = fp8_blocks(128, 128);
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    for (int i = 0; i < 16; i++) scales8[i] = (uint8_t)(120 + i);
    exf_tensor t[] = {tensor_of("a.weight", EXF_DT_I8, 16, 16, codes), tensor_of("a.scale", EXF_DT_F8_E8M0, 16, 1, scales8)};
    ck_ok(read_part(t, 2, &q, 16, 32, 0, 16, &e), e);
    for (int i = 0; i < 256; i++) {
        double scale = pow(2, i / 16 - 7);
        ck_assert_msg(got[2 * i] == (float)(e2m1((unsigned)i & 15) * scale), "low nibble of 0x%02x is %g", i, (double)got[2 * i]);
        ck_assert_msg(got[2 * i + 1] == (float)(e2m1((unsigned)i >> 4) * scale), "high nibble of 0x%02x is %g", i,
                      (double)got[2 * i + 1]);
    }
}
END_TEST

/* ---- blocks and parts ---------------------------------------------------------- */

static void fill(size_t n_codes, size_t n_scales)
{
    uint32_t x = 1;
    for (size_t i = 0; i < n_codes; i++) {
        x = x * 1664525u + 1013904223u;
        codes[i] = (uint8_t)((x >> 24 & 0x7f) == 0x7f ? 0x41 : x >> 24);
    }
    for (size_t i = 0; i < n_scales; i++) {
        scales32[i] = 0.001f * (float)(i + 1);
        scales8[i] = (uint8_t)(110 + i % 30);
    }
}

/* The rows asked for are those of the whole, whatever blocks they cut. */
static void parts_agree(const exf_tensor *t, const exf_quantization *q, int64_t rows, int64_t cols)
{
    exf_err e;
    const struct {
        size_t row, n;
    } part[] = {{0, (size_t)rows}, {0, 1}, {1, 2}, {(size_t)rows / 3, 2}, {(size_t)rows - 1, 1}, {(size_t)rows - 3, 3}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        memset(got, 0xff, sizeof got);
        ck_ok(read_part(t, 2, q, rows, cols, part[i].row, part[i].n, &e), e);
        ck_assert_msg(memcmp(got, want + part[i].row * (size_t)cols, part[i].n * (size_t)cols * sizeof *got) == 0,
                      "rows from %zu differ", part[i].row);
        ck_assert(isnan(got[part[i].n * (size_t)cols])); /* nothing after them */
    }
}

START_TEST(ragged_fp8_blocks)
{
    static const struct { int64_t rows, cols; int block_rows, block_cols; } c[] = {
        {130, 257, 128, 128}, {128, 128, 128, 128}, {5, 3, 128, 128}, {40, 50, 7, 9}, {40, 50, 64, 1}, {1100, 320, 128, 128}};
    exf_quantization q = fp8_blocks(c[_i].block_rows, c[_i].block_cols);
    int64_t rows = c[_i].rows, cols = c[_i].cols;
    int64_t scale_rows = (rows + q.block_rows - 1) / q.block_rows, scale_cols = (cols + q.block_cols - 1) / q.block_cols;
    fill((size_t)(rows * cols), (size_t)(scale_rows * scale_cols));
    exf_tensor w = tensor_of("a.weight", EXF_DT_F8_E4M3, rows, cols, codes);
    exf_tensor wide[] = {w, tensor_of("a.weight_scale_inv", EXF_DT_F32, scale_rows, scale_cols, scales32)};
    exf_tensor native[] = {w, tensor_of("a.scale", EXF_DT_F8_E8M0, scale_rows, scale_cols, scales8)};
    for (int64_t i = 0; i < rows * cols; i++)
        want[i] = (float)e4m3(codes[i]) * scales32[i / cols / q.block_rows * scale_cols + i % cols / q.block_cols];
    parts_agree(wide, &q, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        want[i] = (float)ldexp(e4m3(codes[i]), scales8[i / cols / q.block_rows * scale_cols + i % cols / q.block_cols] - 127);
    parts_agree(native, &q, rows, cols);
}
END_TEST

START_TEST(ragged_fp4_blocks)
{
    static const struct { int64_t rows, cols; } c[] = {{5, 70}, {4, 32}, {3, 2}, {500, 640}};
    int64_t rows = c[_i].rows, cols = c[_i].cols, per_row = (cols + 31) / 32;
    exf_quantization q = fp8_blocks(128, 128);
    static uint8_t scale[500 * 20];
    fill((size_t)(rows * cols / 2), 1);
    for (int64_t i = 0; i < rows * per_row; i++) scale[i] = (uint8_t)(100 + i % 50);
    for (int64_t i = 0; i < rows * cols; i++) {
        unsigned byte = codes[i / 2];
        want[i] = (float)ldexp(e2m1(i % 2 ? byte >> 4 : byte & 15), scale[i / cols * per_row + i % cols / 32] - 127);
    }
    exf_tensor t[] = {tensor_of("a.weight", EXF_DT_I8, rows, cols / 2, codes),
                      tensor_of("a.scale", EXF_DT_F8_E8M0, rows, per_row, scale)};
    parts_agree(t, &q, rows, cols);
}
END_TEST

/* More codes than are staged at a time. */
START_TEST(pieces_join)
{
    enum { ROWS = 3000, COLS = 1000 };
    exf_err e;
    static uint8_t big[ROWS * COLS];
    exf_quantization q = fp8_blocks(128, 128);
    for (size_t i = 0; i < sizeof big; i++) big[i] = (uint8_t)(i * 7 % 0x7f);
    fill(1, 24 * 8);
    exf_tensor t[] = {tensor_of("a.weight", EXF_DT_F8_E4M3, ROWS, COLS, big),
                      tensor_of("a.weight_scale_inv", EXF_DT_F32, 24, 8, scales32)};
    exf_checkpoint *c = checkpoint_of(t, 2);
    exf_weight_source w;
    int64_t shape[2] = {ROWS, COLS};
    float *all;
    ck_ok(exf_mem_new(&all, sizeof big, sizeof *all, "matrix", &e), e);
    ck_ok(exf_weight_source_find(&w, c, &q, "config.json", "a.weight", shape, 2, EXF_LINEAR, &e), e);
    ck_assert_uint_eq(exf_weight_source_bytes(&w), sizeof big + 24 * 8 * 4);
    ck_ok(exf_weight_source_read(&w, 0, ROWS, COLS, all, &e), e);
    float value[256];
    for (unsigned i = 0; i < 256; i++) value[i] = (float)e4m3(i);
    for (size_t i = 0; i < sizeof big; i++)
        if (all[i] != value[big[i]] * scales32[i / COLS / 128 * 8 + i % COLS / 128])
            ck_abort_msg("element %zu is %g", i, (double)all[i]);
    exf_mem_free(all);
    exf_checkpoint_close(c);
}
END_TEST

START_TEST(bf16_scales)
{
    exf_err e;
    uint16_t half = 0x3f00;
    exf_quantization q = fp8_blocks(128, 128);
    fill(6, 1);
    exf_tensor t[] = {tensor_of("a.weight", EXF_DT_F8_E4M3, 2, 3, codes),
                      tensor_of("a.weight_scale_inv", EXF_DT_BF16, 1, 1, &half)};
    ck_ok(read_part(t, 2, &q, 2, 3, 0, 2, &e), e);
    for (int i = 0; i < 6; i++) ck_assert(got[i] == 0.5f * (float)e4m3(codes[i]));
}
END_TEST

/* A quantised checkpoint keeps some matrices plain. */
START_TEST(plain_tensors_stay_plain)
{
    exf_err e;
    const float values[6] = {1, -2, 3, 4, 5, 6};
    exf_quantization q = fp8_blocks(128, 128);
    exf_tensor t[] = {tensor_of("a.weight", EXF_DT_F32, 3, 2, values)};
    ck_ok(read_part(t, 1, &q, 3, 2, 1, 2, &e), e);
    ck_assert(memcmp(got, values + 2, 4 * sizeof *got) == 0);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------- */

static const char bytes[16384]; /* the largest tensor below, in its widest dtype */

#define WEIGHT(dtype, rows, cols) {"a.weight", EXF_DT_##dtype, 2, {rows, cols}, bytes}
#define INVERSE(dtype, rows, cols) {"a.weight_scale_inv", EXF_DT_##dtype, 2, {rows, cols}, bytes}
#define NATIVE(dtype, rows, cols) {"a.scale", EXF_DT_##dtype, 2, {rows, cols}, bytes}

/* The config says a.weight is [40, 64], blocks are 16 x 32. */
static const struct { exf_tensor t[2]; int n, quantised; unsigned how; const char *says[4]; } refusals[] = {
    {{WEIGHT(F8_E4M3, 40, 64)}, 1, 1, EXF_LINEAR, {"model.safetensors", "a.weight\" is F8_E4M3",
                                                   "a.weight_scale_inv\" or \"a.scale\" [3, 2]", "missing"}},
    {{WEIGHT(I8, 40, 32)}, 1, 1, EXF_LINEAR, {"model.safetensors", "a.weight\" is I8", "its scales \"a.scale\" [40, 2]",
                                              "missing"}},
    {{WEIGHT(I8, 40, 32), INVERSE(F32, 40, 2)}, 2, 1, EXF_LINEAR, {"its scales \"a.scale\" [40, 2]", "missing", "", ""}},
    {{WEIGHT(F8_E4M3, 40, 64), INVERSE(F32, 2, 2)}, 2, 1, EXF_LINEAR,
     {"a.weight_scale_inv\" is [2, 2]", "config.json says [3, 2]", "block", ""}},
    {{WEIGHT(F8_E4M3, 40, 64), NATIVE(F8_E8M0, 3, 1)}, 2, 1, EXF_LINEAR,
     {"a.scale\" is [3, 1]", "config.json says [3, 2]", "", ""}},
    {{WEIGHT(I8, 40, 32), NATIVE(F8_E8M0, 40, 1)}, 2, 1, EXF_LINEAR, {"a.scale\" is [40, 1]", "says [40, 2]", "32 columns", ""}},
    {{WEIGHT(F8_E4M3, 40, 64), INVERSE(F16, 3, 2)}, 2, 1, EXF_LINEAR,
     {"a.weight_scale_inv\" of type F16", "expected F32 or BF16", "", ""}},
    {{WEIGHT(F8_E4M3, 40, 64), NATIVE(F32, 3, 2)}, 2, 1, EXF_LINEAR, {"a.scale\" of type F32", "expected F8_E8M0", "", ""}},
    {{WEIGHT(F8_E4M3, 39, 64), INVERSE(F32, 3, 2)}, 2, 1, EXF_LINEAR,
     {"a.weight\" is [39, 64]", "config.json says [40, 64]", "", ""}},
    {{WEIGHT(I8, 40, 64), NATIVE(F8_E8M0, 40, 2)}, 2, 1, EXF_LINEAR, {"a.weight\" is [40, 64]", "says [40, 32]", "two FP4", ""}},
    {{WEIGHT(F8_E4M3, 40, 64), INVERSE(F32, 3, 2)}, 2, 0, EXF_LINEAR,
     {"a.weight\" is F8_E4M3", "expected BF16, F16 or F32", "no quantization_config", ""}},
    {{WEIGHT(I8, 40, 32), NATIVE(F8_E8M0, 40, 2)}, 2, 0, EXF_LINEAR,
     {"a.weight\" is I8", "expected BF16, F16 or F32", "no quantization_config", ""}},
    {{WEIGHT(F8_E4M3, 40, 64), INVERSE(F32, 3, 2)}, 2, 1, 0, {"a.weight\" is F8_E4M3", "expected BF16, F16 or F32", "", ""}},
    {{WEIGHT(F8_E5M2, 40, 64), INVERSE(F32, 3, 2)}, 2, 1, EXF_LINEAR,
     {"a.weight\" is F8_E5M2", "expected BF16, F16, F32, F8_E4M3", "", ""}},
    {{WEIGHT(U8, 40, 32), NATIVE(F8_E8M0, 40, 2)}, 2, 1, EXF_LINEAR, {"a.weight\" is U8", "packed FP4 in I8", "", ""}},
    {{WEIGHT(BF16, 40, 63)}, 1, 1, EXF_LINEAR, {"a.weight\" is [40, 63]", "says [40, 64]", "", ""}},
    {{WEIGHT(F32, 40, 64)}, 1, 1, EXF_INTEGER, {"a.weight\" is F32", "expected I64 or I32", "", ""}},
    {{INVERSE(F32, 3, 2)}, 1, 1, EXF_LINEAR, {"config.json", "\"a.weight\" [40, 64]", "missing", ""}},
};
enum { N_REFUSALS = sizeof refusals / sizeof *refusals };

START_TEST(refuses_what_does_not_fit)
{
    exf_err e = {.msg = ""};
    exf_quantization q = fp8_blocks(16, 32);
    exf_weight_source w;
    int64_t shape[2] = {40, 64};
    if (!refusals[_i].quantised) memset(&q, 0, sizeof q);
    exf_checkpoint *c = checkpoint_of(refusals[_i].t, (size_t)refusals[_i].n);
    exf_code rc = exf_weight_source_find(&w, c, &q, "config.json", "a.weight", shape, 2, refusals[_i].how, &e);
    for (int i = 0; i < 4; i++) ck_fails(rc, EXF_MODEL, e, refusals[_i].says[i]);
    exf_checkpoint_close(c);
}
END_TEST

START_TEST(refuses_quantised_stacks_and_odd_fp4)
{
    exf_err e;
    exf_quantization q = fp8_blocks(16, 32);
    exf_weight_source w;
    int64_t stack[3] = {2, 4, 6}, odd[2] = {4, 5};
    exf_tensor t[] = {{"a.weight", EXF_DT_F8_E4M3, 3, {2, 4, 6}, bytes}, {"b.weight", EXF_DT_I8, 2, {4, 3}, bytes}};
    exf_checkpoint *c = checkpoint_of(t, 2);
    ck_fails(exf_weight_source_find(&w, c, &q, "config.json", "a.weight", stack, 3, EXF_LINEAR, &e), EXF_MODEL, e,
             "/model.safetensors \"a.weight\"");
    ck_fails(exf_weight_source_find(&w, c, &q, "config.json", "b.weight", odd, 2, EXF_LINEAR, &e), EXF_MODEL, e,
             "5");
    exf_checkpoint_close(c);
}
END_TEST

START_TEST(refuses_what_is_no_number)
{
    exf_err e;
    exf_quantization q = fp8_blocks(16, 32);
    exf_tensor fp8[] = {tensor_of("a.weight", EXF_DT_F8_E4M3, 40, 64, codes),
                        tensor_of("a.weight_scale_inv", EXF_DT_F32, 3, 2, scales32)};
    exf_tensor native[] = {fp8[0], tensor_of("a.scale", EXF_DT_F8_E8M0, 3, 2, scales8)};
    fill(40 * 64, 6);
    codes[33 * 64 + 7] = 0xff;
    ck_fails(read_part(fp8, 2, &q, 40, 64, 32, 8, &e), EXF_NUMERIC, e, "\"a.weight\" [33 7] 0xff");
    ck_ok(read_part(fp8, 2, &q, 40, 64, 0, 33, &e), e); /* rows that are not asked for are not judged */
    fill(40 * 64, 6);
    scales8[5] = 255;
    ck_fails(read_part(native, 2, &q, 40, 64, 32, 8, &e), EXF_NUMERIC, e,
             "\"a.scale\" [2 1]");
    scales32[3] = INFINITY;
    ck_fails(read_part(fp8, 2, &q, 40, 64, 17, 1, &e), EXF_NUMERIC, e, "[1 1]");
    fill(40 * 64, 6);
    codes[5] = 0x7e;
    scales32[0] = 3e38f;
    ck_fails(read_part(fp8, 2, &q, 40, 64, 0, 1, &e), EXF_NUMERIC, e, "float32");
}
END_TEST

/* ---- quantization_config ------------------------------------------------------------ */

START_TEST(finds_the_first_that_is_not_finite)
{
    for (size_t i = 0; i < 10000; i++) got[i] = i % 2 ? 3.4e38f : -1e-40f;
    ck_assert_uint_eq(exf_first_not_finite(got, 10000), 10000);
    got[9999] = INFINITY;
    ck_assert_uint_eq(exf_first_not_finite(got, 9999), 9999);
    ck_assert_uint_eq(exf_first_not_finite(got, 10000), 9999);
    got[4097] = NAN;
    ck_assert_uint_eq(exf_first_not_finite(got, 10000), 4097);
    got[0] = -INFINITY;
    ck_assert_uint_eq(exf_first_not_finite(got, 10000), 0);
}
END_TEST

static int fits_bf16(const exf_tensor *t, size_t n, int64_t rows, int64_t cols, unsigned how)
{
    exf_err e;
    exf_quantization q = fp8_blocks(128, 128);
    exf_checkpoint *c = checkpoint_of(t, n);
    exf_weight_source w;
    int64_t shape[2] = {rows, cols};
    ck_ok(exf_weight_source_find(&w, c, &q, "config.json", "a.weight", shape, 2, how, &e), e);
    int fits = exf_weight_source_fits_bf16(&w);
    exf_checkpoint_close(c);
    return fits;
}

START_TEST(tells_what_bfloat16_holds)
{
    static const float one = 1;
    static const uint16_t one16 = 0x3f80;
    static const struct { exf_dtype stored, scale; int fits; } c[] = {
        {EXF_DT_BF16, EXF_DT_BF16, 1}, {EXF_DT_F16, EXF_DT_BF16, 0}, {EXF_DT_F32, EXF_DT_BF16, 0}, {EXF_DT_F8_E4M3, EXF_DT_F32, 0},
        {EXF_DT_F8_E4M3, EXF_DT_BF16, 0}, {EXF_DT_F8_E4M3, EXF_DT_F8_E8M0, 1}, {EXF_DT_I8, EXF_DT_F8_E8M0, 1},
    };
    memset(codes, 0, 4096);
    memset(scales8, 127, 64);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int coded = c[i].stored == EXF_DT_F8_E4M3 || c[i].stored == EXF_DT_I8, fp4 = c[i].stored == EXF_DT_I8;
        const void *scale = c[i].scale == EXF_DT_F32    ? (const void *)&one
                            : c[i].scale == EXF_DT_BF16 ? (const void *)&one16
                                                        : (const void *)scales8;
        exf_tensor t[] = {
            tensor_of("a.weight", c[i].stored, 16, fp4 ? 16 : 32, codes),
            tensor_of(c[i].scale == EXF_DT_F8_E8M0 ? "a.scale" : "a.weight_scale_inv", c[i].scale, fp4 ? 16 : 1, 1, scale)};
        ck_assert_msg(fits_bf16(t, coded ? 2 : 1, 16, 32, EXF_LINEAR) == c[i].fits, "format %zu", i);
        if (!coded) ck_assert_int_eq(fits_bf16(t, 1, 16, 32, EXF_LINEAR | EXF_PLUS_ONE), 0);
    }
}
END_TEST

/* The promise that goes with it, for every code under every scale. */
START_TEST(coded_values_are_bfloat16)
{
    for (unsigned s = 0; s < 255; s++)
        for (unsigned b = 0; b < 256; b++) {
            float scale = exf_e8m0_to_f32((uint8_t)s),
                  v[2] = {exf_e2m1_to_f32(b & 15) * scale, exf_e4m3_to_f32((uint8_t)b) * scale};
            for (int i = 0; i < 2; i++) {
                uint32_t u;
                memcpy(&u, &v[i], sizeof u);
                if (!isfinite(v[i]) || (i == 1 && scale < 0x1p-124f)) continue;
                ck_assert_msg((u & 0xffff) == 0, "code 0x%02x under 2^%d", b, (int)s - 127);
            }
        }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, every_fp8_code);
    tcase_add_test(t, every_e8m0_scale);
    tcase_add_test(t, every_fp4_byte);
    tcase_add_loop_test(t, ragged_fp8_blocks, 0, 6);
    tcase_add_loop_test(t, ragged_fp4_blocks, 0, 4);
    tcase_add_test(t, pieces_join);
    tcase_add_test(t, bf16_scales);
    tcase_add_test(t, plain_tensors_stay_plain);
    tcase_add_loop_test(t, refuses_what_does_not_fit, 0, N_REFUSALS);
    tcase_add_test(t, refuses_quantised_stacks_and_odd_fp4);
    tcase_add_test(t, refuses_what_is_no_number);
    tcase_add_test(t, finds_the_first_that_is_not_finite);
    tcase_add_test(t, tells_what_bfloat16_holds);
    tcase_add_test(t, coded_values_are_bfloat16);
}
