/* check_solve_shared.c - src/solve: scalars shared by a layer or the model, and
 * what is measured beside projectors, by hand. */
#include "tests/support/artifact_fixtures.h"

#include "solve/solve_internal.h"

#include <math.h>

enum { E = 3, L = 2 };

static const exf_solve_options plain = {.rule = {.ridge = 0}};
static exf_err e; /* of the last call */

typedef struct { int s, t; double dot, target_sq, source_sq, dot0, sq0; int count; } cell;

/* Three experts; 2 -> 0 and 0 -> 2 were never seen. */
static const cell cells[L][4] = {
    {{0, 1, 6, 8, 10, 3, 4, 2}, {1, 0, 5, 10, 8, 3, 9, 2}, {1, 2, -2, 4, 3, -1, 16, 6}, {2, 1, -3, 2, 5, -1, 25, 6}},
    {{0, 1, 1, 2, 3, 1, 1, 1}, {1, 0, 1, 3, 2, 1, 1, 1}, {1, 2, 4, 5, 6, 0, 4, 7}, {2, 1, 4, 6, 5, 0, 4, 7}},
};

static void fill(exf_layer_statistics *s, const cell *c)
{
    exf_layer_statistics_zero(s);
    for (int i = 0; i < 4; i++) {
        int at = c[i].s * E + c[i].t;
#define X(name) exf_exact_add(&s->name[at], c[i].name);
        X(dot) X(target_sq) X(source_sq) X(dot0) X(sq0)
#undef X
        s->count[at] = (uint64_t)c[i].count;
    }
    for (int i = 0; i < E; i++) {
        s->norm_count[i] = i == 2 ? 0 : 8;
        exf_exact_add(&s->norm_sum[i], i == 2 ? 0 : 8.0 * (i + 1));
        exf_exact_add(&s->sq_sum[i], i == 2 ? 0 : 8.0 * (i + 2) * (i + 2));
        exf_exact_add(&s->contribution_sum[i], i == 2 ? 0 : 4.0 * (i + 1));
    }
}

static void write_layers(void)
{
    static const exf_run_shape shape = {E, 2, 8, 1, 8};
    static const int32_t numbers[L] = {2, 4};
    exf_statistics_writer w;
    exf_layer_statistics s;
    exf_provenance p = {0};
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(create_statistics(&w, exf_scratch("s.h5"), 1, &shape, numbers, L, &p, &e), e);
    for (int l = 0; l < L; l++) {
        fill(&s, cells[l]);
        for (int i = 0; i < E; i++) s.norm_count[i] = s.count[i * E] + s.count[i * E + 1] + s.count[i * E + 2];
        for (int k = 0; k < E; k++) exf_exact_add(&s.sq_sum[k], 1), exf_exact_add(&s.norm_sum[k], 1);
        ck_ok(exf_statistics_put(&w, numbers[l], &s, &e), e);
    }
    ck_ok(exf_statistics_commit(&w, NULL, &e), e);
    exf_layer_statistics_free(&s);
}

static exf_tables solved(const char *const *names, size_t n, const exf_solve_options *base)
{
    exf_solve_options o = *base;
    exf_tables t;
    o.projectors = names;
    o.n_projectors = n;
    write_layers();
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    return t;
}

static void ck_close(double got, double want)
{
    ck_assert_msg(fabs(got - want) <= 1e-6 * fmax(1, fabs(want)), "%.9g, expected %.9g", got, want);
}

static double loss(double s, const cell *c)
{
    return fmax(0, c->source_sq - 2 * s * c->dot + s * s * c->target_sq) / c->source_sq;
}

START_TEST(shared_scalars_are_quotients_of_sums)
{
    static const char *const names[] = {"layer", "global", "pair"};
    exf_solve_options o = plain;
    o.rule = (exf_scalar_rule){2, 1, -0.01, 0.01}; /* the clip is the pair's alone */
    exf_tables t = solved(names, 3, &o);
    const double want[L] = {(6 + 5 - 2 - 3) / (8. + 10 + 4 + 2 + 2), (1 + 1 + 4 + 4) / (2. + 3 + 5 + 6 + 2)};
    const double global = (6 + 5 - 2 - 3 + 10) / (24. + 16 + 2);
    ck_assert_int_eq(t.n_shared, 2);
    ck_assert_str_eq(t.shared[0].name, "global");
    ck_assert_str_eq(t.shared[1].name, "layer");
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.projectors"), "pair,layer,global");
    for (int l = 0; l < L; l++) {
        ck_close((double)t.shared[0].scalar[l], global);
        ck_close((double)t.shared[1].scalar[l], want[l]);
        for (int i = 0; i < 4; i++) {
            const cell *c = &cells[l][i];
            int at = (l * E + c->s) * E + c->t;
            ck_close((double)t.shared[0].loss[at], loss(global, c));
            ck_close((double)t.shared[1].loss[at], loss(want[l], c));
            ck_close((double)t.coeff[at], c->dot < 0 ? -0.01 : 0.01);
        }
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < E; i++) ck_assert_float_eq(t.shared[k].loss[(l * E + i) * E + i], EXF_LOSS_NEVER);
            ck_assert_float_eq(t.shared[k].loss[l * E * E + 2], EXF_LOSS_NEVER);
        }
    }
    exf_tables_free(&t);
}
END_TEST

/* The pair's tables are there whether asked for or not; thin pairs are as if never seen. */
START_TEST(thin_pairs_are_unobserved)
{
    exf_solve_options o = plain;
    static const char *const names[] = {"layer"};
    o.min_pair_tokens = 3;
    exf_tables t = solved(names, 1, &o);
    int thin = 1, kept = 1 * E + 2;
    ck_assert_float_eq(t.coeff[thin], 0);
    ck_assert_float_eq(t.loss[thin], EXF_LOSS_NEVER);
    ck_assert_float_eq(t.cosine[thin], 0);
    ck_assert_float_eq(t.similarity[thin], 0);
    ck_assert_uint_eq(t.count[thin], 2);
    ck_assert_float_eq(t.coeff[kept], -0.5f);
    ck_close((double)t.shared[0].scalar[0], (-2 - 3) / (4. + 2));
    ck_assert_float_eq(t.shared[0].loss[thin], EXF_LOSS_NEVER);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.min_pair_tokens"), "3");
    exf_tables_free(&t);
}
END_TEST

START_TEST(measures_by_hand)
{
    exf_tables t = {.cosine = NULL};
    exf_layer_statistics s;
    static const int32_t number = 2;
    exf_run_shape shape = {E, 2, 8, 1, 8};
    ck_ok(exf_tables_new(&t, &shape, &number, 1, NULL, 0, &e), e);
    ck_ok(exf_measures_new(0, &t, &e), e);
    ck_ok(exf_tables_add_correlations(&t, &e), e);
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    fill(&s, cells[0]);
    ck_ok(exf_projector_find("pair")->layer(&s, &plain, 0, &t, &e), e);
    for (int i = 0; i < 4; i++) exf_exact_add(&s.cosine_sum[cells[0][i].s * E + cells[0][i].t], 0.25 * cells[0][i].count);
    ck_ok(exf_measures_solve(&s, &plain, 0, &t, &e), e);
    ck_ok(exf_correlations_solve(&s, 0, 1, &t, &e), e);
    for (int i = 0; i < 4; i++) ck_assert_float_eq(t.cosine[cells[0][i].s * E + cells[0][i].t], 0.25f);
    ck_ok(exf_correlations_solve(&s, 0, 0, &t, &e), e); /* of sums older than those of cosines */
    ck_close((double)t.cosine[0 * E + 1], 3 / sqrt(4 * 9));
    ck_close((double)t.cosine[1 * E + 0], 3 / sqrt(4 * 9));
    ck_close((double)t.cosine[2 * E + 1], -1 / sqrt(16 * 25));
    ck_assert_float_eq(t.cosine[0 * E + 2], 0);
    ck_assert_float_eq(t.cosine[1 * E + 1], 1);
    for (int s0 = 0; s0 < 2; s0++) { /* ||u||^2 4 and 9, <u,v> 3 */
        double c = (double)t.coeff[s0 * E + 1 - s0], mine = s0 ? 9 : 4;
        ck_close((double)t.frobenius[s0 * E + 1 - s0], sqrt((mine - 2 * c * 3 + c * c * (13 - mine)) / mine));
    }
    ck_assert_float_eq(t.frobenius[0 * E + 2], EXF_LOSS_NEVER);
    ck_assert_float_eq(t.frobenius[1 * E + 1], EXF_LOSS_NEVER);
    /* d^2: (4 + 9 - 6) / 2 = 3.5 and (16 + 25 + 2) / 6, the largest */
    ck_close((double)t.similarity[0 * E + 1], 1 - sqrt(3.5 / (43 / 6.0)));
    ck_close((double)t.similarity[1 * E + 2], 0);
    ck_assert_float_eq(t.similarity[2 * E + 0], 0);
    ck_assert_float_eq(t.similarity[2 * E + 2], 1);
    ck_close((double)t.rms[0], 2);
    ck_close((double)t.rms[1], 3);
    ck_close((double)t.rms[2], 2); /* cold: the lower median */
    ck_close((double)t.contribution[1], 1);
    ck_assert_float_eq(t.contribution[2], 0);
    exf_layer_statistics_free(&s);
    exf_tables_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, shared_scalars_are_quotients_of_sums);
    tcase_add_test(t, thin_pairs_are_unobserved);
    tcase_add_test(t, measures_by_hand);
}
