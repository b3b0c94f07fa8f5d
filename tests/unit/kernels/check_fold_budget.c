/* check_fold_budget.c - exfold/fold.h, a number of routes per token: rows solved by hand, exact
 * rows, and the formulas in doubles, a system of its own solved for every P. */
#include "kernels/fold/fold_cpu.h"
#include "tests/support/fold_abi_fixtures.h"

static fold_tables tables;
static fold_routes from, to;
static int32_t kept[FOLD_SLOTS];

/* ---- the formulas --------------------------------------------------------------------------- */

/* A row's routes by falling w rms: repeatedly the first of the largest. */
typedef struct {
    int n, id[FOLD_K];
    double w[FOLD_K];
} naive_row;

static naive_row naive_rank(const exf_fold_routes *in, int row, const exf_fold_tables *t)
{
    naive_row r = {0};
    int taken[FOLD_K] = {0};
    for (;;) {
        int best = -1;
        float most = 0;
        for (int k = 0; k < in->width; k++) {
            int64_t id = fold_id_at(in, row * in->width + k);
            if (taken[k] || id < 0 || id >= t->n_experts) continue;
            float key = fold_weight_at(in, row * in->width + k) * t->rms[id];
            if (best < 0 || key > most) {
                best = k;
                most = key;
            }
        }
        if (best < 0) return r;
        taken[best] = 1;
        r.id[r.n] = (int)fold_id_at(in, row * in->width + best);
        r.w[r.n++] = (double)fold_weight_at(in, row * in->width + best);
    }
}

/* x := (G_BB + rho mean(diag G) I)^-1 G_BO w_O for the first p routes. */
static void naive_join(double *x, const naive_row *r, int p, const exf_fold_tables *t, double rho)
{
    naive_square g;
    double mean = 0;
    naive_grams(g, r->id, r->n, t);
    rho = naive_raised(rho, g, r->n);
    for (int i = 0; i < r->n; i++) mean += g[i][i] / r->n;
    for (int i = 0; i < p; i++) {
        x[i] = 0;
        for (int j = p; j < r->n; j++) x[i] += g[i][j] * r->w[j];
        g[i][i] += rho * mean;
    }
    naive_solve(g, x, p);
}

/* w_O' G_OO w_O - w_O' G_OB (G_BB + ridge)^-1 G_BO w_O */
static double naive_residual(const naive_row *r, int p, const exf_fold_tables *t, double rho)
{
    double x[FOLD_K], sum = 0;
    naive_join(x, r, p, t, rho);
    for (int i = p; i < r->n; i++) {
        for (int j = p; j < r->n; j++) sum += r->w[i] * naive_gram(t, r->id[i], r->id[j]) * r->w[j];
        for (int j = 0; j < p; j++) sum -= r->w[i] * naive_gram(t, r->id[i], r->id[j]) * x[j];
    }
    return sum;
}

static double naive_share(const naive_row *r, int p, const exf_fold_tables *t)
{
    double part = 0, all = 0;
    for (int i = 0; i < r->n; i++) {
        all += r->w[i] * (double)t->rms[r->id[i]];
        part += i < p ? r->w[i] * (double)t->rms[r->id[i]] : 0;
    }
    return all > 0 ? part / all : 1;
}

/* ---- comparison ------------------------------------------------------------------------------- */

static double rho_of(float ridge)
{
    return (double)exf_fold_ridge(ridge);
}

/* P is the cheapest within rounding, or the first that has its share. */
static void ck_choice(const naive_row *r, int p, int least, int most, const exf_fold_tables *t, const exf_fold_budget_options *o)
{
    int low = least < r->n ? least : r->n, high = most < r->n ? most : r->n;
    double near = 1e-9 * (1 + naive_residual(r, 0, t, rho_of(o->ridge)));
    ck_assert_msg(p >= low && p <= high, "kept %d, bounds %d and %d", p, low, high);
    for (int q = low; q <= high; q++) {
        double mine = naive_residual(r, p, t, rho_of(o->ridge)) + (double)o->penalty * p,
               other = naive_residual(r, q, t, rho_of(o->ridge)) + (double)o->penalty * q;
        if (o->rule == EXF_FOLD_BUDGET_TOKEN)
            ck_assert_msg(mine <= other + near, "kept %d at %.9g, but %d is %.9g", p, mine, q, other);
        else if (q < p)
            ck_assert_msg(naive_share(r, q, t) < (double)o->share + 1e-9, "kept %d, but %d have the share", p, q);
    }
    if (o->rule == EXF_FOLD_BUDGET_TOP_P && p < high) ck_assert(naive_share(r, p, t) > (double)o->share - 1e-9);
}

static void ck_row(const exf_fold_routes *out, const exf_fold_routes *in, int row, const exf_fold_tables *t,
                   const exf_fold_budget_options *o)
{
    naive_row r = naive_rank(in, row, t);
    double x[FOLD_K] = {0}, scale = 0;
    int p = kept[row], least = o->least ? o->least : 1, most = o->most ? o->most : out->width;
    ck_choice(&r, p, least, most, t, o);
    if (p < r.n) naive_join(x, &r, p, t, rho_of(o->ridge));
    for (int i = 0; i < r.n; i++) scale += 2 * fabs(r.w[i]);
    for (int i = 0; i < p; i++) scale += fabs(x[i]);
    for (int i = 0; i < out->width; i++) {
        int slot = row * out->width + i;
        int64_t empty = o->repeat && p ? r.id[0] : -1;
        ck_assert_msg(fold_id_at(out, slot) == (i < p ? r.id[i] : empty), "row %d, route %d: expert %lld", row, i,
                      (long long)fold_id_at(out, slot));
        ck_weight(out, slot, i < p ? r.w[i] + x[i] : 0, i < p ? scale : 0, 1e-6);
    }
}

static exf_fold_budget_options options_of(int v, const fold_shape *s, uint64_t seed)
{
    exf_fold_budget_options o = {.rule = (exf_fold_budget_rule)(v % 2), .repeat = v / 2 % 2};
    double u = fold_uniform(seed, 7, 0);
    if (o.rule == EXF_FOLD_BUDGET_TOKEN)
        o.penalty = v % 6 == 0 ? 0 : (float)(0.2 * u * u * u);
    else
        o.share = v % 6 == 1 ? 1 : (float)(0.05 + 0.95 * u);
    o.ridge = v % 3 ? 0 : 0.1f;
    o.least = v % 5 == 4 ? 1 + fold_below(s->k, seed, 8, 0) : 0;
    o.most = v % 4 == 3 ? (o.least ? o.least : 1) + fold_below(s->k - (o.least ? o.least : 1) + 1, seed, 9, 0) : 0;
    return o;
}

/* _i runs through shapes, kinds of tables. */
START_TEST(random_rows_follow_the_formulas)
{
    const fold_shape *s = &fold_shapes[_i % N_FOLD_SHAPES];
    fold_tables_kind kind = (fold_tables_kind)(_i / N_FOLD_SHAPES);
    fold_fill_tables(&tables, s->e, 100 + (uint64_t)_i, kind);
    for (int v = 0; v < 30; v++) {
        uint64_t seed = (uint64_t)(_i * 1000 + v);
        exf_fold_routes in = fold_room(&from, s->rows, s->k, (exf_fold_int)(v / 2 % 2), (exf_fold_real)(v % 3));
        exf_fold_budget_options o = options_of(v, s, seed);
        int width = o.most ? o.most : o.least ? s->k : 1 + fold_below(s->k, seed, 10, 0);
        exf_fold_routes out = fold_room(&to, s->rows, width, in.id_type, in.weight_type);
        fold_fill_routes(&in, s->e, seed, (fold_routes_kind)(v / 3 % N_ROUTES));
        ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &o), EXF_FOLD_OK);
        for (int row = 0; row < s->rows; row++) ck_row(&out, &in, row, &tables.t, &o);
    }
}
END_TEST

/* Experts 2m and 2m + 1 have one output of norm 1, all others are orthogonal; rho 1. */
static void fill_twins(int e)
{
    fold_fill_tables(&tables, e, 1, TABLES_EXACT);
    for (int i = 0; i < e * e; i++) tables.cosine[i] = i / e / 2 == i % e / 2;
    for (int i = 0; i < e; i++) tables.rms[i] = 1;
}

/* What omitted route i adds beside routes 0..p-1 and the omitted ones before it. */
static double twin_part(const naive_row *r, int i, int p)
{
    double w = r->w[i];
    for (int j = 0; j < i; j++)
        if (r->id[j] / 2 == r->id[i] / 2) return j < p ? w * w / 2 : w * w + 2 * w * r->w[j];
    return w * w;
}

/* Every step of the elimination is exact here, and so must the residuals be. */
START_TEST(residuals_of_twins_are_exact)
{
    const fold_shape *s = &fold_shapes[_i];
    exf_fold_routes in = fold_room(&from, s->rows, s->k, EXF_FOLD_I32, EXF_FOLD_F32);
    fill_twins(s->e);
    fold_fill_routes(&in, s->e, 77, ROUTES_EXACT);
    for (int row = 0; row < s->rows; row++) {
        double residual[EXF_FOLD_MAX_K + 1], sum[EXF_FOLD_MAX_K + 1], all = 0;
        naive_row r = naive_rank(&in, row, &tables.t);
        ck_assert_int_eq(exf_fold_residuals(residual, &in, row, &tables.t, 1), r.n);
        ck_assert_int_eq(exf_fold_rms_sums(sum, &in, row, &tables.t), r.n);
        for (int p = 0; p <= r.n; p++) {
            double want = 0;
            for (int i = p; i < r.n; i++) want += twin_part(&r, i, p);
            ck_assert_msg(residual[p] == want, "row %d, P %d: %.17g, expected %.17g", row, p, residual[p], want);
            ck_assert(sum[p] == all);
            all += p < r.n ? r.w[p] : 0;
        }
    }
}
END_TEST

START_TEST(ties_go_to_the_smaller_number)
{
    static const double flat[] = {9, 4, 3, 2, 1, 0}, equal[] = {0, 0, 0, 0, 0, 0}, sum[] = {0, 1, 2, 2, 3, 4};
    ck_assert_int_eq(exf_fold_choose_by_residual(flat, 5, 1, 1, 5), 1);
    ck_assert_int_eq(exf_fold_choose_by_residual(flat, 5, 1, 3, 5), 3);
    ck_assert_int_eq(exf_fold_choose_by_residual(flat, 5, 0.5f, 1, 4), 4);
    ck_assert_int_eq(exf_fold_choose_by_residual(flat, 5, 0.5f, 1, 5), 5);
    ck_assert_int_eq(exf_fold_choose_by_residual(equal, 5, 0, 1, 5), 1);
    ck_assert_int_eq(exf_fold_choose_by_residual(equal, 0, 0, 1, 5), 0);
    ck_assert_int_eq(exf_fold_choose_by_residual(equal, 2, 0, 3, 5), 2);
    ck_assert_int_eq(exf_fold_choose_by_share(sum, 5, 0.5f, 1, 5), 2);
    ck_assert_int_eq(exf_fold_choose_by_share(sum, 5, 0.51f, 1, 5), 4);
    ck_assert_int_eq(exf_fold_choose_by_share(sum, 5, 1, 1, 3), 3);
    ck_assert_int_eq(exf_fold_choose_by_share(equal, 5, 1, 1, 5), 1);
}
END_TEST

START_TEST(tables_without_outputs_keep_the_least)
{
    int32_t ids[] = {5, 1, -1, 3}, out_ids[4];
    float w[] = {.25f, .5f, .125f, .125f}, out_w[4];
    exf_fold_routes in = {.ids = ids, .weights = w, .rows = 1, .width = 4},
                    out = {.ids = out_ids, .weights = out_w, .rows = 1, .width = 4};
    exf_fold_budget_options o = {.penalty = .5f, .least = 2};
    fold_fill_tables(&tables, 8, 1, TABLES_REAL);
    for (int i = 0; i < 8; i++) tables.rms[i] = 0;
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, NULL, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(out_ids[0] == 5 && out_ids[1] == 1 && out_ids[2] == -1 && out_ids[3] == -1);
    ck_assert(out_w[0] == .25f && out_w[1] == .5f && out_w[2] == 0 && out_w[3] == 0);
    o.repeat = 1;
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(kept[0] == 2 && out_ids[2] == 5 && out_ids[3] == 5 && out_w[3] == 0);
    for (int i = 0; i < 4; i++) ids[i] = i % 2 ? -1 : 8;
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &o), EXF_FOLD_OK);
    ck_assert_int_eq(kept[0], 0);
    for (int i = 0; i < 4; i++) ck_assert(out_ids[i] == -1 && out_w[i] == 0);
}
END_TEST

/* Weights that lack a power of two, which the options name, keep as many routes as those that have it, and the same weights
 * but for it; a rule by share keeps what it kept. */
START_TEST(a_factor_stands_for_weights_that_have_it)
{
    static const float factors[] = {0.25f, 2, 16};
    static int32_t alone[FOLD_SLOTS], ids[FOLD_SLOTS];
    static float weights[FOLD_SLOTS];
    const fold_shape *s = &fold_shapes[_i];
    float factor = factors[_i % 3];
    exf_fold_routes in = fold_room(&from, s->rows, s->k, EXF_FOLD_I32, EXF_FOLD_F32), out;
    int changed = 0;
    fold_fill_tables(&tables, s->e, 9, TABLES_REAL);
    for (int rule = 0; rule < 2; rule++) {
        exf_fold_budget_options o = EXF_FOLD_BUDGET_INIT;
        o.rule = (exf_fold_budget_rule)rule;
        o.penalty = 0.3f;
        o.share = 0.7f;
        fold_fill_routes(&in, s->e, 5, ROUTES_PLAIN);
        out = fold_room(&to, s->rows, s->k, EXF_FOLD_I32, EXF_FOLD_F32);
        ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, alone, &tables.t, &o), EXF_FOLD_OK);
        o.factor = factor;
        ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &o), EXF_FOLD_OK);
        changed += memcmp(alone, kept, (size_t)s->rows * sizeof *kept) != 0;
        ck_assert(rule == 0 || changed < 2);
        memcpy(ids, out.ids, (size_t)(s->rows * s->k) * sizeof *ids);
        memcpy(weights, out.weights, fold_weight_bytes(&out));
        memcpy(alone, kept, (size_t)s->rows * sizeof *kept);
        for (int i = 0; i < s->rows * s->k; i++) ((float *)in.weights)[i] *= factor;
        o.factor = rule ? 1 : 0; /* both say that there is none */
        ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &o), EXF_FOLD_OK);
        ck_assert_mem_eq(alone, kept, (size_t)s->rows * sizeof *kept);
        ck_assert_mem_eq(ids, out.ids, (size_t)(s->rows * s->k) * sizeof *ids);
        for (int i = 0; i < s->rows * s->k; i++) ck_assert(weights[i] * factor == ((float *)out.weights)[i]);
    }
    ck_assert_msg(s->k < 4 || factor < 16 || changed, "the factor changes no row's number of routes");
}
END_TEST

START_TEST(contradictions_are_refused)
{
    static const exf_fold_budget_options bad[] = {
        {.penalty = -1},
        {.penalty = NAN},
        {.rule = EXF_FOLD_BUDGET_TOP_P},
        {.rule = EXF_FOLD_BUDGET_TOP_P, .share = 1.5f},
        {.rule = (exf_fold_budget_rule)2, .share = 1},
        {.least = 3, .most = 2},
        {.least = -1},
        {.most = 4},
        {.repeat = 2},
        {.ridge = -2},
    };
    exf_fold_routes in = fold_room(&from, 4, 4, EXF_FOLD_I32, EXF_FOLD_F32), out = fold_room(&to, 4, 3, EXF_FOLD_I32, EXF_FOLD_F32);
    exf_fold_budget_options o = {.penalty = 1};
    fold_fill_tables(&tables, 8, 1, TABLES_REAL);
    fold_fill_routes(&in, 8, 1, ROUTES_PLAIN);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &bad[i]) == EXF_FOLD_BAD_ARGUMENT, "options %zu", i);
    static const float factors[] = {-1, NAN, INFINITY, 1e-20f}; /* the last: a penalty beyond EXF_FOLD_NEVER */
    for (size_t i = 0; i < COUNT(factors); i++) {
        exf_fold_budget_options f = EXF_FOLD_BUDGET_INIT;
        f.penalty = 1;
        f.factor = factors[i];
        ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &f), EXF_FOLD_BAD_ARGUMENT);
    }
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &in, kept, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, out.ids, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, in.weights, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    exf_fold_routes wide = fold_room(&to, 4, 5, EXF_FOLD_I32, EXF_FOLD_F32);
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &wide, kept, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    tables.t.rms = NULL;
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    o.reserved[5] = 1;
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&in, &out, kept, &tables.t, &o), EXF_FOLD_UNSUPPORTED);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "budget");
    tcase_add_loop_test(t, random_rows_follow_the_formulas, 0, N_FOLD_SHAPES * N_TABLES);
    tcase_add_loop_test(t, residuals_of_twins_are_exact, 0, N_FOLD_SHAPES);
    tcase_add_test(t, ties_go_to_the_smaller_number);
    tcase_add_loop_test(t, a_factor_stands_for_weights_that_have_it, 0, N_FOLD_SHAPES);
    tcase_add_test(t, tables_without_outputs_keep_the_least);
    tcase_add_test(t, contradictions_are_refused);
}
