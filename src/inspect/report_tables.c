/* report_tables.c - the parts of the report that are HTML: cards, tables of layers, budgets and facts, and the validation's
 * table, made from the validation.json that lies beside the tables, or else from the first table of validation.md.  A
 * validation.json that is no validation is an error; without either the page says that nothing was measured. */
#include "inspect/report_internal.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "format/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static double find_percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* ---- cards --------------------------------------------------------------------------------- */

static void open_card(exf_report *r, const char *name)
{
    exf_report_addf(r, "<div class=\"card\"><dt>%s</dt><dd>", name);
}

static void model_card(exf_report *r)
{
    const exf_run_shape *s = &r->s->shape;
    const char *family = exf_provenance_get(&r->s->provenance, "model.family");
    open_card(r, "Model");
    exf_report_text(r, family ? family : "unknown");
    exf_report_addf(r, "<small>%d MoE layers, %" PRId64 " experts, top-%" PRId64 ", hidden %" PRId64 "</small></dd></div>\n",
                    r->s->n_layers, s->n_experts, s->top_k, s->d_model);
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

void exf_report_cards(exf_report *r)
{
    const exf_layer_summary *all = &r->rows[r->s->n_layers];
    model_card(r);
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

void exf_report_layers(exf_report *r)
{
    exf_report_addf(
r, "<thead><tr><th rowspan=\"2\" scope=\"col\">layer</th><th rowspan=\"2\" scope=\"col\">pairs seen, %%</th>"
"<th colspan=\"3\" scope=\"colgroup\">tokens of a pair</th><th colspan=\"2\" scope=\"colgroup\">loss</th>"
"<th colspan=\"3\" scope=\"colgroup\">best target's loss</th><th colspan=\"2\" scope=\"colgroup\">similarity</th>"
"<th colspan=\"2\" scope=\"colgroup\">expert norm (expert)</th><th rowspan=\"2\" scope=\"col\">cold</th></tr>\n"
"<tr><th scope=\"col\">25 %%</th><th scope=\"col\">50 %%</th><th scope=\"col\">75 %%</th><th scope=\"col\">median</th>"
"<th scope=\"col\">&lt; 0.5, %%</th><th scope=\"col\">25 %%</th><th scope=\"col\">50 %%</th><th scope=\"col\">75 %%</th>"
"<th scope=\"col\">raw</th><th scope=\"col\">aligned</th><th scope=\"col\">least</th><th "
"scope=\"col\">largest</th></tr></thead>\n<tbody>\n");
    for (int l = 0; l < r->s->n_layers; l++) add_row(r, &r->rows[l]);
    exf_report_addf(r, "</tbody>\n<tfoot>\n");
    add_row(r, &r->rows[r->s->n_layers]);
    exf_report_addf(r, "</tfoot>\n");
}

void exf_report_facts(exf_report *r)
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

/* Returns how many budgets from index i on have the same mean number of experts: they share a head. */
static int count_same(const exf_inspection *s, int i)
{
    int n = 1;
    while (i + n < s->n_budgets && s->budget[i + n].budget == s->budget[i].budget) n++;
    return n;
}

static void add_head(exf_report *r)
{
    const exf_inspection *s = r->s;
    exf_report_addf(r, "<thead><tr><th rowspan=\"2\" scope=\"col\">layer</th>");
    for (int i = 0, n; i < s->n_budgets; i += n) {
        n = count_same(s, i);
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
        exf_report_addf(r, "<td style=\"--share: %.1f%%\">%.3f</td>", 100 * mean / (double)s->shape.top_k, mean);
    }
    exf_report_addf(r, "</tr>\n");
}

static void add_lambdas(exf_report *r)
{
    exf_report_addf(r, "<tr><th scope=\"row\">&lambda;</th>");
    for (int i = 0; i < r->s->n_budgets; i++) exf_report_addf(r, "<td>%.6g</td>", r->s->budget[i].lambda);
    exf_report_addf(r, "</tr>\n");
}

void exf_report_budgets(exf_report *r)
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
    add_lambdas(r);
    exf_report_addf(r, "</tfoot>\n</table></div>\n<p class=\"note\">Mean number of a token's %d experts that the "
                    "layer's sampled tokens keep, by the rule of each column. &lambda; is the price of one more expert; of "
                    "top_p, the share of w rms that is kept.</p>\n", (int)r->s->shape.top_k);
}

/* ---- validation: around the table ------------------------------------------------------------- */

enum { FILE_MAX = 16 << 20 }; /* bytes */

static void open_table(exf_report *r, const char *file)
{
    exf_report_addf(r,
                    "<p class=\"note\">What each variant does to the model, from %s beside the tables.</p>\n"
                    "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-validation\"><table>\n",
                    file);
}

static void close_table(exf_report *r)
{
    exf_report_addf(r, "</tbody></table></div>\n");
}

/* Says that the tables were not validated, and the command that does it. */
static void add_nothing(exf_report *r)
{
    exf_report_addf(r, "<p>No validation lies beside the tables: what they do to the model was not measured here. "
                       "<code>exfold-validate RECIPE.yaml</code> measures it.</p>\n");
}

static void add_cell(exf_report *r, const char *tag, const char *text)
{
    exf_report_addf(r, "<%s>", tag);
    exf_report_text(r, text);
    exf_report_addf(r, "</%s>", tag);
}

/* ---- validation.json ---------------------------------------------------------------------------------- */

/* A column of numbers: the member of a variant, its head, and how the number is printed. */
static const struct {
    const char *key, *head;
    int digits, percent;
    const char *error; /* member that holds its standard error, or NULL */
} columns[] = {
    {"ppl", "PPL \xc2\xb1 std. error", 4, 0, "ppl_se"},
    {"kl_mean", "KL mean", 5, 0, NULL},
    {"kl_median", "KL median", 5, 0, NULL},
    {"kl_p90", "KL 90&nbsp;%", 5, 0, NULL},
    {"kl_p99", "KL 99&nbsp;%", 5, 0, NULL},
    {"kl_p999", "KL 99.9&nbsp;%", 4, 0, NULL},
    {"kl_max", "KL max", 3, 0, NULL},
    {"top1", "same top", 2, 1, NULL},
    {"output_error", "output error", 4, 0, NULL},
    {"experts_per_token", "experts per token", 3, 0, NULL},
    {"experts_per_batch", "experts per batch", 2, 0, NULL},
};

enum { COLUMNS = sizeof columns / sizeof *columns };

static const char note[] =
    "<p class=\"note\">All variants ran beside the original in one pass over the same tokens. KL is KL(original || variant) of the "
    "next token in nats: mean, quantiles and maximum over tokens. Same top: the share of tokens whose likeliest next token is "
    "the original's. Output error: relative error of the routed experts' output on the original's hidden states. Experts per "
    "token are those that run, experts per batch the distinct ones of a decode step.</p>\n";

static void add_heads(exf_report *r)
{
    exf_report_addf(r, "<thead><tr><th scope=\"col\">variant</th>");
    for (size_t i = 0; i < COLUMNS; i++) exf_report_addf(r, "<th scope=\"col\">%s</th>", columns[i].head);
    exf_report_addf(r, "</tr></thead><tbody>\n");
}

/* Adds the variant in words with its text under them; files of older versions have the text alone. */
static void add_name(exf_report *r, const exf_json *variant)
{
    const char *name = exf_json_string(exf_json_get(variant, "name"), NULL);
    const char *words = exf_json_string(exf_json_get(variant, "words"), NULL);
    exf_report_addf(r, "<tr><th scope=\"row\">");
    exf_report_text(r, words ? words : "");
    add_cell(r, "code", name ? name : "\xe2\x80\x93");
    exf_report_addf(r, "</th>");
}

static int is_number(const exf_json *j)
{
    return exf_json_type(j) == EXF_JSON_INT || exf_json_type(j) == EXF_JSON_REAL;
}

static void add_number(exf_report *r, const exf_json *variant, size_t column)
{
    const exf_json *value = exf_json_get(variant, columns[column].key);
    const exf_json *error = columns[column].error ? exf_json_get(variant, columns[column].error) : NULL;
    int digits = columns[column].digits, percent = columns[column].percent;
    if (!is_number(value)) {
        exf_report_addf(r, "<td>\xe2\x80\x93</td>");
        return;
    }
    exf_report_addf(r, "<td>%.*f%s", digits, exf_json_real(value) * (percent ? 100 : 1), percent ? "&nbsp;%" : "");
    if (is_number(error)) exf_report_addf(r, " <small>\xc2\xb1&nbsp;%.*f</small>", digits, exf_json_real(error));
    exf_report_addf(r, "</td>");
}

static void add_variants(exf_report *r, const exf_json *variants)
{
    add_heads(r);
    for (size_t i = 0; i < exf_json_size(variants); i++) {
        add_name(r, exf_json_at(variants, i));
        for (size_t c = 0; c < COLUMNS; c++) add_number(r, exf_json_at(variants, i), c);
        exf_report_addf(r, "</tr>\n");
    }
}

static exf_code add_json(exf_report *r, const char *path, exf_err *err)
{
    exf_json *root = NULL;
    exf_code rc;
    EXF_TRY(exf_json_load(&root, path, FILE_MAX, err));
    const char *schema = exf_json_string(exf_json_get(root, "schema"), NULL);
    const exf_json *variants = exf_json_get(root, "variants");
    if (!schema || strcmp(schema, "exfold-validation/1") != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: \"schema\" is %s, expected exfold-validation/1", path, schema ? schema : "missing");
    else if (exf_json_type(variants) != EXF_JSON_ARRAY)
        rc = exf_fail(err, EXF_FORMAT, "%s: \"variants\" is %s, expected an array", path, exf_json_type_name(variants));
    if (rc != EXF_OK) goto out;
    open_table(r, "validation.json");
    add_variants(r, variants);
    close_table(r);
    exf_report_addf(r, "%s", note);
out:
    exf_json_free(root);
    return rc;
}

/* ---- validation.md --------------------------------------------------------------------------------- */

/* Adds the cells of "| a | b |", blanks trimmed; cuts the line up. */
static void add_markdown_row(exf_report *r, char *line, const char *tag)
{
    exf_report_addf(r, "<tr>");
    for (char *at = line + 1, *bar; (bar = strchr(at, '|')); at = bar + 1) {
        char *end = bar;
        while (*at == ' ') at++;
        while (end > at && end[-1] == ' ') end--;
        *end = 0;
        add_cell(r, tag, at);
    }
    exf_report_addf(r, "</tr>\n");
}

static void add_markdown_table(exf_report *r, char *line)
{
    char *end;
    open_table(r, "validation.md");
    for (int row = 0; *line == '|'; row++, line = end + 1) {
        end = strchr(line, '\n');
        if (!end) end = line + strlen(line) - 1;
        *end = *end == '\n' ? 0 : *end;
        if (row == 0) exf_report_addf(r, "<thead>");
        if (row != 1) add_markdown_row(r, line, row ? "td" : "th");
        if (row == 0) exf_report_addf(r, "</thead><tbody>\n");
    }
    close_table(r);
}

static exf_code add_markdown(exf_report *r, const char *path, exf_err *err)
{
    char *text = NULL, *line;
    size_t n;
    exf_code rc;
    EXF_TRY(exf_file_slurp(path, FILE_MAX, &text, &n, err));
    line = *text == '|' ? text : strstr(text, "\n|");
    if (line)
        add_markdown_table(r, line + (*line == '\n'));
    else
        add_nothing(r);
out:
    exf_mem_free(text);
    return rc;
}

exf_code exf_report_validation(exf_report *r, exf_err *err)
{
    static const struct {
        const char *name;
        exf_code (*add)(exf_report *r, const char *path, exf_err *err);
    } files[] = {
        {"validation.json", add_json},
        {"validation.md", add_markdown},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = NULL;
        exf_code rc = exf_path_join(&path, r->beside, files[i].name, err);
        int exists = 0;
        if (rc == EXF_OK) rc = exf_path_look(path, &exists, err);
        if (exists) rc = files[i].add(r, path, err);
        exf_mem_free(path);
        if (rc != EXF_OK || exists) return rc;
    }
    add_nothing(r);
    return EXF_OK;
}
