/* fold_prefill_cpu.c - routes of prefill: by pairs, jointly, and by a budget for each token; see exfold/fold.h. */
#include "kernels/fold/fold_cpu.h"

/* ---- by pairs ---------------------------------------------------------------------------------- */

/* Adds the omitted routes to the kept ones' weights. */
static void fold_row(float *w, const exf_fold_ranked *r, const exf_fold_tables *t, const exf_fold_prefill_options *o)
{
    int kept = r->n < o->keep ? r->n : o->keep;
    float spread = 0, sum = 0;
    if (kept == r->n) return;
    for (int j = kept; j < r->n; j++) {
        size_t row = (size_t)r->id[j] * (size_t)t->n_experts;
        int to = exf_fold_target(r, kept, t->loss + row, o->max_loss);
        float c = to < 0 ? 0.0f : o->confidence ? exf_fold_confidence(t->loss[row + (size_t)r->id[to]]) : 1.0f;
        if (to >= 0) w[to] = exf_addf(w[to], exf_mulf(exf_mulf(r->w[j], t->coeff[row + (size_t)r->id[to]]), c));
        spread = exf_addf(spread, exf_mulf(r->w[j], exf_addf(1.0f, -c)));
    }
    if (!o->confidence) return;
    for (int i = 0; i < kept; i++) sum = exf_addf(sum, r->w[i]);
    if (!(sum > 0)) return;
    spread = exf_divf(spread, sum);
    for (int i = 0; i < kept; i++) w[i] = exf_addf(w[i], exf_mulf(r->w[i], spread));
}

exf_fold_status exf_fold_prefill_cpu(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                     const exf_fold_prefill_options *o)
{
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 0);
    if (status != EXF_FOLD_OK) return status;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        float w[EXF_FOLD_MAX_K];
        exf_fold_rank_row(&r, in, row, t, settled.rank);
        memcpy(w, r.w, sizeof w);
        fold_row(w, &r, t, &settled);
        exf_fold_write_row(out, row, in, &r, w, &settled);
    }
    return EXF_FOLD_OK;
}

/* ---- jointly ----------------------------------------------------------------------------------- */

/* Adds each omitted route, by its pair's scalar, to the kept one of largest |cosine|: where the system has no solution. */
static void fold_to_likest(float *w, const exf_fold_ranked *r, int kept, const exf_fold_tables *t)
{
    for (int j = kept; j < r->n; j++) {
        size_t row = (size_t)r->id[j] * (size_t)t->n_experts;
        int to = exf_fold_likest(r, kept, t->cosine + row);
        w[to] = exf_addf(w[to], exf_fold_by_pair(t, r->w[j], row + (size_t)r->id[to]));
    }
}

exf_fold_status exf_fold_prefill_joint_cpu(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                           const exf_fold_prefill_options *o)
{
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 1);
    if (status != EXF_FOLD_OK) return status;
    int keep = settled.keep;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        exf_fold_joint s;
        float w[EXF_FOLD_MAX_K];
        exf_fold_rank_row(&r, in, row, t, settled.rank);
        memcpy(w, r.w, sizeof w);
        if (r.n > keep) {
            exf_fold_joint_begin(&s, r.id, r.norm, keep, t);
            for (int j = keep; j < r.n; j++) exf_fold_joint_omit(&s, r.id[j], r.norm[j], r.w[j], t);
            if (exf_fold_joint_solve(&s, settled.ridge))
                for (int i = 0; i < keep; i++) w[i] = (float)((double)r.w[i] + s.right[i]);
            else
                fold_to_likest(w, &r, keep, t);
        }
        exf_fold_write_row(out, row, in, &r, w, &settled);
    }
    return EXF_FOLD_OK;
}

/* ---- a number of routes per token ---------------------------------------------------------------- */

/* Ranks a row's routes by falling w rms, which stands in a budget's G too: relative norms gain on experts that share a component,
 * and lose on others (docs/method.md, section 14). */
static void rank_by_rms(exf_fold_ranked *r, const exf_fold_routes *in, int row, const exf_fold_tables *t)
{
    exf_fold_tables by_rms = *t;
    by_rms.norms = t->rms;
    by_rms.relative_norms = NULL;
    exf_fold_rank_row(r, in, row, &by_rms, EXF_FOLD_BY_SCORE_NORM);
}

/* Factors the ranked routes' system; returns 0 if there is nothing to factor. */
static int factor_row(exf_fold_factors *f, const exf_fold_ranked *r, const exf_fold_tables *t, float ridge)
{
    exf_fold_joint s;
    exf_fold_joint_begin(&s, r->id, r->norm, r->n, t);
    return exf_fold_joint_factor(f, &s, ridge);
}

/* Fills residual[0..n] from the factors; NULL: all are 0. */
static void find_residuals(double *residual, const exf_fold_ranked *r, const exf_fold_factors *f)
{
    residual[r->n] = 0;
    for (int j = r->n - 1; j >= 0; j--) {
        double y = r->w[j];
        for (int i = j + 1; f && i < r->n; i++) y += f->a[i][j] * (double)r->w[i];
        residual[j] = f ? exf_fold_residual_term(f->d[j], y, f->ridge, r->w[j]) + residual[j + 1] : 0;
    }
}

int exf_fold_residuals(double residual[EXF_FOLD_MAX_K + 1], const exf_fold_routes *in, int row, const exf_fold_tables *t,
                       float ridge)
{
    exf_fold_ranked r;
    exf_fold_factors f;
    rank_by_rms(&r, in, row, t);
    find_residuals(residual, &r, factor_row(&f, &r, t, exf_fold_ridge(ridge)) ? &f : NULL);
    return r.n;
}

static void find_sums(double *sum, const exf_fold_ranked *r)
{
    sum[0] = 0;
    for (int i = 0; i < r->n; i++) sum[i + 1] = sum[i] + (double)r->w[i] * (double)r->norm[i];
}

int exf_fold_rms_sums(double sum[EXF_FOLD_MAX_K + 1], const exf_fold_routes *in, int row, const exf_fold_tables *t)
{
    exf_fold_ranked r;
    rank_by_rms(&r, in, row, t);
    find_sums(sum, &r);
    return r.n;
}

int exf_fold_choose_by_residual(const double *residual, int n, float penalty, int least, int most)
{
    int low = least < n ? least : n, best = most < n ? most : n;
    double cost = exf_fold_budget_cost(residual[best], penalty, best);
    for (int p = best - 1; p >= low; p--) {
        double other = exf_fold_budget_cost(residual[p], penalty, p);
        if (!(other <= cost)) continue;
        cost = other;
        best = p;
    }
    return best;
}

int exf_fold_choose_by_share(const double *sum, int n, float share, int least, int most)
{
    int p = least < n ? least : n, high = most < n ? most : n;
    while (p < high && !(sum[p] >= (double)share * sum[n])) p++;
    return p;
}

/* Chooses P and weighs the kept routes into w; returns P. */
static int weigh_kept(float *w, const exf_fold_ranked *r, const exf_fold_tables *t, const exf_fold_budget_options *o)
{
    double by[EXF_FOLD_MAX_K + 1], x[EXF_FOLD_MAX_K] = {0};
    exf_fold_factors f;
    int factored = factor_row(&f, r, t, o->ridge), p;
    if (o->rule == EXF_FOLD_BUDGET_TOKEN) {
        find_residuals(by, r, factored ? &f : NULL);
        p = exf_fold_choose_by_residual(by, r->n, o->penalty, o->least, o->most);
    } else {
        find_sums(by, r);
        p = exf_fold_choose_by_share(by, r->n, o->share, o->least, o->most);
    }
    memcpy(w, r->w, (size_t)r->n * sizeof *w);
    if (!factored || p == r->n) {
        fold_to_likest(w, r, p, t);
        return p;
    }
    for (int j = 0; j < p; j++) /* w_B += L_BB'^-1 L_OB' w_O */
        for (int i = p; i < r->n; i++) x[j] += f.a[i][j] * (double)r->w[i];
    for (int k = p - 1; k >= 0; k--)
        for (int i = 0; i < k; i++) x[i] -= f.a[k][i] * x[k];
    for (int i = 0; i < p; i++) w[i] = (float)((double)r->w[i] + x[i]);
    return p;
}

exf_fold_status exf_fold_prefill_budget_cpu(const exf_fold_routes *in, const exf_fold_routes *out, int32_t *kept,
                                            const exf_fold_tables *t, const exf_fold_budget_options *o)
{
    exf_fold_budget_options settled;
    exf_fold_status status = exf_fold_check_budget(&settled, in, out, kept, t, o);
    if (status != EXF_FOLD_OK) return status;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        float w[EXF_FOLD_MAX_K];
        int64_t to = (int64_t)row * out->width;
        rank_by_rms(&r, in, row, t);
        int p = r.n ? weigh_kept(w, &r, t, &settled) : 0;
        int first = exf_fold_id(in, (int64_t)row * in->width + r.slot[0], t->n_experts); /* with P = 0 of padding alone */
        if (kept) kept[row] = p;
        if (settled.padding && !exf_fold_counts(in, row)) {
            exf_fold_copy_row(out, in, row);
            continue;
        }
        for (int i = 0; i < out->width; i++) {
            exf_fold_set_id(out, to + i, i < p ? r.id[i] : settled.repeat ? first : -1);
            exf_fold_set_weight(out, to + i, i < p ? w[i] : 0.0f);
        }
    }
    return EXF_FOLD_OK;
}
