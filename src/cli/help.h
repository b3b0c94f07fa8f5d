/* help.h - the texts that a program prints about itself on stdout: --help, --help-keys, the list of programs of `exfold`,
 * and, for scripts, --help-json.  Lines are at most 80 wide. */
#ifndef EXF_CLI_HELP_H
#define EXF_CLI_HELP_H
#include "cli/program.h"

/* --help: purpose, two examples, the options that p takes; c: of one command of p alone, or NULL. */
exf_code exf_help_text(const exf_program *p, const exf_command *c, exf_text *out, exf_err *err) EXF_CHECKED;
/* --help-keys: the recipe keys that p, which takes a recipe, reads, and the export targets where it writes them. */
exf_code exf_help_keys_text(const exf_program *p, exf_text *out, exf_err *err) EXF_CHECKED;

/* --help-json, which no --help names: all tables that manual pages and docs are made from (scripts/make_pages.py), as one
 * object, the same from every program:
 *
 *   release    "1.4.0"
 *   programs   `exfold` last: name, arguments, group, brief, about, examples, keys (as in exf_program, null for NULL),
 *              exports (it writes export targets), runs_others, commands [{name, arguments, about}], options
 *   keys       the rows of the recipe
 *   targets    [{name, file, about}] of output.targets; a directory's file ends in "/"
 *   manifest   {source, formats, origin}: [{name, default, about}]
 *   variants   [{example, about, options: [{name, values, default, about}]}]
 *   statuses   [{status, meaning}]
 *
 * Options and keys are rows of exf_opt: key, flag, letter, is_flag, is_common (an option of every program), value (its
 * placeholder), default, limits ("1 to 9", "one of a, b"; ""), group, help. */
exf_code exf_help_json(exf_text *out, exf_err *err) EXF_CHECKED;
#endif
