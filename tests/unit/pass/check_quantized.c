/* check_quantized.c - models in the number formats of quantizers (scripts/make_quantized_models.py): every matrix, or stack
 * of them, is decoded to the bits that the library of its format gives, whatever rows are asked for, and the forward is
 * transformers' with these. */
#include "tests/support/fake_device.h"
#include "tests/support/saved_fixtures.h"

static const char root[] = "tests/golden/quantized";
static const uint64_t plenty = 1 << 30;

static const char *dir_of(int i)
{
    static char dir[512];
    snprintf(dir, sizeof dir, "%s/%s", root, saved_name[i]);
    return dir;
}

/* Rows that begin and end anywhere are those of the whole. */
static void check_parts(const exf_weight_source *w, const float *whole, size_t rows, size_t cols)
{
    exf_err err;
    float *part;
    ck_ok(exf_mem_new(&part, rows * cols, sizeof *part, "part", &err), err);
    for (size_t row = 0; row < rows; row += 5) {
        size_t n = rows - row < 11 ? rows - row : 11;
        ck_ok(exf_weight_source_read(w, row, n, cols, part, &err), err);
        for (size_t i = 0; i < n * cols; i++) ck_assert(part[i] == whole[row * cols + i]);
    }
    exf_mem_free(part);
}

START_TEST(every_matrix_is_the_librarys)
{
    exf_err err;
    exf_json *doc;
    exf_model *m;
    char path[640];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/saved.json", dir_of(_i));
    ck_ok(exf_json_load(&doc, path, 1 << 20, &err), err);
    ck_ok(exf_model_open(&m, dir_of(_i), &err), err);
    const exf_json *weights = exf_json_get(doc, "weights");
    for (void *it = exf_json_first(weights); it; it = exf_json_next(weights, it)) {
        exf_weight_source w;
        size_t rows, cols;
        float *v;
        int stack = saved_weight_find(&w, m, it, &rows, &cols);
        n += (size_t)(stack ? stack : 1);
        ck_assert_int_ne(w.coding, EXF_CODED_PLAIN);
        ck_ok(exf_mem_new(&v, rows * cols, sizeof *v, "weights", &err), err);
        ck_ok(exf_weight_source_read(&w, 0, rows, cols, v, &err), err);
        check_parts(&w, v, rows, cols);
        ck_assert_msg(saved_weight_is(it, v, rows * cols), "%s: %s", saved_name[_i], exf_json_key(it));
        exf_mem_free(v);
    }
    ck_assert_uint_ge(n, 12);
    exf_model_close(m);
    exf_json_free(doc);
}
END_TEST

START_TEST(perplexity_is_that_of_transformers)
{
    saved_check_in(dir_of(_i), &exf_backend_cpu, SAVED_LIMIT, 0);
}
END_TEST

/* By way of the loader of a device, which has its own plan of what is copied where. */
START_TEST(a_device_decodes_the_same)
{
    saved_check_in(dir_of(_i), fake_device(plenty), 1e-5, 0);
}
END_TEST

/* A config counts what files hold, but for tensors that are about activations, and a router's bias and MiniMax-M2's router, which
 * a library may round to 16 bits as it loads a model.  It counts plain tensors as BF16; AutoRound on a CPU saves them as F32. */
START_TEST(a_config_counts_the_files)
{
    exf_err err;
    exf_model *whole, *config;
    ck_ok(exf_model_open(&whole, dir_of(_i), &err), err);
    ck_ok(exf_model_open_part(&config, dir_of(_i), EXF_MODEL_CONFIG, &err), err);
    exf_model_rows embed;
    ck_ok(exf_model_locate(whole, EXF_W_EMBED, -1, 0, &embed, &err), err);
    int wide = exf_weight_source_dtype(&embed.w) == EXF_DT_F32;
    for (int l = -1; l < whole->arch.n_layers; l++) {
        uint64_t planned = exf_model_layer_bytes(config, l), stored = exf_model_layer_bytes(whole, l);
        uint64_t router = exf_model_fits_bf16(config, EXF_W_ROUTER, l) ? 0 : 2 * exf_model_count(whole, EXF_W_ROUTER, l);
        ck_assert_msg(planned == stored || (wide && planned < stored) ||
                          planned == stored + router + 2 * exf_model_count(whole, EXF_W_ROUTER_BIAS, l),
                      "%s: layer %d: %d, the files have %d", saved_name[_i], l, (int)planned, (int)stored);
    }
    exf_model_close(config);
    exf_model_close(whole);
}
END_TEST

START_TEST(models_are_there)
{
    char path[640];
    int with_logits = 0;
    for (int i = 0; i < saved_n; i++) with_logits += saved_has_logits(path, dir_of(i));
    ck_assert_int_eq(saved_n, 33);
    ck_assert_int_eq(with_logits, 9);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "quantized");
    saved_find_in(root);
    tcase_add_test(t, models_are_there);
    tcase_add_loop_test(t, every_matrix_is_the_librarys, 0, saved_n);
    tcase_add_loop_test(t, perplexity_is_that_of_transformers, 0, saved_n);
    tcase_add_loop_test(t, a_device_decodes_the_same, 0, saved_n);
    tcase_add_loop_test(t, a_config_counts_the_files, 0, saved_n);
}
