/* recommendation.c - chooses rows within a limit; see recommendation.h. */
#include "validate/recommendation.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *words;
} metrics[] = {
    [EXF_LIMIT_KL] = {"kl", "KL"},
    [EXF_LIMIT_LOG_PPL] = {"log_ppl", "difference of log PPL"},
    [EXF_LIMIT_PPL_RATIO] = {"ppl_ratio", "ratio of PPL"},
};

exf_code exf_limit_parse(exf_limit *l, const char *text, exf_err *err)
{
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        size_t n = strlen(metrics[i].name);
        if (strncmp(text, metrics[i].name, n) != 0 || text[n] != '=') continue;
        double least = i == EXF_LIMIT_PPL_RATIO ? 1 : 0;
        if (!exf_parse_f64(text + n + 1, &l->most) || !(l->most > least))
            return exf_fail(err, EXF_USAGE, "validate.limit: \"%.60s\", expected a number above %g after %s=", text, least,
                            metrics[i].name);
        l->metric = (exf_limit_metric)i;
        return EXF_OK;
    }
    return exf_fail(err, EXF_USAGE, "validate.limit: \"%.60s\", expected kl=X, log_ppl=X or ppl_ratio=X, such as kl=0.05", text);
}

const char *exf_limit_name(const exf_limit *l)
{
    return metrics[l->metric].name;
}

const char *exf_limit_words(const exf_limit *l)
{
    return metrics[l->metric].words;
}

/* The original's KL is 0, so that the difference to it is the KL itself. */
exf_difference exf_limit_value(const exf_limit *l, const exf_validation *v, size_t i)
{
    exf_difference d = l->metric == EXF_LIMIT_KL ? exf_kl_difference(v, i, 0) : exf_log_ppl_difference(v, i, 0);
    if (l->metric != EXF_LIMIT_PPL_RATIO) return d;
    double ratio = exp(d.mean);
    return (exf_difference){.mean = ratio, .se = ratio * d.se, .half_width = ratio * (exp(d.half_width) - 1)}; /* its upper half */
}

/* Returns the end of the row's interval; infinity where its noise is not known. */
static double end_of(const exf_limit *l, const exf_validation *v, size_t i)
{
    exf_difference d = exf_limit_value(l, v, i);
    return isnan(d.half_width) ? INFINITY : d.mean + d.half_width;
}

/* Returns 1 for a row to choose from that holds the limit. */
static int holds_limit(const exf_limit *l, const exf_judged *of, const exf_row *row, size_t i, exf_row_kind kind, int batch,
                       const exf_runtime *runtime)
{
    return exf_row_may_serve(of, row, i, kind, batch, runtime) && end_of(l, of->v, i) <= l->most;
}

/* Returns 1 for such a row unless it gains nothing over a plain fold that is one too. */
static int is_candidate(const exf_limit *l, const exf_judged *of, const exf_row *row, size_t i, exf_row_kind kind, int batch,
                        const exf_runtime *runtime)
{
    if (!holds_limit(l, of, row, i, kind, batch, runtime)) return 0;
    return !exf_row_gains_nothing(of, row, i) || !holds_limit(l, of, row, row[i].twin, kind, batch, runtime);
}

exf_choice exf_recommend(const exf_limit *l, const exf_judged *of, const exf_row *row, exf_row_kind kind, int batch,
                         const exf_runtime *runtime)
{
    const exf_validation *v = of->v;
    size_t best = 0, nearest = 0;
    double least = INFINITY, tie = EXF_COST_TIE * exf_original_cost(of, kind, batch);
    for (size_t i = 1; i < v->n_variants; i++) {
        if (!exf_row_may_serve(of, row, i, kind, batch, runtime)) continue;
        if (!nearest || end_of(l, v, i) < end_of(l, v, nearest)) nearest = i;
        if (is_candidate(l, of, row, i, kind, batch, runtime)) least = fmin(least, exf_row_cost(&row[i], kind));
    }
    for (size_t i = 1; i < v->n_variants; i++) {
        if (!is_candidate(l, of, row, i, kind, batch, runtime) || exf_row_cost(&row[i], kind) > least + tie) continue;
        if (!best || exf_limit_value(l, v, i).mean < exf_limit_value(l, v, best).mean) best = i;
    }
    return best ? (exf_choice){best, 1} : (exf_choice){nearest, 0};
}

size_t exf_find_together(const exf_judged *of, const exf_row *row, size_t p, size_t d)
{
    const exf_validation *v = of->v;
    exf_variant wanted;
    char text[2 * EXF_VARIANT_NAME_LEN + 2];
    snprintf(text, sizeof text, "%s+%s", v->variant[p].name, v->variant[d].name);
    if (strlen(text) >= EXF_VARIANT_NAME_LEN || exf_variant_parse_on(of->runtime, &wanted, text, NULL) != EXF_OK) return 0;
    for (size_t i = 1; i < v->n_variants; i++)
        if (v->variant[i].role == EXF_LANE_ASKED && v->variant[i].batch == v->variant[d].batch &&
            exf_variant_equal(&wanted, &row[i].variant))
            return i;
    return 0;
}
