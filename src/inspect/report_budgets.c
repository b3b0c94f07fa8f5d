/* report_budgets.c - the table of budgets per token as HTML, a bar in each cell; see report_internal.h. */
#include "inspect/budget_summary.h"
#include "inspect/report_internal.h"

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
