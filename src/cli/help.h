/* help.h - the texts that a program prints about itself on stdout: --help, --help-keys, and the
 * list of programs of `exfold`.  Lines are at most 80 wide.  manual.h has the longer texts. */
#ifndef EXF_CLI_HELP_H
#define EXF_CLI_HELP_H
#include "cli/command.h"

/* --help: purpose, two examples, the options that p takes; c: of one command of p alone, or NULL. */
exf_code exf_help_text(const exf_program *p, const exf_command *c, exf_text *out, exf_err *err) EXF_CHECKED;
/* --help-keys: the recipe keys that p, which takes a recipe, reads, and the export targets where it writes them. */
exf_code exf_help_keys_text(const exf_program *p, exf_text *out, exf_err *err) EXF_CHECKED;
/* 1 if the command takes the program's own option of this flag, "layers". */
int exf_command_takes(const exf_command *c, const char *flag);
#endif
