/* check_export.c - src/export: the targets, and what the safetensors writer
 * writes. */
#include "tests/support/export_fixtures.h"

#include "format/safetensors.h"

#include <math.h>

static exf_err e; /* of the last call */

static void write_tables(const exf_tables *t, const char *name, int force)
{
    ck_ok(write_target("safetensors", t, name, force, &e), e);
}

static void ck_tensor(const exf_st_file *f, const char *name, exf_dtype dtype, int rank, int64_t last, const void *data,
                      size_t bytes)
{
    const exf_st_tensor *t = exf_st_find(f, name);
    char *read = NULL;
    ck_assert_msg(t != NULL, "no tensor %s", name);
    ck_assert_str_eq(exf_dtype_name(t->view.dtype), exf_dtype_name(dtype));
    ck_assert_int_eq(t->view.rank, rank);
    if (rank > 1 && strncmp(name, "vectors.", 8) != 0) ck_assert_int_eq(t->view.shape[0], L);
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
    ck_ok(sample_tables(&t, 2, &e), e);
    write_tables(&t, "t.safetensors", 0);
    ck_ok(exf_st_open(&f, exf_scratch("t.safetensors"), &e), e);
    ck_assert_uint_eq(f->n_tensors, 11);
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
    ck_assert_uint_eq(strlen(exf_st_metadata(f, "content_digest")), 64);
    ck_assert_str_eq(exf_st_metadata(f, "model.types"), "qwen3_moe");
    ck_assert_uint_eq(f->n_meta, 5 + t.provenance.n);
    exf_st_close(f);
    exf_tables_free(&t);
}
END_TEST

START_TEST(what_version_2_adds_is_written)
{
    exf_tables t;
    exf_st_file *f = NULL;
    ck_ok(sample_tables(&t, 1, &e), e);
    ck_ok(add_version_2(&t, &e), e);
    write_tables(&t, "t.safetensors", 0);
    ck_ok(exf_st_open(&f, exf_scratch("t.safetensors"), &e), e);
    ck_assert_uint_eq(f->n_tensors, 5 + 3 + 6 + 2 * 2 + 5);
    ck_tensor(f, "cosine", EXF_DT_F32, 3, E, t.cosine, L * E * E * sizeof(float));
    ck_tensor(f, "similarity", EXF_DT_F32, 3, E, t.similarity, L * E * E * sizeof(float));
    ck_tensor(f, "frobenius", EXF_DT_F32, 3, E, t.frobenius, L * E * E * sizeof(float));
    ck_tensor(f, "std_error", EXF_DT_F32, 3, E, t.std_error, L * E * E * sizeof(float));
    ck_tensor(f, "rms", EXF_DT_F32, 2, E, t.rms, L * E * sizeof(float));
    ck_tensor(f, "contribution", EXF_DT_F32, 2, E, t.contribution, L * E * sizeof(float));
    ck_tensor(f, "shared.global.scalar", EXF_DT_F32, 1, L, t.shared[0].scalar, L * sizeof(float));
    ck_tensor(f, "shared.global.loss", EXF_DT_F32, 3, E, t.shared[0].loss, L * E * E * sizeof(float));
    ck_tensor(f, "shared.layer.scalar", EXF_DT_F32, 1, L, t.shared[1].scalar, L * sizeof(float));
    ck_tensor(f, "shared.layer.loss", EXF_DT_F32, 3, E, t.shared[1].loss, L * E * E * sizeof(float));
    ck_tensor(f, "vectors.pair", EXF_DT_I32, 2, 3, t.vectors.pair, N_PAIRS * 3 * sizeof(int32_t));
    ck_tensor(f, "vectors.diagonal", EXF_DT_F32, 2, H, exf_vectors_data(&t.vectors, "diagonal", 0), N_PAIRS * H * sizeof(float));
    ck_tensor(f, "vectors.diagonal_loss", EXF_DT_F32, 3, E, exf_vectors_data(&t.vectors, "diagonal_loss", 0),
              L * E * E * sizeof(float));
    ck_assert_int_eq(exf_st_find(f, "vectors.basis")->view.shape[1], H);
    ck_assert_uint_eq(exf_st_find(f, "vectors.basis")->nbytes, L * H * RANK * sizeof(float));
    ck_assert_int_eq(exf_st_find(f, "vectors.lowrank.2.c")->view.shape[1], RANK);
    ck_assert_uint_eq(exf_st_find(f, "vectors.lowrank.2.c")->nbytes, N_PAIRS * RANK * H * sizeof(float));
    exf_st_close(f);
    exf_tables_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, tables_are_written_under_their_names);
    tcase_add_test(t, what_version_2_adds_is_written);
}
