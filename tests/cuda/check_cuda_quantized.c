/* check_cuda_quantized.c - number formats of quantizers on the GPU: matrices of whole models (check_quantized.c) are decoded to
 * the bits that the CPU gives, in both operand types, and forwards are transformers'.  check_cuda_linear_shapes.c has matrices of
 * any shape. */
#include "model/dequantize.h"
#include "tests/support/one_device_fixtures.h"
#include "tests/support/saved_fixtures.h"

static const char root[] = "tests/golden/quantized";

static const char *dir_of(int i)
{
    static char dir[512];
    snprintf(dir, sizeof dir, "%s/%s", root, saved_name[i]);
    return dir;
}

/* Decodes on the GPU, to float32 and to bfloat16, and compares with what the CPU has. */
static void check_decoded(exf_device_coded_rows *c, const float *want, const char *what)
{
    size_t n = c->rows * c->cols;
    int *bad = device_put(&d, &(int){0}, sizeof(int));
    for (int number = 0; number < 2; number++) {
        void *out = device_put(&d, NULL, n * 4);
        d.b->gpu->dequantize(d.q, out, (exf_number)number, c, bad);
        void *got = device_get(&d, out, n * exf_number_bytes((exf_number)number));
        for (size_t i = 0; i < n; i++) {
            float is = number == EXF_NUMBER_BF16 ? of_bf16(((uint16_t *)got)[i]) : ((float *)got)[i];
            float should = number == EXF_NUMBER_BF16 ? of_bf16(to_bf16(want[i])) : want[i];
            ck_assert_msg(is == should, "%s: element %zu: %.9g, the CPU has %.9g", what, i, (double)is, (double)should);
        }
        exf_mem_free(got);
        d.b->free(out);
    }
    int *found = device_get(&d, bad, sizeof(int));
    ck_assert_int_eq(*found, 0);
    exf_mem_free(found);
    d.b->free(bad);
}

/* ---- whole models ------------------------------------------------------------------------ */

/* One matrix of a model, or stack of them, its tensors copied as the loader of a device copies them. */
static void check_matrix(const exf_model *m, void *weight)
{
    static const exf_device_coding coding[] = {
        [EXF_CODED_FP8] = EXF_DEVICE_CODED_FP8,   [EXF_CODED_FP4] = EXF_DEVICE_CODED_FP4, [EXF_CODED_INT4] = EXF_DEVICE_CODED_INT4,
        [EXF_CODED_GPTQ] = EXF_DEVICE_CODED_GPTQ, [EXF_CODED_AWQ] = EXF_DEVICE_CODED_AWQ};
    exf_err err;
    exf_weight_source w;
    exf_raw_rows raw;
    void *on[EXF_STORED_KINDS] = {NULL};
    size_t rows, cols;
    saved_weight_find(&w, m, weight, &rows, &cols);
    char *buffer = test_memory(exf_weight_source_room(&w, 0, rows, cols), 1);
    float *want = test_memory(rows * cols, 4);
    ck_ok(exf_weight_source_raw(&w, 0, rows, cols, buffer, &raw, &err), err);
    ck_ok(exf_weight_source_decode(&w, &raw, 0, rows, cols, want, &err), err);
    for (int k = 0; k < EXF_STORED_KINDS; k++)
        if (raw.of[k]) on[k] = device_put(&d, raw.of[k], exf_weight_source_stored_bytes(&w, (exf_stored_kind)k, 0, rows, cols));
    exf_device_coded_rows c = {.coding = coding[w.coding], .scale_dtype = w.scale_dtype, .codes = on[EXF_STORED_CODES],
                               .scales = on[EXF_STORED_SCALES], .rows = rows, .cols = cols, .block_rows = (size_t)w.block_rows,
                               .block_cols = (size_t)w.block_cols, .zeros = on[EXF_STORED_ZEROS], .zero_add = w.zero_add,
                               .zero_carries = w.zero_carries,
                               .groups = on[EXF_STORED_GROUPS], .factor = on[EXF_STORED_FACTOR], .divides = w.divides};
    check_decoded(&c, want, exf_json_key(weight));
    for (int k = 0; k < EXF_STORED_KINDS; k++) d.b->free(on[k]);
    exf_mem_free(buffer);
    exf_mem_free(want);
}

START_TEST(every_matrix_is_the_cpus)
{
    exf_err err;
    exf_json *doc;
    exf_model *m;
    char path[640];
    snprintf(path, sizeof path, "%s/saved.json", dir_of(_i));
    ck_ok(exf_json_load(&doc, path, 1 << 20, &err), err);
    ck_ok(exf_model_open(&m, dir_of(_i), &err), err);
    const exf_json *weights = exf_json_get(doc, "weights");
    for (void *it = exf_json_first(weights); it; it = exf_json_next(weights, it)) check_matrix(m, it);
    exf_model_close(m);
    exf_json_free(doc);
}
END_TEST

START_TEST(perplexity_is_that_of_transformers)
{
    saved_check_in(dir_of(_i), d.b, 1e-4, 0);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "quantized");
    tcase_add_checked_fixture(t, open_device_bf16, close_device);
    saved_find_in(root);
    tcase_add_loop_test(t, every_matrix_is_the_cpus, 0, saved_n);
    tcase_add_loop_test(t, perplexity_is_that_of_transformers, 0, saved_n);
}
