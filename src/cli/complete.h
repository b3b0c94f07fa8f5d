/* complete.h - what a shell may offer while a command line is typed: `PROGRAM --complete WORD ...`, which no --help names.
 * scripts/completion.bash and scripts/completion.zsh call it. */
#ifndef EXF_CLI_COMPLETE_H
#define EXF_CLI_COMPLETE_H
#include "cli/program.h"

/* words: the n words after the program's name up to the cursor, the last of them unfinished.  Appends a line for each word
 * that may stand there, which begins as the last one does, and after a tab what it means, if that is known; then, or instead,
 *
 *   @file PATTERN FRONT   files may stand there too, after what FRONT says of the word ("--output="): those that match one
 *                         of PATTERN, "*.yaml|*.h5", and directories; of "*" followed by a slash directories alone
 *   @nospace              no blank follows the words: they are not complete */
exf_code exf_complete(const exf_program *p, const char *const *words, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
