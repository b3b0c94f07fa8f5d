/* program.h - what every main shares: one option table, --help, --version,
 * signals, messages, exit status.  A program is a filled exf_program and one call. */
#ifndef EXF_TOOL_PROGRAM_H
#define EXF_TOOL_PROGRAM_H
#include "tool/command.h"

/* The exit status of main.  PROGRAM --help=FORM prints a page for the build instead (tool/manual.h). */
int exf_program_main(const exf_program *p, int argc, char **argv);
#endif
