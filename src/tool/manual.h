/* manual.h - manual pages and completions, generated from a program's option table.
 * The build runs PROGRAM --help=FORM; the table stays the only list of options.
 *
 *   man      PROGRAM.1
 *   recipe   exfold-recipe.5, from any program that reads recipes
 *   entry    PROGRAM's item in the list of programs of exfold.7
 *   status   the exit statuses, for exfold.7
 *   bash     completions, to be sourced by bash
 *   zsh      completions, for a directory of fpath
 *
 * Equal tables give equal bytes: no date, no path, no commit. */
#ifndef EXF_TOOL_MANUAL_H
#define EXF_TOOL_MANUAL_H
#include "tool/command.h"

/* rows: all n options of the program, as --help shows them.  Appends to out. */
typedef exf_code (*exf_manual_page)(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err);

exf_manual_page exf_manual_find(const char *form); /* NULL: no such form */

exf_code exf_manual_program(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_recipe(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_entry(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manual_status(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
