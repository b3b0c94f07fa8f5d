/* check_cuda_rounding.c - what turns stored weights and activations into operands: what rounds to an infinity, products of
 * rounded rows, heads with large gates.  Shapes are in check_cuda_linear_shapes.c and check_cuda_rows_shapes.c. */
#include "tests/support/one_device_fixtures.h"

/* Returns what becomes of *bad when rows are decoded to a number. */
static int bad_after(const void *codes, size_t bytes, const exf_device_coded_rows *rows, exf_number number)
{
    int *bad = device_put(&d, &(int){0}, sizeof(int));
    void *on_device = device_put(&d, codes, bytes), *out = device_put(&d, NULL, rows->rows * rows->cols * 4);
    exf_device_coded_rows r = *rows;
    r.codes = on_device;
    d.b->gpu->dequantize(d.q, out, number, &r, bad);
    int *found = device_get(&d, bad, sizeof(int)), is = *found;
    exf_mem_free(found);
    d.b->free(bad);
    d.b->free(on_device);
    d.b->free(out);
    return is;
}

/* The least float32 that no bfloat16 is near, and the largest that one is: FP8 and integers of 1 under such a scale. */
START_TEST(what_is_beyond_bfloat16_is_noticed)
{
    const float scale[] = {0x1.fefffep127f, 0x1.ffp127f};
    uint8_t ones[16];
    memset(ones, 0x38, sizeof ones);
    const uint32_t nines = 0x99999999;
    for (int beyond = 0; beyond < 2; beyond++) {
        float *there = device_put(&d, &scale[beyond], sizeof(float));
        exf_device_coded_rows plain = {.coding = EXF_DEVICE_CODED_PLAIN, .dtype = EXF_DT_F32, .rows = 1, .cols = 1};
        exf_device_coded_rows fp8 = {.coding = EXF_DEVICE_CODED_FP8, .scale_dtype = EXF_DT_F32, .scales = there, .rows = 1,
                                     .cols = 16, .block_rows = 1, .block_cols = 16};
        exf_device_coded_rows few = fp8, integers = fp8;
        few.cols = 3;
        integers.coding = EXF_DEVICE_CODED_INT4;
        integers.cols = 8;
        for (int number = 0; number < 2; number++) {
            int want = beyond && number == EXF_NUMBER_BF16;
            ck_assert_int_eq(bad_after(&scale[beyond], sizeof(float), &plain, (exf_number)number), want);
            ck_assert_int_eq(bad_after(ones, 16, &fp8, (exf_number)number), want);
            ck_assert_int_eq(bad_after(ones, 3, &few, (exf_number)number), want);
            ck_assert_int_eq(bad_after(&nines, sizeof nines, &integers, (exf_number)number), want);
        }
        d.b->free(there);
    }
}
END_TEST

static const struct { int m, n, k; } products[] = {{1, 8, 8}, {3, 40, 72}, {130, 64, 256}, {257, 128, 2048}, {20000, 16, 4096}};

START_TEST(products_round_what_they_multiply)
{
    int m = products[_i].m, n = products[_i].n, k = products[_i].k, step = m > 1000 ? 997 : 1;
    float *x = test_memory((size_t)m * (size_t)k, 4);
    for (size_t i = 0; i < (size_t)m * (size_t)k; i++) x[i] = real_at(4, i, 1);
    uint16_t *w = bf16_reals((size_t)n * (size_t)k, 5, 1);
    float *xt = device_put(&d, x, (size_t)m * (size_t)k * 4), *y[2];
    uint16_t *wt = device_put(&d, w, (size_t)n * (size_t)k * 2), *half = device_put(&d, NULL, (size_t)m * (size_t)k * 2);
    for (int s = 0; s < 2; s++) y[s] = device_put(&d, NULL, (size_t)m * (size_t)n * 4);
    d.b->gpu->round_rows(d.q, half, k, xt, k, m, k);
    d.b->gemm_xwt(d.q, y[0], n, exf_f32(xt), k, exf_bf16(wt), k, m, n, k, 1, 0);
    d.b->gemm_xwt(d.q, y[1], n, exf_bf16(half), k, exf_bf16(wt), k, m, n, k, 1, 0);
    for (int s = 0; s < 2; s++) {
        float *got = device_get(&d, y[s], (size_t)m * (size_t)n * 4);
        for (int i = 0; i < m; i += step)
            for (int j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int c = 0; c < k; c++) {
                    double t = (double)of_bf16(to_bf16(x[(size_t)i * (size_t)k + (size_t)c])) *
                               (double)of_bf16(w[(size_t)j * (size_t)k + (size_t)c]);
                    sum += t;
                    size += fabs(t);
                }
                ck_assert_msg(fabs((double)got[(size_t)i * (size_t)n + (size_t)j] - sum) <= k * 0x1p-24 * size,
                              "product %d at [%d, %d]", s, i, j);
            }
        exf_mem_free(got);
        d.b->free(y[s]);
    }
    d.b->free(xt);
    d.b->free(wt);
    d.b->free(half);
    exf_mem_free(x);
    exf_mem_free(w);
}
END_TEST

static const int head_widths[] = {1, 4, 63, 64, 128, 132, 512, 516, 1000};

START_TEST(gated_heads_are_near)
{
    enum { T = 37 };
    int w = head_widths[_i];
    size_t n = (size_t)(T * w);
    float *x = test_memory(n, 4), *gate = test_memory(n, 4), *norm = test_memory((size_t)w, 4);
    for (size_t i = 0; i < n; i++) x[i] = real_at(6, i, 3), gate[i] = real_at(7, i, i % 5 ? 4 : 100);
    for (int i = 0; i < w; i++) norm[i] = real_at(8, (size_t)i, 1);
    float *xt = device_put(&d, x, n * 4), *gt = device_put(&d, gate, n * 4), *nt = device_put(&d, norm, (size_t)w * 4);
    uint16_t *yt = device_put(&d, NULL, n * 2);
    d.b->gpu->gate_heads_rounded(d.q, yt, xt, gt, nt, T, w, 1e-6);
    uint16_t *y = device_get(&d, yt, n * 2);
    for (int t = 0; t < T; t++) {
        double sq = 0;
        for (int i = 0; i < w; i++) sq += (double)x[t * w + i] * (double)x[t * w + i];
        for (int i = 0; i < w; i++) {
            double g = (double)gate[t * w + i],
                   want = g / (1 + exp(-g)) * (double)norm[i] * (double)x[t * w + i] / sqrt(sq / w + 1e-6);
            ck_assert(fabs((double)of_bf16(y[t * w + i]) - want) <= 0x1.02p-8 * fabs(want) + 1e-30); /* bfloat16's half step */
        }
    }
    exf_mem_free(x);
    exf_mem_free(gate);
    exf_mem_free(norm);
    exf_mem_free(y);
    d.b->free(xt);
    d.b->free(gt);
    d.b->free(nt);
    d.b->free(yt);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_bf16, close_device);
    tcase_add_test(t, what_is_beyond_bfloat16_is_noticed);
    tcase_add_loop_test(t, products_round_what_they_multiply, 0, COUNT(products));
    tcase_add_loop_test(t, gated_heads_are_near, 0, COUNT(head_widths));
}
