/* check_basis.c - a basis made first, given to runs, and its file. */
#include "tests/support/artifact_fixtures.h"
#include "tests/support/basis_parts.h"
#include "tests/support/sequence_fixtures.h"

#include "accumulate/basis_file.h"

enum { E = SEQ_E, H = SEQ_H };

static exf_err e; /* of the last call */

/* Makes the file b.h5. */
static exf_code make_basis(exf_err *err)
{
    exf_accumulate_options o = seq_options;
    o.basis_only = 1;
    return seq_accumulate("b.h5", &o, 2, 0, err);
}

static exf_code run_over(const char *name, const exf_basis *b, int lowrank, exf_err *err)
{
    exf_accumulate_options o = seq_options;
    o.basis = b;
    o.lowrank = lowrank;
    return seq_accumulate(name, &o, 3, 1, err);
}

START_TEST(a_basis_made_first_gives_the_file_of_an_ordinary_run)
{
    exf_basis b;
    exf_statistics_reader r;
    ck_ok(make_basis(&e), e);
    ck_ok(seq_accumulate("own.h5", &seq_options, 1, 0, &e), e);
    ck_ok(same_digest(exf_scratch("own.h5"), seq_digest, &e), e);
    ck_ok(exf_basis_open(&b, exf_scratch("b.h5"), &e), e);
    ck_ok(run_over("given.h5", &b, 1, &e), e);
    ck_assert(same_files("own.h5", "given.h5"));
    ck_ok(exf_statistics_open(&r, exf_scratch("own.h5"), &e), e);
    ck_assert_str_eq(exf_provenance_get(&r.provenance, EXF_BASIS_FACT), b.digest);
    exf_statistics_close(&r);
    exf_basis_close(&b);
}
END_TEST

/* What the sums are over, as the statistics themselves have it. */
START_TEST(the_file_holds_pairs_directions_and_grids)
{
    exf_basis b;
    exf_statistics_reader r;
    exf_vector_sums of_file, of_sums;
    ck_ok(make_basis(&e), e);
    ck_ok(seq_accumulate("own.h5", &seq_options, 1, 0, &e), e);
    ck_ok(exf_basis_open(&b, exf_scratch("b.h5"), &e), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("own.h5"), &e), e);
    ck_ok(exf_basis_get(&b, SEQ_LAYER, &of_file, &e), e);
    ck_ok(exf_statistics_get_vectors(&r, 0, &of_sums, &e), e);
    ck_assert_int_eq(of_file.n_pairs, 8);
    ck_assert_int_eq(of_file.rank, of_sums.rank);
    ck_assert(memcmp(of_file.pair, of_sums.pair, 16 * sizeof *of_file.pair) == 0);
    ck_assert(memcmp(of_file.basis, of_sums.basis, (size_t)(H * of_file.rank) * sizeof *of_file.basis) == 0);
    ck_assert(memcmp(of_file.grid, of_sums.grid, 8 * EXF_N_GRIDS * sizeof *of_file.grid) == 0);
    ck_assert(of_file.vu == NULL && of_file.zz == NULL && of_file.zu == NULL && of_file.zv == NULL);
    exf_vector_sums_free(&of_file);
    exf_vector_sums_free(&of_sums);
    ck_fails(exf_basis_get(&b, SEQ_LAYER + 1, &of_file, &e), EXF_MODEL, e, "b.h5 4");
    exf_statistics_close(&r);
    exf_basis_close(&b);
}
END_TEST

START_TEST(other_settings_and_other_data_are_refused)
{
    exf_basis b;
    exf_provenance p = {0};
    const int32_t layer[] = {SEQ_LAYER, SEQ_LAYER + 2};
    exf_sequence_list all = seq_list(0, SEQ_N), sorted = {.n = 0};
    unsigned char other[1][32] = {{7}};
    int32_t length[1] = {5};
    exf_sequence_list unknown = {.n = 1, .length = length, .sha256 = other};
    ck_ok(make_basis(&e), e);
    ck_ok(exf_basis_open(&b, exf_scratch("b.h5"), &e), e);
    ck_fails(run_over("none.h5", &b, 0, &e), EXF_MODEL, e, "b.h5");
    ck_assert_str_eq(strrchr(e.msg, ';'), "; make it again from all of the data with this run's settings: exfold-calibrate RECIPE "
                                          "--basis-only");
    ck_ok(exf_provenance_copy(&p, &b.provenance, &e), e);
    ck_ok(exf_sequence_list_sorted(&sorted, &all, &e), e);
    ck_ok(exf_basis_check(&b, &p, layer, 1, &sorted, &e), e);
    ck_fails(exf_basis_check(&b, &p, layer, 2, &sorted, &e), EXF_MODEL, e, "1 3 2 3");
    ck_fails(exf_basis_check(&b, &p, layer, 1, &unknown, &e), EXF_MODEL, e, "5 07000000");
    ck_ok(exf_provenance_add(&p, &e, "model.family", "another"), e);
    ck_fails(exf_basis_check(&b, &p, layer, 1, &sorted, &e), EXF_MODEL, e, "model.family");
    exf_sequence_list_free(&sorted);
    exf_provenance_free(&p);
    exf_basis_close(&b);
}
END_TEST

START_TEST(damage_is_named)
{
    exf_basis b;
    const double larger = 1.5, smaller = 0.0078125;
    const int32_t pair = 4, grid = 961;
    ck_ok(make_basis(&e), e);
    damage("b.h5", "/layers/3/vectors/basis", 0, &smaller);
    ck_fails(exf_basis_open(&b, exf_scratch("b.h5"), &e), EXF_FORMAT, e, "b.h5 accumulate.basis_digest");
    damage("b.h5", "/layers/3/vectors/basis", 0, &larger);
    ck_fails(exf_basis_open(&b, exf_scratch("b.h5"), &e), EXF_FORMAT, e, "0 1.5");
    ck_ok(make_basis(&e), e);
    damage("b.h5", "/layers/3/vectors/pair", 0, &pair);
    ck_fails(exf_basis_open(&b, exf_scratch("b.h5"), &e), EXF_FORMAT, e, "b.h5 /layers/3/vectors/pair[1]");
    ck_ok(make_basis(&e), e);
    damage("b.h5", "/layers/3/vectors/grid", 3, &grid);
    ck_fails(exf_basis_open(&b, exf_scratch("b.h5"), &e), EXF_FORMAT, e, "grid[1 1] 961");
    ck_ok(seq_accumulate("s.h5", &seq_options, 1, 0, &e), e);
    ck_fails(exf_basis_open(&b, exf_scratch("s.h5"), &e), EXF_FORMAT, e, "s.h5");
}
END_TEST

/* Grids have two spare bits: energies up to four times those they were chosen for could be added; twice is allowed. */
START_TEST(grids_fit_twice_their_energies)
{
    int32_t grid[EXF_N_GRIDS];
    exf_grid_for_pair(grid, 3, 5);
    ck_assert(exf_grids_fit(grid, 3, 5));
    ck_assert(exf_grids_fit(grid, 0, 0));
    ck_assert(exf_grids_fit(grid, 6, 10));
    ck_assert(!exf_grids_fit(grid, 3, 21));
    ck_assert(!exf_grids_fit(grid, 300, 5));
}
END_TEST

static exf_code make_and_use(exf_err *err)
{
    exf_basis b = {.h = NULL};
    exf_code rc;
    EXF_TRY(make_basis(err));
    EXF_TRY(exf_basis_open(&b, exf_scratch("b.h5"), err));
    rc = run_over("given.h5", &b, 1, err);
out:
    exf_basis_close(&b);
    return rc;
}

static int objects_open(void)
{
    return (int)H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL);
}

START_TEST(every_failing_allocation_is_survived)
{
    ck_ok(make_and_use(&e), e);
    fail_each_allocation(make_and_use, objects_open, 0);
}
END_TEST

/* In every family with both kinds of vectors, in the first with the diagonal alone too; tests/cuda has the same on a GPU. */
START_TEST(sequences_of_a_pass_add_over_it)
{
    const exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .diagonal = 1, .lowrank = _i > 0, .vector_pairs = 9,
                                      .samples = 60, .seed = 5, .rule = {1e-3, 1, -4, 4}};
    const exf_forward_options forward = {.backend = &exf_backend_cpu, .threads = 2};
    ck_sequences_add_over_a_basis(golden_families[_i > 0 ? _i - 1 : 0], &forward, &o);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("basis");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_set_timeout(t, 300);
    tcase_add_test(t, a_basis_made_first_gives_the_file_of_an_ordinary_run);
    tcase_add_test(t, the_file_holds_pairs_directions_and_grids);
    tcase_add_test(t, other_settings_and_other_data_are_refused);
    tcase_add_test(t, damage_is_named);
    tcase_add_loop_test(t, sequences_of_a_pass_add_over_it, 0, 1 + golden_n_families());
    tcase_add_test(t, grids_fit_twice_their_energies);
    tcase_add_test(t, every_failing_allocation_is_survived);
    suite_add_tcase(s, t);
    return s;
}
