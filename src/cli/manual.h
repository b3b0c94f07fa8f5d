/* manual.h - manual pages, pages of docs and completions, generated from a program's option table and
 * the tables of manifest keys, variants and exit statuses.
 * The build runs PROGRAM --help=FORM; the tables stay the only lists of options.
 *
 *   man      PROGRAM.1
 *   recipe   exfold-recipe.5, from any program that reads recipes
 *   manifest exfold-manifest.5
 *   variants exfold-variants.7
 *   entry    PROGRAM's item in the list of programs of exfold.7
 *   status   the exit statuses, for exfold.7
 *   man.md, recipe.md, manifest.md, variants.md, status.md: the same as Markdown, for docs (make docs)
 *   bash     completions, to be sourced by bash
 *   zsh      completions, for a directory of fpath
 *
 * Equal tables give equal bytes: no date, no path, no commit. */
#ifndef EXF_CLI_MANUAL_H
#define EXF_CLI_MANUAL_H
#include "cli/command.h"

/* rows: all n options of the program, as --help shows them.  Appends to out. */
typedef exf_code (*exf_manual_page)(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err);

exf_manual_page exf_manual_find(const char *form); /* NULL: no such form */

exf_code exf_manual_program(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_recipe(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_manifest(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_variants(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_entry(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_status(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
/* manual.c, manual_pages.c */
exf_code exf_markdown_program(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_markdown_recipe(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_markdown_manifest(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_markdown_variants(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_markdown_status(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
