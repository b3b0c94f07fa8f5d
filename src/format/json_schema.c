/* json_schema.c - the parts that the JSON Schemas of our own formats are made of; see json.h. */
#include "format/json.h"

#include <stdio.h>

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
