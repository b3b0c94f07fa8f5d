/* check_row_layouts.c - rows of several roles in one tensor, group by group (src/model/model.c): each role's runs are its rows
 * in order, and together the roles have every row of the tensor once. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "base/text.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

enum { H = 64, LAYER = 1 };

static exf_err e;

static exf_model *open_golden(void)
{
    exf_model *m = NULL;
    ck_ok(exf_model_open(&m, "tests/golden/qwen3_next", &e), e);
    return m;
}

/* All rows of a tensor of the layer. */
static float *stored_rows(const exf_model *m, const char *name, int n)
{
    char full[128];
    float *v;
    snprintf(full, sizeof full, "model.layers.%d.linear_attn.%s.weight", LAYER, name);
    const exf_stored_tensor *s = exf_checkpoint_find(m->checkpoint, full);
    ck_assert_msg(s != NULL, "no %s", full);
    ck_ok(exf_mem_new(&v, (size_t)n * H, sizeof *v, "rows", &e), e);
    ck_ok(exf_stored_read(s, 0, (size_t)n * H, v, NULL, &e), e);
    return v;
}

/* The role's rows as the forward pass has them: run after run. */
static float *rows_of_role(const exf_model *m, exf_role role, int n)
{
    float *v;
    size_t each = exf_model_count(m, role, LAYER);
    int runs = exf_model_copies(m, role, LAYER);
    ck_assert_uint_eq(each * (size_t)runs, (size_t)n * H);
    ck_ok(exf_mem_new(&v, (size_t)n * H, sizeof *v, "rows", &e), e);
    for (int i = 0; i < runs; i++) ck_ok(exf_model_read(m, role, LAYER, i, v + (size_t)i * each, &e), e);
    return v;
}

static void ck_rows(const exf_model *m, exf_role role, const float *stored, const int *want, int n)
{
    float *rows = rows_of_role(m, role, n);
    for (int i = 0; i < n; i++)
        ck_assert_msg(memcmp(rows + i * H, stored + want[i] * H, H * sizeof *rows) == 0, "role %d, row %d is not stored row %d",
                      (int)role, i, want[i]);
    exf_mem_free(rows);
}

/* Two key heads of 16, two value heads of 16 to each: a group is [q 16 | k 16 | v 32 | z 32], and [b 2 | a 2]. */
START_TEST(roles_have_the_rows_of_their_parts)
{
    exf_model *m = open_golden();
    float *qkvz = stored_rows(m, "in_proj_qkvz", 192), *ba = stored_rows(m, "in_proj_ba", 8);
    int qkv[128], z[64], b[4], a[4];
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 32; i++) {
            if (i < 16) qkv[g * 16 + i] = g * 96 + i;
            if (i < 16) qkv[32 + g * 16 + i] = g * 96 + 16 + i;
            qkv[64 + g * 32 + i] = g * 96 + 32 + i;
            z[g * 32 + i] = g * 96 + 64 + i;
            if (i < 2) b[g * 2 + i] = g * 4 + i;
            if (i < 2) a[g * 2 + i] = g * 4 + 2 + i;
        }
    ck_rows(m, EXF_W_DELTA_QKV, qkvz, qkv, 128);
    ck_rows(m, EXF_W_DELTA_Z, qkvz, z, 64);
    ck_rows(m, EXF_W_DELTA_B, ba, b, 4);
    ck_rows(m, EXF_W_DELTA_A, ba, a, 4);
    exf_mem_free(qkvz);
    exf_mem_free(ba);
    exf_model_close(m);
}
END_TEST

/* Qwen3-Next-80B-A3B: 16 groups of [q 128 | k 128 | v 256 | z 256]. */
START_TEST(runs_of_the_release_are_long)
{
    exf_model *m = NULL;
    ck_ok(exf_model_open_part(&m, "tests/configs/qwen3-next-80b-a3b", EXF_MODEL_CONFIG, &e), e);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_DELTA_QKV, 0), 64);
    ck_assert_uint_eq(exf_model_count(m, EXF_W_DELTA_QKV, 0), 128 * 2048);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_DELTA_Z, 0), 16);
    ck_assert_uint_eq(exf_model_count(m, EXF_W_DELTA_Z, 0), 256 * 2048);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_DELTA_A, 0), 16);
    ck_assert_uint_eq(exf_model_count(m, EXF_W_DELTA_A, 0), 2 * 2048);
    exf_model_close(m);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, roles_have_the_rows_of_their_parts);
    tcase_add_test(t, runs_of_the_release_are_long);
}
