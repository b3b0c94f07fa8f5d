/* check_halves.c - the sums of one half of the sequences, and the tables of each half. */
#include "tests/support/artifact_fixtures.h"
#include "tests/support/sequence_fixtures.h"

#include "artifact/tables.h"
#include "solve/solve.h"

enum { CELLS = SEQ_E * SEQ_E };

static exf_err e; /* of the last call */
static const char *const pair[] = {"pair"};
static const exf_solve_options usual = {.rule = {1e-3, 1, -4, 4}, .projectors = pair, .n_projectors = 1};

/* Adds up the sums of the sequences of one half alone. */
static exf_layer_statistics sums_of(int half)
{
    exf_layer_statistics s;
    exf_sequence_list list = seq_list(0, SEQ_N);
    routed r = seq_tokens();
    ck_ok(exf_layer_statistics_new(&s, SEQ_E, &e), e);
    for (int i = 0, row = 0; i < SEQ_N; row += seq_length[i++])
        if (exf_sequence_half(&list, (size_t)i) == half)
            ck_ok(add_range(&s, &r, row, seq_length[i], EXF_WEIGHT_SOURCE_NORM, &e), e);
    return s;
}

static void read_layer(const char *name, exf_layer_statistics *s)
{
    exf_statistics_reader r;
    ck_ok(exf_statistics_open(&r, exf_scratch(name), &e), e);
    ck_assert_int_eq(r.has[EXF_PART_HALVES], 1);
    ck_ok(exf_layer_statistics_new(s, SEQ_E, &e), e);
    ck_ok(exf_statistics_get(&r, 0, s, &e), e);
    exf_statistics_close(&r);
}

static exf_accumulate_options scalars_only(void)
{
    exf_accumulate_options o = seq_options;
    o.diagonal = o.lowrank = 0;
    return o;
}

/* Whichever worker sees which sequence, and in which order. */
START_TEST(a_half_has_the_sums_of_its_sequences)
{
    exf_accumulate_options o = scalars_only();
    exf_layer_statistics s, want = sums_of(1);
    exf_sequence_list list = seq_list(0, SEQ_N);
    ck_assert_int_eq(exf_sequence_halves(&list), 1);
    for (int workers = 1; workers <= 3; workers++) {
        ck_ok(seq_accumulate("s.h5", &o, workers, workers == 2, &e), e);
        read_layer("s.h5", &s);
        ck_assert_mem_eq(s.half_dot, want.dot, CELLS * sizeof *s.dot);
        ck_assert_mem_eq(s.half_target_sq, want.target_sq, CELLS * sizeof *s.dot);
        ck_assert_mem_eq(s.half_source_sq, want.source_sq, CELLS * sizeof *s.dot);
        ck_assert_mem_eq(s.half_count, want.count, CELLS * sizeof *s.count);
        exf_layer_statistics_free(&s);
    }
    exf_layer_statistics_free(&want);
}
END_TEST

/* Solves the sums of one half as if they were all there are. */
static exf_tables solve_alone(int half)
{
    static const int32_t number = SEQ_LAYER;
    exf_layer_statistics s = sums_of(half);
    exf_solver_head head = {.path = "half", .shape = {SEQ_E, SEQ_K, SEQ_H, 2, SEQ_T}, .layer_number = &number, .n_layers = 1,
                            .has = {[EXF_PART_ENERGIES] = 1, [EXF_PART_COSINES] = 1}};
    exf_solve_options o = usual;
    exf_provenance facts = {0};
    exf_solver *solver;
    exf_tables t;
    o.statistics_digest = "none";
    ck_ok(exf_solver_new(&solver, &head, &o, NULL, &e), e);
    ck_ok(exf_solver_layer(solver, 0, &s, &e), e);
    ck_ok(exf_solver_end(solver, &o, &facts, &t, &e), e);
    exf_solver_free(solver);
    exf_layer_statistics_free(&s);
    return t;
}

START_TEST(tables_of_a_half_are_those_of_its_sequences)
{
    exf_accumulate_options o = scalars_only();
    exf_tables t;
    ck_ok(seq_accumulate("s.h5", &o, 2, 0, &e), e);
    ck_ok(exf_solve(exf_scratch("s.h5"), &usual, &t, &e), e);
    ck_ok(exf_tables_check(&t, "t", &e), e);
    for (int half = 0; half < 2; half++) {
        exf_tables alone = solve_alone(half), view = exf_tables_half(&t, half);
        ck_assert_mem_eq(view.coeff, alone.coeff, CELLS * sizeof *alone.coeff);
        ck_assert_mem_eq(view.loss, alone.loss, CELLS * sizeof *alone.loss);
        ck_assert_ptr_eq(view.count, t.count);
        ck_assert(memcmp(view.coeff, t.coeff, CELLS * sizeof *t.coeff) != 0);
        exf_tables_free(&alone);
    }
    exf_tables_free(&t);
}
END_TEST

/* Sequences of one half alone have no tables of halves. */
START_TEST(a_half_without_a_sequence_has_no_tables)
{
    exf_sequence_list all = seq_list(0, SEQ_N);
    int one = exf_sequence_half(&all, 0), other = 1;
    while (exf_sequence_half(&all, (size_t)other) == one) other++;
    exf_sequence_list same = seq_list(0, other), mixed = seq_list(0, other + 1), unknown = {.n = 3};
    ck_assert_int_eq(exf_sequence_halves(&same), 0);
    ck_assert_int_eq(exf_sequence_halves(&mixed), 1);
    ck_assert_int_eq(exf_sequence_halves(&unknown), 0);
}
END_TEST

/* Joined and sorted, sequences keep their document: by that of new parts, by their own digest of older ones, whose halves stay. */
START_TEST(documents_stay_with_their_sequences)
{
    exf_sequence_list old = seq_list(0, 1), new = seq_list(1, 3), joined, sorted;
    const exf_sequence_list *part[] = {&new, &old};
    unsigned char document[3][32] = {{1}, {1}, {2}};
    size_t documents;
    document[2][31] = 1;
    new.document = document;
    unsigned char sketch[2][EXF_SKETCH_BYTES] = {{3}, {1}}; /* those of older parts are not known */
    new.sketches = (exf_sketch_set){2, sketch};
    ck_assert_int_eq(exf_sequence_half(&new, 0), 0);
    ck_assert_int_eq(exf_sequence_half(&new, 1), 0);
    ck_assert_int_eq(exf_sequence_half(&new, 2), 1);
    ck_ok(exf_sequence_list_join(&joined, part, 2, &e), e);
    ck_ok(exf_sequence_list_sorted(&sorted, &joined, &e), e);
    for (size_t i = 0; i < sorted.n; i++) {
        const exf_sequence_list *from = NULL;
        size_t at = 0;
        for (size_t k = 0; k < 4; k++)
            if (memcmp(sorted.sha256[i], part[k / 3]->sha256[k % 3], 32) == 0) from = part[k / 3], at = k % 3;
        ck_assert_ptr_nonnull(from);
        ck_assert_int_eq(exf_sequence_half(&sorted, i), exf_sequence_half(from, at));
    }
    ck_ok(exf_sequence_list_documents(&sorted, &documents, &e), e);
    ck_assert_uint_eq(documents, 3);
    ck_ok(exf_sequence_list_documents(&old, &documents, &e), e);
    ck_assert_uint_eq(documents, 0);
    ck_assert_uint_eq(sorted.sketches.n, 2);
    ck_assert_mem_eq(sorted.sketches.sketch[0], sketch[1], sizeof *sketch);
    ck_assert_mem_eq(sorted.sketches.sketch[1], sketch[0], sizeof *sketch);
    exf_sequence_list_free(&joined);
    exf_sequence_list_free(&sorted);
}
END_TEST

/* Counts of a half that cannot be. */
START_TEST(counts_of_a_half_are_part_of_the_whole)
{
    exf_accumulate_options o = scalars_only();
    exf_layer_statistics s;
    ck_ok(seq_accumulate("s.h5", &o, 1, 0, &e), e);
    read_layer("s.h5", &s);
    uint64_t above = s.count[1] + 1, less = s.half_count[1] - 1;
    exf_statistics_reader r;
    for (int k = 0; k < 2; k++) {
        damage("s.h5", "/layers/3/half/count", 1, k ? &less : &above);
        ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
        ck_fails(exf_statistics_get(&r, 0, &s, &e), EXF_FORMAT, e, "/layers/3/half/count[0, 1] is ");
        exf_statistics_close(&r);
    }
    exf_layer_statistics_free(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, a_half_has_the_sums_of_its_sequences);
    tcase_add_test(t, tables_of_a_half_are_those_of_its_sequences);
    tcase_add_test(t, a_half_without_a_sequence_has_no_tables);
    tcase_add_test(t, documents_stay_with_their_sequences);
    tcase_add_test(t, counts_of_a_half_are_part_of_the_whole);
}
