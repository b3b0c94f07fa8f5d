/* check_export.c - src/export: the targets, and what the safetensors writer
 * writes. */
#include "tests/artifact_fixtures.h"

#include "export/export.h"
#include "format/safetensors.h"

enum { E = 3, L = 2 };

static exf_err e; /* of the last call */

/* Every element of every table is another number. */
static exf_code sample(exf_tables *t, size_t n_pools, exf_err *err)
{
    static const exf_run_shape shape = {E, 2, 8, 3, 60};
    static const int32_t numbers[L] = {1, 12};
    static const int64_t pools[] = {2, 1};
    int at = 1;
    exf_code rc = exf_tables_new(t, &shape, numbers, L, pools, n_pools, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < L * E * E; i++) {
        t->coeff[i] = (float)at++ / 8;
        t->loss[i] = (float)at++ / 8;
        t->count[i] = (uint64_t)at++ << 33;
    }
    for (int i = 0; i < L * E; i++) {
        t->expert_norms[i] = (float)at++ / 8;
        t->expert_count[i] = (uint64_t)at++ << 33;
    }
    for (size_t p = 0; p < n_pools; p++) {
        for (int i = 0; i < L * t->pool[p].size; i++) t->pool[p].members[i] = at++;
        for (int i = 0; i < L * E; i++) t->pool[p].target_ids[i] = at++;
        for (int i = 0; i < L * E; i++) t->pool[p].target_scale[i] = (float)at++ / 8;
    }
    rc = exf_provenance_add(&t->provenance, err, "solve.ridge", "0.001");
    return rc == EXF_OK ? exf_provenance_add(&t->provenance, err, "data.domains", "prose: 2 sequences \xe2\x82\xac \"x\"") : rc;
}

static void write_tables(const exf_tables *t, const char *name, int force)
{
    ck_ok(exf_writer_find("safetensors")->write(t, exf_scratch(name), force, &e), e);
}

static void ck_tensor(const exf_st_file *f, const char *name, exf_dtype dtype, int rank, int64_t last, const void *data, size_t bytes)
{
    const exf_st_tensor *t = exf_st_find(f, name);
    char *read = NULL;
    ck_assert_msg(t != NULL, "no tensor %s", name);
    ck_assert_str_eq(exf_dtype_name(t->view.dtype), exf_dtype_name(dtype));
    ck_assert_int_eq(t->view.rank, rank);
    ck_assert_int_eq(t->view.shape[0], L);
    if (rank == 3) ck_assert_int_eq(t->view.shape[1], E);
    ck_assert_int_eq(t->view.shape[rank - 1], last);
    ck_assert_uint_eq(t->nbytes, bytes);
    ck_ok(exf_mem_new(&read, bytes, 1, "tensor", &e), e);
    ck_ok(exf_st_read(f, t, 0, read, bytes, &e), e);
    ck_assert_msg(memcmp(read, data, bytes) == 0, "%s has other contents", name);
    exf_mem_free(read);
}

START_TEST(tables_are_written_under_their_names)
{
    exf_tables t;
    exf_st_file *f = NULL;
    const char *key, *value;
    size_t n_meta = 0;
    ck_ok(sample(&t, 2, &e), e);
    write_tables(&t, "t.safetensors", 0);
    ck_ok(exf_st_open(&f, exf_scratch("t.safetensors"), &e), e);
    ck_assert_uint_eq(exf_st_count(f), 11);
    ck_tensor(f, "coeff", EXF_DT_F32, 3, E, t.coeff, L * E * E * sizeof *t.coeff);
    ck_tensor(f, "loss", EXF_DT_F32, 3, E, t.loss, L * E * E * sizeof *t.loss);
    ck_tensor(f, "count", EXF_DT_I64, 3, E, t.count, L * E * E * sizeof *t.count);
    ck_tensor(f, "expert_norms", EXF_DT_F32, 2, E, t.expert_norms, L * E * sizeof *t.expert_norms);
    ck_tensor(f, "expert_count", EXF_DT_I64, 2, E, t.expert_count, L * E * sizeof *t.expert_count);
    ck_tensor(f, "pools.2.members", EXF_DT_I32, 2, 2, t.pool[0].members, L * 2 * sizeof(int32_t));
    ck_tensor(f, "pools.2.target_ids", EXF_DT_I32, 2, E, t.pool[0].target_ids, L * E * sizeof(int32_t));
    ck_tensor(f, "pools.2.target_scale", EXF_DT_F32, 2, E, t.pool[0].target_scale, L * E * sizeof(float));
    ck_tensor(f, "pools.1.members", EXF_DT_I32, 2, 1, t.pool[1].members, L * sizeof(int32_t));
    ck_tensor(f, "pools.1.target_ids", EXF_DT_I32, 2, E, t.pool[1].target_ids, L * E * sizeof(int32_t));
    ck_tensor(f, "pools.1.target_scale", EXF_DT_F32, 2, E, t.pool[1].target_scale, L * E * sizeof(float));
    ck_assert_str_eq(exf_st_metadata(f, "exfold_format"), "tables/1");
    ck_assert_str_eq(exf_st_metadata(f, "layer_numbers"), "[1, 12]");
    ck_assert_str_eq(exf_st_metadata(f, "loss_kind"), "relative_scalar_reconstruction_error");
    ck_assert_str_eq(exf_st_metadata(f, "solve.ridge"), "0.001");
    ck_assert_str_eq(exf_st_metadata(f, "data.domains"), "prose: 2 sequences \xe2\x82\xac \"x\"");
    while (exf_st_metadata_at(f, n_meta, &key, &value)) n_meta++;
    ck_assert_uint_eq(n_meta, 5);
    exf_st_close(f);
    exf_tables_free(&t);
}
END_TEST

START_TEST(tables_without_pools_are_five_tensors)
{
    exf_tables t;
    exf_st_file *f = NULL;
    ck_ok(sample(&t, 0, &e), e);
    t.n_layers = 1; /* a list of one number is a list */
    write_tables(&t, "t.safetensors", 0);
    ck_ok(exf_st_open(&f, exf_scratch("t.safetensors"), &e), e);
    ck_assert_uint_eq(exf_st_count(f), 5);
    ck_assert_str_eq(exf_st_metadata(f, "layer_numbers"), "[1]");
    exf_st_close(f);
    t.n_layers = L;
    exf_tables_free(&t);
}
END_TEST

START_TEST(equal_tables_are_equal_files)
{
    exf_tables t, same;
    ck_ok(sample(&t, 2, &e), e);
    ck_ok(sample(&same, 2, &e), e);
    write_tables(&t, "a", 0);
    write_tables(&same, "b", 0);
    ck_assert(same_files("a", "b"));
    same.loss[L * E * E - 1] = 0;
    write_tables(&same, "b", 1);
    ck_assert(!same_files("a", "b"));
    exf_tables_free(&t);
    exf_tables_free(&same);
}
END_TEST

START_TEST(an_existing_file_is_refused)
{
    exf_tables t;
    ck_ok(sample(&t, 1, &e), e);
    exf_write_file(exf_scratch("a"), "old", 3);
    exf_write_file(exf_scratch("b"), "old", 3);
    ck_fails(exf_writer_find("safetensors")->write(&t, exf_scratch("a"), 0, &e), EXF_IO, e, "--force");
    ck_assert(same_files("a", "b"));
    write_tables(&t, "a", 1);
    ck_assert(!same_files("a", "b"));
    exf_tables_free(&t);
}
END_TEST

START_TEST(targets_are_known_by_name)
{
    const exf_writer *w = NULL;
    ck_ok(exf_writer_require("safetensors", &w, &e), e);
    ck_assert_ptr_eq(w, exf_writer_find("safetensors"));
    ck_assert_str_eq(w->name, "safetensors");
    ck_assert_str_eq(w->file, "tables.safetensors");
    ck_assert_ptr_null(exf_writer_find("safetensor"));
    ck_fails(exf_writer_require("onnx", &w, &e), EXF_USAGE, e, "output.targets: \"onnx\" is not known (known: ");
    ck_assert_ptr_null(w);
    for (size_t i = 0; exf_writer_at(i); i++) { /* every known one is named, in order, and writes its own file */
        ck_assert_msg(strstr(e.msg, exf_writer_at(i)->name) != NULL, "%s", e.msg);
        ck_assert(i == 0 || strcmp(exf_writer_at(i - 1)->name, exf_writer_at(i)->name) < 0);
        for (size_t k = 0; k < i; k++) ck_assert_str_ne(exf_writer_at(k)->file, exf_writer_at(i)->file);
    }
}
END_TEST

static exf_code export_sample(exf_err *err)
{
    exf_tables t;
    exf_code rc = sample(&t, 2, err);
    if (rc == EXF_OK) rc = exf_writer_find("safetensors")->write(&t, exf_scratch("t"), 1, err);
    exf_tables_free(&t);
    return rc;
}

START_TEST(exporting_survives_every_failing_allocation)
{
    const exf_writer *w = NULL;
    fail_each_allocation(export_sample, left_behind, 0);
    exf_mem_fail_at(1);
    exf_code rc = exf_writer_require("onnx", &w, &e);
    exf_mem_fail_at(0);
    ck_assert_int_eq(rc, EXF_NOSPACE);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("export");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, tables_are_written_under_their_names);
    tcase_add_test(t, tables_without_pools_are_five_tensors);
    tcase_add_test(t, equal_tables_are_equal_files);
    tcase_add_test(t, an_existing_file_is_refused);
    tcase_add_test(t, targets_are_known_by_name);
    tcase_add_test(t, exporting_survives_every_failing_allocation);
    suite_add_tcase(s, t);
    return s;
}
