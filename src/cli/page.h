/* page.h - writes a page of documentation either as man(7) source or as Markdown, so that the
 * manual page and the file below docs say the same in the same words.
 *
 * A page is a title, then sections, tables and examples in any order.  Text is plain English in
 * paragraphs separated by "\n\n"; what stands in `backticks` is bold in a manual page and code in
 * Markdown.  All functions append to page->out and return EXF_NOSPACE when memory is short. */
#ifndef EXF_CLI_PAGE_H
#define EXF_CLI_PAGE_H
#include "base/opt.h"
#include "base/text.h"

typedef enum { EXF_PAGE_MAN, EXF_PAGE_MARKDOWN } exf_page_form;

typedef struct {
    exf_page_form form;
    exf_text *out; /* the caller's */
} exf_page;

/* "exfold-recipe", 5, "everything a calibration is told"; in Markdown nothing: the file around it has its heading. */
exf_code exf_page_title(const exf_page *p, const char *name, int section, const char *about, exf_err *err) EXF_CHECKED;
/* "DESCRIPTION" and its paragraphs; Markdown shows no heading. */
exf_code exf_page_description(const exf_page *p, const char *text, exf_err *err) EXF_CHECKED;
/* A heading of the page's second level: "Runtime"; in a manual page a part of the section before. */
exf_code exf_page_heading(const exf_page *p, const char *heading, exf_err *err) EXF_CHECKED;
exf_code exf_page_text(const exf_page *p, const char *text, exf_err *err) EXF_CHECKED;
/* Starts a manual page's section, such as "KEYS"; nothing in Markdown. */
exf_code exf_page_section(const exf_page *p, const char *heading, exf_err *err) EXF_CHECKED;
/* Lines as they are, in a language that Markdown may colour ("yaml"). */
exf_code exf_page_example(const exf_page *p, const char *language, const char *text, exf_err *err) EXF_CHECKED;

/* Starts a table: "key", "default", "meaning"; fallback NULL: of two columns.  A manual page shows a list. */
exf_code exf_page_table(const exf_page *p, const char *label, const char *fallback, const char *meaning, exf_err *err) EXF_CHECKED;
/* One row.  label may hold several `names`; fallback is NULL in a table of two columns, "" where there is none,
 * and may be "required". */
exf_code exf_page_row(const exf_page *p, const char *label, const char *fallback, const char *meaning, exf_err *err) EXF_CHECKED;
/* "SEE ALSO" of a manual page: "exfold (7)", ...; n names.  Nothing in Markdown, whose pages have links. */
exf_code exf_page_see_also(const exf_page *p, const char *const *names, size_t n, exf_err *err) EXF_CHECKED;

/* Functions that format text and option rows as man(7) source. */

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
