/* completion.h - properties of an option row that the completions of both shells need. */
#ifndef EXF_CLI_COMPLETION_H
#define EXF_CLI_COMPLETION_H
#include "cli/command.h"

typedef enum { EXF_VALUE_FREE, EXF_VALUE_WORDS, EXF_VALUE_DIRECTORY, EXF_VALUE_FILE } exf_completion_kind;

/* The kind of value that follows a row's flag or key; WORDS: one of exf_completion_words(), "a|b|c". */
exf_completion_kind exf_completion_value(const exf_opt *row);
const char *exf_completion_words(const exf_opt *row);

/* The kinds of file among the arguments of a program and its commands, "RECIPE.yaml FILE.h5" as
 * "*.yaml|*.h5": each once, with `gap` between; "*" where there are none. */
exf_code exf_completion_files(const exf_program *p, const char *gap, exf_text *out, exf_err *err) EXF_CHECKED;
/* The commands' names, with blanks between; of `exfold` the programs' and help. */
exf_code exf_completion_commands(const exf_program *p, exf_text *out, exf_err *err) EXF_CHECKED;

/* The completions of a program for a shell, as exf_manual_page (manual.h). */
exf_code exf_completion_bash(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_completion_zsh(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
