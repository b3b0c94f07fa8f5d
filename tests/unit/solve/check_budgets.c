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
    ck_ok(exf_tables_add_correlations(t, &e), e);
    ck_ok(exf_provenance_add(&t->provenance, &e, EXF_CORRELATIONS_FACT, EXF_CORRELATIONS_VALID), e);
    ck_ok(exf_mem_new(&t->rms, L * E, sizeof *t->rms, "t", &e), e);
    ck_ok(exf_mem_new(&t->contribution, L * E, sizeof *t->contribution, "t", &e), e);
    for (int i = 0; i < L * E; i++) {
        t->expert_norms[i] = 1 + (float)(i % E);
        t->contribution[i] = 1 + (float)(3 * i % E);
        t->rms[i] = t->relative_norms[i] = 1 + 0.3f * (float)(i % 5);
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
    *s->stream_count = *s->stream_inverse_count = 100;
    exf_exact_add(s->stream_sq, 400.0 * (layer + 1));
    exf_exact_add(s->stream_inverse_sq, 25.0 / (layer + 1));
}

static int zero_layer = -1; /* whose outputs are 0 */

static exf_code solve(exf_tables *t, const exf_solve_options *o, int n, int has_stream, exf_err *err)
{
    exf_budget_inputs b;
    exf_code rc = exf_budget_inputs_new(&b, o, t, err);
    for (int l = 0; rc == EXF_OK && l < L; l++) {
        exf_layer_statistics s;
        new_layer(&s, l, n);
        if (!has_stream) *s.stream_count = *s.stream_inverse_count = 0;
        if (l == zero_layer) memset(s.sq_sum, 0, E * sizeof *s.sq_sum);
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
    ck_assert(t.budget[0].scale[0] == 1 / 4.0 && t.budget[0].scale[1] == 1 / 8.0);
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
    ck_ok(solve(&t, &o, 1, 1, &e), e); /* a sample of one token does not reach it, and does not take the tables with it */
    ck_assert_int_eq(t.n_budgets, 0);
    exf_tables_free(&t);
}
END_TEST

/* Where the sample is all of the text there is no larger one: what it reaches is solved, the others are not. */
/* Its sensitivities may be anything; the budgets are those of the other layers. */
START_TEST(a_layer_whose_outputs_are_0_is_left_out)
{
    static const double unmeasured[L] = {0.2, 0};
    exf_solve_options o = options;
    exf_tables t;
    o.measured_kl = o.skipped_kl = unmeasured;
    o.rules[3] = "skip";
    zero_layer = 1;
    new_tables(&t);
    for (int i = 0; i < E; i++) t.rms[E + i] = 0;
    ck_ok(solve(&t, &o, TOKENS, 1, &e), e);
    zero_layer = -1;
    ck_assert_int_eq(t.n_budgets, 8);
    ck_ok(exf_budgets_check(&t, "t.h5", &e), e);
    for (int i = 0; i < t.n_budgets; i++) {
        const exf_budget *b = &t.budget[i];
        size_t columns = (size_t)(K + 1 - exf_budget_least(b));
        uint64_t kept[2] = {0};
        for (size_t p = 0; p < L * columns; p++) kept[p / columns] += b->kept[p];
        ck_assert(kept[0] == TOKENS && kept[1] == 0);
        ck_assert(fabs(b->mean - b->budget) <= 0.01 * b->budget);
        ck_assert(b->scale[0] > 0 && b->lambda / b->scale[1] > 1e200); /* the price of a second route there */
    }
    exf_tables_free(&t);
    new_tables(&t);
    /* a layer with outputs has a sensitivity */
    ck_fails(solve(&t, &o, TOKENS, 1, &e), EXF_MODEL, e, "layer 3 has no sensitivity by \"measured\"");
    exf_tables_free(&t);
}
END_TEST

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

/* ---- norms that a head predicts ------------------------------------------------------------------ */

enum { Q = 2, FEATURES = Q + 4, HEAD = Q + 1 + K };

/* A head whose theta is log rms and, beside it, `size` times numbers of one place. */
static void add_head(exf_tables *t, double size)
{
    ck_ok(exf_norm_head_new(t, Q, &e), e);
    for (int i = 0; i < L * (int)shape.d_model * Q; i++) t->norm_head.basis[i] = i % 3 ? 0 : 1;
    for (int i = 0; i < L * E; i++)
        for (int k = 0; k < FEATURES; k++)
            t->norm_head.theta[i * FEATURES + k] = k ? (float)(size * sin(3 * i + k)) : (float)log((double)t->rms[i]);
}

/* What the head reads of token i: number k. */
static double head_number(int layer, int i, int k)
{
    return rint(4096 * cos(0.7 * i + 1.3 * k + layer)) / 4096;
}

static exf_code solve_predicted(exf_tables *t, const exf_solve_options *o, int q, exf_err *err)
{
    exf_budget_inputs b;
    exf_code rc = exf_budget_inputs_new(&b, o, t, err);
    for (int l = 0; rc == EXF_OK && l < L; l++) {
        exf_layer_statistics s;
        new_layer(&s, l, TOKENS);
        ck_ok(exf_route_sample_add_head(&s.routes, q, &e), e);
        for (int i = 0; i < TOKENS * (q + 1 + K); i++) s.routes.head[i] = (float)head_number(l, i / HEAD, i % HEAD);
        rc = exf_budget_inputs_take(&b, &s, l, t, err);
        exf_layer_statistics_free(&s);
    }
    if (rc == EXF_OK) rc = exf_budgets_solve(&b, o, t, err);
    exf_budget_inputs_free(&b);
    return rc;
}

/* One token's routes by falling w n, and their Gram matrix; docs/method.md, sections 9 and 13. */
typedef struct {
    double w[K], n[K], gram[K][K];
} plain_token;

static plain_token plain_of(const exf_tables *t, const exf_route_sample *r, int l, int i)
{
    plain_token p;
    int id[K];
    for (int a = 0; a < K; a++) {
        const float *theta = t->norm_head.theta + (l * E + r->ids[i * K + a]) * FEATURES;
        double w = (double)r->weights[i * K + a], sum = (double)theta[0], n;
        for (int k = 0; k < Q; k++) sum += (double)theta[1 + k] * head_number(l, i, k);
        sum += (double)theta[Q + 1] * head_number(l, i, Q + 1 + a) + (double)theta[Q + 2] * log(w) +
               (double)theta[Q + 3] * head_number(l, i, Q);
        n = exp(sum);
        int at = a;
        for (; at > 0 && p.w[at - 1] * p.n[at - 1] < w * n; at--) p.w[at] = p.w[at - 1], p.n[at] = p.n[at - 1], id[at] = id[at - 1];
        p.w[at] = w, p.n[at] = n, id[at] = r->ids[i * K + a];
    }
    for (int a = 0; a < K; a++)
        for (int b = 0; b < K; b++) p.gram[a][b] = (double)t->cosine[(l * E + id[a]) * E + id[b]] * p.n[a] * p.n[b];
    return p;
}

/* Returns w_O' (M_OO - M_OB M_BB^-1 M_BO) w_O - ridge w_O' w_O, M = G + ridge I and ridge = 1e-2 mean(diag G), for the first `kept`
 * routes, by elimination. */
static double plain_residual(const plain_token *p, int kept)
{
    double a[K][K + 1] = {{0}}, all = 0, x[K], ridge = 0;
    for (int i = 0; i < K; i++) ridge += 1e-2 * p->gram[i][i] / K;
    for (int i = kept; i < K; i++)
        for (int j = kept; j < K; j++) all += p->w[i] * p->gram[i][j] * p->w[j];
    for (int i = 0; i < kept; i++) {
        for (int j = 0; j < kept; j++) a[i][j] = p->gram[i][j] + (i == j ? ridge : 0);
        for (int j = kept; j < K; j++) a[i][K] += p->gram[i][j] * p->w[j];
        x[i] = a[i][K];
    }
    for (int i = 0; i < kept; i++)
        for (int j = i + 1; j < kept; j++) {
            double f = a[j][i] / a[i][i];
            for (int k = i; k <= K; k++) a[j][k] -= f * a[i][k];
        }
    for (int i = kept - 1; i >= 0; i--) {
        for (int j = i + 1; j < kept; j++) a[i][K] -= a[i][j] * a[j][K];
        a[i][K] /= a[i][i];
        all -= x[i] * a[i][K];
    }
    return all;
}

/* Returns how many of a token's routes a price keeps, with every choice tried. */
static int plain_kept(const exf_budget *b, const plain_token *p, int l)
{
    double all = 0, sum = 0, best = HUGE_VAL;
    int kept = K;
    for (int a = 0; a < K; a++) all += p->w[a] * p->n[a];
    for (int n = 1; n <= K; n++) {
        sum += p->w[n - 1] * p->n[n - 1];
        if (strcmp(b->rule, "top_p") == 0) {
            if (sum >= b->predicted.lambda * all) return n;
            continue;
        }
        double cost = plain_residual(p, n) + b->predicted.lambda / b->scale[l] * n;
        if (cost < best) best = cost, kept = n;
    }
    return kept;
}

START_TEST(prices_by_predicted_norms_keep_their_mean)
{
    exf_tables t, back;
    int listed = 0;
    new_tables(&t);
    solve_all_pools(&t);
    add_head(&t, 0.4);
    ck_ok(solve_predicted(&t, &options, Q, &e), e);
    ck_assert_int_eq(t.n_budgets, 8);
    for (int i = 0; i < 8; i++) {
        const exf_budget *b = &t.budget[i];
        uint64_t sum = 0, differ = 0;
        ck_assert_msg(fabs(b->predicted.mean - b->budget) <= 0.01 * b->budget, "%s: %g", b->rule, b->predicted.mean);
        ck_assert(b->predicted.lambda != b->lambda);
        ck_assert(exf_budget_threshold_of(b, 1).lambda == b->predicted.lambda && exf_budget_threshold_of(b, 0).lambda == b->lambda);
        for (int l = 0; l < L; l++) {
            exf_layer_statistics s;
            uint64_t kept[K] = {0};
            new_layer(&s, l, TOKENS);
            for (int k = 0; k < TOKENS; k++) {
                plain_token p = plain_of(&t, &s.routes, l, k);
                int n = plain_kept(b, &p, l);
                kept[n - 1]++;
                sum += (uint64_t)n;
            }
            for (int k = 0; k < K; k++) differ += (uint64_t)llabs((long long)(kept[k] - b->predicted.kept[l * K + k]));
            exf_layer_statistics_free(&s);
        }
        ck_assert_msg(differ <= 4, "%s: %d tokens in other places", b->rule, (int)differ);
        ck_assert_msg(fabs((double)sum / (L * TOKENS) - b->predicted.mean) <= 1e-3, "%s: mean %g, plainly %g", b->rule,
                      b->predicted.mean, (double)sum / (L * TOKENS));
    }
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    for (int i = 0; i < 8; i++) {
        const exf_budget_threshold *a = &t.budget[i].predicted, *b = &back.budget[i].predicted;
        ck_assert(a->lambda == b->lambda && a->mean == b->mean);
        ck_assert_mem_eq(a->kept, b->kept, L * K * sizeof *a->kept);
    }
    exf_tables_free(&back);
    exf_table_list list;
    ck_ok(exf_table_list_make(&list, &t, 0, &e), e);
    for (size_t i = 0; i < list.n; i++) listed += strstr(list.name[i], ".predicted.") != NULL;
    ck_assert_int_eq(listed, 8 * 3);
    exf_table_list_free(&list);
    t.budget[0].predicted.mean += 0.25;
    ck_fails(exf_tables_check(&t, "t", &e), EXF_FORMAT, e, "/budgets/3/stream/predicted/mean");
    t.budget[0].predicted.mean -= 0.25;
    t.budget[0].predicted.lambda = -1;
    ck_fails(exf_tables_check(&t, "t", &e), EXF_FORMAT, e, "/budgets/3/stream/predicted/lambda is -1");
    exf_tables_free(&t);
}
END_TEST

/* A head of mean norms keeps what mean norms keep. */
START_TEST(a_head_of_mean_norms_has_their_prices)
{
    exf_tables t;
    new_tables(&t);
    add_head(&t, 0);
    ck_ok(solve_predicted(&t, &options, Q, &e), e);
    for (int i = 0; i < t.n_budgets; i++) {
        const exf_budget *b = &t.budget[i];
        ck_assert_msg(fabs(b->predicted.lambda - b->lambda) <= 1e-4 * b->lambda && fabs(b->predicted.mean - b->mean) <= 2e-3,
                      "%s: %g keeps %g, predicted %g keeps %g", b->rule, b->lambda, b->mean, b->predicted.lambda,
                      b->predicted.mean);
    }
    exf_tables_free(&t);
    new_tables(&t);
    ck_ok(solve_predicted(&t, &options, Q, &e), e); /* tables without a head */
    for (int i = 0; i < t.n_budgets; i++)
        ck_assert(!t.budget[i].predicted.kept && exf_budget_threshold_of(&t.budget[i], 1).mean == 0);
    exf_tables_free(&t);
    new_tables(&t);
    add_head(&t, 0);
    ck_ok(solve(&t, &options, TOKENS, 1, &e), e); /* a sample without what it reads */
    for (int i = 0; i < t.n_budgets; i++) ck_assert(!t.budget[i].predicted.kept);
    exf_tables_free(&t);
    new_tables(&t);
    add_head(&t, 0);
    ck_fails(solve_predicted(&t, &options, Q + 1, &e), EXF_MODEL, e,
             "tokens of the route sample have 3 directions, the norm head has 2");
    t.norm_head.theta[0] = 1e30f;
    ck_fails(solve_predicted(&t, &options, Q, &e), EXF_NUMERIC, e, "the norm head predicts inf for expert 0");
    exf_tables_free(&t);
}
END_TEST

/* One token of a thousand outweighs all others in layer 1, as in released models.  By the mean of squared norms the layer would
 * count a thousand times less than it does to the others. */
START_TEST(a_massive_token_does_not_hide_a_layer)
{
    const exf_solve_options o = {.budgets = {2}, .n_budgets = 1, .rules = {"stream"}, .n_rules = 1};
    exf_tables t;
    exf_budget_inputs b;
    new_tables(&t);
    ck_ok(exf_budget_inputs_new(&b, &o, &t, &e), e);
    for (int l = 0; l < L; l++) {
        exf_layer_statistics s;
        new_layer(&s, 0, TOKENS);
        *s.stream_sq = *s.stream_inverse_sq = (exf_exact){{0, 0, 0}};
        *s.stream_count = *s.stream_inverse_count = 1000;
        for (int i = 0; i < 1000; i++) {
            double energy = l == 1 && i == 0 ? 3e6 : 3;
            exf_exact_add(s.stream_sq, energy);
            exf_exact_add(s.stream_inverse_sq, 1 / energy);
        }
        ck_ok(exf_budget_inputs_take(&b, &s, l, &t, &e), e);
        exf_layer_statistics_free(&s);
    }
    ck_ok(exf_budgets_solve(&b, &o, &t, &e), e);
    const exf_budget *found = &t.budget[0];
    ck_assert_msg(found->scale[1] > 0.99 * found->scale[0], "layer 1 counts %g, layer 0 %g", found->scale[1], found->scale[0]);
    exf_budget_inputs_free(&b);
    exf_tables_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, every_rule_reaches_its_budget);
    tcase_add_test(t, what_is_missing_is_named);
    tcase_add_test(t, a_massive_token_does_not_hide_a_layer);
    tcase_add_test(t, budgets_that_all_of_the_text_does_not_reach_are_left_out);
    tcase_add_test(t, a_layer_whose_outputs_are_0_is_left_out);
    tcase_add_test(t, pools_have_the_experts_of_most);
    tcase_add_test(t, tables_come_back);
    tcase_add_test(t, prices_by_predicted_norms_keep_their_mean);
    tcase_add_test(t, a_head_of_mean_norms_has_their_prices);
}
