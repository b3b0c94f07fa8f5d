/* report.c - fills the places of the report's page, {{name}}; see report.h.  The Makefile makes gen/report_<part>.inc from
 * src/inspect/report/report.<part>. */
#include "inspect/report_internal.h"

#include "base/mem.h"

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

/* ---- places ---------------------------------------------------------------------------- */

static void add_title(exf_report *r)
{
    exf_report_text(r, r->title);
}

static void add_style(exf_report *r)
{
    exf_text_append(&r->text, (const char *)css, sizeof css);
}

static void add_script(exf_report *r)
{
    exf_text_append(&r->text, (const char *)js, sizeof js);
}

static const struct {
    const char *name;
    void (*add)(exf_report *r);                   /* or, where other things than writing may fail: */
    exf_code (*load)(exf_report *r, exf_err *err);
} places[] = {
    {"title", add_title, NULL},          {"style", add_style, NULL},
    {"script", add_script, NULL},        {"cards", exf_report_cards, NULL},
    {"layers", exf_report_layers, NULL}, {"validation", NULL, exf_report_validation},
    {"facts", exf_report_facts, NULL},   {"data", NULL, exf_report_data},
    {"budgets", exf_report_budgets, NULL},
};

static exf_code fill_place(exf_report *r, const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (strlen(places[i].name) != n || memcmp(places[i].name, name, n) != 0) continue;
        exf_code rc = places[i].load ? places[i].load(r, r->err) : EXF_OK;
        if (places[i].add) places[i].add(r);
        return rc == EXF_OK ? r->rc : rc;
    }
    return exf_fail(r->err, EXF_INTERNAL, "report.html has a place {{%.*s}} that nothing fills", (int)n, name);
}

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
        EXF_TRY(fill_place(r, open + 2, (size_t)(close - open) - 2));
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
