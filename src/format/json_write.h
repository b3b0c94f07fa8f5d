/* json_write.h - exf_jw (JSON writer) builds JSON text member by member, in the order of the calls.
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
#ifndef EXF_FORMAT_JSON_WRITE_H
#define EXF_FORMAT_JSON_WRITE_H
#include "base/text.h"

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

/* Appends bytes as base64 text (RFC 4648, with padding): what JSON has for them. */
exf_code exf_base64_add(exf_text *out, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
#endif
