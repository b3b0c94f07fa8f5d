/* report_validation.c - a table of validation results that lies beside the tables:
 * the first array of objects in validation.json, or else the first table of
 * validation.md.  A validation.json that is no JSON is an error, one without such an
 * array shows nothing. */
#include "base/mem.h"
#include "format/json.h"
#include "format/json_write.h"
#include "inspect/report_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { FILE_MAX = 16 << 20 };

static exf_code open_section(exf_report *r, const char *file, exf_err *err)
{
    return exf_report_addf(r, err,
                           "<section id=\"validation\" aria-labelledby=\"h-validation\">\n<h2 id=\"h-validation\">Validation</h2>\n"
                           "<p class=\"note\">From %s beside the tables.</p>\n<div class=\"scroll\" tabindex=\"0\"><table>\n",
                           file);
}

static exf_code close_section(exf_report *r, exf_err *err)
{
    return exf_report_addf(r, err, "</tbody></table></div>\n</section>\n");
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

static int is_rows(const exf_json *j)
{
    return exf_json_type(j) == EXF_JSON_ARRAY && exf_json_type(exf_json_at(j, 0)) == EXF_JSON_OBJECT;
}

static const exf_json *find_rows(const exf_json *root)
{
    if (is_rows(root)) return root;
    for (void *it = exf_json_first(root); it; it = exf_json_next(root, it))
        if (is_rows(exf_json_value(it))) return exf_json_value(it);
    return NULL;
}

static exf_code add_value(exf_report *r, const char *tag, const exf_json *j, exf_err *err)
{
    char number[EXF_REAL_TEXT];
    switch (exf_json_type(j)) {
    case EXF_JSON_STRING: return add_cell(r, tag, exf_json_string(j, NULL), err);
    case EXF_JSON_INT: return exf_report_addf(r, err, "<%s>%" PRId64 "</%s>", tag, exf_json_int(j), tag);
    case EXF_JSON_REAL: snprintf(number, sizeof number, "%.6g", exf_json_real(j)); return add_cell(r, tag, number, err);
    case EXF_JSON_BOOL: return add_cell(r, tag, exf_json_true(j) ? "yes" : "no", err);
    case EXF_JSON_NULL: return add_cell(r, tag, "\xe2\x80\x93", err);
    default: return add_cell(r, tag, "\xe2\x80\xa6", err);
    }
}

static int is_container(const exf_json *j)
{
    return exf_json_type(j) == EXF_JSON_ARRAY || exf_json_type(j) == EXF_JSON_OBJECT;
}

/* Columns are the first row's members that are no containers. */
static exf_code add_rows(exf_report *r, const exf_json *rows, exf_err *err)
{
    const exf_json *first = exf_json_at(rows, 0);
    exf_code rc;
    EXF_TRY(exf_report_addf(r, err, "<thead><tr>"));
    for (void *it = exf_json_first(first); it; it = exf_json_next(first, it))
        if (!is_container(exf_json_value(it))) EXF_TRY(add_cell(r, "th", exf_json_key(it), err));
    EXF_TRY(exf_report_addf(r, err, "</tr></thead><tbody>\n"));
    for (size_t i = 0; i < exf_json_size(rows); i++) {
        int column = 0;
        EXF_TRY(exf_report_addf(r, err, "<tr>"));
        for (void *it = exf_json_first(first); it; it = exf_json_next(first, it))
            if (!is_container(exf_json_value(it)))
                EXF_TRY(add_value(r, column++ ? "td" : "th", exf_json_get(exf_json_at(rows, i), exf_json_key(it)), err));
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
    const exf_json *rows = find_rows(root);
    if (!rows) goto out;
    EXF_TRY(open_section(r, "validation.json", err));
    EXF_TRY(add_rows(r, rows, err));
    rc = close_section(r, err);
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
    EXF_TRY(open_section(r, "validation.md", err));
    for (int row = 0; *line == '|'; row++, line = end + 1) {
        end = strchr(line, '\n');
        if (!end) end = line + strlen(line) - 1;
        *end = *end == '\n' ? 0 : *end;
        if (row == 0) EXF_TRY(exf_report_addf(r, err, "<thead>"));
        if (row != 1) EXF_TRY(add_markdown_row(r, line, row ? "td" : "th", err));
        if (row == 0) EXF_TRY(exf_report_addf(r, err, "</thead><tbody>\n"));
    }
    rc = close_section(r, err);
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
    if (line) rc = add_markdown_table(r, line + (*line == '\n'), err);
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
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = NULL;
        rc = exf_path_join(&path, r->beside, files[i].name, err);
        int exists = rc == EXF_OK && exf_path_exists(path);
        if (exists) rc = files[i].add(r, path, err);
        exf_mem_free(path);
        if (rc != EXF_OK || exists) break;
    }
    return rc;
}
