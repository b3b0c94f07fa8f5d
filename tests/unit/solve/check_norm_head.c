/* check_norm_head.c - src/solve/norm_head.c and the head in tables (src/artifact/tables_norms.c): norms that are linear in the
 * features by construction, experts with too few tokens, damaged tables. */
#include "tests/support/artifact_fixtures.h"

#include "solve/solve_internal.h"

#include <math.h>

enum { E = 3, H = 4, Q = 2, F = Q + EXF_NORM_BESIDE, MANY = 4 * F, FEW = MANY - 1, TOKENS = 64 };

static const int32_t number = 7;
static exf_err e; /* of the last call */

/* What experts 0 and 1 have; expert 2 has the norm of expert 0 on FEW tokens. */
static const double known[2][F] = {{0.5, 0.25, -0.5, 0.125, 0, 1}, {-1, 0, 0.75, 0.5, 0.25, 0}};

/* Features of token i: spread out, the first is 1. */
static void features_of(double phi[F], int i)
{
    phi[0] = 1;
    for (int k = 1; k < F; k++) phi[k] = 4 * sin(0.7 * k * (i + 1) + k * k);
}

/* Returns log ||u|| of an expert on token i; noise moves it by as much. */
static double log_norm(int expert, int i, double noise)
{
    double phi[F], y = noise * cos(2.3 * i * i);
    features_of(phi, i);
    for (int k = 0; k < F; k++) y += known[expert % 2][k] * phi[k];
    return y;
}

/* Adds n tokens of an expert. */
static void add_tokens(exf_norm_sums *s, int expert, int n, double noise)
{
    exf_exact *pp = s->pp + (size_t)expert * exf_norm_products(Q), *py = s->py + (size_t)expert * F;
    for (int i = 0; i < n; i++) {
        double phi[F], y = log_norm(expert, i, noise);
        size_t at = 0;
        features_of(phi, i);
        for (int a = 0; a < F; a++) {
            for (int b = 0; b <= a; b++) exf_exact_add(&pp[at++], phi[a] * phi[b]);
            exf_exact_add(&py[a], phi[a] * y);
        }
        exf_exact_add(&s->yy[expert], y * y);
    }
}

static exf_norm_sums sums_of(const int tokens[E], double noise)
{
    exf_norm_sums s;
    double basis[H * Q] = {1, 0, 0, 1, 0, 0, 0, 0};
    ck_ok(exf_norm_sums_new(&s, E, H, Q, &e), e);
    exf_norm_sums_set_basis(&s, basis);
    for (int i = 0; i < E; i++) add_tokens(&s, i, tokens[i], noise);
    return s;
}

/* Returns rms of n tokens of an expert. */
static double rms_of(int expert, int n, double noise)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp(2 * log_norm(expert, i, noise));
    return n ? sqrt(sum / n) : 1;
}

/* Tables of one layer, one expert per token: there are no pairs. */
static exf_tables tables_of(const int tokens[E], double noise)
{
    exf_run_shape shape = {E, 1, H, 1, tokens[0] + tokens[1] + tokens[2]};
    exf_tables t;
    ck_ok(exf_tables_new(&t, &shape, &number, 1, NULL, 0, &e), e);
    ck_ok(exf_mem_new(&t.rms, E, sizeof *t.rms, "tables", &e), e);
    for (int i = 0; i < E * E; i++) {
        t.coeff[i] = i % (E + 1) == 0;
        t.loss[i] = EXF_LOSS_NEVER;
    }
    for (int i = 0; i < E; i++) {
        t.expert_norms[i] = 1;
        t.expert_count[i] = (uint64_t)tokens[i];
        t.rms[i] = (float)rms_of(i, tokens[i], noise);
    }
    return t;
}

static exf_tables solved(const int tokens[E], double noise)
{
    exf_norm_sums s = sums_of(tokens, noise);
    exf_tables t = tables_of(tokens, noise);
    ck_ok(exf_solve_norm_head(&s, 0, &t, &e), e);
    ck_ok(exf_tables_check(&t, "t", &e), e);
    exf_norm_sums_free(&s);
    return t;
}

/* Computes the share that theta explains, token by token. */
static double share_of(const float *theta, int expert, int n, double noise, double rms, double *total)
{
    double left = 0, all = 0;
    for (int i = 0; i < n; i++) {
        double phi[F], y = log_norm(expert, i, noise), predicted = 0;
        features_of(phi, i);
        for (int k = 0; k < F; k++) predicted += (double)theta[k] * phi[k];
        left += (y - predicted) * (y - predicted);
        all += (y - log(rms)) * (y - log(rms));
    }
    *total = all;
    return 1 - left / all;
}

/* The ridge moves theta by about a thousandth of the mean diagonal over the tokens. */
START_TEST(a_linear_map_is_found_again)
{
    static const int tokens[E] = {TOKENS, MANY, FEW};
    exf_tables t = solved(tokens, 0);
    const exf_norm_head *n = &t.norm_head;
    ck_assert_int_eq(n->q, Q);
    for (int i = 0; i < H * Q; i++) ck_assert_float_eq(n->basis[i], i == 0 || i == 3 ? 1.0f : 0.0f);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < F; k++) ck_assert_double_eq_tol((double)n->theta[i * F + k], known[i][k], 0.02);
        ck_assert_msg(n->explained[i] > 0.999f && n->explained[i] <= 1, "%g", (double)n->explained[i]);
        ck_assert_msg(n->error[i] >= 0 && n->error[i] < 1e-3f, "%g", (double)n->error[i]);
    }
    exf_tables_free(&t);
}
END_TEST

START_TEST(the_share_is_that_over_the_tokens)
{
    static const int tokens[E] = {TOKENS, MANY, 0};
    exf_tables t = solved(tokens, 2);
    const exf_norm_head *n = &t.norm_head;
    double total[2], error = 0, mean = 0;
    for (int i = 0; i < 2; i++) {
        double share = share_of(n->theta + i * F, i, tokens[i], 2, (double)t.rms[i], &total[i]), m = tokens[i];
        ck_assert_msg(share > 0.2 && share < 0.98, "%g", share); /* noise is left */
        ck_assert_double_eq_tol((double)n->explained[i], share, 1e-6);
        ck_assert_double_eq_tol((double)n->error[i],
                                sqrt(4 * share * (1 - share) * (1 - share) * (m - F) * (m - F) / ((m * m - 1) * (m + 3))), 1e-6);
        mean += total[i] * share;
        error += total[i] * total[i] * (double)n->error[i] * (double)n->error[i];
    }
    ck_assert_double_eq_tol((double)n->layer_explained[0], mean / (total[0] + total[1]), 1e-6);
    ck_assert_double_eq_tol((double)n->layer_error[0], sqrt(error) / (total[0] + total[1]), 1e-6);
    exf_tables_free(&t);
}
END_TEST

START_TEST(few_tokens_go_by_rms)
{
    static const int tokens[E] = {TOKENS, 0, FEW};
    exf_tables t = solved(tokens, 0);
    const exf_norm_head *n = &t.norm_head;
    for (int i = 1; i < E; i++) {
        ck_assert_float_eq(n->theta[i * F], (float)log((double)t.rms[i]));
        for (int k = 1; k < F; k++) ck_assert_float_eq(n->theta[i * F + k], 0);
        ck_assert_float_eq(n->explained[i], 0);
        ck_assert_float_eq(n->error[i], 0);
    }
    ck_assert(n->explained[0] > 0.999f);
    ck_assert_msg(n->layer_explained[0] < n->explained[0] && n->layer_explained[0] > 0, "expert 2 counts with what rms leaves: %g",
                  (double)n->layer_explained[0]);
    exf_tables_free(&t);
}
END_TEST

START_TEST(layers_have_the_same_directions)
{
    static const int tokens[E] = {MANY, MANY, MANY};
    exf_norm_sums other;
    exf_tables t = solved(tokens, 0);
    ck_ok(exf_norm_sums_new(&other, E, H, Q + 1, &e), e);
    ck_fails(exf_solve_norm_head(&other, 0, &t, &e), EXF_MODEL, e, "layer 7: the sums of the norm head have 3 directions");
    exf_norm_sums_free(&other);
    exf_tables_free(&t);
}
END_TEST

/* Statistics whose layers differ in that are of no run. */
START_TEST(every_layer_has_a_head_or_none)
{
    static const int tokens[E] = {MANY, MANY, MANY};
    static const int32_t numbers[2] = {1, 2};
    static const char *const pair[] = {"pair"};
    const exf_solve_options o = {.projectors = pair, .n_projectors = 1, .statistics_digest = "none"};
    for (int with = 1; with <= 2; with++) {
        exf_solver_head head = {.path = "s.h5", .shape = {E, 1, H, 1, 3 * MANY}, .layer_number = numbers, .n_layers = 2,
                                .norm_head = 1};
        exf_provenance facts = {0};
        exf_layer_statistics s;
        exf_solver *solver;
        exf_tables t;
        ck_ok(exf_layer_statistics_new(&s, E, &e), e);
        s.norms = sums_of(tokens, 0);
        ck_ok(exf_solver_new(&solver, &head, &o, NULL, &e), e);
        ck_ok(exf_solver_layer(solver, 1, &s, &e), e);
        s.norms.known = with == 2;
        ck_ok(exf_solver_layer(solver, 0, &s, &e), e);
        if (with == 1) {
            ck_fails(exf_solver_end(solver, &o, &facts, &t, &e), EXF_MODEL, e, "sums of a norm head in 1 layers of 2");
        } else {
            ck_ok(exf_solver_end(solver, &o, &facts, &t, &e), e);
            ck_assert_int_eq(t.norm_head.q, Q);
            ck_assert_mem_eq(t.norm_head.theta, t.norm_head.theta + E * F, E * F * sizeof(float));
            exf_tables_free(&t);
        }
        exf_solver_free(solver);
        exf_layer_statistics_free(&s);
    }
}
END_TEST

/* ---- in files --------------------------------------------------------------------------- */

static const int in_file[E] = {TOKENS, MANY, FEW};

START_TEST(a_head_comes_back_bit_for_bit)
{
    exf_tables t = solved(in_file, 1), back;
    exf_table_list list;
    size_t found = 0;
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    ck_assert_int_eq(back.norm_head.q, Q);
    ck_assert_mem_eq(back.norm_head.basis, t.norm_head.basis, H * Q * sizeof(float));
    ck_assert_mem_eq(back.norm_head.theta, t.norm_head.theta, E * F * sizeof(float));
    ck_assert_mem_eq(back.norm_head.explained, t.norm_head.explained, E * sizeof(float));
    ck_assert_mem_eq(back.norm_head.error, t.norm_head.error, E * sizeof(float));
    ck_assert_mem_eq(back.norm_head.layer_explained, t.norm_head.layer_explained, sizeof(float));
    ck_assert_mem_eq(back.norm_head.layer_error, t.norm_head.layer_error, sizeof(float));
    ck_ok(exf_table_list_make(&list, &back, 1, &e), e);
    for (size_t i = 0; i < list.n; i++) found += strncmp(list.name[i], "norm_head.", 10) == 0;
    ck_assert_uint_eq(found, EXF_NORM_HEAD_PARTS);
    exf_table_list_free(&list);
    exf_tables_free(&back);
    exf_tables_free(&t);
}
END_TEST

/* One element of a dataset is another. */
static void refused(const char *dataset, size_t at, float value, const char *part)
{
    exf_tables t = solved(in_file, 1), back;
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    damage("t.h5", dataset, at, &value);
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e, part);
    ck_assert_msg(strstr(e.msg, "t.h5") != NULL, "no file in \"%s\"", e.msg);
    exf_tables_free(&t);
}

START_TEST(damaged_heads_are_refused)
{
    refused("/norm_head/basis", 3, 1.5f, "/norm_head/basis: element 3 is 1.5, expected a coordinate of a unit vector");
    refused("/norm_head/basis", 0, NAN, "/norm_head/basis: element 0 is nan");
    refused("/norm_head/theta", 1, INFINITY, "/norm_head/theta: element 1 is inf, expected a finite number");
    refused("/norm_head/explained", 1, 1.25f, "/norm_head/explained: element 1 is 1.25, expected a share");
    refused("/norm_head/error", 1, -0.5f, "/norm_head/error: element 1 is -0.5, expected an error of a share");
    refused("/norm_head/layer_explained", 0, NAN, "/norm_head/layer_explained: element 0 is nan");
    refused("/norm_head/layer_error", 0, NAN, "/norm_head/layer_error: element 0 is nan");
    /* expert 2 has a token too few */
    refused("/norm_head/theta", 2 * F + 1, 0.5f,
            "/norm_head/theta[0, 2, 1] is 0.5, expected 0: the expert has 23 tokens, fewer than 24");
    refused("/norm_head/explained", 2, 0.5f, "/norm_head/explained[0, 2] is 0.5");
}
END_TEST

START_TEST(a_head_needs_rms)
{
    exf_tables t = solved(in_file, 1), back;
    exf_mem_free(t.rms);
    t.rms = NULL;
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e, "has /norm_head without /rms");
    exf_tables_free(&t);
}
END_TEST

/* A dataset of zeros of another shape stands in its place; rank 0: none. */
static void misshapen(const char *dataset, int rank, const hsize_t shape[3], const char *part)
{
    exf_tables t = solved(in_file, 1), back;
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    hid_t f = H5Fopen(exf_scratch("t.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    ck_assert_int_ge(H5Ldelete(f, dataset, H5P_DEFAULT), 0);
    if (rank) {
        static const float zeros[64];
        hid_t space = H5Screate_simple(rank, shape, NULL);
        hid_t d = H5Dcreate2(f, dataset, H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        ck_assert_int_ge(H5Dwrite(d, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros), 0);
        H5Dclose(d);
        H5Sclose(space);
    }
    ck_assert_int_ge(H5Fclose(f), 0);
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e, part);
    exf_tables_free(&t);
}

START_TEST(missing_and_misshapen_parts_are_named)
{
    misshapen("/norm_head/basis", 0, NULL, "/norm_head/basis");
    misshapen("/norm_head/basis", 2, (const hsize_t[]){H, Q, 0}, "/norm_head/basis has 0 directions, expected 1 to 256");
    misshapen("/norm_head/basis", 3, (const hsize_t[]){1, H, H + 1}, "/norm_head/basis has 5 directions");
    misshapen("/norm_head/basis", 3, (const hsize_t[]){1, H, Q + 1}, "/norm_head/theta is F32 [1, 3, 6], expected F32 [1, 3, 7]");
    misshapen("/norm_head/theta", 0, NULL, "/norm_head/theta is missing");
    misshapen("/norm_head/layer_error", 1, (const hsize_t[]){2, 0, 0}, "/norm_head/layer_error is F32 [2], expected F32 [1]");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "norm head");
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_add_test(c, a_linear_map_is_found_again);
    tcase_add_test(c, the_share_is_that_over_the_tokens);
    tcase_add_test(c, few_tokens_go_by_rms);
    tcase_add_test(c, layers_have_the_same_directions);
    tcase_add_test(c, a_head_comes_back_bit_for_bit);
    tcase_add_test(c, damaged_heads_are_refused);
    tcase_add_test(c, a_head_needs_rms);
    tcase_add_test(c, every_layer_has_a_head_or_none);
    tcase_add_test(c, missing_and_misshapen_parts_are_named);
}
