/* run_other.h - `exfold PROGRAM ARGUMENT ...`: becomes exfold-PROGRAM. */
#ifndef EXF_TOOL_RUN_OTHER_H
#define EXF_TOOL_RUN_OTHER_H
#include "base/err.h"

/* 1 if argv[1] names what exf_run_other is for: a word, no option, and not `help` alone. */
int exf_names_other(int argc, char **argv);
/* Replaces this process by exfold-<argv[1]> with the arguments after it; `help WORD` by that
 * program's --help.  It is taken from the directory of this program's file, or else from PATH.
 * Returns only if that fails: EXF_USAGE for an unknown word, naming the nearest, EXF_IO. */
exf_code exf_run_other(int argc, char **argv, exf_err *err) EXF_CHECKED;
#endif
