/* manifest_schema.c - the JSON Schema of a manifest, made of the table of its keys; see manifest.h. */
#include "capture/manifest.h"

#include "format/json.h"

typedef struct {
    const char *name, *fallback, *about;
    exf_manifest_value value;
    unsigned of; /* EXF_FORMATS_... */
} manifest_key;

#define X(name, value, of, fallback, about) {name, fallback, about, EXF_VALUE_##value, EXF_FORMATS_##of},
static const manifest_key source_keys[] = {EXF_MANIFEST_SOURCE_KEYS(X)}, origin_keys[] = {EXF_MANIFEST_ORIGIN_KEYS(X)};
#undef X
enum { N_SOURCE_KEYS = sizeof source_keys / sizeof *source_keys, N_ORIGIN_KEYS = sizeof origin_keys / sizeof *origin_keys };

static const char *format_name(size_t i)
{
    return i < EXF_SOURCE_FORMATS ? exf_source_format_name((exf_source_format)i) : NULL;
}

static void add_word_map(exf_jw *w, const char *to)
{
    exf_jw_text(w, "type", "object");
    exf_jw_int(w, "minProperties", 1);
    exf_json_schema_reference(w, "additionalProperties", to);
}

static void add_value(exf_jw *w, exf_manifest_value value)
{
    switch (value) {
    case EXF_VALUE_WORD:
        exf_json_schema_scalar(w);
        exf_jw_int(w, "minLength", 1);
        break;
    case EXF_VALUE_FORMAT: exf_json_schema_enum(w, format_name); break;
    case EXF_VALUE_SEQUENCES: exf_json_schema_integer(w, 1, EXF_MAX_SEQUENCES); break;
    case EXF_VALUE_COUNT: exf_json_schema_integer(w, 1, INT64_MAX); break;
    case EXF_VALUE_SKIP: exf_json_schema_integer(w, 0, INT64_MAX); break;
    case EXF_VALUE_SHA256:
        exf_jw_text(w, "type", "string");
        exf_jw_text(w, "pattern", "^([0-9a-fA-F]{64}|unpinned)$");
        break;
    case EXF_VALUE_WORD_EACH: add_word_map(w, "word"); break;
    case EXF_VALUE_WORDS_EACH: add_word_map(w, "words"); break;
    case EXF_VALUE_ORIGIN: exf_jw_text(w, "$ref", "#/definitions/origin"); break;
    }
}

/* Adds the members of a map: their values and meanings, those that are required. */
static void add_keys(exf_jw *w, const manifest_key *keys, size_t n)
{
    exf_text about = {0};
    exf_jw_text(w, "type", "object");
    exf_jw_bool(w, "additionalProperties", 0);
    exf_jw_open(w, "required", '[');
    for (size_t i = 0; i < n; i++)
        if (!keys[i].fallback) exf_jw_text(w, NULL, keys[i].name);
    exf_jw_close(w);
    exf_jw_open(w, "properties", '{');
    for (size_t i = 0; i < n; i++) {
        about.len = 0;
        exf_text_appendf(&about, keys[i].fallback ? "%s (default: %s)" : "%s", keys[i].about, keys[i].fallback);
        if (w->rc == EXF_OK) w->rc = exf_text_end(&about, &w->err);
        if (w->rc != EXF_OK) break;
        exf_jw_open(w, keys[i].name, '{');
        exf_jw_text(w, "description", about.s);
        add_value(w, keys[i].value);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_text_free(&about);
}

/* Forbids the keys of each format in sources of the others. */
static void add_formats(exf_jw *w)
{
    exf_jw_open(w, "allOf", '[');
    for (size_t f = 0; f < EXF_SOURCE_FORMATS; f++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_open(w, "if", '{');
        exf_jw_open(w, "properties", '{');
        exf_jw_open(w, "format", '{');
        exf_jw_text(w, "const", format_name(f));
        exf_jw_close(w);
        exf_jw_close(w);
        exf_jw_close(w);
        exf_jw_open(w, "then", '{');
        exf_jw_open(w, "properties", '{');
        for (size_t i = 0; i < N_SOURCE_KEYS; i++)
            if (!(source_keys[i].of >> f & 1)) exf_jw_bool(w, source_keys[i].name, 0);
        exf_jw_close(w);
        exf_jw_close(w);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

static void add_definitions(exf_jw *w)
{
    static const char *const both[] = {"messages", "text", NULL};
    exf_jw_open(w, "definitions", '{');
    exf_jw_open(w, "word", '{');
    add_value(w, EXF_VALUE_WORD);
    exf_jw_close(w);
    exf_jw_open(w, "words", '{');
    exf_jw_open(w, "anyOf", '[');
    exf_json_schema_reference(w, NULL, "word");
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "type", "array");
    exf_jw_int(w, "minItems", 1);
    exf_json_schema_reference(w, "items", "word");
    exf_jw_close(w);
    exf_jw_close(w);
    exf_jw_close(w);
    exf_jw_open(w, "origin", '{');
    add_keys(w, origin_keys, N_ORIGIN_KEYS);
    exf_jw_open(w, "not", '{');
    exf_json_schema_strings(w, "required", both);
    exf_jw_close(w);
    exf_jw_close(w);
    exf_jw_open(w, "source", '{');
    add_keys(w, source_keys, N_SOURCE_KEYS);
    add_formats(w);
    exf_jw_close(w);
    exf_jw_close(w);
}

exf_code exf_manifest_schema(exf_text *out, exf_err *err)
{
    exf_jw writer = {0}, *w = &writer;
    static const char *const required[] = {"schema", "sources", NULL};
    exf_json_schema_head(w, EXF_MANIFEST_SCHEMA, "a manifest");
    exf_jw_text(w, "type", "object");
    exf_jw_bool(w, "additionalProperties", 0);
    exf_json_schema_strings(w, "required", required);
    exf_jw_open(w, "properties", '{');
    exf_jw_open(w, "schema", '{');
    exf_jw_text(w, "const", EXF_MANIFEST_SCHEMA);
    exf_jw_close(w);
    exf_jw_open(w, "sources", '{');
    exf_jw_text(w, "type", "array");
    exf_jw_int(w, "minItems", 1);
    exf_json_schema_reference(w, "items", "source");
    exf_jw_close(w);
    exf_jw_close(w);
    add_definitions(w);
    exf_jw_close(w);
    return exf_jw_end(w, out, err);
}
