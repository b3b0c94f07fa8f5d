/* tokenizer_internal.h - shared by tokenizer*.c: functions that read a part of
 * tokenizer.json, with messages that name the part, and append ids (tokenizer_json.c). */
#ifndef EXF_TOKENIZER_TOKENIZER_INTERNAL_H
#define EXF_TOKENIZER_TOKENIZER_INTERNAL_H
#include "format/json.h"

enum { EXF_TOKEN_ID_LIMIT = 1 << 24 };

/* The part's "type", or what the part is instead ("null", "missing", "an array"). */
const char *exf_part_type(const exf_json *part);
/* *out = part[key], which must be true or false.  what: "added token", name: its text. */
exf_code exf_part_bool(int *out, const exf_json *part, const char *key, const char *where, const char *what, const char *name,
                       exf_err *err) EXF_CHECKED;
/* Refuses part[key] unless it is absent, null or false. */
exf_code exf_part_off(const exf_json *part, const char *key, const char *where, const char *what, exf_err *err) EXF_CHECKED;
/* *out = j, which must be an integer from 0 to EXF_TOKEN_ID_LIMIT - 1. */
exf_code exf_part_id(int32_t *out, const exf_json *j, const char *where, const char *what, const char *name,
                     exf_err *err) EXF_CHECKED;
#endif
