/* roff.c - see roff.h. */
#include "tool/roff.h"

#include "base/version.h"

#include <ctype.h>
#include <string.h>

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
    EXF_TRY(exf_text_addf(out, err, ".\\\" Made from the option tables; see src/tool/manual.h.\n.TH \""));
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
