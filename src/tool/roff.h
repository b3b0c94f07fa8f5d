/* roff.h - functions that format text and option rows as man(7) source. */
#ifndef EXF_TOOL_ROFF_H
#define EXF_TOOL_ROFF_H
#include "base/opt.h"

/* Escapes what roff or a UTF-8 terminal would change: backslashes, hyphens, quotes, a leading dot. */
exf_code exf_roff_text(exf_text *out, const char *s, exf_err *err) EXF_CHECKED;
/* ".TH ..." of a page of this section. */
exf_code exf_roff_title(exf_text *out, const char *name, int section, exf_err *err) EXF_CHECKED;
/* A heading and the text under it; lines as they are where `verbatim`. */
exf_code exf_roff_section(exf_text *out, const char *heading, const char *text, int verbatim, exf_err *err) EXF_CHECKED;

/* The rows of a list and their labels: flags "-o, --output DIR", or keys "output.directory = DIR". */
typedef enum { EXF_ROFF_FLAGS, EXF_ROFF_KEYS } exf_roff_kind;
/* Items of all rows that have a flag or a key, under a heading per group. */
exf_code exf_roff_rows(exf_text *out, const exf_opt *rows, size_t n, exf_roff_kind kind, exf_err *err) EXF_CHECKED;
#endif
