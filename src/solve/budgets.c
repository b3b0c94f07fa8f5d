/* budgets.c - solves budgets per token from the route samples of all layers (docs/method.md, section 9).
 *
 * For each budget P and rule: the sensitivities a_l of the layers, and lambda, bisected until the mean number of
 * experts that kernels/fold/fold_cpu.h keeps of the sampled tokens is P. */
#include "solve/solve_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernels/fold/fold_cpu.h"

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
    EXF_TRY(exf_mem_new(&b->residual, l, sizeof *b->residual, "budgets", err));
    EXF_TRY(exf_mem_new(&b->sum, l, sizeof *b->sum, "budgets", err));
    EXF_TRY(exf_mem_new(&b->weight, l, sizeof *b->weight, "budgets", err));
    EXF_TRY(exf_mem_new(&b->stream, l, sizeof *b->stream, "budgets", err));
    EXF_TRY(exf_mem_new(&b->output, l, sizeof *b->output, "budgets", err));
out:
    if (rc != EXF_OK) exf_budget_inputs_free(b);
    return rc;
}

void exf_budget_inputs_free(exf_budget_inputs *b)
{
    for (int l = 0; b->residual && l < b->n_layers; l++) exf_mem_free(b->residual[l]);
    for (int l = 0; b->sum && l < b->n_layers; l++) exf_mem_free(b->sum[l]);
    for (int l = 0; b->weight && l < b->n_layers; l++) exf_mem_free(b->weight[l]);
    exf_mem_free(b->residual);
    exf_mem_free(b->sum);
    exf_mem_free(b->weight);
    exf_mem_free(b->n);
    exf_mem_free(b->stream);
    exf_mem_free(b->output);
    memset(b, 0, sizeof *b);
}

/* ---- a layer ------------------------------------------------------------------------- */

static double mean_output_sq(const exf_layer_statistics *s)
{
    double sum = 0, count = 0;
    for (int e = 0; e < s->n_experts; e++) {
        sum += exf_exact_value(&s->sq_sum[e]);
        count += (double)s->norm_count[e];
    }
    return count > 0 ? sum / count : 0;
}

/* Copies what a token with n routes has with 1..n of them kept.  Its other slots are empty: keeping more changes nothing, so
 * that more are never chosen. */
static void store_prediction(double *out, const double of[EXF_FOLD_MAX_K + 1], int n, int k)
{
    for (int p = 1; p <= k; p++) out[p - 1] = of[p < n ? p : n];
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
    b->stream[l] = *s->stream_count ? exf_exact_value(s->stream_sq) / (double)*s->stream_count : 0;
    b->output[l] = mean_output_sq(s);
    EXF_TRY(exf_mem_new(&b->residual[l], slots, sizeof **b->residual, "budgets", err));
    EXF_TRY(exf_mem_new(&b->sum[l], slots, sizeof **b->sum, "budgets", err));
    EXF_TRY(exf_mem_new(&b->weight[l], slots, sizeof **b->weight, "budgets", err));
    b->n[l] = r->n;
    for (size_t i = 0; i < r->n; i++) {
        double of[EXF_FOLD_MAX_K + 1];
        exf_fold_ranked ranked;
        int n = exf_fold_residuals(of, &in, (int)i, &tables, 0);
        store_prediction(b->residual[l] + i * k, of, n, b->top_k);
        n = exf_fold_rms_sums(of, &in, (int)i, &tables);
        store_prediction(b->sum[l] + i * k, of, n, b->top_k);
        exf_fold_rank_row(&ranked, &in, (int)i, &tables, EXF_FOLD_BY_SCORE);
        for (int p = 0; p < ranked.n; p++) b->weight[l][i * k + (size_t)p] = (double)ranked.w[p];
    }
out:
    return rc;
}

/* ---- sensitivities --------------------------------------------------------------------- */

static int is_rule(const exf_budget *b, exf_budget_rule rule)
{
    return strcmp(b->rule, exf_budget_rules[rule]) == 0;
}

/* Returns the mean residual of keeping half of the routes. */
static double mean_residual(const exf_budget_inputs *b, int l)
{
    size_t k = (size_t)b->top_k, half = k / 2 ? k / 2 : 1;
    double sum = 0;
    for (size_t i = 0; i < b->n[l]; i++) sum += b->residual[l][i * k + half - 1];
    return b->n[l] ? sum / (double)b->n[l] : 0;
}

/* Returns what leaving out the layer did to the model, over the sum of all layers. */
static double find_skip_factor(const exf_budget_inputs *b, const exf_solve_options *o, int l)
{
    double all = 0;
    if (o->skip_scale) return o->skip_scale[l];
    for (int i = 0; o->skipped_kl && i < b->n_layers; i++) all += o->skipped_kl[i];
    return all > 0 ? o->skipped_kl[l] / all : 0;
}

/* Returns a layer's sensitivity; 0 or less, or not finite: it is unknown. */
static double find_sensitivity(const exf_budget_inputs *b, const exf_solve_options *o, const exf_budget *to, int l)
{
    if (is_rule(to, EXF_RULE_STREAM)) return b->stream[l] > 0 ? 1 / b->stream[l] : 0;
    if (is_rule(to, EXF_RULE_OUTPUT)) return b->output[l] > 0 ? 1 / b->output[l] : 0;
    if (is_rule(to, EXF_RULE_SKIP)) return find_skip_factor(b, o, l);
    if (!is_rule(to, EXF_RULE_MEASURED)) return 1;
    return o->measured_scale ? o->measured_scale[l] : o->measured_kl ? o->measured_kl[l] / mean_residual(b, l) : 0;
}

static const char *name_remedy(const exf_budget *to)
{
    if (is_rule(to, EXF_RULE_MEASURED))
        return "give its file: --sensitivities sensitivities.json (exfold-validate --sensitivities)";
    if (is_rule(to, EXF_RULE_SKIP))
        return "give its file: --sensitivities sensitivities.json (exfold-validate --sensitivities --set budget_rules=skip)";
    if (is_rule(to, EXF_RULE_STREAM))
        return "calibrate with this release, or leave stream out of budget_rules (recorded hidden states have no residual stream)";
    return "calibrate again";
}

static exf_code find_scale(const exf_budget_inputs *b, const exf_solve_options *o, const exf_tables *t, exf_budget *to,
                           exf_err *err)
{
    for (int l = 0; l < b->n_layers; l++) {
        to->scale[l] = find_sensitivity(b, o, to, l);
        if (to->scale[l] > 0 && isfinite(to->scale[l])) continue;
        return exf_fail(err, EXF_MODEL, "budgets: layer %d has no sensitivity by \"%s\": %s", (int)t->layer_number[l], to->rule,
                        name_remedy(to));
    }
    return EXF_OK;
}

/* ---- lambda ---------------------------------------------------------------------------- */

/* Returns the numbers of layer l by which the rule chooses: residuals, sums, or the weights themselves. */
static const double *numbers_of(const exf_budget_inputs *b, const exf_budget *to, int l)
{
    return is_rule(to, EXF_RULE_TOP_P) ? b->sum[l] : is_rule(to, EXF_RULE_SKIP) ? b->weight[l] : b->residual[l];
}

/* Returns how many routes of falling weight w [K] reach the threshold. */
static int count_above(const exf_budget_inputs *b, const double *w, double threshold)
{
    double all = 0;
    int n = 0;
    for (int k = 0; k < b->top_k; k++) all += w[k];
    while (n < b->top_k && w[n] > 0 && exf_fold_reaches(1, w[n], threshold, all)) n++;
    return n;
}

/* Returns how many routes a token keeps, given the residuals or sums of its first 1..K routes, or their weights. */
static int count_routes(const exf_budget_inputs *b, const exf_budget *to, const double *of, double penalty)
{
    double from_zero[EXF_FOLD_MAX_K + 1] = {0};
    if (is_rule(to, EXF_RULE_SKIP)) return count_above(b, of, penalty);
    memcpy(from_zero + 1, of, (size_t)b->top_k * sizeof *of);
    return is_rule(to, EXF_RULE_TOP_P) ? exf_fold_choose_by_share(from_zero, b->top_k, (float)penalty, 1, b->top_k)
                                : exf_fold_choose_by_residual(from_zero, b->top_k, (float)penalty, 1, b->top_k);
}

/* Returns the mean number of routes that a lambda keeps. */
static double mean_kept(const exf_budget_inputs *b, const exf_budget *to, double lambda)
{
    uint64_t sum = 0, n = 0;
    size_t k = (size_t)b->top_k;
    for (int l = 0; l < b->n_layers; l++) {
        const double *of = numbers_of(b, to, l);
        for (size_t i = 0; i < b->n[l]; i++) sum += (uint64_t)count_routes(b, to, of + i * k, lambda / to->scale[l]);
        n += b->n[l];
    }
    return (double)sum / (double)n;
}

/* Returns the mean that a lambda keeps; stores lambda if that comes nearer to the budget than any before. */
static double try_lambda(const exf_budget_inputs *b, exf_budget *to, double lambda)
{
    double mean = mean_kept(b, to, lambda);
    if (fabs(mean - to->budget) < fabs(to->mean - to->budget)) {
        to->lambda = lambda;
        to->mean = mean;
    }
    return mean;
}

/* Bisects lambda between 0, which keeps all routes, and `high`, which keeps one; for top_p, between 0 and 1. */
static void bisect_lambda(const exf_budget_inputs *b, exf_budget *to)
{
    int rising = is_rule(to, EXF_RULE_TOP_P);
    double low = 0, high = 1;
    to->mean = HUGE_VAL;
    try_lambda(b, to, 0);
    for (int i = 0; !rising && i < 128 && try_lambda(b, to, high) > to->budget; i++) high *= 16;
    for (int i = 0; i < 200 && to->mean != to->budget; i++) {
        double middle = rising || low == 0 || high / low < 4 ? (low + high) / 2 : sqrt(low * high);
        if ((try_lambda(b, to, middle) > to->budget) == rising)
            high = middle;
        else
            low = middle;
    }
}

/* Counts how many tokens keep 1..K routes with the lambda that was found. */
static void count_kept(const exf_budget_inputs *b, exf_budget *to)
{
    size_t k = (size_t)b->top_k, least = (size_t)exf_budget_least(to), columns = k + 1 - least;
    for (int l = 0; l < b->n_layers; l++) {
        const double *of = numbers_of(b, to, l);
        for (size_t i = 0; i < b->n[l]; i++)
            to->kept[(size_t)l * columns + (size_t)count_routes(b, to, of + i * k, to->lambda / to->scale[l]) - least]++;
    }
}

/* Leaves out a budget that no lambda reaches where the sample is all of the text: then there is too little of it.  Where the
 * sample is a part of the text, the recipe asked for too small a one. */
static exf_code check_reached(const exf_budget_inputs *b, exf_budget *to, exf_tables *t, exf_err *err)
{
    size_t least = b->n[0];
    for (int l = 1; l < b->n_layers; l++) least = b->n[l] < least ? b->n[l] : least;
    if (fabs(to->mean - to->budget) <= 0.01 * to->budget) return EXF_OK;
    if ((int64_t)least < t->shape.n_tokens)
        return exf_fail(err, EXF_NUMERIC,
                        "budgets: %g experts per token by \"%s\": the nearest mean is %g with %zu sampled tokens a layer; raise "
                        "calibrate.route_sample", to->budget, to->rule, to->mean, least);
    exf_log_warn("budget of %g experts per token by %s is left out: of the %zu tokens of text the nearest mean is %g; calibrate on "
                 "more", to->budget, to->rule, least, to->mean);
    exf_budgets_remove(t, to);
    return EXF_OK;
}

static exf_code solve_budget(const exf_budget_inputs *b, const exf_solve_options *o, double budget, const char *rule, exf_tables *t,
                          exf_err *err)
{
    exf_budget *to;
    exf_code rc;
    EXF_TRY(exf_budgets_add(t, budget, rule, &to, err));
    EXF_TRY(find_scale(b, o, t, to, err));
    bisect_lambda(b, to);
    count_kept(b, to);
    rc = check_reached(b, to, t, err);
out:
    return rc;
}

exf_code exf_budgets_solve(const exf_budget_inputs *b, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < o->n_budgets; i++)
        for (size_t k = 0; k < o->n_rules; k++) EXF_TRY(solve_budget(b, o, (double)o->budgets[i], o->rules[k], t, err));
out:
    return rc;
}
