/* check_budgets.c - budgets per token and pools by a criterion: solved, stored, read back. */
#include "tests/support/artifact_fixtures.h"

#include "kernels/fold/fold_cpu.h"
#include "solve/solve_internal.h"

#include <math.h>

enum { E = 8, K = 4, L = 2, TOKENS = 2100 };

static const exf_run_shape shape = {E, K, 16, 4, TOKENS};
static const int32_t numbers[L] = {1, 3};
static const int64_t sizes[] = {4, 4, 4, 2};
static const char *const by[] = {"norm", "reap", "energy", "energy"};
static exf_err e; /* of the last call */

/* Tables whose experts resemble their neighbours. */
static void new_tables(exf_tables *t)
{
    ck_ok(exf_tables_new(t, &shape, numbers, L, sizes, 4, &e), e);
    for (int i = 0; i < 4; i++) snprintf(t->pool[i].by, sizeof t->pool[i].by, "%s", by[i]);
    ck_ok(exf_mem_new(&t->cosine, L * E * E, sizeof *t->cosine, "t", &e), e);
    ck_ok(exf_mem_new(&t->rms, L * E, sizeof *t->rms, "t", &e), e);
    ck_ok(exf_mem_new(&t->contribution, L * E, sizeof *t->contribution, "t", &e), e);
    for (int i = 0; i < L * E; i++) {
        t->expert_norms[i] = 1 + (float)(i % E);
        t->contribution[i] = 1 + (float)(3 * i % E);
        t->rms[i] = 1 + 0.3f * (float)(i % 5);
        t->expert_count[i] = TOKENS * K / E;
        for (int k = 0; k < E; k++) {
            int same = i % E == k, apart = abs(i % E - k);
            t->cosine[i * E + k] = same ? 1 : apart == 1 ? 0.6f : 0.1f;
            t->coeff[i * E + k] = same ? 1 : 0.5f;
            t->loss[i * E + k] = same ? EXF_LOSS_NEVER : 0.25f + 0.05f * (float)apart;
            t->count[i * E + k] = same ? 0 : TOKENS * K / E * (K - 1) / (E - 1);
        }
    }
}

/* A layer's statistics with a sample of n tokens; a single one needs but its first expert. */
static void new_layer(exf_layer_statistics *s, int layer, int n)
{
    ck_ok(exf_layer_statistics_new(s, E, &e), e);
    ck_ok(exf_route_sample_new(&s->routes, (size_t)n, K, &e), e);
    s->routes.n = (size_t)n;
    for (int i = 0; i < n; i++) {
        s->routes.key[i] = (uint64_t)i;
        for (int a = 0; a < K; a++) {
            s->routes.ids[i * K + a] = (i + a * (1 + i % 2)) % E;
            s->routes.weights[i * K + a] = n == 1 && a ? 0 : (float)(1 + (i * 7 + a * 13 + layer) % 29) / 29;
        }
    }
    for (int i = 0; i < E; i++) {
        s->norm_count[i] = 10;
        exf_exact_add(&s->sq_sum[i], 20.0 * (layer + 1));
        exf_exact_add(&s->energy_sum[i], (5 * i) % E);
    }
    *s->stream_count = 100;
    exf_exact_add(s->stream_sq, 300.0 * (layer + 1));
}

static exf_code solve(exf_tables *t, const exf_solve_options *o, int n, int has_stream, exf_err *err)
{
    exf_budget_inputs b;
    exf_code rc = exf_budget_inputs_new(&b, o, t, err);
    for (int l = 0; rc == EXF_OK && l < L; l++) {
        exf_layer_statistics s;
        new_layer(&s, l, n);
        if (!has_stream) *s.stream_count = 0;
        rc = exf_budget_inputs_take(&b, &s, l, t, err);
        exf_layer_statistics_free(&s);
    }
    if (rc == EXF_OK) rc = exf_budgets_solve(&b, o, t, err);
    exf_budget_inputs_free(&b);
    return rc;
}

static const double measured[L] = {0.2, 0.5};
static const exf_solve_options options = {.budgets = {2, 3}, .n_budgets = 2, .rules = {"stream", "output", "measured", "top_p"},
                                          .n_rules = 4, .measured_kl = measured};

/* The mean that the stored numbers keep, as the fold takes them. */
static double kept_by(const exf_tables *t, const exf_budget *b)
{
    double sum = 0;
    int n = 0;
    for (int l = 0; l < L; l++) {
        exf_layer_statistics s;
        exf_fold_tables f = {.cosine = t->cosine + l * E * E, .rms = t->rms + l * E, .n_experts = E};
        new_layer(&s, l, TOKENS);
        exf_fold_routes in = {.ids = s.routes.ids, .weights = s.routes.weights, .rows = TOKENS, .width = K};
        for (int i = 0; i < TOKENS; i++, n++) {
            double of[EXF_FOLD_MAX_K + 1];
            if (strcmp(b->rule, "top_p") == 0) {
                exf_fold_rms_sums(of, &in, i, &f);
                sum += exf_fold_choose_by_share(of, K, (float)b->lambda, 1, K);
            } else {
                exf_fold_residuals(of, &in, i, &f, 0);
                sum += exf_fold_choose_by_residual(of, K, (float)(b->lambda / b->scale[l]), 1, K);
            }
        }
        exf_layer_statistics_free(&s);
    }
    return sum / n;
}

START_TEST(every_rule_reaches_its_budget)
{
    exf_tables t;
    new_tables(&t);
    ck_ok(solve(&t, &options, TOKENS, 1, &e), e);
    ck_assert_int_eq(t.n_budgets, 8);
    for (int i = 0; i < 8; i++) {
        const exf_budget *b = &t.budget[i];
        ck_assert_str_eq(b->rule, options.rules[i % 4]); /* by falling budget, then in that order */
        ck_assert(b->budget == (i < 4 ? 3 : 2));
        ck_assert_msg(fabs(b->mean - b->budget) <= 0.01 * b->budget, "%s: %g of %g", b->rule, b->mean, b->budget);
        ck_assert_msg(fabs(kept_by(&t, b) - b->mean) < 1e-12, "%s: the mean is not what lambda keeps", b->rule);
        uint64_t n = 0;
        for (int k = 0; k < L * K; k++) n += b->kept[k];
        ck_assert_uint_eq(n, L * TOKENS);
    }
    ck_assert(t.budget[0].scale[0] == 100 / 300.0 && t.budget[0].scale[1] == 100 / 600.0);
    ck_assert(t.budget[1].scale[0] == 1 / 2.0 && t.budget[1].scale[1] == 1 / 4.0);
    ck_assert(t.budget[3].scale[0] == 1 && t.budget[3].lambda > 0 && t.budget[3].lambda < 1);
    ck_assert(t.budget[0].lambda < t.budget[4].lambda); /* fewer experts cost more */
    exf_tables_free(&t);
}
END_TEST

START_TEST(what_is_missing_is_named)
{
    exf_solve_options o = {.budgets = {2}, .n_budgets = 1, .rules = {"stream"}, .n_rules = 1};
    exf_tables t;
    new_tables(&t);
    ck_fails(solve(&t, &o, TOKENS, 0, &e), EXF_MODEL, e, "1 \"stream\"");
    exf_tables_free(&t);
    new_tables(&t);
    o.rules[0] = "measured";
    ck_fails(solve(&t, &o, TOKENS, 1, &e), EXF_MODEL, e, "--sensitivities");
    exf_tables_free(&t);
    new_tables(&t);
    o.rules[0] = "output";
    ck_fails(solve(&t, &o, 0, 1, &e), EXF_MODEL, e, "1");
    exf_tables_free(&t);
    new_tables(&t);
    o.budgets[0] = K + 1;
    ck_fails(solve(&t, &o, TOKENS, 1, &e), EXF_USAGE, e, "5 4");
    exf_tables_free(&t);
    new_tables(&t);
    o.budgets[0] = 3;
    ck_fails(solve(&t, &o, 1, 1, &e), EXF_NUMERIC, e, "calibrate.route_sample");
    exf_tables_free(&t);
}
END_TEST

/* Where the sample is all of the text there is no larger one: what it reaches is solved, the others are not. */
START_TEST(budgets_that_all_of_the_text_does_not_reach_are_left_out)
{
    exf_solve_options o = {.budgets = {3, 1}, .n_budgets = 2, .rules = {"output"}, .n_rules = 1};
    exf_tables t;
    new_tables(&t);
    t.shape.n_tokens = 1;
    ck_ok(solve(&t, &o, 1, 1, &e), e);
    ck_assert_int_eq(t.n_budgets, 1);
    ck_assert(t.budget[0].budget == 1 && t.budget[0].mean == 1);
    exf_tables_free(&t);
}
END_TEST

static void solve_all_pools(exf_tables *t)
{
    for (int l = 0; l < L; l++) {
        exf_layer_statistics s;
        new_layer(&s, l, 1);
        exf_solve_pools(l, s.energy_sum, t);
        exf_layer_statistics_free(&s);
    }
}

START_TEST(pools_have_the_experts_of_most)
{
    static const int32_t expected[4][4] = {{7, 6, 5, 4}, {5, 2, 7, 4}, {3, 6, 1, 4}, {3, 6}};
    exf_tables t;
    new_tables(&t);
    solve_all_pools(&t);
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < L; l++)
            for (int k = 0; k < t.pool[i].size; k++)
                ck_assert_msg(t.pool[i].members[l * t.pool[i].size + k] == expected[i][k], "pool %d by %s: member %d is %d", i,
                              t.pool[i].by, k, t.pool[i].members[l * t.pool[i].size + k]);
    exf_tables_free(&t);
}
END_TEST

START_TEST(tables_come_back)
{
    exf_tables t, back;
    new_tables(&t);
    solve_all_pools(&t);
    ck_ok(solve(&t, &options, TOKENS, 1, &e), e);
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    ck_assert_int_eq(back.n_budgets, 8);
    for (int i = 0; i < 8; i++) {
        const exf_budget *a = &t.budget[i], *b = &back.budget[i];
        ck_assert(a->budget == b->budget && a->lambda == b->lambda && a->mean == b->mean && strcmp(a->rule, b->rule) == 0);
        ck_assert_mem_eq(a->scale, b->scale, L * sizeof *a->scale);
        ck_assert_mem_eq(a->kept, b->kept, L * K * sizeof *a->kept);
    }
    ck_assert_int_eq(back.n_pools, 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(back.pool[i].size, sizes[i]);
        ck_assert_str_eq(back.pool[i].by, by[i]);
        ck_assert_mem_eq(back.pool[i].members, t.pool[i].members, L * (size_t)sizes[i] * sizeof(int32_t));
    }
    exf_tables_free(&back);
    t.budget[2].scale[1] = 0;
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e, "/budgets/3/measured/scale 0");
    t.budget[2].scale[1] = 1;
    ck_assert_uint_gt(t.budget[7].kept[0], 0);
    t.budget[7].kept[0]--;
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e, "/budgets/2/top_p/mean");
    t.budget[7].kept[0] += 2;
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e,
             "1 /budgets/2/top_p/kept 2101 n_tokens 2100");
    exf_tables_free(&t);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("budgets");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, every_rule_reaches_its_budget);
    tcase_add_test(t, what_is_missing_is_named);
    tcase_add_test(t, budgets_that_all_of_the_text_does_not_reach_are_left_out);
    tcase_add_test(t, pools_have_the_experts_of_most);
    tcase_add_test(t, tables_come_back);
    suite_add_tcase(s, t);
    return s;
}
