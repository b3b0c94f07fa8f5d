/* page.c - see page.h. */
#include "cli/page.h"

#include "base/version.h"

#include <ctype.h>
#include <string.h>

static int is_man(const exf_page *p)
{
    return p->form == EXF_PAGE_MAN;
}

/* A blank line before the next block, unless the page starts here. */
static exf_code add_blank_line(const exf_page *p, exf_err *err)
{
    const exf_text *out = p->out;
    if (is_man(p) || !out->len || (out->len > 1 && memcmp(out->s + out->len - 2, "\n\n", 2) == 0)) return EXF_OK;
    return exf_text_add(p->out, "\n", 1, err);
}

/* ---- text ------------------------------------------------------------------------ */

/* A piece of n bytes between two backticks, or around them. */
static exf_code add_piece(const exf_page *p, const char *s, size_t n, int is_code, exf_err *err)
{
    exf_code rc;
    exf_text piece = {0};
    if (!n) return EXF_OK;
    EXF_TRY(exf_text_add(&piece, s, n, err));
    if (is_code) EXF_TRY(exf_text_addf(p->out, err, "\\fB"));
    EXF_TRY(exf_roff_text(p->out, piece.s, err));
    rc = is_code ? exf_text_addf(p->out, err, "\\fR") : EXF_OK;
out:
    exf_text_free(&piece);
    return rc;
}

/* Text of a manual page: code is bold. */
static exf_code add_roff(const exf_page *p, const char *s, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int is_code = 0; *s && rc == EXF_OK; is_code = !is_code) {
        size_t n = strcspn(s, "`");
        rc = add_piece(p, s, n, is_code, err);
        s += n + (s[n] == '`');
    }
    return rc;
}

/* Text of a Markdown page: outside of code what would be markup is escaped; a bar ends a table's cell anywhere. */
static exf_code add_markdown(const exf_page *p, const char *s, int in_table, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int is_code = 0; *s && rc == EXF_OK; s++) {
        is_code ^= *s == '`';
        int escaped = (*s == '|' && in_table) || (!is_code && strchr("*<\\", *s));
        if (escaped) rc = exf_text_add(p->out, "\\", 1, err);
        if (rc == EXF_OK) rc = exf_text_add(p->out, s, 1, err);
    }
    return rc;
}

static exf_code add_text(const exf_page *p, const char *s, int in_table, exf_err *err)
{
    return is_man(p) ? add_roff(p, s, err) : add_markdown(p, s, in_table, err);
}

exf_code exf_page_text(const exf_page *p, const char *text, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_text paragraph = {0};
    while (*text) {
        const char *end = strstr(text, "\n\n");
        size_t n = end ? (size_t)(end - text) : strlen(text);
        paragraph.len = 0;
        EXF_TRY(exf_text_add(&paragraph, text, n, err));
        EXF_TRY(add_blank_line(p, err));
        if (is_man(p)) EXF_TRY(exf_text_addf(p->out, err, ".PP\n"));
        EXF_TRY(add_text(p, paragraph.s, 0, err));
        EXF_TRY(exf_text_addf(p->out, err, "\n"));
        text += n + (end ? 2 : 0);
    }
out:
    exf_text_free(&paragraph);
    return rc;
}

/* ---- headings -------------------------------------------------------------------- */

exf_code exf_page_title(const exf_page *p, const char *name, int section, const char *about, exf_err *err)
{
    exf_code rc;
    if (!is_man(p)) return EXF_OK;
    EXF_TRY(exf_roff_title(p->out, name, section, err));
    EXF_TRY(exf_text_addf(p->out, err, ".SH NAME\n"));
    EXF_TRY(exf_roff_text(p->out, name, err));
    EXF_TRY(exf_text_addf(p->out, err, " \\- "));
    EXF_TRY(exf_roff_text(p->out, about, err));
    rc = exf_text_addf(p->out, err, "\n");
out:
    return rc;
}

exf_code exf_page_section(const exf_page *p, const char *heading, exf_err *err)
{
    return is_man(p) ? exf_text_addf(p->out, err, ".SH %s\n", heading) : EXF_OK;
}

exf_code exf_page_description(const exf_page *p, const char *text, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_page_section(p, "DESCRIPTION", err));
    rc = exf_page_text(p, text, err);
out:
    return rc;
}

exf_code exf_page_heading(const exf_page *p, const char *heading, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_blank_line(p, err));
    EXF_TRY(exf_text_addf(p->out, err, is_man(p) ? ".SS " : "## "));
    EXF_TRY(add_text(p, heading, 0, err));
    rc = exf_text_addf(p->out, err, "\n");
out:
    return rc;
}

exf_code exf_page_example(const exf_page *p, const char *language, const char *text, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_blank_line(p, err));
    if (!is_man(p)) return exf_text_addf(p->out, err, "```%s\n%s\n```\n", language, text);
    EXF_TRY(exf_text_addf(p->out, err, ".SH EXAMPLE\n.nf\n"));
    EXF_TRY(exf_roff_text(p->out, text, err));
    rc = exf_text_addf(p->out, err, "\n.fi\n");
out:
    return rc;
}

exf_code exf_page_see_also(const exf_page *p, const char *const *names, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!is_man(p)) return EXF_OK;
    EXF_TRY(exf_text_addf(p->out, err, ".SH \"SEE ALSO\"\n"));
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(exf_text_addf(p->out, err, ".BR "));
        EXF_TRY(exf_roff_text(p->out, names[i], err));
        EXF_TRY(exf_text_addf(p->out, err, "%s\n", i + 1 < n ? "," : ""));
    }
out:
    return rc;
}

/* ---- tables ---------------------------------------------------------------------- */

exf_code exf_page_table(const exf_page *p, const char *label, const char *fallback, const char *meaning, exf_err *err)
{
    exf_code rc;
    if (is_man(p)) return EXF_OK;
    EXF_TRY(add_blank_line(p, err));
    EXF_TRY(exf_text_addf(p->out, err, "| %s | ", label));
    if (fallback) EXF_TRY(exf_text_addf(p->out, err, "%s | ", fallback));
    rc = exf_text_addf(p->out, err, "%s |\n|---|---|%s\n", meaning, fallback ? "---|" : "");
out:
    return rc;
}

static exf_code add_man_row(const exf_page *p, const char *label, const char *fallback, const char *meaning, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(p->out, err, ".TP\n"));
    EXF_TRY(add_roff(p, label, err));
    EXF_TRY(exf_text_addf(p->out, err, "\n"));
    EXF_TRY(add_roff(p, meaning, err));
    if (fallback && *fallback) {
        EXF_TRY(exf_text_addf(p->out, err, strcmp(fallback, "required") == 0 ? " (" : " (default "));
        EXF_TRY(add_roff(p, fallback, err));
        EXF_TRY(exf_text_addf(p->out, err, ")"));
    }
    rc = exf_text_addf(p->out, err, "%s\n", *meaning || fallback ? "" : "\\&");
out:
    return rc;
}

exf_code exf_page_row(const exf_page *p, const char *label, const char *fallback, const char *meaning, exf_err *err)
{
    exf_code rc;
    const char *cell[] = {label, fallback, meaning};
    if (is_man(p)) return add_man_row(p, label, fallback, meaning, err);
    EXF_TRY(exf_text_addf(p->out, err, "|"));
    for (size_t i = 0; i < sizeof cell / sizeof *cell; i++) {
        if (!cell[i]) continue;
        EXF_TRY(exf_text_addf(p->out, err, " "));
        EXF_TRY(add_text(p, cell[i], 1, err));
        EXF_TRY(exf_text_addf(p->out, err, " |"));
    }
    rc = exf_text_addf(p->out, err, "\n");
out:
    return rc;
}

/* ---- roff -------------------------------------------------------------------------------------- */

exf_code exf_roff_text(exf_text *out, const char *s, exf_err *err)
{
    static const struct {
        char c;
        const char *as;
    } special[] = {
        {'\\', "\\(rs"}, {'-', "\\-"}, {'\'', "\\(aq"}, {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}, {'"', "\\(dq"},
    };
    exf_code rc = EXF_OK;
    for (int at_start = 1; *s && rc == EXF_OK; at_start = *s == '\n', s++) {
        const char *as = NULL;
        for (size_t i = 0; i < sizeof special / sizeof *special; i++)
            if (*s == special[i].c) as = special[i].as;
        if (at_start && *s == '.') as = "\\&.";
        rc = as ? exf_text_add(out, as, strlen(as), err) : exf_text_add(out, s, 1, err);
    }
    return rc;
}

exf_code exf_roff_title(exf_text *out, const char *name, int section, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, ".\\\" Made from the option tables; see src/cli/manual.h.\n.TH \""));
    for (; *name; name++) EXF_TRY(exf_text_addf(out, err, "%c", toupper((unsigned char)*name)));
    rc = exf_text_addf(out, err, "\" %d \"\" \"ExFold %s\"\n", section, exf_release());
out:
    return rc;
}

exf_code exf_roff_section(exf_text *out, const char *heading, const char *text, int verbatim, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, ".SH %s\n%s", heading, verbatim ? ".nf\n" : ""));
    EXF_TRY(exf_roff_text(out, text, err));
    rc = exf_text_addf(out, err, "\n%s", verbatim ? ".fi\n" : "");
out:
    return rc;
}

/* \fB...\fR, or \fI...\fR */
static exf_code add_in(exf_text *out, char font, const char *s, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "\\f%c", font));
    EXF_TRY(exf_roff_text(out, s, err));
    rc = exf_text_addf(out, err, "\\fR");
out:
    return rc;
}

static exf_code add_flag(exf_text *out, const exf_opt *row, exf_err *err)
{
    exf_code rc;
    int is_flag = row->type == EXF_OPT_FLAG, is_on = is_flag && row->fallback && strcmp(row->fallback, "true") == 0;
    char letter[3] = {'-', row->letter, 0};
    if (row->letter) {
        EXF_TRY(add_in(out, 'B', letter, err));
        EXF_TRY(exf_text_addf(out, err, ", "));
    }
    EXF_TRY(exf_text_addf(out, err, "\\fB\\-\\-%s", is_on ? "[no\\-]" : ""));
    EXF_TRY(exf_roff_text(out, row->flag, err));
    EXF_TRY(exf_text_addf(out, err, "\\fR"));
    if (is_flag) return EXF_OK;
    EXF_TRY(exf_text_addf(out, err, " "));
    rc = add_in(out, 'I', exf_opt_placeholder(row), err);
out:
    return rc;
}

static exf_code add_key(exf_text *out, const exf_opt *row, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_in(out, 'B', row->key, err));
    EXF_TRY(exf_text_addf(out, err, " = "));
    EXF_TRY(add_in(out, 'I', exf_opt_placeholder(row), err));
    if (!row->flag) return EXF_OK;
    EXF_TRY(exf_text_addf(out, err, "   or "));
    rc = add_flag(out, row, err);
out:
    return rc;
}

static exf_code add_row(exf_text *out, const exf_opt *row, exf_roff_kind kind, exf_err *err)
{
    exf_code rc;
    exf_text right = {0};
    exf_opt shown = *row;
    if (kind == EXF_ROFF_KEYS) shown.flag = NULL; /* the remarks would name the key again */
    EXF_TRY(exf_text_addf(out, err, ".TP\n"));
    EXF_TRY(kind == EXF_ROFF_KEYS ? add_key(out, row, err) : add_flag(out, row, err));
    EXF_TRY(exf_text_addf(out, err, "\n"));
    EXF_TRY(exf_opt_remarks(&shown, &right, err));
    EXF_TRY(exf_roff_text(out, right.s, err));
    rc = exf_text_addf(out, err, "%s\n", right.len ? "" : "\\&");
out:
    exf_text_free(&right);
    return rc;
}

exf_code exf_roff_rows(exf_text *out, const exf_opt *rows, size_t n, exf_roff_kind kind, exf_err *err)
{
    exf_code rc = EXF_OK;
    const char *heading = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *group = rows[i].group ? rows[i].group : "Options";
        if (!(kind == EXF_ROFF_KEYS ? rows[i].key : rows[i].flag)) continue;
        if (!heading || strcmp(heading, group) != 0) {
            EXF_TRY(exf_text_addf(out, err, ".SS "));
            EXF_TRY(exf_roff_text(out, group, err));
            EXF_TRY(exf_text_addf(out, err, "\n"));
        }
        heading = group;
        EXF_TRY(add_row(out, &rows[i], kind, err));
    }
out:
    return rc;
}
