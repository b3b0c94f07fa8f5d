/* report_tables.c - cards, layers and facts as HTML; see report_internal.h. */
#include "inspect/report_internal.h"
#include "inspect/summary.h"

#include "artifact/provenance.h"

#include <inttypes.h>
#include <math.h>

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* ---- cards --------------------------------------------------------------------------------- */

/* name, and a value and a remark in printf's words */
static exf_code open_card(exf_report *r, const char *name, exf_err *err)
{
    return exf_report_addf(r, err, "<div class=\"card\"><dt>%s</dt><dd>", name);
}

static exf_code model_card(exf_report *r, exf_err *err)
{
    const exf_run_shape *s = &r->s->shape;
    const char *family = exf_provenance_get(&r->s->provenance, "model.family");
    exf_code rc;
    EXF_TRY(open_card(r, "Model", err));
    EXF_TRY(exf_report_text(r, family ? family : "unknown", err));
    rc = exf_report_addf(r, err,
                         "<small>%d MoE layers, %" PRId64 " experts, top-%" PRId64 ", hidden %" PRId64 "</small></dd></div>\n",
                         r->s->n_layers, s->n_experts, s->top_k, s->d_model);
out:
    return rc;
}

static exf_code coverage_cards(exf_report *r, const exf_layer_summary *all, exf_err *err)
{
    exf_code rc;
    EXF_TRY(open_card(r, "Data", err));
    EXF_TRY(exf_report_addf(r, err, "%" PRId64 " tokens<small>in %" PRId64 " sequences", r->s->shape.n_tokens,
                            r->s->shape.n_sequences));
    if (r->s->part) EXF_TRY(exf_report_addf(r, err, "; a part of the data: "));
    if (r->s->part) EXF_TRY(exf_report_text(r, r->s->part, err));
    EXF_TRY(exf_report_addf(r, err, "</small></dd></div>\n"));
    EXF_TRY(open_card(r, "Pairs observed", err));
    EXF_TRY(exf_report_addf(r, err, "%.1f %%<small>%" PRIu64 " of %" PRIu64 " ordered pairs</small></dd></div>\n",
                            percent(all->observed, all->pairs), all->observed, all->pairs));
    EXF_TRY(open_card(r, "Sample size of a pair", err));
    if (isnan(all->tokens[1]))
        EXF_TRY(exf_report_addf(r, err, "none</dd></div>\n"));
    else
        EXF_TRY(exf_report_addf(r, err, "%.0f tokens<small>median; quartiles %.0f and %.0f</small></dd></div>\n", all->tokens[1],
                                all->tokens[0], all->tokens[2]));
    EXF_TRY(open_card(r, "Cold experts", err));
    rc = exf_report_addf(r, err, "%" PRIu64 "<small>of %" PRIu64 " were never routed to</small></dd></div>\n", all->cold,
                         all->experts);
out:
    return rc;
}

static exf_code loss_cards(exf_report *r, const exf_layer_summary *all, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!isnan(all->loss)) {
        EXF_TRY(open_card(r, "Loss of a pair", err));
        EXF_TRY(exf_report_addf(r, err, "%.3f<small>median; %.1f %% of pairs under 0.5</small></dd></div>\n", all->loss,
                                100 * all->below_half));
        EXF_TRY(open_card(r, "Loss of the best target", err));
        EXF_TRY(exf_report_addf(r, err, "%.3f<small>median; quartiles %.3f and %.3f</small></dd></div>\n", all->best[1],
                                all->best[0], all->best[2]));
    }
    if (!isnan(all->similarity)) {
        EXF_TRY(open_card(r, isnan(all->aligned) ? "Similarity" : "Similarity, aligned", err));
        EXF_TRY(exf_report_addf(r, err, "%.3f<small>", isnan(all->aligned) ? all->similarity : all->aligned));
        EXF_TRY(isnan(all->aligned) ? exf_report_addf(r, err, "raw, mean of pairs")
                                    : exf_report_addf(r, err, "mean of pairs; raw %.3f", all->similarity));
        EXF_TRY(exf_report_addf(r, err, "</small></dd></div>\n"));
    }
    if (!isnan(all->norm_min)) {
        EXF_TRY(open_card(r, "Expert norms", err));
        rc = exf_report_addf(r, err, "%.3g to %.3g<small>layer %d expert %d, layer %d expert %d</small></dd></div>\n",
                             all->norm_min, all->norm_max, all->layer_min, all->expert_min, all->layer_max, all->expert_max);
    }
out:
    return rc;
}

exf_code exf_report_cards(exf_report *r, exf_err *err)
{
    const exf_layer_summary *all = &r->rows[r->s->n_layers];
    exf_code rc;
    EXF_TRY(model_card(r, err));
    EXF_TRY(coverage_cards(r, all, err));
    rc = loss_cards(r, all, err);
out:
    return rc;
}

/* ---- one row a layer ------------------------------------------------------------------------- */

static exf_code add_cell(exf_report *r, double value, int digits, exf_err *err)
{
    return isnan(value) ? exf_report_addf(r, err, "<td>\xe2\x80\x93</td>")
                        : exf_report_addf(r, err, "<td>%.*f</td>", digits, value);
}

static exf_code add_row(exf_report *r, const exf_layer_summary *row, exf_err *err)
{
    exf_code rc;
    if (row->layer < 0)
        EXF_TRY(exf_report_addf(r, err, "<tr><th scope=\"row\">all</th>"));
    else
        EXF_TRY(exf_report_addf(r, err, "<tr><th scope=\"row\"><a href=\"#matrix\" data-layer=\"%d\">%d</a></th>", row->layer,
                                row->layer));
    EXF_TRY(add_cell(r, percent(row->observed, row->pairs), 1, err));
    for (int i = 0; i < 3; i++) EXF_TRY(add_cell(r, row->tokens[i], 0, err));
    EXF_TRY(add_cell(r, row->loss, 3, err));
    EXF_TRY(add_cell(r, 100 * row->below_half, 1, err));
    for (int i = 0; i < 3; i++) EXF_TRY(add_cell(r, row->best[i], 3, err));
    EXF_TRY(add_cell(r, row->similarity, 3, err));
    EXF_TRY(add_cell(r, row->aligned, 3, err));
    if (isnan(row->norm_min))
        EXF_TRY(exf_report_addf(r, err, "<td>\xe2\x80\x93</td><td>\xe2\x80\x93</td>"));
    else if (row->layer < 0)
        EXF_TRY(exf_report_addf(r, err, "<td>%.3g <small>(%d:%d)</small></td><td>%.3g <small>(%d:%d)</small></td>", row->norm_min,
                                row->layer_min, row->expert_min, row->norm_max, row->layer_max, row->expert_max));
    else
        EXF_TRY(exf_report_addf(r, err, "<td>%.3g <small>(%d)</small></td><td>%.3g <small>(%d)</small></td>", row->norm_min,
                                row->expert_min, row->norm_max, row->expert_max));
    rc = exf_report_addf(r, err, "<td>%" PRIu64 "</td></tr>\n", row->cold);
out:
    return rc;
}

exf_code exf_report_layers(exf_report *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_report_addf(
        r, err,
        "<thead><tr><th rowspan=\"2\" scope=\"col\">layer</th><th rowspan=\"2\" scope=\"col\">pairs seen, %%</th>"
        "<th colspan=\"3\" scope=\"colgroup\">tokens of a pair</th><th colspan=\"2\" scope=\"colgroup\">loss</th>"
        "<th colspan=\"3\" scope=\"colgroup\">best target's loss</th><th colspan=\"2\" scope=\"colgroup\">similarity</th>"
        "<th colspan=\"2\" scope=\"colgroup\">expert norm (expert)</th><th rowspan=\"2\" scope=\"col\">cold</th></tr>\n"
        "<tr><th scope=\"col\">25 %%</th><th scope=\"col\">50 %%</th><th scope=\"col\">75 %%</th><th scope=\"col\">median</th>"
        "<th scope=\"col\">&lt; 0.5, %%</th><th scope=\"col\">25 %%</th><th scope=\"col\">50 %%</th><th scope=\"col\">75 %%</th>"
        "<th scope=\"col\">raw</th><th scope=\"col\">aligned</th><th scope=\"col\">least</th><th "
        "scope=\"col\">largest</th></tr></thead>\n<tbody>\n"));
    for (int l = 0; l < r->s->n_layers; l++) EXF_TRY(add_row(r, &r->rows[l], err));
    EXF_TRY(exf_report_addf(r, err, "</tbody>\n<tfoot>\n"));
    EXF_TRY(add_row(r, &r->rows[r->s->n_layers], err));
    rc = exf_report_addf(r, err, "</tfoot>\n");
out:
    return rc;
}

exf_code exf_report_facts(exf_report *r, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < r->s->provenance.n; i++) {
        if (exf_weights_facts_list_key(r->s->provenance.key[i])) continue;
        EXF_TRY(exf_report_addf(r, err, "<tr><th scope=\"row\">"));
        EXF_TRY(exf_report_text(r, r->s->provenance.key[i], err));
        EXF_TRY(exf_report_addf(r, err, "</th><td>"));
        EXF_TRY(exf_report_text(r, r->s->provenance.value[i], err));
        EXF_TRY(exf_report_addf(r, err, "</td></tr>\n"));
    }
out:
    return rc;
}

/* ---- report budgets ---------------------------------------------------------------------------- */

/* The table of budgets per token as HTML, a bar in each cell; see report_internal.h. */

/* Returns how many budgets from index i on have its mean number of experts; they stand together. */
static int count_same(const exf_inspection *s, int i)
{
    int n = 1;
    while (i + n < s->n_budgets && s->budget[i + n].budget == s->budget[i].budget) n++;
    return n;
}

static exf_code add_head(exf_report *r, exf_err *err)
{
    const exf_inspection *s = r->s;
    exf_code rc;
    EXF_TRY(exf_report_addf(r, err, "<thead><tr><th rowspan=\"2\" scope=\"col\">layer</th>"));
    for (int i = 0, n; i < s->n_budgets; i += n) {
        n = count_same(s, i);
        EXF_TRY(exf_report_addf(r, err, "<th colspan=\"%d\" scope=\"colgroup\">P = %g</th>", n, s->budget[i].budget));
    }
    EXF_TRY(exf_report_addf(r, err, "</tr>\n<tr>"));
    for (int i = 0; i < s->n_budgets; i++) EXF_TRY(exf_report_addf(r, err, "<th scope=\"col\">%s</th>", s->budget[i].rule));
    rc = exf_report_addf(r, err, "</tr></thead>\n");
out:
    return rc;
}

/* Adds a row of means, of layer index l or, below 0, of all; a bar is as long as the mean is of K. */
static exf_code add_means(exf_report *r, int l, exf_err *err)
{
    const exf_inspection *s = r->s;
    exf_code rc;
    if (l < 0)
        EXF_TRY(exf_report_addf(r, err, "<tr><th scope=\"row\">all</th>"));
    else
        EXF_TRY(exf_report_addf(r, err, "<tr><th scope=\"row\">%d</th>", (int)s->layer_number[l]));
    for (int i = 0; i < s->n_budgets; i++) {
        double mean = l < 0 ? s->budget[i].mean : exf_budget_layer_mean(s, &s->budget[i], l);
        EXF_TRY(exf_report_addf(r, err, "<td style=\"--share: %.1f%%\">%.3f</td>", 100 * mean / (double)s->shape.top_k, mean));
    }
    rc = exf_report_addf(r, err, "</tr>\n");
out:
    return rc;
}

static exf_code add_lambdas(exf_report *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_report_addf(r, err, "<tr><th scope=\"row\">&lambda;</th>"));
    for (int i = 0; i < r->s->n_budgets; i++) EXF_TRY(exf_report_addf(r, err, "<td>%.6g</td>", r->s->budget[i].lambda));
    rc = exf_report_addf(r, err, "</tr>\n");
out:
    return rc;
}

exf_code exf_report_budgets(exf_report *r, exf_err *err)
{
    exf_code rc;
    if (r->s->n_budgets == 0)
        return exf_report_addf(r, err, "<p class=\"note\">These tables have no budgets per token; "
                                       "<code>exfold-solve --set budgets=4</code> solves some from the statistics.</p>\n");
    EXF_TRY(exf_report_addf(r, err, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-budgets\">"
                                    "<table>\n"));
    EXF_TRY(add_head(r, err));
    EXF_TRY(exf_report_addf(r, err, "<tbody>\n"));
    for (int l = 0; l < r->s->n_layers; l++) EXF_TRY(add_means(r, l, err));
    EXF_TRY(exf_report_addf(r, err, "</tbody>\n<tfoot>\n"));
    EXF_TRY(add_means(r, -1, err));
    EXF_TRY(add_lambdas(r, err));
    rc = exf_report_addf(r, err, "</tfoot>\n</table></div>\n<p class=\"note\">Mean number of a token's %d experts that the "
                         "layer's sampled tokens keep, by the rule of each column. &lambda; is the price of one more expert; of "
                         "top_p, the share of w rms that is kept.</p>\n", (int)r->s->shape.top_k);
out:
    return rc;
}
