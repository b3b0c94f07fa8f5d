/* report_validation.c - the validation in the report, from the files that lie beside the tables: validation.json, or else the first
 * table of validation.md, and frontier.json.  Nothing is computed: sentences and marks are the files'.  A JSON file that is no
 * validation is an error; without any of them the page says that nothing was measured. */
#include "inspect/report_internal.h"

#include "base/mem.h"
#include "format/json.h"

#include <string.h>

/* ---- validation: around the table ------------------------------------------------------------- */

enum { FILE_MAX = 16 << 20 }; /* bytes */

#define NO_NUMBER "<td>\xe2\x80\x93</td>"

static void open_table(exf_report *r, const char *file)
{
    exf_report_addf(r,
                    "<p class=\"note\">What each variant does to the model, from %s beside the tables.</p>\n"
                    "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-validation\"><table>\n",
                    file);
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

static int is_number(const exf_json *j)
{
    return exf_json_type(j) == EXF_JSON_INT || exf_json_type(j) == EXF_JSON_REAL;
}

/* A column of numbers: the member of a variant, and how the number is printed. */
typedef struct {
    const char *key;
    int digits, percent;
    const char *error; /* member that is half of the number's interval, or NULL */
} number_column;

static void add_number(exf_report *r, const exf_json *variant, const number_column *c)
{
    const exf_json *value = exf_json_get(variant, c->key), *error = c->error ? exf_json_get(variant, c->error) : NULL;
    if (!is_number(value)) {
        exf_report_addf(r, NO_NUMBER);
        return;
    }
    exf_report_addf(r, "<td>%.*f%s", c->digits, exf_json_real(value) * (c->percent ? 100 : 1), c->percent ? "&nbsp;%" : "");
    if (is_number(error)) exf_report_addf(r, " <small>\xc2\xb1&nbsp;%.*f</small>", c->digits, exf_json_real(error));
    exf_report_addf(r, "</td>");
}

/* Adds the KL of the worst domain, and its name. */
static void add_worst(exf_report *r, const exf_json *variant)
{
    const char *name = exf_json_string(exf_json_get(variant, "worst_domain"), NULL);
    const exf_json *kl = name ? exf_json_get(exf_json_get(exf_json_get(variant, "domains"), name), "kl_mean") : NULL;
    if (!is_number(kl)) {
        exf_report_addf(r, NO_NUMBER);
        return;
    }
    exf_report_addf(r, "<td>%.5f <small>", exf_json_real(kl));
    exf_report_text(r, name);
    exf_report_addf(r, "</small></td>");
}

/* Adds a share of the original's cost, and the number of experts that it comes from. */
static void add_cost(exf_report *r, const exf_json *variant, const char *share, const char *experts)
{
    const exf_json *value = exf_json_get(exf_json_get(variant, "cost"), share), *n = exf_json_get(variant, experts);
    if (!is_number(value) && !is_number(n)) {
        exf_report_addf(r, NO_NUMBER);
        return;
    }
    exf_report_addf(r, "<td>");
    if (is_number(value)) exf_report_addf(r, "%.1f&nbsp;%% ", 100 * exf_json_real(value));
    if (is_number(n)) exf_report_addf(r, "<small>%.2f experts</small>", exf_json_real(n));
    exf_report_addf(r, "</td>");
}

/* Adds the names in an array, after what is there. */
static void add_names(exf_report *r, const exf_json *names, const char *before)
{
    for (size_t i = 0; i < exf_json_size(names); i++) {
        const char *name = exf_json_string(exf_json_at(names, i), NULL);
        exf_report_addf(r, "%s", before);
        exf_report_text(r, name ? name : "");
        exf_report_addf(r, " ");
    }
}

/* Adds who serves the row, and what it is: on a frontier, a baseline, or not constrained and why. */
static void add_marks(exf_report *r, const exf_json *variant)
{
    const char *role = exf_json_string(exf_json_get(variant, "role"), NULL),
               *why = exf_json_string(exf_json_get(variant, "constraint_words"), NULL);
    int is_aside = role && strcmp(role, "asked") != 0 && strcmp(role, "original") != 0;
    exf_report_addf(r, "<td class=\"text\">");
    add_names(r, exf_json_get(variant, "served_by"), "");
    add_names(r, exf_json_get(variant, "served_otherwise_by"), "~");
    exf_report_addf(r, "</td><td class=\"text\">%s", exf_json_true(exf_json_get(variant, "on_frontier")) ? "frontier" : "");
    exf_report_text(r, is_aside ? role : "");
    if (why) exf_report_addf(r, "%s", is_aside ? " " : "");
    exf_report_text(r, why ? why : "");
    exf_report_addf(r, "</td>");
}

static const char note[] =
    "<p class=\"note\">All variants ran beside the original in one pass over the same tokens. KL is KL(original || variant) of the "
    "next token in nats, with half of its 95&nbsp;% interval; worst domain: the one of largest mean KL. Same top: the share of "
    "tokens whose likeliest next token is the original's. Output error: relative error of the routed experts' output on the "
    "original's hidden states. Operations: of routed experts per token, the cost of prefill. Expert bytes: read by a decode step. "
    "Both are shares of the original's. Served by: public runtimes; ~: with options of their own.</p>\n";

static void add_variant(exf_report *r, const exf_json *variant)
{
    static const number_column before[] = {{"ppl", 4, 0, "ppl_se"}, {"kl_mean", 5, 0, "kl_half_width"}},
                               after[] = {{"kl_p99", 5, 0, NULL}, {"kl_max", 3, 0, NULL}, {"top1", 2, 1, NULL},
                                          {"output_error", 4, 0, NULL}};
    const char *name = exf_json_string(exf_json_get(variant, "name"), NULL);
    const char *words = exf_json_string(exf_json_get(variant, "words"), NULL); /* which files of older versions lack */
    exf_report_addf(r, "<tr><th scope=\"row\">");
    exf_report_text(r, words ? words : "");
    add_cell(r, "code", name ? name : "\xe2\x80\x93");
    exf_report_addf(r, "</th>");
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) add_number(r, variant, &before[i]);
    add_worst(r, variant);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) add_number(r, variant, &after[i]);
    add_cost(r, variant, "expert_flops_share", "experts_per_token");
    add_cost(r, variant, "expert_bytes_share", "experts_per_batch");
    add_marks(r, variant);
    exf_report_addf(r, "</tr>\n");
}

static void add_sentences(exf_report *r, const exf_json *list)
{
    for (size_t i = 0; i < exf_json_size(list); i++) {
        const char *s = exf_json_string(exf_json_at(list, i), NULL);
        exf_report_addf(r, "<li>");
        exf_report_text(r, s ? s + strspn(s, " ") : "");
        exf_report_addf(r, "</li>\n");
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
    if (exf_json_get(root, "verdict")) {
        static const char *const lists[] = {"verdict", "stability", "not_constrained"};
        exf_report_addf(r, "<ul>\n");
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) add_sentences(r, exf_json_get(root, lists[i]));
        add_sentences(r, exf_json_get(exf_json_get(root, "recommendation"), "words"));
        add_sentences(r, exf_json_get(root, "data"));
        exf_report_addf(r, "</ul>\n");
    }
    open_table(r, exf_path_name(path));
    static const char *const heads[] = {"variant", "PPL \xc2\xb1 std. error", "KL mean", "worst domain", "KL 99&nbsp;%", "KL max",
                                        "same top", "output error", "operations", "expert bytes", "served by", ""};
    exf_report_addf(r, "<thead><tr>");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) exf_report_addf(r, "<th scope=\"col\">%s</th>", heads[i]);
    exf_report_addf(r, "</tr></thead><tbody>\n");
    for (size_t i = 0; i < exf_json_size(variants); i++) add_variant(r, exf_json_at(variants, i));
    exf_report_addf(r, "</tbody></table></div>\n");
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
    exf_report_addf(r, "</tbody></table></div>\n");
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

/* Adds a file if it exists. */
static exf_code add_file(exf_report *r, const char *name, int *found, exf_err *err)
{
    char *path = NULL;
    exf_code rc;
    int exists = 0;
    EXF_TRY(exf_path_join(&path, r->beside, name, err));
    EXF_TRY(exf_path_look(path, &exists, err));
    if (exists) rc = exf_ends_with(name, ".md") ? add_markdown(r, path, err) : add_json(r, path, err);
    *found |= exists;
out:
    exf_mem_free(path);
    return rc;
}

exf_code exf_report_validation(exf_report *r, exf_err *err)
{
    int found = 0;
    exf_code rc;
    EXF_TRY(add_file(r, "validation.json", &found, err));
    if (!found) EXF_TRY(add_file(r, "validation.md", &found, err));
    EXF_TRY(add_file(r, "frontier.json", &found, err));
    if (!found) add_nothing(r);
out:
    return rc;
}
