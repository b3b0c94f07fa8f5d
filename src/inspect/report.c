/* report.c - fills the page's places; see report.h. */
#include "base/mem.h"
#include "inspect/report_internal.h"

#include <stdarg.h>
#include <string.h>

enum { FLUSH = 1 << 18 };

exf_code exf_report_flush(exf_report *r, exf_err *err)
{
    exf_code rc = r->text.len ? exf_output_file_write(r->file, r->text.s, r->text.len, err) : EXF_OK;
    r->text.len = 0;
    return rc;
}

exf_code exf_report_addf(exf_report *r, exf_err *err, const char *fmt, ...)
{
    va_list va;
    va_start(va, fmt);
    exf_code rc = exf_text_addv(&r->text, err, fmt, va);
    va_end(va);
    return rc == EXF_OK && r->text.len > FLUSH ? exf_report_flush(r, err) : rc;
}

exf_code exf_report_text(exf_report *r, const char *text, exf_err *err)
{
    static const struct {
        char c;
        const char *entity;
    } special[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    exf_code rc = EXF_OK;
    if (exf_utf8_valid(text, strlen(text)) != strlen(text))
        return exf_fail(err, EXF_FORMAT, "a text of the report is not valid UTF-8");
    for (; rc == EXF_OK && *text; text++) {
        const char *entity = NULL;
        for (size_t i = 0; i < sizeof special / sizeof *special; i++)
            if (*text == special[i].c) entity = special[i].entity;
        rc = entity ? exf_text_add(&r->text, entity, strlen(entity), err) : exf_text_add(&r->text, text, 1, err);
    }
    return rc;
}

/* ---- places ---------------------------------------------------------------------------- */

static exf_code add_title(exf_report *r, exf_err *err)
{
    return exf_report_text(r, r->title, err);
}

static exf_code add_part(exf_report *r, const char *part, exf_err *err)
{
    size_t n;
    const char *bytes = exf_report_part(part, &n);
    return exf_text_add(&r->text, bytes, n, err);
}

static exf_code add_style(exf_report *r, exf_err *err)
{
    return add_part(r, "css", err);
}

static exf_code add_script(exf_report *r, exf_err *err)
{
    return add_part(r, "js", err);
}

static const struct {
    const char *name;
    exf_code (*fill)(exf_report *r, exf_err *err);
} places[] = {
    {"title", add_title},        {"style", add_style},          {"script", add_script},
    {"cards", exf_report_cards}, {"layers", exf_report_layers}, {"validation", exf_report_validation},
    {"facts", exf_report_facts}, {"data", exf_report_data},     {"budgets", exf_report_budgets},
};

static exf_code fill_place(exf_report *r, const char *name, size_t n, exf_err *err)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strlen(places[i].name) == n && memcmp(places[i].name, name, n) == 0) return places[i].fill(r, err);
    return exf_fail(err, EXF_INTERNAL, "report.html has a place {{%.*s}} that nothing fills", (int)n, name);
}

/* The page, with every {{name}} filled. */
static exf_code fill_page(exf_report *r, exf_err *err)
{
    size_t n, at = 0;
    const char *page = exf_report_part("html", &n);
    exf_code rc = EXF_OK;
    while (rc == EXF_OK && at < n) {
        const char *open = memchr(page + at, '{', n - at);
        size_t plain = open ? (size_t)(open - page) - at : n - at;
        EXF_TRY(exf_text_add(&r->text, page + at, plain, err));
        at += plain;
        if (at == n) break;
        const char *close = memchr(open, '}', n - at);
        if (!close || open[1] != '{' || close[1] != '}')
            return exf_fail(err, EXF_INTERNAL, "report.html: a brace at byte %zu is no {{place}}", at);
        EXF_TRY(fill_place(r, open + 2, (size_t)(close - open) - 2, err));
        at = (size_t)(close - page) + 2;
    }
    rc = exf_report_flush(r, err);
out:
    return rc;
}

exf_code exf_report_write(const exf_inspection *s, const char *title, const char *beside, const char *target, int force,
                          exf_err *err)
{
    exf_report r = {.s = s, .title = title, .beside = beside};
    exf_code rc;
    EXF_TRY(exf_mem_new(&r.rows, (size_t)s->n_layers + 1, sizeof *r.rows, "summary", err));
    EXF_TRY(exf_summarise(s, r.rows, err));
    EXF_TRY(exf_output_file_begin(&r.file, target, force, err));
    EXF_TRY(fill_page(&r, err));
    rc = exf_output_file_commit(r.file, err);
    r.file = NULL;
out:
    exf_output_file_abort(r.file);
    exf_mem_free(r.rows);
    exf_text_free(&r.text);
    return rc;
}
