/* report_text.c - the text of a report, which goes to its file as it grows; see report_internal.h. */
#include "inspect/report_internal.h"

#include <stdarg.h>
#include <string.h>

enum { FLUSH = 1 << 18 };

void exf_report_flush(exf_report *r)
{
    if (r->rc == EXF_OK) r->rc = exf_text_end(&r->text, r->err);
    if (r->rc == EXF_OK && r->text.len) r->rc = exf_output_file_write(r->file, r->text.s, r->text.len, r->err);
    r->text.len = 0;
}

void exf_report_addf(exf_report *r, const char *fmt, ...)
{
    va_list va;
    va_start(va, fmt);
    exf_text_appendv(&r->text, fmt, va);
    va_end(va);
    if (r->text.len > FLUSH) exf_report_flush(r);
}

void exf_report_text(exf_report *r, const char *text)
{
    static const struct {
        char c;
        const char *entity;
    } special[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    if (r->rc == EXF_OK && exf_utf8_valid(text, strlen(text)) != strlen(text))
        r->rc = exf_fail(r->err, EXF_FORMAT, "a text of the report is not valid UTF-8");
    for (size_t n; *text; text += n) {
        const char *entity = NULL;
        for (size_t i = 0; i < sizeof special / sizeof *special; i++)
            if (*text == special[i].c) entity = special[i].entity;
        n = exf_text_append_character(&r->text, text, entity);
    }
}
