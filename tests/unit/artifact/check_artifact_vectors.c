/* check_artifact_vectors.c - the vectors of tables, the vector sums and sequences of
 * statistics: there and back, and what is refused. */
#include "tests/support/artifact_fixtures.h"

#include <math.h>

enum { E = 3, L = 2, H = 4, R = 2, N = 3 };

static const exf_run_shape shape = {E, 2, H, 2, 60};
static const int32_t numbers[L] = {1, 5};
static exf_err e; /* of the last call */

/* ---- tables ------------------------------------------------------------------------- */

/* Pairs 0 -> 1 of layer 0, 0 -> 1 and 2 -> 0 of layer 1; all pairs are observed. */
static exf_code sample(exf_tables *t, exf_err *err)
{
    static const int32_t pair[N * 3] = {0, 0, 1, 1, 0, 1, 1, 2, 0};
    exf_vectors *v = &t->vectors;
    float *x;
    exf_code rc;
    EXF_TRY(exf_tables_new(t, &shape, numbers, L, NULL, 0, err));
    for (int i = 0; i < L * E * E; i++) {
        int self = i / E % E == i % E;
        t->coeff[i] = self ? 1 : 0.5f;
        t->loss[i] = self ? EXF_LOSS_NEVER : 0.25f;
        t->count[i] = self ? 0 : (uint64_t)(shape.n_tokens * shape.top_k * (shape.top_k - 1) / (E * (E - 1)));
    }
    for (int i = 0; i < L * E; i++) t->expert_count[i] = (uint64_t)(shape.n_tokens * shape.top_k / E);
    for (int i = 0; i < L * E; i++) t->expert_norms[i] = 1;
    v->n_pairs = N;
    EXF_TRY(exf_mem_new(&v->pair, N, 3 * sizeof *v->pair, "vectors", err));
    memcpy(v->pair, pair, sizeof pair);
    EXF_TRY(exf_vectors_add(t, "lowrank", 2, &x, err)); /* in no order: each goes to its place */
    for (int i = 0; i < N * 2 * H; i++) x[i] = (float)(i - 5) / 8;
    EXF_TRY(exf_vectors_add(t, "diagonal_loss", 0, &x, err));
    for (int i = 0; i < L * E * E; i++) x[i] = t->loss[i] < 1 ? 0.125f : t->loss[i];
    EXF_TRY(exf_vectors_add(t, "basis", R, &x, err));
    for (int l = 0; l < L; l++) x[l * H * R + 0] = x[l * H * R + (l + 1) * R + 1] = 1;
    EXF_TRY(exf_vectors_add(t, "diagonal", 0, &x, err));
    for (int i = 0; i < N * H; i++) x[i] = (float)(i - 4) / 2;
    EXF_TRY(exf_vectors_add(t, "lowrank", 1, &x, err));
    for (int i = 0; i < N * H; i++) x[i] = (float)i / 8;
out:
    return rc;
}

static exf_code write_tables(exf_err *err)
{
    exf_tables t = {.coeff = NULL};
    exf_code rc = sample(&t, err);
    if (rc == EXF_OK) rc = exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, err);
    exf_tables_free(&t);
    return rc;
}

static exf_code read_tables(exf_err *err)
{
    exf_tables t;
    exf_code rc = exf_tables_read(&t, exf_scratch("t.h5"), err);
    if (rc == EXF_OK) rc = exf_tables_read_vectors(&t, exf_scratch("t.h5"), err);
    exf_tables_free(&t);
    return rc;
}

static int same(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n * sizeof(float)) == 0;
}

START_TEST(vectors_come_back_bit_for_bit)
{
    exf_tables t = {.coeff = NULL}, back;
    const exf_vectors *v = &t.vectors, *w = &back.vectors;
    static const char *const names[] = {"diagonal", "diagonal_loss", "basis", "lowrank/1/c", "lowrank/2/c"};
    static const size_t lengths[] = {N * H, L * E * E, L * H * R, N * H, N * 2 * H};
    ck_ok(sample(&t, &e), e);
    ck_ok(write_tables(&e), e);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    ck_assert_int_eq(w->n_pairs, 0); /* only when asked for */
    for (int again = 0; again < 2; again++) {
        ck_ok(exf_tables_read_vectors(&back, exf_scratch("t.h5"), &e), e);
        ck_assert_int_eq(w->n_pairs, N);
        ck_assert(same(w->pair, v->pair, N * 3));
        ck_assert(w->first[0] == 0 && w->first[1] == 1 && w->first[2] == 3);
        ck_assert_int_eq(w->n_arrays, 5);
        for (int i = 0; i < 5; i++) {
            char name[EXF_VECTOR_NAME];
            exf_vector_array_name(name, &w->array[i]);
            ck_assert_str_eq(name, names[i]);
            ck_assert_int_eq(w->array[i].rank, v->array[i].rank);
            ck_assert(same(w->array[i].data, v->array[i].data, lengths[i]));
        }
    }
    exf_tables_free(&back);
    exf_tables_free(&t);
}
END_TEST

static void refused(const char *dataset, size_t at, const void *value, const char *part)
{
    ck_ok(write_tables(&e), e);
    damage("t.h5", dataset, at, value);
    ck_fails(read_tables(&e), EXF_FORMAT, e, part);
    ck_assert_msg(strstr(e.msg, "t.h5") != NULL, "no file in \"%s\"", e.msg);
}

START_TEST(vectors_obey_their_rules)
{
    float nan = NAN, below = -1, off = 0.5f;
    int32_t three = 3, zero = 0, minus = -1;
    refused("/vectors/diagonal", 5, &nan, "/vectors/diagonal: element 5 is nan");
    refused("/vectors/diagonal_loss", 1, &below, "/vectors/diagonal_loss[0, 0, 1] is -1");
    refused("/vectors/diagonal_loss", 4, &off, "/vectors/diagonal_loss[0, 1, 1] is 0.5, expected 1e30");
    refused("/vectors/lowrank/2/c", 7, &nan, "/vectors/lowrank: element 7 is nan");
    refused("/vectors/basis", 2, &off, "/vectors/basis[0]: columns 0 and 0 have the product 1.25, expected 1");
    refused("/vectors/basis", 1, &nan, "/vectors/basis[0]");
    refused("/vectors/pair", 4, &three, "/vectors/pair[1] is (1, 3, 1)");
    refused("/vectors/pair", 2, &zero, "/vectors/pair[0] is (0, 0, 0)");
    refused("/vectors/pair", 7, &zero, "/vectors/pair[2] is (1, 0, 0)");
    refused("/vectors/pair", 6, &minus, "/vectors/pair[2] is (-1, 2, 0)");
    refused("/vectors/pair", 6, &zero, "/vectors/pair[2] is (0, 2, 0), expected ascending");
}
END_TEST

/* A file whose /vectors has one dataset alone, or one of another shape. */
static void group_refused(const char *path, int rank, int64_t a, int64_t b, int64_t c, const char *part)
{
    exf_tables t = {.coeff = NULL};
    exf_h5 *h = NULL;
    exf_tensor x = {
        .name = path, .dtype = strcmp(path, "/vectors/pair") ? EXF_DT_F32 : EXF_DT_I32, .rank = rank, .shape = {a, b, c}};
    ck_ok(sample(&t, &e), e);
    exf_vectors_free(&t.vectors);
    ck_ok(exf_artifact_create(&h, exf_scratch("t.h5"), 1, NULL, &exf_artifact_tables, &t.provenance, &e), e);
    ck_ok(exf_h5_define(h, &x, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_fails(exf_tables_read_vectors(&t, exf_scratch("t.h5"), &e), EXF_FORMAT, e, part);
    ck_assert_ptr_null(t.vectors.pair);
    exf_tables_free(&t);
}

START_TEST(vectors_need_their_parts)
{
    group_refused("/vectors/diagonal", 2, N, H, 0, "/vectors lacks its list of pairs");
    group_refused("/vectors/lowrank/2/c", 3, N, 2, H, "/vectors lacks its list of pairs");
    group_refused("/vectors/lowrank/x/c", 3, N, 2, H, "/vectors/lowrank/x is no rank that could be");
    group_refused("/vectors/other", 1, 3, 0, 0, "/vectors/other is nothing that version 6 knows");
    group_refused("/vectors/pair", 2, 0, 3, 0, "/vectors/pair lists 0 pairs of the 12 that there are");
    group_refused("/vectors/pair", 2, 13, 3, 0, "/vectors/pair lists 13 pairs of the 12");
    group_refused("/vectors/pair", 2, 2, 2, 0, "expected I32 [2, 3]");
}
END_TEST

/* ---- grids ------------------------------------------------------------------------------- */

START_TEST(grids_hold_what_they_must)
{
    static const double size[] = {1, 3, 0x1p-300, 1e30, 0x1.fffffffffffffp40, 0};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        int32_t grid[EXF_N_GRIDS], larger[EXF_N_GRIDS];
        int64_t sum[2] = {0, 0};
        double back[2];
        exf_grid_for_pair(grid, size[i], size[i]);
        exf_grid_for_pair(larger, 5 * size[i], size[i]);
        ck_assert(larger[EXF_GRID_ZU] >= grid[EXF_GRID_ZU] && larger[EXF_GRID_ZV] == grid[EXF_GRID_ZV]);
        for (int k = 0; k < 4; k++) exf_grid_add(sum, (double[]){size[i] / 4, -size[i] / 4}, 2, grid[EXF_GRID_ZV]);
        exf_grid_value(back, sum, 2, grid[EXF_GRID_ZV]);
        ck_assert_msg(fabs(back[0] - size[i]) <= 0x1p-50 * size[i] && back[1] == -back[0], "%g comes back as %g", size[i], back[0]);
    }
}
END_TEST

/* ---- statistics --------------------------------------------------------------------------- */

static exf_code write_sums(exf_err *err)
{
    exf_statistics_writer w = {.h = NULL};
    exf_vector_sums v = {.n_pairs = 0};
    exf_layer_statistics s = {.dot = NULL};
    exf_sequence_list list = {.n = 0};
    exf_provenance p = {0}, origin = {0};
    exf_statistics_header head = {
        .shape = shape, .layer_number = numbers, .n_layers = L, .sequences = &list, .provenance = &p, .origin = &origin};
    exf_code rc;
    EXF_TRY(exf_sequence_list_new(&list, 2, err));
    list.length[0] = list.length[1] = 30;
    list.sha256[1][0] = 1;
    EXF_TRY(exf_provenance_add(&origin, err, "part.0.tokens_digest", "t"));
    EXF_TRY(exf_layer_statistics_new(&s, E, err));
    EXF_TRY(exf_vector_sums_new(&v, 2, H, 1, R, err));
    v.pair[1] = 1, v.pair[2] = 2;
    for (int i = 0; i < 2 * H; i++) exf_exact_add(&v.vu[i], i / 3.0), exf_exact_add(&v.vv[i], i);
    for (int i = 0; i < H * R; i++) v.basis[i] = i % 3 / 4.0;
    for (int i = 0; i < 4; i++) v.grid[i] = -50 - i;
    for (int i = 0; i < 2 * R * R; i++) v.zz[i] = i * i;
    for (int i = 0; i < 2 * R * H; i++) v.zu[i] = -i, v.zv[i] = 7 * i;
    EXF_TRY(exf_statistics_start(&w, exf_scratch("s.h5"), 1, &head, err));
    for (int l = 0; l < L; l++) EXF_TRY(exf_statistics_put(&w, numbers[l], &s, err));
    EXF_TRY(exf_vector_sums_write(&v, w.h, numbers[1], err));
    rc = exf_statistics_commit(&w, NULL, err);
out:
    exf_statistics_abort(&w);
    exf_vector_sums_free(&v);
    exf_layer_statistics_free(&s);
    exf_sequence_list_free(&list);
    exf_provenance_free(&origin);
    return rc;
}

static exf_code read_sums(exf_err *err)
{
    exf_statistics_reader r;
    exf_vector_sums v = {.n_pairs = 0};
    int32_t *pair = NULL;
    int64_t n;
    exf_code rc = exf_statistics_open(&r, exf_scratch("s.h5"), err);
    if (rc == EXF_OK) rc = exf_statistics_get_vectors(&r, 1, &v, err);
    if (rc == EXF_OK) rc = exf_statistics_get_vector_pairs(&r, 1, &pair, &n, err);
    exf_mem_free(pair);
    exf_vector_sums_free(&v);
    exf_statistics_close(&r);
    return rc;
}

START_TEST(vector_sums_come_back)
{
    exf_statistics_reader r;
    exf_vector_sums v;
    int32_t *pair;
    int64_t n;
    ck_ok(write_sums(&e), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_assert_int_eq(r.sequences.n, 2);
    ck_assert_int_eq(r.sequences.sha256[1][0], 1);
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.0.tokens_digest"), "t");
    ck_ok(exf_statistics_get_vectors(&r, 0, &v, &e), e); /* a layer without */
    ck_assert_int_eq(v.n_pairs, 0);
    ck_ok(exf_statistics_get_vector_pairs(&r, 0, &pair, &n, &e), e);
    ck_assert(n == 0 && !pair);
    ck_ok(exf_statistics_get_vectors(&r, 1, &v, &e), e);
    ck_assert(v.n_pairs == 2 && v.rank == R && v.pair[1] == 1 && v.pair[2] == 2 && v.pair[3] == 0);
    ck_assert(exf_exact_value(&v.vu[5]) == 5 / 3.0 && exf_exact_value(&v.vv[7]) == 7 && v.basis[4] == 0.25);
    ck_assert(v.grid[3] == -53 && v.zz[3] == 9 && v.zu[15] == -15 && v.zv[15] == 105);
    exf_vector_sums_free(&v);
    exf_statistics_close(&r);
}
END_TEST

static void sums_refused(const char *dataset, size_t at, const void *value, const char *part)
{
    ck_ok(write_sums(&e), e);
    damage("s.h5", dataset, at, value);
    ck_fails(read_sums(&e), EXF_FORMAT, e, part);
}

START_TEST(vector_sums_obey_their_rules)
{
    int32_t five = 5, zero = 0, far = 2000;
    double two = 2;
    sums_refused("/layers/5/vectors/pair", 3, &five, "/layers/5/vectors/pair[1] is (2, 5)");
    sums_refused("/layers/5/vectors/pair", 1, &zero, "/layers/5/vectors/pair[0] is (0, 0)");
    sums_refused("/layers/5/vectors/pair", 2, &zero, "/layers/5/vectors/pair[1] is (0, 0)");
    sums_refused("/layers/5/vectors/grid", 2, &far, "/layers/5/vectors/grid[1, 0] is 2000");
    sums_refused("/layers/5/vectors/basis", 2, &two, "/layers/5/vectors/basis: element 2 is 2");
    sums_refused("/sequence_lengths", 1, &zero, "/sequence_lengths[1] is 0");
    sums_refused("/sequence_lengths", 1, &five, "/sequence_lengths add up to 35 tokens, n_tokens is 60");
}
END_TEST

/* What says how a file came to be is no part of what it holds. */
START_TEST(the_digest_passes_the_origin_over)
{
    char digest[2][EXF_SHA256_HEX];
    for (int i = 0; i < 2; i++) {
        exf_h5 *h;
        ck_ok(write_sums(&e), e);
        hid_t f = i ? H5Fopen(exf_scratch("s.h5"), H5F_ACC_RDWR, H5P_DEFAULT) : -1;
        if (i) ck_assert_int_ge(H5Ldelete(f, "/origin", H5P_DEFAULT), 0);
        if (i) ck_assert_int_ge(H5Fclose(f), 0);
        ck_ok(exf_h5_open(&h, exf_scratch("s.h5"), &e), e);
        ck_ok(exf_h5_digest(h, digest[i], &e), e);
        exf_h5_close(h);
    }
    ck_assert_str_eq(digest[0], digest[1]);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, vectors_come_back_bit_for_bit);
    tcase_add_test(t, vectors_obey_their_rules);
    tcase_add_test(t, vectors_need_their_parts);
    tcase_add_test(t, grids_hold_what_they_must);
    tcase_add_test(t, vector_sums_come_back);
    tcase_add_test(t, vector_sums_obey_their_rules);
    tcase_add_test(t, the_digest_passes_the_origin_over);
}
