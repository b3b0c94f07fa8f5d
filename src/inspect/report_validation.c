/* report_validation.c - the validation's table in the report: the variants of the validation.json
 * that lies beside the tables, or else the first table of validation.md.  A validation.json
 * that is no validation is an error; without either the page says that nothing was measured. */
#include "base/mem.h"
#include "format/json.h"
#include "inspect/report_internal.h"

#include <string.h>

enum { FILE_MAX = 16 << 20 };

static exf_code open_table(exf_report *r, const char *file, exf_err *err)
{
    return exf_report_addf(r, err,
                           "<p class=\"note\">What each variant does to the model, from %s beside the tables.</p>\n"
                           "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"h-validation\"><table>\n",
                           file);
}

static exf_code close_table(exf_report *r, exf_err *err)
{
    return exf_report_addf(r, err, "</tbody></table></div>\n");
}

/* Says that the tables were not validated, and the command that does it. */
static exf_code add_nothing(exf_report *r, exf_err *err)
{
    return exf_report_addf(r, err, "<p>No validation lies beside the tables: what they do to the model was not measured here. "
                                   "<code>exfold-validate RECIPE.yaml</code> measures it.</p>\n");
}

static exf_code add_cell(exf_report *r, const char *tag, const char *text, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_report_addf(r, err, "<%s>", tag));
    EXF_TRY(exf_report_text(r, text, err));
    rc = exf_report_addf(r, err, "</%s>", tag);
out:
    return rc;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

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

static exf_code add_heads(exf_report *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_report_addf(r, err, "<thead><tr><th scope=\"col\">variant</th>"));
    for (size_t i = 0; i < COLUMNS; i++) EXF_TRY(exf_report_addf(r, err, "<th scope=\"col\">%s</th>", columns[i].head));
    rc = exf_report_addf(r, err, "</tr></thead><tbody>\n");
out:
    return rc;
}

/* The variant in words with its text under them; files of older versions have the text alone. */
static exf_code add_name(exf_report *r, const exf_json *variant, exf_err *err)
{
    const char *name = exf_json_string(exf_json_get(variant, "name"), NULL);
    const char *words = exf_json_string(exf_json_get(variant, "words"), NULL);
    exf_code rc;
    EXF_TRY(exf_report_addf(r, err, "<tr><th scope=\"row\">"));
    EXF_TRY(exf_report_text(r, words ? words : "", err));
    EXF_TRY(add_cell(r, "code", name ? name : "\xe2\x80\x93", err));
    rc = exf_report_addf(r, err, "</th>");
out:
    return rc;
}

static int is_number(const exf_json *j)
{
    return exf_json_type(j) == EXF_JSON_INT || exf_json_type(j) == EXF_JSON_REAL;
}

static exf_code add_number(exf_report *r, const exf_json *variant, size_t column, exf_err *err)
{
    const exf_json *value = exf_json_get(variant, columns[column].key);
    const exf_json *error = columns[column].error ? exf_json_get(variant, columns[column].error) : NULL;
    int digits = columns[column].digits, percent = columns[column].percent;
    exf_code rc;
    if (!is_number(value)) return exf_report_addf(r, err, "<td>\xe2\x80\x93</td>");
    EXF_TRY(exf_report_addf(r, err, "<td>%.*f%s", digits, exf_json_real(value) * (percent ? 100 : 1), percent ? "&nbsp;%" : ""));
    if (is_number(error)) EXF_TRY(exf_report_addf(r, err, " <small>\xc2\xb1&nbsp;%.*f</small>", digits, exf_json_real(error)));
    rc = exf_report_addf(r, err, "</td>");
out:
    return rc;
}

static exf_code add_variants(exf_report *r, const exf_json *variants, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_heads(r, err));
    for (size_t i = 0; i < exf_json_size(variants); i++) {
        EXF_TRY(add_name(r, exf_json_at(variants, i), err));
        for (size_t c = 0; c < COLUMNS; c++) EXF_TRY(add_number(r, exf_json_at(variants, i), c, err));
        EXF_TRY(exf_report_addf(r, err, "</tr>\n"));
    }
out:
    return rc;
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
    EXF_TRY(open_table(r, "validation.json", err));
    EXF_TRY(add_variants(r, variants, err));
    EXF_TRY(close_table(r, err));
    rc = exf_report_addf(r, err, "%s", note);
out:
    exf_json_free(root);
    return rc;
}

/* ---- Markdown --------------------------------------------------------------------------------- */

/* "| a | b |" in place: its cells, blanks trimmed; cut is spoiled. */
static exf_code add_markdown_row(exf_report *r, char *line, const char *tag, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_report_addf(r, err, "<tr>"));
    for (char *at = line + 1, *bar; (bar = strchr(at, '|')); at = bar + 1) {
        char *end = bar;
        while (*at == ' ') at++;
        while (end > at && end[-1] == ' ') end--;
        *end = 0;
        EXF_TRY(add_cell(r, tag, at, err));
    }
    rc = exf_report_addf(r, err, "</tr>\n");
out:
    return rc;
}

static exf_code add_markdown_table(exf_report *r, char *line, exf_err *err)
{
    exf_code rc;
    char *end;
    EXF_TRY(open_table(r, "validation.md", err));
    for (int row = 0; *line == '|'; row++, line = end + 1) {
        end = strchr(line, '\n');
        if (!end) end = line + strlen(line) - 1;
        *end = *end == '\n' ? 0 : *end;
        if (row == 0) EXF_TRY(exf_report_addf(r, err, "<thead>"));
        if (row != 1) EXF_TRY(add_markdown_row(r, line, row ? "td" : "th", err));
        if (row == 0) EXF_TRY(exf_report_addf(r, err, "</thead><tbody>\n"));
    }
    rc = close_table(r, err);
out:
    return rc;
}

static exf_code add_markdown(exf_report *r, const char *path, exf_err *err)
{
    char *text = NULL, *line;
    size_t n;
    exf_code rc;
    EXF_TRY(exf_file_slurp(path, FILE_MAX, &text, &n, err));
    line = *text == '|' ? text : strstr(text, "\n|");
    rc = line ? add_markdown_table(r, line + (*line == '\n'), err) : add_nothing(r, err);
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
    return add_nothing(r, err);
}
