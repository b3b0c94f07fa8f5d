/* program.h - exf_program_main() is the main of every program: option table, --help,
 * --version, signals, messages, exit status.  A program fills an exf_program and calls it. */
#ifndef EXF_TOOL_PROGRAM_H
#define EXF_TOOL_PROGRAM_H
#include "tool/command.h"

/* The exit status of main.  PROGRAM --help=FORM prints a page for the build instead (tool/manual.h). */
int exf_program_main(const exf_program *p, int argc, char **argv);
/* Ends a program whose main has not begun, with the message and the status of err. */
_Noreturn void exf_program_end_early(const exf_program *p, const exf_err *err);
#endif
