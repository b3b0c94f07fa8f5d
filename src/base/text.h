/* text.h - functions on strings: a growing buffer, strict parsing of numbers, UTF-8 validation,
 * human-readable sizes, parts of paths.
 *
 * Ownership: exf_text owns its bytes; zero-initialise it, release with
 * exf_text_free().  Parsers never accept trailing text, blanks or overflow. */
#ifndef EXF_BASE_TEXT_H
#define EXF_BASE_TEXT_H
#include "base/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char *s;    /* NUL-terminated once anything was appended; NULL before */
    size_t len; /* bytes, the NUL not counted */
    size_t cap;
    size_t refused; /* bytes of memory that an append did not get, after which appends do nothing; 0: none */
} exf_text;

/* Append bytes or formatted text.  A text keeps its first failure, which exf_text_end() returns: EXF_NOSPACE.  It is asked
 * once, before the text is used. */
void exf_text_append(exf_text *t, const char *bytes, size_t len);
void exf_text_appendf(exf_text *t, const char *fmt, ...) EXF_PRINTF(2, 3);
void exf_text_appendv(exf_text *t, const char *fmt, va_list va);
exf_code exf_text_end(const exf_text *t, exf_err *err) EXF_CHECKED;

/* Append a name or a text that comes from outside as one line in which nothing is obeyed: "?" is put for what
 * exf_printable_bytes() (err.h) refuses, a blank for a newline or a tab; the second so that Markdown takes it for text, in a
 * table's cell too; the third its first character alone, as `other` unless that is NULL.  It returns the character's bytes. */
void exf_text_append_shown(exf_text *t, const char *s);
void exf_text_append_markdown(exf_text *t, const char *s);
size_t exf_text_append_character(exf_text *t, const char *s, const char *other);

/* Appends a word as a shell takes it, in single quotes where it needs them. */
void exf_text_append_word(exf_text *out, const char *s);

void exf_text_free(exf_text *t);

/* 1 and *out on success; 0 for anything that is not exactly one number. */
int exf_parse_i64(const char *s, int64_t *out);
int exf_parse_f64(const char *s, double *out); /* finite only; C locale */
/* "8GiB", "512MiB", "4096" (bytes): integer count of bytes. */
int exf_parse_bytes(const char *s, uint64_t *out);

/* The shortest text of at most 17 digits that reads back as value, a finite double. */
enum { EXF_REAL_TEXT = 32 };
const char *exf_real_text(char buf[EXF_REAL_TEXT], double value);

/* Index of the first byte that is not valid UTF-8 (no surrogates, no overlong
 * forms, at most U+10FFFF), or len when all is valid. */
size_t exf_utf8_valid(const char *bytes, size_t len);

/* "61.1 GB", "977 kB" (powers of 1000) into a caller's buffer of >= 16 bytes. */
const char *exf_human_bytes(char *buf, size_t buf_len, double bytes);
/* "00:14:20". */
const char *exf_human_seconds(char *buf, size_t buf_len, double seconds);

/* 1 if s starts with / ends with the other string. */
int exf_starts_with(const char *s, const char *prefix);
int exf_ends_with(const char *s, const char *suffix);

/* base/rel, or rel itself when it is absolute.  Caller frees. */
exf_code exf_path_join(char **out, const char *base, const char *rel, exf_err *err) EXF_CHECKED;
/* 1 if a shell would put a home directory in the place of its beginning: "~", "~/x". */
int exf_path_has_tilde(const char *path);
/* The directory part of path, "." if there is none.  Caller frees. */
exf_code exf_path_dir(char **out, const char *path, exf_err *err) EXF_CHECKED;
/* Returns what stands after the last slash of path, or path. */
const char *exf_path_name(const char *path);

#ifdef __cplusplus
}
#endif
#endif
