/* json_write.c - see json_write.h. */
#include "format/json_write.h"

#include "format/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Writes the text before a value: a comma, and the key in an object. */
static void before(exf_jw *w, const char *key)
{
    if (w->rc == EXF_OK && w->depth && w->members[w->depth - 1]++) w->rc = exf_text_addf(&w->text, &w->err, ", ");
    if (w->rc != EXF_OK || !key) return;
    w->rc = exf_json_quote(&w->text, key, &w->err);
    if (w->rc == EXF_OK) w->rc = exf_text_addf(&w->text, &w->err, ": ");
}

static void add(exf_jw *w, const char *key, const char *text)
{
    before(w, key);
    if (w->rc == EXF_OK) w->rc = exf_text_addf(&w->text, &w->err, "%s", text);
}

void exf_jw_open(exf_jw *w, const char *key, char bracket)
{
    const char text[2] = {bracket, 0};
    add(w, key, text);
    if (w->rc == EXF_OK && w->depth == EXF_JW_DEPTH) w->rc = exf_fail(&w->err, EXF_INTERNAL, "JSON deeper than %d", EXF_JW_DEPTH);
    if (w->rc != EXF_OK) return;
    w->closer[w->depth] = bracket == '{' ? '}' : ']';
    w->members[w->depth++] = 0;
}

void exf_jw_close(exf_jw *w)
{
    if (w->rc == EXF_OK && !w->depth) w->rc = exf_fail(&w->err, EXF_INTERNAL, "a JSON bracket is closed that is not open");
    if (w->rc == EXF_OK) w->rc = exf_text_add(&w->text, &w->closer[--w->depth], 1, &w->err);
}

void exf_jw_text(exf_jw *w, const char *key, const char *value)
{
    if (!value) {
        add(w, key, "null");
        return;
    }
    before(w, key);
    if (w->rc == EXF_OK) w->rc = exf_json_quote(&w->text, value, &w->err);
}

void exf_jw_int(exf_jw *w, const char *key, int64_t value)
{
    char buf[32];
    snprintf(buf, sizeof buf, "%" PRId64, value);
    add(w, key, buf);
}

void exf_jw_count(exf_jw *w, const char *key, uint64_t value)
{
    char buf[32];
    snprintf(buf, sizeof buf, "%" PRIu64, value);
    add(w, key, buf);
}

void exf_jw_real(exf_jw *w, const char *key, double value)
{
    char buf[EXF_REAL_TEXT];
    add(w, key, isfinite(value) ? exf_real_text(buf, value) : "null");
}

void exf_jw_bool(exf_jw *w, const char *key, int value)
{
    add(w, key, value ? "true" : "false");
}

exf_code exf_jw_end(exf_jw *w, exf_text *out, exf_err *err)
{
    if (w->rc == EXF_OK && w->depth) w->rc = exf_fail(&w->err, EXF_INTERNAL, "%d JSON brackets are still open", w->depth);
    if (w->rc == EXF_OK) w->rc = exf_text_add(&w->text, "\n", 1, &w->err);
    exf_code rc = w->rc;
    if (rc == EXF_OK)
        *out = w->text;
    else
        exf_text_free(&w->text);
    if (rc != EXF_OK && err) *err = w->err;
    memset(w, 0, sizeof *w);
    return rc;
}

void exf_jw_free(exf_jw *w)
{
    exf_text_free(&w->text);
    memset(w, 0, sizeof *w);
}
