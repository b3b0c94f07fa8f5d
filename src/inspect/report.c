/* report.c - fills the places of the report's page, {{name}}: cards, tables of layers, budgets and facts; see report.h.  The
 * Makefile makes gen/report_<part>.inc from src/inspect/report/report.<part>. */
#include "inspect/report_internal.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "solve/solve.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const unsigned char html[] = {
#include "gen/report_html.inc"
};
static const unsigned char css[] = {
#include "gen/report_css.inc"
};
static const unsigned char js[] = {
#include "gen/report_js.inc"
};

/* ---- parts that are HTML ----------------------------------------------------------------------------- */

static double find_percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* ---- cards --------------------------------------------------------------------------------- */

static void open_card(exf_report *r, const char *name)
{
    exf_report_addf(r, "<div class=\"card\"><dt>%s</dt><dd>", name);
}

static void coverage_cards(exf_report *r, const exf_layer_summary *all)
{
    open_card(r, "Data");
    exf_report_addf(r, "%" PRId64 " tokens<small>in %" PRId64 " sequences", r->s->shape.n_tokens, r->s->shape.n_sequences);
    if (r->s->part) exf_report_addf(r, "; a part of the data: ");
    if (r->s->part) exf_report_text(r, r->s->part);
    exf_report_addf(r, "</small></dd></div>\n");
    open_card(r, "Pairs observed");
    exf_report_addf(r, "%.1f %%<small>%" PRIu64 " of %" PRIu64 " ordered pairs</small></dd></div>\n",
                    find_percent(all->observed, all->pairs), all->observed, all->pairs);
    open_card(r, "Sample size of a pair");
    if (isnan(all->tokens[1]))
        exf_report_addf(r, "none</dd></div>\n");
    else
        exf_report_addf(r, "%.0f tokens<small>median; quartiles %.0f and %.0f</small></dd></div>\n", all->tokens[1],
                        all->tokens[0], all->tokens[2]);
    open_card(r, "Cold experts");
    exf_report_addf(r, "%" PRIu64 "<small>of %" PRIu64 " were never routed to</small></dd></div>\n", all->cold, all->experts);
}

static void loss_cards(exf_report *r, const exf_layer_summary *all)
{
    if (!isnan(all->loss)) {
        open_card(r, "Loss of a pair");
        exf_report_addf(r, "%.3f<small>median; %.1f %% of pairs under 0.5</small></dd></div>\n", all->loss,
                        100 * all->below_half);
        open_card(r, "Loss of the best target");
        exf_report_addf(r, "%.3f<small>median; quartiles %.3f and %.3f</small></dd></div>\n", all->best[1],
                        all->best[0], all->best[2]);
    }
    if (!isnan(all->stable)) {
        open_card(r, "Stable targets");
        exf_report_addf(r, "%.1f %%<small>of the traffic has the same best target by either half of the text</small></dd></div>\n",
                        100 * all->stable);
    }
    if (!isnan(all->cost)) {
        open_card(r, "Cost of the choice");
        exf_report_addf(r, "%.1f %%<small>of the experts' output more is lost by the other half's targets; up to %.0f %% is enough"
                           "</small></dd></div>\n", 100 * all->cost, 100 * EXF_CHOICE_COST);
    }
    if (!isnan(all->similarity)) {
        open_card(r, isnan(all->aligned) ? "Similarity" : "Similarity, aligned");
        exf_report_addf(r, "%.3f<small>", isnan(all->aligned) ? all->similarity : all->aligned);
        if (isnan(all->aligned))
            exf_report_addf(r, "raw, mean of pairs");
        else
            exf_report_addf(r, "mean of pairs; raw %.3f", all->similarity);
        exf_report_addf(r, "</small></dd></div>\n");
    }
    if (!isnan(all->norm_min)) {
        open_card(r, "Expert norms");
        exf_report_addf(r, "%.3g to %.3g<small>layer %d expert %d, layer %d expert %d</small></dd></div>\n",
                        all->norm_min, all->norm_max, all->layer_min, all->expert_min, all->layer_max, all->expert_max);
    }
}

static void add_cards(exf_report *r)
{
    const exf_layer_summary *all = &r->rows[r->s->n_layers];
    const exf_run_shape *s = &r->s->shape;
    const char *family = exf_provenance_get(&r->s->provenance, "model.family");
    open_card(r, "Model");
    exf_report_text(r, family ? family : "unknown");
    exf_report_addf(r, "<small>%d MoE layers, %" PRId64 " experts, top-%" PRId64 ", hidden %" PRId64 "</small></dd></div>\n",
                    r->s->n_layers, s->n_experts, s->top_k, s->d_model);
    coverage_cards(r, all);
    loss_cards(r, all);
}

/* ---- layers and facts ------------------------------------------------------------------------- */

static void add_value(exf_report *r, double value, int digits)
{
    if (isnan(value))
        exf_report_addf(r, "<td>\xe2\x80\x93</td>");
    else
        exf_report_addf(r, "<td>%.*f</td>", digits, value);
}

static void add_row(exf_report *r, const exf_layer_summary *row)
{
    if (row->layer < 0)
        exf_report_addf(r, "<tr><th scope=\"row\">all</th>");
    else
        exf_report_addf(r, "<tr><th scope=\"row\"><a href=\"#matrix\" data-layer=\"%d\">%d</a></th>", row->layer, row->layer);
    add_value(r, find_percent(row->observed, row->pairs), 1);
    for (int i = 0; i < 3; i++) add_value(r, row->tokens[i], 0);
    add_value(r, row->loss, 3);
    add_value(r, 100 * row->below_half, 1);
    for (int i = 0; i < 3; i++) add_value(r, row->best[i], 3);
    add_value(r, row->similarity, 3);
    add_value(r, row->aligned, 3);
    add_value(r, row->least_eigenvalue, 2);
    add_value(r, row->cosine_sq, 3);
    add_value(r, 100 * row->near_copies, 1);
    if (isnan(row->norm_min))
        exf_report_addf(r, "<td>\xe2\x80\x93</td><td>\xe2\x80\x93</td>");
    else if (row->layer < 0)
        exf_report_addf(r, "<td>%.3g <small>(%d:%d)</small></td><td>%.3g <small>(%d:%d)</small></td>", row->norm_min,
                        row->layer_min, row->expert_min, row->norm_max, row->layer_max, row->expert_max);
    else
        exf_report_addf(r, "<td>%.3g <small>(%d)</small></td><td>%.3g <small>(%d)</small></td>", row->norm_min,
                        row->expert_min, row->norm_max, row->expert_max);
    exf_report_addf(r, "<td>%" PRIu64 "</td></tr>\n", row->cold);
}

static void add_layers(exf_report *r)
{
    exf_report_addf(
r, "<thead><tr><th rowspan=\"2\" scope=\"col\">layer</th><th rowspan=\"2\" scope=\"col\">pairs seen, %%</th>"
"<th colspan=\"3\" scope=\"colgroup\">tokens of a pair</th><th colspan=\"2\" scope=\"colgroup\">loss</th>"
"<th colspan=\"3\" scope=\"colgroup\">best target's loss</th><th colspan=\"2\" scope=\"colgroup\">similarity</th>"
"<th colspan=\"3\" scope=\"colgroup\">mean cosines</th>"
"<th colspan=\"2\" scope=\"colgroup\">expert norm (expert)</th><th rowspan=\"2\" scope=\"col\">cold</th></tr>\n"
"<tr><th scope=\"col\">25 %%</th><th scope=\"col\">50 %%</th><th scope=\"col\">75 %%</th><th scope=\"col\">median</th>"
"<th scope=\"col\">&lt; 0.5, %%</th><th scope=\"col\">25 %%</th><th scope=\"col\">50 %%</th><th scope=\"col\">75 %%</th>"
"<th scope=\"col\">raw</th><th scope=\"col\">aligned</th><th scope=\"col\">least eigenvalue</th>"
"<th scope=\"col\">median square</th><th scope=\"col\">near copies, %%</th><th scope=\"col\">least</th><th "
"scope=\"col\">largest</th></tr></thead>\n<tbody>\n");
    for (int l = 0; l < r->s->n_layers; l++) add_row(r, &r->rows[l]);
    exf_report_addf(r, "</tbody>\n<tfoot>\n");
    add_row(r, &r->rows[r->s->n_layers]);
    exf_report_addf(r, "</tfoot>\n");
}

static void add_facts(exf_report *r)
{
    for (size_t i = 0; i < r->s->provenance.n; i++) {
        if (exf_weights_facts_list_key(r->s->provenance.key[i])) continue;
        exf_report_addf(r, "<tr><th scope=\"row\">");
        exf_report_text(r, r->s->provenance.key[i]);
        exf_report_addf(r, "</th><td>");
        exf_report_text(r, r->s->provenance.value[i]);
        exf_report_addf(r, "</td></tr>\n");
    }
}

/* ---- budgets ---------------------------------------------------------------------------------- */

static void add_head(exf_report *r)
{
    const exf_inspection *s = r->s;
    exf_report_addf(r, "<thead><tr><th rowspan=\"2\" scope=\"col\">layer</th>");
    for (int i = 0, n; i < s->n_budgets; i += n) {
        for (n = 1; i + n < s->n_budgets && s->budget[i + n].budget == s->budget[i].budget;) n++; /* they share a head */
        exf_report_addf(r, "<th colspan=\"%d\" scope=\"colgroup\">P = %g</th>", n, s->budget[i].budget);
    }
    exf_report_addf(r, "</tr>\n<tr>");
    for (int i = 0; i < s->n_budgets; i++) exf_report_addf(r, "<th scope=\"col\">%s</th>", s->budget[i].rule);
    exf_report_addf(r, "</tr></thead>\n");
}

/* Adds a row of means, of layer index l or, below 0, of all; a bar is as long as the mean is of K. */
static void add_means(exf_report *r, int l)
{
    const exf_inspection *s = r->s;
    if (l < 0)
        exf_report_addf(r, "<tr><th scope=\"row\">all</th>");
    else
        exf_report_addf(r, "<tr><th scope=\"row\">%d</th>", (int)s->layer_number[l]);
    for (int i = 0; i < s->n_budgets; i++) {
        double mean = l < 0 ? s->budget[i].mean : exf_budget_layer_mean(s, &s->budget[i], l);
        if (isnan(mean))
            exf_report_addf(r, "<td>left out</td>");
        else
            exf_report_addf(r, "<td style=\"--share: %.1f%%\">%.3f</td>", 100 * mean / (double)s->shape.top_k, mean);
    }
    exf_report_addf(r, "</tr>\n");
}

/* Adds a row of lambdas by predicted norms, where a budget has one. */
static void add_predicted_lambdas(exf_report *r)
{
    int any = 0;
    for (int i = 0; i < r->s->n_budgets; i++) any |= r->s->budget[i].predicted.kept != NULL;
    if (!any) return;
    exf_report_addf(r, "<tr><th scope=\"row\">&lambda;, predicted norms</th>");
    for (int i = 0; i < r->s->n_budgets; i++) {
        const exf_budget_threshold p = exf_budget_threshold_of(&r->s->budget[i], 1);
        if (p.mean > 0)
            exf_report_addf(r, "<td>%.6g</td>", p.lambda);
        else
            exf_report_addf(r, "<td></td>");
    }
    exf_report_addf(r, "</tr>\n");
}

/* or a sentence that there are none */
static void add_budgets(exf_report *r)
{
    if (r->s->n_budgets == 0) {
        exf_report_addf(r, "<p class=\"note\">These tables have no budgets per token; "
                           "<code>exfold-solve --set budgets=4</code> solves some from the statistics.</p>\n");
        return;
    }
    exf_report_addf(r, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-budgets\"><table>\n");
    add_head(r);
    exf_report_addf(r, "<tbody>\n");
    for (int l = 0; l < r->s->n_layers; l++) add_means(r, l);
    exf_report_addf(r, "</tbody>\n<tfoot>\n");
    add_means(r, -1);
    exf_report_addf(r, "<tr><th scope=\"row\">&lambda;</th>");
    for (int i = 0; i < r->s->n_budgets; i++) exf_report_addf(r, "<td>%.6g</td>", r->s->budget[i].lambda);
    exf_report_addf(r, "</tr>\n");
    add_predicted_lambdas(r);
    exf_report_addf(r, "</tfoot>\n</table></div>\n<p class=\"note\">Mean number of a token's %d experts that the "
                    "layer's sampled tokens keep, by the rule of each column. &lambda; is the price of one more expert; of "
                    "top_p, the share of w rms that is kept.</p>\n", (int)r->s->shape.top_k);
}

/* ---- places ---------------------------------------------------------------------------- */

static void add_title(exf_report *r)
{
    exf_report_text(r, r->title);
}

/* What fills a place: bytes, a function or, where other things than writing may fail, one that tells so. */
static const struct {
    const char *name;
    const unsigned char *bytes;
    size_t n_bytes;
    void (*add)(exf_report *r);
    exf_code (*load)(exf_report *r, exf_err *err);
} places[] = {
    {"title", NULL, 0, add_title, NULL},
    {"style", css, sizeof css, NULL, NULL},
    {"script", js, sizeof js, NULL, NULL},
    {"cards", NULL, 0, add_cards, NULL},
    {"layers", NULL, 0, add_layers, NULL},
    {"validation", NULL, 0, NULL, exf_report_validation},
    {"facts", NULL, 0, add_facts, NULL},
    {"data", NULL, 0, NULL, exf_report_data},
    {"budgets", NULL, 0, add_budgets, NULL},
};

enum { N_PLACES = sizeof places / sizeof *places };

/* Writes the page, with every {{name}} filled. */
static exf_code fill_page(exf_report *r)
{
    const char *page = (const char *)html;
    exf_code rc = EXF_OK;
    for (size_t at = 0, n = sizeof html; at < n;) {
        const char *open = memchr(page + at, '{', n - at), *close;
        size_t plain = open ? (size_t)(open - page) - at : n - at;
        exf_text_append(&r->text, page + at, plain);
        at += plain;
        if (!open) break;
        close = memchr(open, '}', n - at);
        if (!close || open[1] != '{' || close[1] != '}')
            return exf_fail(r->err, EXF_INTERNAL, "report.html: a brace at byte %zu is no {{place}}", at);
        size_t len = (size_t)(close - open) - 2, k = 0;
        while (k < N_PLACES && (strlen(places[k].name) != len || memcmp(places[k].name, open + 2, len) != 0)) k++;
        if (k == N_PLACES)
            return exf_fail(r->err, EXF_INTERNAL, "report.html has a place {{%.*s}} that nothing fills", (int)len, open + 2);
        if (places[k].bytes) exf_text_append(&r->text, (const char *)places[k].bytes, places[k].n_bytes);
        if (places[k].add) places[k].add(r);
        if (places[k].load) EXF_TRY(places[k].load(r, r->err));
        EXF_TRY(r->rc);
        at = (size_t)(close - page) + 2;
    }
    exf_report_flush(r);
    rc = r->rc;
out:
    return rc;
}

exf_code exf_report_write(const exf_inspection *s, const char *title, const char *beside, const char *target, int force,
                          exf_err *err)
{
    exf_report r = {.s = s, .title = title, .beside = beside, .err = err};
    exf_code rc;
    EXF_TRY(exf_mem_new(&r.rows, (size_t)s->n_layers + 1, sizeof *r.rows, "summary", err));
    EXF_TRY(exf_summarise(s, r.rows, err));
    EXF_TRY(exf_output_file_begin(&r.file, target, force, err));
    EXF_TRY(fill_page(&r));
    rc = exf_output_file_commit(r.file, err);
    r.file = NULL;
out:
    exf_output_file_abort(r.file);
    exf_mem_free(r.rows);
    exf_text_free(&r.text);
    return rc;
}
