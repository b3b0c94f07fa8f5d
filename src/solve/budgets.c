/* budgets.c - solves budgets per token from the route samples of all layers (docs/method.md, section 9).
 *
 * For each budget P and rule: the sensitivities a_l of the layers, and lambda, bisected until the mean number of
 * experts that kernels/fold/fold_cpu.h keeps of the sampled tokens is P.  With a norm head, lambda a second time by the norms
 * that it predicts for each of the sampled tokens.  A layer whose routed outputs are 0 is left out: it costs nothing, has no
 * sensitivity, and keeps one route, at most, whatever lambda is. */
#include "solve/solve_internal.h"

#include "accumulate/norm_sums.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/names.h"
#include "kernels/fold/fold_cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

exf_code exf_budget_inputs_new(exf_budget_inputs *b, const exf_solve_options *o, const exf_tables *t, exf_err *err)
{
    size_t l = (size_t)t->n_layers;
    exf_code rc;
    *b = (exf_budget_inputs){.n_layers = t->n_layers, .top_k = (int)t->shape.top_k};
    for (size_t i = 0; i < o->n_budgets; i++)
        if (o->budgets[i] > b->top_k)
            return exf_fail(err, EXF_USAGE, "budgets: %lld experts per token, the model has %d", (long long)o->budgets[i],
                            b->top_k);
    EXF_TRY(exf_mem_new(&b->n, l, sizeof *b->n, "budgets", err));
    for (int predicted_norms = 0; predicted_norms < 2; predicted_norms++) {
        EXF_TRY(exf_mem_new(&b->residual[predicted_norms], l, sizeof *b->residual[predicted_norms], "budgets", err));
        EXF_TRY(exf_mem_new(&b->sum[predicted_norms], l, sizeof *b->sum[predicted_norms], "budgets", err));
    }
    EXF_TRY(exf_mem_new(&b->weight, l, sizeof *b->weight, "budgets", err));
    EXF_TRY(exf_mem_new(&b->stream, l, sizeof *b->stream, "budgets", err));
    EXF_TRY(exf_mem_new(&b->output, l, sizeof *b->output, "budgets", err));
    EXF_TRY(exf_mem_new(&b->costless, l, sizeof *b->costless, "budgets", err));
out:
    if (rc != EXF_OK) exf_budget_inputs_free(b);
    return rc;
}

void exf_budget_inputs_free(exf_budget_inputs *b)
{
    for (int predicted_norms = 0; predicted_norms < 2; predicted_norms++) {
        for (int l = 0; b->residual[predicted_norms] && l < b->n_layers; l++) exf_mem_free(b->residual[predicted_norms][l]);
        for (int l = 0; b->sum[predicted_norms] && l < b->n_layers; l++) exf_mem_free(b->sum[predicted_norms][l]);
        exf_mem_free(b->residual[predicted_norms]);
        exf_mem_free(b->sum[predicted_norms]);
    }
    for (int l = 0; b->weight && l < b->n_layers; l++) exf_mem_free(b->weight[l]);
    exf_mem_free(b->weight);
    exf_mem_free(b->n);
    exf_mem_free(b->stream);
    exf_mem_free(b->output);
    exf_mem_free(b->costless);
    memset(b, 0, sizeof *b);
}

/* ---- a layer ------------------------------------------------------------------------- */

/* Copies what a token with n routes has with 1..n of them kept.  Its other slots are empty: keeping more changes nothing, so
 * that more are never chosen. */
static void store_prediction(double *out, const double of[EXF_FOLD_MAX_K + 1], int n, int k)
{
    for (int p = 1; p <= k; p++) out[p - 1] = of[p < n ? p : n];
}

/* Sets norms [E] of the experts of a sampled token to those that layer l's head predicts. */
static exf_code predict_norms(float *norms, const exf_route_sample *r, size_t i, const exf_tables *t, int l, exf_err *err)
{
    const exf_norm_head *head = &t->norm_head;
    size_t q = (size_t)r->q, k = (size_t)r->top_k, n = exf_norm_features(r->q);
    const float *of = r->head + i * exf_route_sample_head(r), *theta = head->theta + (size_t)l * (size_t)t->shape.n_experts * n;
    double projected[EXF_NORM_MOST], phi[EXF_NORM_MOST + EXF_NORM_BESIDE];
    for (size_t j = 0; j < q; j++) projected[j] = (double)of[j];
    for (size_t a = 0; a < k; a++) {
        int id = r->ids[i * k + a];
        if (id < 0) continue;
        exf_norm_features_of(phi, projected, r->q, (double)of[q + 1 + a], (double)r->weights[i * k + a], exp((double)of[q]));
        norms[id] = exf_norm_predicted(theta + (size_t)id * n, phi, r->q);
        if (!(norms[id] > 0 && isfinite(norms[id])))
            return exf_fail(err, EXF_NUMERIC, "layer %d, token %zu of the route sample: the norm head predicts %g for expert %d",
                            (int)t->layer_number[l], i, (double)norms[id], id);
    }
    return EXF_OK;
}

/* Stores what a token would lose by keeping its first 1..K routes, and their w rms, by the tables' norms. */
static void take_token(const exf_budget_inputs *b, int predicted_norms, int l, size_t i, const exf_fold_routes *in,
                       const exf_fold_tables *t)
{
    double of[EXF_FOLD_MAX_K + 1];
    size_t k = (size_t)b->top_k;
    int n = exf_fold_residuals(of, in, (int)i, t, 0);
    store_prediction(b->residual[predicted_norms][l] + i * k, of, n, b->top_k);
    n = exf_fold_rms_sums(of, in, (int)i, t);
    store_prediction(b->sum[predicted_norms][l] + i * k, of, n, b->top_k);
}

static exf_code new_numbers(exf_budget_inputs *b, int predicted_norms, int l, size_t slots, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&b->residual[predicted_norms][l], slots, sizeof **b->residual[predicted_norms], "budgets", err));
    EXF_TRY(exf_mem_new(&b->sum[predicted_norms][l], slots, sizeof **b->sum[predicted_norms], "budgets", err));
out:
    return rc;
}

/* Takes the layer's numbers by predicted norms, where it has a head and the sample what that reads. */
static exf_code take_predicted(exf_budget_inputs *b, const exf_route_sample *r, int l, const exf_tables *t,
                               const exf_fold_routes *in, exf_fold_tables tables, exf_err *err)
{
    float *norms = NULL;
    exf_code rc = EXF_OK;
    if (!r->q || !t->norm_head.q) return EXF_OK;
    if (b->costless[l]) {
        b->n_predicted++;
        return EXF_OK;
    }
    if (r->q != t->norm_head.q)
        return exf_fail(err, EXF_MODEL, "layer %d: tokens of the route sample have %d directions, the norm head has %d",
                        (int)t->layer_number[l], r->q, t->norm_head.q);
    EXF_TRY(exf_mem_new(&norms, (size_t)t->shape.n_experts, sizeof *norms, "budgets", err));
    EXF_TRY(new_numbers(b, 1, l, r->n * (size_t)b->top_k, err));
    tables.rms = norms;
    for (size_t i = 0; i < r->n; i++) {
        EXF_TRY(predict_norms(norms, r, i, t, l, err));
        take_token(b, 1, l, i, in, &tables);
    }
    b->n_predicted++;
out:
    exf_mem_free(norms);
    return rc;
}

exf_code exf_budget_inputs_take(exf_budget_inputs *b, const exf_layer_statistics *s, int l, const exf_tables *t, exf_err *err)
{
    const exf_route_sample *r = &s->routes;
    size_t e = (size_t)s->n_experts, k = (size_t)b->top_k, slots = r->n * k;
    exf_fold_tables tables = {.cosine = t->cosine + (size_t)l * e * e, .rms = t->rms + (size_t)l * e, .n_experts = s->n_experts};
    exf_fold_routes in = {.ids = r->ids, .weights = r->weights, .rows = (int)r->n, .width = r->top_k};
    exf_code rc;
    if (!r->n)
        return exf_fail(err, EXF_MODEL,
                        "budgets: layer %d has no sample of routes: calibrate with this release, route_sample above 0",
                        (int)t->layer_number[l]);
    if (b->top_k > EXF_FOLD_MAX_K)
        return exf_fail(err, EXF_MODEL, "budgets: the model has %d experts per token, a fold takes %d at most", b->top_k,
                        EXF_FOLD_MAX_K);
    b->stream[l] = *s->stream_inverse_count ? exf_exact_value(s->stream_inverse_sq) / (double)*s->stream_inverse_count : 0;
    double sq = 0, count = 0;
    for (size_t i = 0; i < e; i++) {
        sq += exf_exact_value(&s->sq_sum[i]);
        count += (double)s->norm_count[i];
    }
    b->output[l] = count > 0 ? sq / count : -1;
    b->costless[l] = !isfinite(1 / b->output[l]);
    EXF_TRY(new_numbers(b, 0, l, slots, err));
    EXF_TRY(exf_mem_new(&b->weight[l], slots, sizeof **b->weight, "budgets", err));
    b->n[l] = r->n;
    for (size_t i = 0; i < r->n; i++) {
        exf_fold_ranked ranked;
        take_token(b, 0, l, i, &in, &tables);
        exf_fold_rank_row(&ranked, &in, (int)i, &tables, EXF_FOLD_BY_SCORE);
        for (int p = 0; p < ranked.n; p++) b->weight[l][i * k + (size_t)p] = (double)ranked.w[p];
    }
    rc = take_predicted(b, r, l, t, &in, tables, err);
out:
    return rc;
}

/* ---- sensitivities --------------------------------------------------------------------- */

/* Returns a layer's sensitivity by the rule; 0 or less, or not finite: it is unknown. */
static double find_sensitivity(const exf_budget_inputs *b, const exf_solve_options *o, exf_budget_rule rule, int l)
{
    size_t k = (size_t)b->top_k, half = k / 2 ? k / 2 : 1;
    double sum = 0;
    switch (rule) {
    case EXF_RULE_STREAM: return b->stream[l];
    case EXF_RULE_OUTPUT: return b->output[l] > 0 ? 1 / b->output[l] : 0;
    case EXF_RULE_MEASURED: /* what folding the layer did to the model, over the mean residual of keeping half of the routes */
        if (o->measured_scale) return o->measured_scale[l];
        for (size_t i = 0; i < b->n[l]; i++) sum += b->residual[0][l][i * k + half - 1];
        return o->measured_kl ? o->measured_kl[l] / (sum / (double)b->n[l]) : 0;
    case EXF_RULE_SKIP: /* what leaving out the layer did to the model, over the sum of all layers */
        if (o->skip_scale) return o->skip_scale[l];
        for (int i = 0; o->skipped_kl && i < b->n_layers; i++) sum += o->skipped_kl[i];
        return sum > 0 ? o->skipped_kl[l] / sum : 0;
    case EXF_RULE_TOP_P: break;
    }
    return 1;
}

static const char *name_remedy(exf_budget_rule rule, const exf_solve_options *o)
{
    int is_measured = rule == EXF_RULE_MEASURED ? o->measured_kl != NULL : rule == EXF_RULE_SKIP && o->skipped_kl;
    if (is_measured) return "its KL to the original is 0; measure it on more text (exfold-validate --sensitivities)";
    if (rule == EXF_RULE_MEASURED)
        return "give its file: --sensitivities sensitivities.json (exfold-validate --sensitivities)";
    if (rule == EXF_RULE_SKIP)
        return "give its file: --sensitivities sensitivities.json (exfold-validate --sensitivities --set budget_rules=skip)";
    if (rule == EXF_RULE_STREAM)
        return "calibrate with this release, or leave stream out of budget_rules (recorded hidden states have no residual stream)";
    return "calibrate again";
}

/* ---- lambda ---------------------------------------------------------------------------- */

/* A search for the lambda that keeps a budget's mean number of routes, by mean norms or by those of the norm head. */
typedef struct {
    const exf_budget_inputs *b;
    const exf_budget *of;
    exf_budget_rule rule;
    int predicted_norms;
    exf_budget_threshold *to;
} search;

/* Returns how many routes a token keeps, given the residuals or sums of its first 1..K routes, or with skip its falling weights. */
static int count_routes(exf_budget_rule rule, const double *of, int top_k, double penalty)
{
    double from_zero[EXF_FOLD_MAX_K + 1] = {0}, all = 0;
    if (rule == EXF_RULE_SKIP) {
        int n = 0;
        for (int k = 0; k < top_k; k++) all += of[k];
        while (n < top_k && of[n] > 0 && exf_fold_reaches(1, of[n], penalty, all)) n++;
        return n;
    }
    memcpy(from_zero + 1, of, (size_t)top_k * sizeof *of);
    return rule == EXF_RULE_TOP_P ? exf_fold_choose_by_share(from_zero, top_k, (float)penalty, 1, top_k)
                                  : exf_fold_choose_by_residual(from_zero, top_k, (float)penalty, 1, top_k);
}

/* Returns the mean number of routes that a lambda keeps of the sampled tokens.  kept: NULL, or [L, K] (skip: [L, K + 1]), to whose
 * counts of tokens that keep so many routes it adds. */
static double mean_kept(const search *s, double lambda, uint64_t *kept)
{
    const exf_budget_inputs *b = s->b;
    size_t k = (size_t)b->top_k, least = (size_t)exf_budget_least(s->of), columns = k + 1 - least;
    uint64_t sum = 0, n = 0;
    for (int l = 0; l < b->n_layers; l++) {
        const double *of = s->rule == EXF_RULE_TOP_P ? b->sum[s->predicted_norms][l]
                           : s->rule == EXF_RULE_SKIP ? b->weight[l] : b->residual[s->predicted_norms][l];
        if (b->costless[l]) continue;
        for (size_t i = 0; i < b->n[l]; i++) {
            size_t routes = (size_t)count_routes(s->rule, of + i * k, b->top_k, lambda / s->of->scale[l]);
            if (kept) kept[(size_t)l * columns + routes - least]++;
            sum += routes;
        }
        n += b->n[l];
    }
    return (double)sum / (double)n;
}

/* Returns the mean that a lambda keeps; stores lambda if that comes nearer to the budget than any before. */
static double try_lambda(const search *s, double lambda)
{
    double mean = mean_kept(s, lambda, NULL), budget = s->of->budget;
    if (fabs(mean - budget) < fabs(s->to->mean - budget)) {
        s->to->lambda = lambda;
        s->to->mean = mean;
    }
    return mean;
}

/* Bisects lambda between 0, which keeps all routes, and `high`, which keeps one; for top_p, between 0 and 1. */
static void find_threshold(const search *s)
{
    int rising = s->rule == EXF_RULE_TOP_P;
    double low = 0, high = 1, budget = s->of->budget;
    s->to->mean = HUGE_VAL;
    try_lambda(s, 0);
    for (int i = 0; !rising && i < 128 && try_lambda(s, high) > budget; i++) high *= 16;
    for (int i = 0; i < 200 && s->to->mean != budget; i++) {
        double middle = rising || low == 0 || high / low < 4 ? (low + high) / 2 : sqrt(low * high);
        if ((try_lambda(s, middle) > budget) == rising)
            high = middle;
        else
            low = middle;
    }
    mean_kept(s, s->to->lambda, s->to->kept);
}

/* Leaves out, with a warning that says why, a budget that no lambda reaches: the tables do without it.  Between neighbouring
 * lambdas the mean of n tokens moves by K / n at most where each token changes at its own: nearer than that, too few tokens were
 * sampled; further, many change at once, as where experts are equal or an expert puts out 0, and no sample helps. */
static void check_reached(const exf_budget_inputs *b, exf_budget *to, exf_tables *t)
{
    double by_mean = fabs(to->mean - to->budget), by_predicted = to->predicted.kept ? fabs(to->predicted.mean - to->budget) : 0;
    double off = fmax(by_mean, by_predicted);
    size_t least = b->n[0], all = 0;
    if (off <= 0.01 * to->budget) return;
    for (int l = 0; l < b->n_layers; l++) {
        least = b->n[l] < least ? b->n[l] : least;
        all += b->costless[l] ? 0 : b->n[l];
    }
    const char *why = off > (double)b->top_k / (double)all
                          ? "many tokens go over at once, as where experts are equal or put out 0, which more of them do not change"
                      : (int64_t)least < t->shape.n_tokens ? "raise calibrate.route_sample" : "calibrate on more";
    exf_log_warn("budget of %g experts per token by %s is left out: of %zu tokens a layer the nearest mean is %g; %s", to->budget,
                 to->rule, least, by_mean > by_predicted ? to->mean : to->predicted.mean, why);
    exf_budgets_remove(t, to);
}

static exf_code solve_budget(const exf_budget_inputs *b, const exf_solve_options *o, double budget, const char *name, exf_tables *t,
                             exf_err *err)
{
    exf_budget_rule rule = (exf_budget_rule)exf_name_place(exf_budget_rules, EXF_BUDGET_RULES, name);
    exf_budget *to;
    exf_code rc;
    EXF_TRY(exf_budgets_add(t, budget, name, &to, err));
    for (int l = 0; l < b->n_layers; l++) {
        to->scale[l] = find_sensitivity(b, o, rule, l);
        if (b->costless[l]) to->scale[l] = rule == EXF_RULE_TOP_P ? 1 : DBL_MIN; /* in the place of 0 */
        if (to->scale[l] > 0 && isfinite(to->scale[l])) continue;
        return exf_fail(err, EXF_MODEL, "budgets: layer %d has no sensitivity by \"%s\": %s", (int)t->layer_number[l], to->rule,
                        name_remedy(rule, o));
    }
    exf_budget_threshold by_mean = {.kept = to->kept};
    find_threshold(&(search){b, to, rule, 0, &by_mean});
    to->lambda = by_mean.lambda;
    to->mean = by_mean.mean;
    if (b->n_predicted == b->n_layers && rule != EXF_RULE_SKIP) {
        EXF_TRY(exf_budgets_add_predicted(t, to, err));
        find_threshold(&(search){b, to, rule, 1, &to->predicted});
    }
    check_reached(b, to, t);
out:
    return rc;
}

/* Says which layers are left out; returns how many are not. */
static int leave_out(const exf_budget_inputs *b, const exf_tables *t, exf_err *err, exf_code *rc)
{
    exf_text list = {0};
    int n = 0;
    for (int l = 0; l < b->n_layers; l++)
        if (b->costless[l]) exf_text_appendf(&list, n++ ? ", %d" : "%d", (int)t->layer_number[l]);
    *rc = exf_text_end(&list, err);
    if (n && *rc == EXF_OK)
        exf_log_warn("budgets leave out layer%s %s, whose routed outputs are 0: no route there costs anything", n > 1 ? "s" : "",
                     list.s);
    exf_text_free(&list);
    return b->n_layers - n;
}

exf_code exf_budgets_solve(const exf_budget_inputs *b, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!o->n_budgets || !o->n_rules || !leave_out(b, t, err, &rc)) return rc;
    for (size_t i = 0; i < o->n_budgets; i++)
        for (size_t k = 0; k < o->n_rules; k++) EXF_TRY(solve_budget(b, o, (double)o->budgets[i], o->rules[k], t, err));
out:
    return rc;
}
