/* check_writer_directories.c - the targets npy and csv. */
#include "tests/support/export_fixtures.h"

#include "base/file.h"

static exf_err e; /* of the last call */

static char *slurp(const char *name, size_t *n)
{
    char *got = NULL;
    ck_ok(exf_file_slurp(exf_scratch(name), 1 << 20, &got, n, &e), e);
    return got;
}

/* ---- npy --------------------------------------------------------------------------- */

static void ck_npy(const char *name, const char *dict, const void *data, size_t bytes)
{
    char path[64];
    size_t n, head;
    snprintf(path, sizeof path, "npy/%s.npy", name);
    char *got = slurp(path, &n);
    ck_assert_int_eq(memcmp(got, "\x93NUMPY\1", 8), 0);
    head = 10 + (unsigned char)got[8] + 256 * (size_t)(unsigned char)got[9];
    ck_assert_uint_eq(head % 64, 0);
    ck_assert_uint_eq(n, head + bytes);
    ck_assert_int_eq(got[head - 1], '\n');
    ck_assert_msg(strncmp(got + 10, dict, strlen(dict)) == 0, "%s: %.80s", name, got + 10);
    ck_assert_uint_eq(strspn(got + 10 + strlen(dict), " "), head - 11 - strlen(dict));
    ck_assert_msg(memcmp(got + head, data, bytes) == 0, "%s has other contents", name);
    exf_mem_free(got);
}

#define DICT(descr, shape) "{'descr': '" descr "', 'fortran_order': False, 'shape': (" shape "), }"

static exf_code add_name(void *self, const char *name, exf_err *err)
{
    exf_text_appendf(self, "%s ", name);
    return exf_text_end(self, err);
}

START_TEST(npy_has_a_file_per_table)
{
    exf_tables t;
    exf_text names = {0};
    size_t n;
    ck_ok(sample_tables(&t, 1, &e), e);
    ck_ok(add_version_2(&t, &e), e);
    ck_ok(write_target("npy", &t, "npy", 0, &e), e);
    ck_npy("coeff", DICT("<f4", "2, 3, 3"), t.coeff, L * E * E * sizeof(float));
    ck_npy("count", DICT("<u8", "2, 3, 3"), t.count, L * E * E * sizeof(uint64_t));
    ck_npy("layer_numbers", DICT("<i4", "2,"), t.layer_number, L * sizeof(int32_t));
    ck_npy("pools.2.members", DICT("<i4", "2, 2"), t.pool[0].members, L * 2 * sizeof(int32_t));
    ck_npy("shared.layer.scalar", DICT("<f4", "2,"), t.shared[1].scalar, L * sizeof(float));
    ck_npy("vectors.pair", DICT("<i4", "2, 3"), t.vectors.pair, N_PAIRS * 3 * sizeof(int32_t));
    ck_npy("vectors.lowrank.2.c", DICT("<f4", "2, 2, 8"), exf_vectors_data(&t.vectors, "lowrank", RANK),
           N_PAIRS * RANK * H * sizeof(float));
    ck_ok(exf_each_file(exf_scratch("npy"), add_name, &names, &e), e);
    ck_assert_str_eq(names.s,
                     "coeff.npy contribution.npy cosine.npy count.npy exfold-files.sha256 expert_count.npy expert_norms.npy "
                     "frobenius.npy layer_numbers.npy loss.npy pools.2.members.npy pools.2.target_ids.npy pools.2.target_scale.npy "
                     "provenance.json rms.npy shared.global.loss.npy shared.global.scalar.npy shared.layer.loss.npy "
                     "shared.layer.scalar.npy similarity.npy std_error.npy vectors.basis.npy vectors.diagonal.npy "
                     "vectors.diagonal_loss.npy vectors.lowrank.2.c.npy vectors.pair.npy ");
    char *facts = slurp("npy/provenance.json", &n);
    ck_assert_ptr_nonnull(strstr(facts, "\n  \"layer_numbers\": \"[1, 12]\",\n"));
    ck_assert_ptr_nonnull(strstr(facts, "\\\"x\\\""));
    exf_mem_free(facts);
    exf_text_free(&names);
    exf_tables_free(&t);
}
END_TEST

/* ---- csv --------------------------------------------------------------------------- */

/* The n-th line, from 0, is this with CR LF after it. */
static void ck_line(const char *text, int n, const char *line)
{
    for (; n > 0; n--) text = strstr(text, "\r\n") + 2;
    ck_assert_msg(strncmp(text, line, strlen(line)) == 0 && strncmp(text + strlen(line), "\r\n", 2) == 0, "%.60s, expected %s",
                  text, line);
}

START_TEST(csv_leaves_empty_what_is_not_known)
{
    exf_tables t;
    size_t n;
    ck_ok(sample_tables(&t, 1, &e), e);
    t.coeff[1] = 1.0f / 3;
    t.loss[1] = 1e-10f;
    ck_ok(write_target("csv", &t, "csv", 0, &e), e);
    char *pairs = slurp("csv/pairs.csv", &n);
    ck_line(pairs, 0, "layer,source,target,count,S,loss,std_error,cosine,similarity");
    ck_line(pairs, 1, "1,0,1,197568495616,0.333333343,1.00000001e-10,,,");
    ck_line(pairs, 2, "1,0,2,0,,,,,");
    ck_line(pairs, 3, "1,1,0,197568495616,0.25,0.078125,,,");
    ck_line(pairs, 7, "12,0,1,0,,,,,");
    ck_assert_str_eq(pairs + n - strlen("12,2,1,0,,,,,\r\n"), "12,2,1,0,,,,,\r\n"); /* a row per pair, 12, and no more */
    ck_line(pairs, 11, "12,2,0,515396075520,1,0.265625,,,");
    char *experts = slurp("csv/experts.csv", &n);
    ck_line(experts, 0, "layer,expert,count,norm,rms,contribution");
    ck_line(experts, 1, "1,0,197568495616,12.5,,");
    ck_line(experts, 5, "12,1,0,,,");
    ck_line(experts, 6, "12,2,515396075520,13.125,,");
    char *pools = slurp("csv/pools.csv", &n);
    ck_line(pools, 0, "pool,layer,expert,member,target,scale");
    ck_line(pools, 1, "2,1,0,1,0,25");
    ck_line(pools, 3, "2,1,2,0,1,25.25");
    exf_mem_free(pairs);
    exf_mem_free(experts);
    exf_mem_free(pools);
    exf_tables_free(&t);
}
END_TEST

START_TEST(csv_shows_what_version_2_adds)
{
    exf_tables t;
    size_t n;
    ck_ok(sample_tables(&t, 0, &e), e);
    ck_ok(add_version_2(&t, &e), e);
    t.std_error[3] = EXF_ERROR_UNKNOWN; /* observed by one sequence */
    ck_ok(write_target("csv", &t, "csv", 0, &e), e);
    char *pairs = slurp("csv/pairs.csv", &n);
    ck_line(pairs, 1, "1,0,1,197568495616,0.125,0.046875,1.984375,0.484375,0.734375");
    ck_line(pairs, 2, "1,0,2,0,,,,,");
    ck_line(pairs, 3, "1,1,0,197568495616,0.25,0.078125,,0.453125,0.703125");
    char *experts = slurp("csv/experts.csv", &n);
    ck_line(experts, 1, "1,0,197568495616,12.5,5,9");
    char *pools = slurp("csv/pools.csv", &n);
    ck_assert_str_eq(pools, "pool,layer,expert,member,target,scale\r\n");
    exf_mem_free(pairs);
    exf_mem_free(experts);
    exf_mem_free(pools);
    exf_tables_free(&t);
}
END_TEST

/* ---- both ---------------------------------------------------------------------------- */

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, npy_has_a_file_per_table);
    tcase_add_test(t, csv_leaves_empty_what_is_not_known);
    tcase_add_test(t, csv_shows_what_version_2_adds);
}
