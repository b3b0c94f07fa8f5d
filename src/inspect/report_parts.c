/* report_parts.c - the report's page, style and script; the Makefile makes
 * gen/report_<part>.inc from src/inspect/report/report.<part>. */
#include "inspect/report_internal.h"

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

const char *exf_report_part(const char *part, size_t *n)
{
    static const struct {
        const char *name;
        const unsigned char *bytes;
        size_t n;
    } parts[] = {
        {"html", html, sizeof html},
        {"css", css, sizeof css},
        {"js", js, sizeof js},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(parts[i].name, part) != 0) continue;
        *n = parts[i].n;
        return (const char *)parts[i].bytes;
    }
    return NULL;
}
