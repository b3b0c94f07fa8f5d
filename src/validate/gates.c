/* gates.c - quality gates: what a limit says, whom it is for, and who is above it. */
#include "validate/gates.h"

#include "base/names.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { METRICS = 9 };
/* flips: the share of tokens whose most likely next token changed */
static const char *const metrics[METRICS] = {"ppl",     "kl",     "kl_median", "kl_p90",      "kl_p99",
                                             "kl_p999", "kl_max", "flips",     "output_error"};

static exf_code refuse_metric(const char *text, const char *metric, exf_err *err)
{
    exf_text list = {0};
    for (int i = 0; i < METRICS; i++) exf_text_appendf(&list, "%s%s", i ? ", " : "", metrics[i]);
    exf_code rc = exf_text_end(&list, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_USAGE, "validate.fail_above: \"%s\": \"%s\" is no metric (known: %s)", text, metric, list.s);
    exf_text_free(&list);
    return rc;
}

/* Reads the text from its end, since a variant may contain ':' and '='. */
exf_code exf_quality_gate_parse(exf_quality_gate *g, const char *text, const exf_validate_lane *lanes, size_t n_lanes,
                                exf_err *err)
{
    char copy[2 * EXF_VARIANT_NAME_LEN];
    memset(g, 0, sizeof *g);
    char *equals = strlen(text) < sizeof copy ? strrchr(strcpy(copy, text), '=') : NULL;
    if (!equals || !exf_parse_f64(equals + 1, &g->limit))
        return exf_fail(err, EXF_USAGE, "validate.fail_above: \"%.80s\", expected METRIC=LIMIT or VARIANT:METRIC=LIMIT", text);
    *equals = '\0';
    char *colon = strrchr(copy, ':'), *metric = colon ? colon + 1 : copy;
    int known = exf_name_place(metrics, METRICS, metric);
    if (known == METRICS) return refuse_metric(text, metric, err);
    snprintf(g->metric, sizeof g->metric, "%s", metrics[known]);
    if (!colon) return EXF_OK;
    *colon = '\0';
    for (size_t i = 0; i < n_lanes; i++)
        if (lanes[i].role == EXF_LANE_ASKED && exf_variant_is_named(lanes[i].variant.name, copy)) {
            snprintf(g->variant, sizeof g->variant, "%.*s", (int)sizeof g->variant - 1, copy);
            return EXF_OK;
        }
    return exf_fail(err, EXF_USAGE, "validate.fail_above: \"%s\": \"%s\" is none of validate.variants", text, copy);
}

exf_code exf_quality_gate_is_new(const exf_quality_gate *gates, size_t last, exf_err *err)
{
    const exf_quality_gate *g = &gates[last];
    for (size_t i = 0; i < last; i++)
        if (strcmp(gates[i].metric, g->metric) == 0 && strcmp(gates[i].variant, g->variant) == 0)
            return exf_fail(err, EXF_USAGE, "validate.fail_above: %s%s%s is given twice", g->variant, *g->variant ? ":" : "",
                            g->metric);
    return EXF_OK;
}

/* Returns the error for a row that no gate passes. */
static exf_code refuse_row(const exf_quality_gate *g, const exf_validation *v, const exf_variant_result *r, exf_err *err)
{
    exf_text why = {0};
    exf_constraint_advice(&why, v, r);
    exf_code rc = exf_text_end(&why, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_THRESHOLD, "%s: %s cannot be judged, since its decode batches do not constrain it: %s", r->name,
                      g->metric, why.s);
    exf_text_free(&why);
    return rc;
}

exf_code exf_quality_gate_check(const exf_quality_gate *g, const exf_validation *v, exf_err *err)
{
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        const double values[METRICS] = {r->all.ppl,     r->all.kl_mean, r->all.kl_median, r->all.kl_p90,  r->all.kl_p99,
                                        r->all.kl_p999, r->all.kl_max,  1 - r->all.top1,  r->output_error}; /* as metrics */
        double value = values[exf_name_place(metrics, METRICS, g->metric)];
        if (r->role != EXF_LANE_ASKED || (g->variant[0] && !exf_variant_is_named(r->name, g->variant))) continue;
        if (r->constraint != EXF_CONSTRAINED) return refuse_row(g, v, r, err);
        if (!(value <= g->limit))
            return exf_fail(err, EXF_THRESHOLD, "%s: %s is %.6g, above the limit of %.6g", r->name, g->metric, value, g->limit);
    }
    return EXF_OK;
}
