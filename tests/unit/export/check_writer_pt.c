/* check_writer_pt.c - the targets exfold-qwen3 and exfold-deepseek-v4: what the
 * public plugins' loaders ask of their files, record by record.  That torch loads
 * them is checked by tests/interop. */
#include "tests/support/export_fixtures.h"
#include "tests/support/zip_fixtures.h"

static exf_err e; /* of the last call */

/* The pickle has these bytes somewhere. */
static void ck_pickled(const zip_file *z, const char *bytes, size_t n)
{
    zip_record r = zip_find(z, "archive/data.pkl");
    for (size_t i = 0; i + n <= r.n; i++)
        if (memcmp(r.data + i, bytes, n) == 0) return;
    ck_abort_msg("the pickle lacks %.40s", bytes + 5);
}

#define CK_PICKLED(z, bytes) ck_pickled(z, bytes, sizeof bytes - 1)

static const float *ck_storage(const zip_file *z, int i, size_t n)
{
    char name[40];
    snprintf(name, sizeof name, "archive/data/%d", i);
    zip_record r = zip_find(z, name);
    ck_assert_uint_eq(r.n, n * sizeof(float));
    return (const void *)r.data;
}

/* ---- exfold-qwen3 ------------------------------------------------------------------ */

enum { M = 14 /* layers of the sample's model, of which the tables hold 1 and 12 */ };

static void ck_layer(const exf_tables *t, int at, const float *coeff, const float *loss, const float *norms)
{
    for (int i = 0; i < E * E; i++) {
        int diagonal = i / E == i % E;
        ck_assert(coeff[i] == (at < 0 ? (float)diagonal : t->coeff[at * E * E + i]));
        ck_assert(loss[i] == (at < 0 ? EXF_LOSS_NEVER : t->loss[at * E * E + i]));
    }
    for (int i = 0; i < E; i++) ck_assert(norms[i] == (at < 0 ? 1 : t->expert_norms[at * E + i]));
}

START_TEST(qwen3_layers_stand_at_the_models_numbers)
{
    exf_tables t;
    ck_ok(sample_tables(&t, 2, &e), e);
    ck_ok(write_target("exfold-qwen3", &t, "q.pt", 0, &e), e);
    zip_file z = zip_open("q.pt");
    const float *coeff = ck_storage(&z, 0, M * E * E), *loss = ck_storage(&z, 1, M * E * E), *norms = ck_storage(&z, 2, M * E);
    for (int m = 0; m < M; m++) ck_layer(&t, m == 1 ? 0 : m == 12 ? 1 : -1, coeff + m * E * E, loss + m * E * E, norms + m * E);
    exf_mem_free(z.bytes);
    exf_tables_free(&t);
}
END_TEST

static void set_fact(exf_tables *t, const char *key, const char *value)
{
    for (size_t i = 0; i < t->provenance.n; i++)
        if (strcmp(t->provenance.key[i], key) == 0) {
            exf_mem_free(t->provenance.value[i]);
            ck_ok(exf_mem_strdup(&t->provenance.value[i], value, "fact", &e), e);
            return;
        }
    ck_abort_msg("no fact %s", key);
}

static void remove_fact(exf_tables *t, const char *key)
{
    exf_provenance *p = &t->provenance;
    size_t i = 0;
    while (i < p->n && strcmp(p->key[i], key) != 0) i++;
    ck_assert_msg(i < p->n, "no fact %s", key);
    exf_mem_free(p->key[i]);
    exf_mem_free(p->value[i]);
    p->n--;
    memmove(p->key + i, p->key + i + 1, (p->n - i) * sizeof *p->key);
    memmove(p->value + i, p->value + i + 1, (p->n - i) * sizeof *p->value);
}

START_TEST(qwen3_settings_that_are_not_known_are_none)
{
    exf_tables t;
    ck_ok(sample_tables(&t, 0, &e), e);
    set_fact(&t, "solve.clip", "none");
    set_fact(&t, "accumulate.weighting", "router");
    remove_fact(&t, "data.max_tokens");
    ck_ok(write_target("exfold-qwen3", &t, "q.pt", 0, &e), e);
    zip_file z = zip_open("q.pt");
    CK_PICKLED(&z, "clip_minNX\x08\0\0\0clip_maxNX");
    CK_PICKLED(&z, "weightingX\6\0\0\0router");
    CK_PICKLED(&z, "max_lengthNu.");
    exf_mem_free(z.bytes);
    exf_tables_free(&t);
}
END_TEST

START_TEST(a_plugin_is_given_its_own_models_only)
{
    exf_tables t;
    ck_ok(sample_tables(&t, 0, &e), e);
    ck_fails(write_target("exfold-deepseek-v4", &t, "x", 0, &e), EXF_MODEL, e,
             "deepseek_v4 qwen3_moe");
    set_fact(&t, "model.family", "glm4_moe");
    ck_fails(write_target("exfold-qwen3", &t, "x", 0, &e), EXF_MODEL, e, "qwen3_moe glm4_moe");
    set_fact(&t, "model.family", "deepseek_v4");
    ck_fails(write_target("exfold-deepseek-v4", &t, "x", 0, &e), EXF_MODEL, e, "43 256 14 3");
    set_fact(&t, "model.family", "qwen3_moe");
    set_fact(&t, "model.layers", "12");
    ck_fails(write_target("exfold-qwen3", &t, "x", 0, &e), EXF_MODEL, e, "12 12");
    remove_fact(&t, "model.layers");
    ck_fails(write_target("exfold-qwen3", &t, "x", 0, &e), EXF_MODEL, e, "model.family qwen3_moe model.layers");
    ck_assert_int_eq(files_left(), 0);
    exf_tables_free(&t);
}
END_TEST

/* ---- exfold-deepseek-v4 ------------------------------------------------------------- */

enum { LAYERS = 43, MANY = 256, FIRST = 3, CELLS = MANY * MANY };

/* Layers 3 to 42, of which 5 has no evidence; the loss from s to its best target, (s + 1) % 256, is `best`. */
static exf_code large_tables(exf_tables *t, float best, exf_err *err)
{
    static const exf_run_shape shape = {.n_experts = MANY, .top_k = 6, .d_model = 4096, .n_sequences = 56, .n_tokens = 2176};
    int32_t numbers[LAYERS - FIRST];
    exf_code rc;
    for (int l = 0; l < LAYERS - FIRST; l++) numbers[l] = l + FIRST;
    EXF_TRY(exf_tables_new(t, &shape, numbers, LAYERS - FIRST, NULL, 0, err));
    EXF_TRY(exf_mem_new(&t->frobenius, (size_t)(LAYERS - FIRST) * CELLS, sizeof *t->frobenius, "sample", err));
    for (int i = 0; i < (LAYERS - FIRST) * CELLS; i++) {
        int s = i / MANY % MANY, d = i % MANY, never = s == d || i / CELLS == 5 - FIRST;
        t->coeff[i] = s == d ? 1 : never ? 0 : (float)(i % 1000) / 500;
        t->loss[i] = never ? EXF_LOSS_NEVER : 0.125f; /* the plugins have no use for it */
        t->frobenius[i] = never ? EXF_LOSS_NEVER : d == (s + 1) % MANY ? best : 1;
        t->count[i] = s != d; /* so few have no evidence in layer 5 */
    }
    for (int i = 0; i < (LAYERS - FIRST) * MANY; i++) {
        t->expert_norms[i] = (float)(i + 1);
        t->expert_count[i] = 51; /* 5 others of 255 each time */
    }
    EXF_TRY(exf_provenance_add(&t->provenance, err, "model.family", "deepseek_v4"));
    EXF_TRY(exf_provenance_add(&t->provenance, err, "model.layers", "%d", LAYERS));
out:
    return rc;
}

START_TEST(deepseek_v4_has_six_tensors)
{
    exf_tables t = {.n_layers = 0};
    ck_ok(large_tables(&t, 0.5f, &e), e);
    ck_ok(write_target("exfold-deepseek-v4", &t, "d.pt", 0, &e), e);
    zip_file z = zip_open("d.pt");
    CK_PICKLED(&z, "\x80\2}(X\x0d\0\0\0prefill_coeffctorch._utils\n");
    CK_PICKLED(&z, "X\x16\0\0\0prefill_selection_lossctorch._utils\n");
    CK_PICKLED(&z, "X\x17\0\0\0prefill_confidence_lossctorch._utils\n");
    CK_PICKLED(&z, "X\x0c\0\0\0decode_coeffctorch._utils\n");
    CK_PICKLED(&z, "X\x0b\0\0\0decode_lossctorch._utils\n");
    CK_PICKLED(&z, "X\5\0\0\0normsctorch._utils\n");
    CK_PICKLED(&z, "(K\x2bM\0\1M\0\1t(J\0\0\1\0M\0\1K\1t\x89"); /* [43, 256, 256] */
    CK_PICKLED(&z, "(K\x2bM\0\1t(M\0\1K\1t\x89");
    const size_t n = (size_t)LAYERS * CELLS, skip = (size_t)FIRST * CELLS, rest = n - skip;
    const float *part[5];
    for (int i = 0; i < 5; i++) part[i] = ck_storage(&z, i, n);
    ck_assert_int_eq(memcmp(part[0] + skip, t.coeff, rest * sizeof(float)), 0);
    ck_assert_int_eq(memcmp(part[1] + skip, t.frobenius, rest * sizeof(float)), 0);
    ck_assert_int_eq(memcmp(part[3], part[0], n * sizeof(float)), 0);
    ck_assert_int_eq(memcmp(part[4], part[1], n * sizeof(float)), 0);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        int diagonal = i / MANY % MANY == i % MANY;
        if (i < skip) wrong += part[0][i] != (float)diagonal || part[1][i] != EXF_LOSS_NEVER;
        wrong += part[2][i] != (diagonal ? 0 : part[1][i]);
    }
    ck_assert_uint_eq(wrong, 0);
    const float *norms = ck_storage(&z, 5, LAYERS * MANY);
    for (int i = 0; i < LAYERS * MANY; i++) wrong += norms[i] != (i < FIRST * MANY ? 1 : (float)(i - FIRST * MANY + 1));
    ck_assert_uint_eq(wrong, 0);
    exf_mem_free(z.bytes);
    exf_tables_free(&t);
}
END_TEST

START_TEST(deepseek_v4_refuses_what_its_validator_calls_degenerate)
{
    exf_tables t = {.n_layers = 0};
    ck_ok(large_tables(&t, 0.89f, &e), e);
    /* in layer 40 half of the experts, 128 of 256, have no good target: the lower median is just good enough ... */
    float *loss = t.frobenius + (40 - FIRST) * CELLS;
    for (int s = 0; s < 128; s++) loss[s * MANY + s + 1] = 0.95f;
    ck_ok(exf_writer_check_tables(exf_writer_find("exfold-deepseek-v4"), &t, "x", &e), e);
    /* ... and with one more it is not */
    loss[128 * MANY + 129] = 0.95f;
    ck_fails(write_target("exfold-deepseek-v4", &t, "x", 0, &e), EXF_THRESHOLD, e, "40 0.95");
    ck_assert_ptr_nonnull(strstr(e.msg, "the experts are nearly orthogonal"));
    /* experts without any target do not count */
    for (int s = 0; s < 128; s++)
        for (int d = 0; d < MANY; d++) {
            loss[s * MANY + d] = t.loss[(40 - FIRST) * CELLS + s * MANY + d] = EXF_LOSS_NEVER;
            if (s != d) t.coeff[(40 - FIRST) * CELLS + s * MANY + d] = 0;
        }
    ck_ok(exf_writer_check_tables(exf_writer_find("exfold-deepseek-v4"), &t, "x", &e), e);
    for (int i = 0; i < (LAYERS - FIRST) * CELLS; i++) t.loss[i] = t.frobenius[i] = EXF_LOSS_NEVER;
    ck_fails(write_target("exfold-deepseek-v4", &t, "x", 0, &e), EXF_THRESHOLD, e, "");
    ck_assert_int_eq(files_left(), 0);
    exf_tables_free(&t);
}
END_TEST

START_TEST(deepseek_v4_wants_losses_by_frobenius_norm)
{
    exf_tables t = {.n_layers = 0};
    ck_ok(large_tables(&t, 0.5f, &e), e);
    exf_mem_free(t.frobenius);
    t.frobenius = NULL;
    ck_fails(write_target("exfold-deepseek-v4", &t, "x", 0, &e), EXF_USAGE, e, "Frobenius");
    exf_tables_free(&t);
}
END_TEST

/* Layers 0 to 2 are not in the tables, which matters to the runtime that folds them; layer 5 has no pair. */
START_TEST(deepseek_v4_covers_the_layers_that_a_runtime_folds)
{
    const exf_writer *w = exf_writer_find("exfold-deepseek-v4");
    exf_tables t = {.n_layers = 0};
    ck_ok(large_tables(&t, 0.5f, &e), e);
    ck_fails(w->covers(&t, 1, &e), EXF_THRESHOLD, e, "0");
    ck_fails(w->covers(&t, 0, &e), EXF_THRESHOLD, e, "5");
    t.loss[(5 - FIRST) * CELLS + 1] = 0.5f;
    ck_ok(w->covers(&t, 0, &e), e);
    exf_tables_free(&t);
}
END_TEST

/* Layers 1 and 12 of 14 are in the tables: the others are dense if all were captured. */
START_TEST(qwen3_covers_the_layers_of_the_tables_and_those_that_were_left_out)
{
    static const char *const own[] = {"exfold-qwen3", "safetensors", "npy"};
    exf_tables t = {.n_layers = 0};
    ck_ok(sample_tables(&t, 0, &e), e);
    ck_fails(exf_writer_find(own[0])->covers(&t, 0, &e), EXF_THRESHOLD, e, "0");
    ck_ok(exf_writer_find(own[1])->covers(&t, 0, &e), e);
    ck_ok(exf_provenance_add(&t.provenance, &e, "capture.layers", "all"), e);
    for (size_t i = 0; i < 3; i++) ck_ok(exf_writer_find(own[i])->covers(&t, 0, &e), e);
    for (int i = E * E; i < 2 * E * E; i++) t.loss[i] = EXF_LOSS_NEVER;
    for (size_t i = 0; i < 3; i++)
        ck_fails(exf_writer_find(own[i])->covers(&t, 0, &e), EXF_THRESHOLD, e, "12");
    ck_assert(!exf_writer_find("csv")->covers);
    exf_tables_free(&t);
}
END_TEST

START_TEST(deepseek_v4_refuses_more_routes_than_its_kernels_take)
{
    exf_export_model m = {.family = "deepseek_v4", .n_layers = 43, .n_experts = 256, .top_k = 8};
    const exf_writer *w = exf_writer_find("exfold-deepseek-v4");
    ck_ok(exf_writer_check_model(w, &m, &e), e);
    m.top_k = 9;
    ck_fails(exf_writer_check_model(w, &m, &e), EXF_MODEL, e, "8 9");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, qwen3_layers_stand_at_the_models_numbers);
    tcase_add_test(t, qwen3_settings_that_are_not_known_are_none);
    tcase_add_test(t, a_plugin_is_given_its_own_models_only);
    tcase_add_test(t, deepseek_v4_has_six_tensors);
    tcase_add_test(t, deepseek_v4_refuses_what_its_validator_calls_degenerate);
    tcase_add_test(t, deepseek_v4_wants_losses_by_frobenius_norm);
    tcase_add_test(t, deepseek_v4_covers_the_layers_that_a_runtime_folds);
    tcase_add_test(t, qwen3_covers_the_layers_of_the_tables_and_those_that_were_left_out);
    tcase_add_test(t, deepseek_v4_refuses_more_routes_than_its_kernels_take);
}
