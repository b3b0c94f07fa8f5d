/* json_write.c - writes JSON text member by member, bytes as base64, and the parts of JSON Schemas; see json.h. */
#include "format/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Writes the text before a value: a comma, and the key in an object. */
static void write_key(exf_jw *w, const char *key)
{
    if (w->rc != EXF_OK) return;
    if (w->depth && w->members[w->depth - 1]++) exf_text_append(&w->text, ", ", 2);
    if (!key) return;
    w->rc = exf_json_quote(&w->text, key, &w->err);
    exf_text_append(&w->text, ": ", 2);
}

static void write_member(exf_jw *w, const char *key, const char *text)
{
    write_key(w, key);
    exf_text_append(&w->text, text, strlen(text));
}

void exf_jw_open(exf_jw *w, const char *key, char bracket)
{
    write_member(w, key, (const char[2]){bracket, 0});
    if (w->rc == EXF_OK && w->depth == EXF_JW_DEPTH) w->rc = exf_fail(&w->err, EXF_INTERNAL, "JSON deeper than %d", EXF_JW_DEPTH);
    if (w->rc != EXF_OK) return;
    w->closer[w->depth] = bracket == '{' ? '}' : ']';
    w->members[w->depth++] = 0;
}

void exf_jw_close(exf_jw *w)
{
    if (w->rc == EXF_OK && !w->depth) w->rc = exf_fail(&w->err, EXF_INTERNAL, "a JSON bracket is closed that is not open");
    if (w->rc == EXF_OK) exf_text_append(&w->text, &w->closer[--w->depth], 1);
}

void exf_jw_text(exf_jw *w, const char *key, const char *value)
{
    write_key(w, key);
    if (!value)
        exf_text_append(&w->text, "null", 4);
    else if (w->rc == EXF_OK)
        w->rc = exf_json_quote(&w->text, value, &w->err);
}

void exf_jw_int(exf_jw *w, const char *key, int64_t value)
{
    char buf[32];
    snprintf(buf, sizeof buf, "%" PRId64, value);
    write_member(w, key, buf);
}

void exf_jw_count(exf_jw *w, const char *key, uint64_t value)
{
    char buf[32];
    snprintf(buf, sizeof buf, "%" PRIu64, value);
    write_member(w, key, buf);
}

void exf_jw_real(exf_jw *w, const char *key, double value)
{
    char buf[EXF_REAL_TEXT];
    write_member(w, key, isfinite(value) ? exf_real_text(buf, value) : "null");
}

void exf_jw_bool(exf_jw *w, const char *key, int value)
{
    write_member(w, key, value ? "true" : "false");
}

exf_code exf_jw_end(exf_jw *w, exf_text *out, exf_err *err)
{
    if (w->rc == EXF_OK && w->depth) w->rc = exf_fail(&w->err, EXF_INTERNAL, "%d JSON brackets are still open", w->depth);
    exf_text_append(&w->text, "\n", 1);
    if (w->rc == EXF_OK) w->rc = exf_text_end(&w->text, &w->err);
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

exf_code exf_base64_add(exf_text *out, const void *bytes, size_t n, exf_err *err)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { TRIPLES = 1024 };
    const uint8_t *in = bytes;
    char block[4 * TRIPLES];
    for (size_t at = 0; at < n;) {
        size_t len = 0;
        for (; at < n && len < sizeof block; at += 3, len += 4) {
            size_t left = n - at;
            uint32_t word = (uint32_t)in[at] << 16 | (left > 1 ? (uint32_t)in[at + 1] << 8 : 0) | (left > 2 ? in[at + 2] : 0u);
            for (int i = 0; i < 4; i++) block[len + (size_t)i] = digit[word >> (18 - 6 * i) & 63];
            if (left < 3) block[len + 3] = '=';
            if (left < 2) block[len + 2] = '=';
        }
        exf_text_append(out, block, len);
    }
    return exf_text_end(out, err);
}

/* ---- JSON Schemas ---------------------------------------------------------------------------------- */

void exf_json_schema_strings(exf_jw *w, const char *key, const char *const *strings)
{
    exf_jw_open(w, key, '[');
    for (size_t i = 0; strings[i]; i++) exf_jw_text(w, NULL, strings[i]);
    exf_jw_close(w);
}

void exf_json_schema_scalar(exf_jw *w)
{
    static const char *const kinds[] = {"string", "number", "boolean", NULL};
    exf_json_schema_strings(w, "type", kinds);
}

void exf_json_schema_integer(exf_jw *w, int64_t least, int64_t most)
{
    exf_jw_text(w, "type", "integer");
    if (least > INT64_MIN) exf_jw_int(w, "minimum", least);
    if (most < INT64_MAX) exf_jw_int(w, "maximum", most);
}

void exf_json_schema_string_like(exf_jw *w, const char *pattern)
{
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "type", "string");
    exf_jw_text(w, "pattern", pattern);
    exf_jw_close(w);
}

void exf_json_schema_reference(exf_jw *w, const char *key, const char *to)
{
    char pointer[128];
    snprintf(pointer, sizeof pointer, "#/definitions/%s", to);
    exf_jw_open(w, key, '{');
    exf_jw_text(w, "$ref", pointer);
    exf_jw_close(w);
}

void exf_json_schema_head(exf_jw *w, const char *title, const char *about)
{
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "$schema", "http://json-schema.org/draft-07/schema#");
    exf_jw_text(w, "title", title);
    exf_jw_text(w, "description", about);
}

void exf_json_schema_enum(exf_jw *w, const char *(*word)(size_t i))
{
    exf_jw_open(w, "enum", '[');
    for (size_t i = 0; word(i); i++) exf_jw_text(w, NULL, word(i));
    exf_jw_close(w);
}
