/* json.h - reads JSON documents, the only wrapper of jansson, and writes them.
 *
 * Strict: UTF-8, duplicate keys refused, nesting bounded by jansson (2048),
 * real numbers must fit double, and an integer beyond int64 is one of them.
 * String values may hold NUL bytes, object keys may not.  Messages name the document (`where`) and the line.
 * Ownership: exf_json_free() releases a whole document; nodes reached from it
 * are borrowed.  Object members keep their order in the file. */
#ifndef EXF_FORMAT_JSON_H
#define EXF_FORMAT_JSON_H
#include "base/text.h"

#include <stdint.h>

typedef struct exf_json exf_json;
typedef enum { EXF_JSON_NULL, EXF_JSON_BOOL, EXF_JSON_INT, EXF_JSON_REAL, EXF_JSON_STRING, EXF_JSON_ARRAY,
              EXF_JSON_OBJECT } exf_json_kind;

enum { EXF_JSON_MEMORY = 1 << 30 }; /* bytes that a document may take; EXF_FORMAT before any is taken if it would take more */
exf_code exf_json_parse(exf_json **out, const char *bytes, size_t len, const char *where, exf_err *err) EXF_CHECKED;
/* One line of a file, of number `number` from 1, which messages name. */
exf_code exf_json_parse_line(exf_json **out, const char *line, size_t len, const char *where, int64_t number,
                             exf_err *err) EXF_CHECKED;
/* A whole file of at most `limit` bytes. */
exf_code exf_json_load(exf_json **out, const char *path, uint64_t limit, exf_err *err) EXF_CHECKED;
void exf_json_free(exf_json *doc);

exf_json_kind exf_json_type(const exf_json *j);       /* NULL pointer: EXF_JSON_NULL */
const char *exf_json_type_name(const exf_json *j);    /* "an array" ... for messages */
size_t exf_json_size(const exf_json *j);              /* members of an array or object, else 0 */
const exf_json *exf_json_get(const exf_json *object, const char *key); /* NULL if absent */
const exf_json *exf_json_at(const exf_json *array, size_t i);
const char *exf_json_string(const exf_json *j, size_t *len); /* NULL if no string; len may be NULL */
int64_t exf_json_int(const exf_json *j);              /* 0 if no integer */
double exf_json_real(const exf_json *j);              /* integer or real, else 0 */
int exf_json_true(const exf_json *j);                 /* 1 only for true */

/* Object members in file order: for (it = exf_json_first(o); it; it = exf_json_next(o, it)). */
void *exf_json_first(const exf_json *object);
void *exf_json_next(const exf_json *object, void *it);
const char *exf_json_key(void *it);
const exf_json *exf_json_value(void *it);

/* Appends s as a JSON string with its quotes; s must be valid UTF-8. */
exf_code exf_json_quote(exf_text *out, const char *s, exf_err *err) EXF_CHECKED;

/* ---- writing ---------------------------------------------------------------------------------------- */

/* exf_jw (JSON writer) builds JSON text member by member, in the order of the calls.
 *
 *   exf_jw w = {0};
 *   exf_jw_open(&w, NULL, '{');
 *   exf_jw_text(&w, "file", path);
 *   exf_jw_open(&w, "layers", '[');
 *   exf_jw_real(&w, NULL, 0.25);          no keys inside an array
 *   exf_jw_close(&w);
 *   exf_jw_close(&w);
 *   EXF_TRY(exf_jw_end(&w, &text, err));  {"file": "...", "layers": [0.25]}
 *
 * The writer keeps the first failure, later calls do nothing, and exf_jw_end() returns it,
 * so that callers need not check every member.  A number is the shortest text that reads
 * back as the same double; NaN and infinities become null.  Ownership: zero-initialise;
 * exf_jw_end() hands the text to the caller, exf_jw_free() frees it. */

enum { EXF_JW_DEPTH = 16 };

typedef struct {
    exf_text text;
    char closer[EXF_JW_DEPTH]; /* brackets that are open */
    int members[EXF_JW_DEPTH];
    int depth;
    exf_code rc;
    exf_err err;
} exf_jw;

void exf_jw_open(exf_jw *w, const char *key, char bracket); /* '{' or '[' */
void exf_jw_close(exf_jw *w);
void exf_jw_text(exf_jw *w, const char *key, const char *value); /* valid UTF-8; NULL: null */
void exf_jw_int(exf_jw *w, const char *key, int64_t value);
void exf_jw_count(exf_jw *w, const char *key, uint64_t value);
void exf_jw_real(exf_jw *w, const char *key, double value);
void exf_jw_bool(exf_jw *w, const char *key, int value);

/* The text and a newline, all brackets being closed (EXF_INTERNAL otherwise); caller frees. */
exf_code exf_jw_end(exf_jw *w, exf_text *out, exf_err *err) EXF_CHECKED;
void exf_jw_free(exf_jw *w);

/* ---- JSON Schemas, draft-07, which editors know best -----------------------------------------------------
 * Each adds its keywords to the open object of a schema, but for those with a key, which add a member. */

void exf_json_schema_head(exf_jw *w, const char *title, const char *about); /* opens the whole; the caller closes it */
void exf_json_schema_scalar(exf_jw *w);                  /* a value that is read as text, whatever it looks like */
void exf_json_schema_integer(exf_jw *w, int64_t least, int64_t most); /* INT64_MIN, INT64_MAX: no bound */
void exf_json_schema_enum(exf_jw *w, const char *(*word)(size_t i));   /* the words up to a NULL */
void exf_json_schema_strings(exf_jw *w, const char *key, const char *const *strings); /* a list, up to a NULL */
void exf_json_schema_reference(exf_jw *w, const char *key, const char *definition);
void exf_json_schema_string_like(exf_jw *w, const char *pattern); /* an item of an open array: such a string */

/* Appends bytes as base64 text (RFC 4648, with padding): what JSON has for them. */
exf_code exf_base64_add(exf_text *out, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
#endif
