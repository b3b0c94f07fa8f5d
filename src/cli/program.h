/* program.h - exf_program_main() is the main of every program: option table, --help,
 * --version, signals, messages, exit status.  A program fills an exf_program and calls it. */
#ifndef EXF_CLI_PROGRAM_H
#define EXF_CLI_PROGRAM_H
#include "base/err.h"
#include "cli/command.h"

/* The exit status of main.  PROGRAM --help=FORM prints a page for the build instead (tool/manual.h). */
int exf_program_main(const exf_program *p, int argc, char **argv);
/* Ends a program whose main has not begun, with the message and the status of err. */
_Noreturn void exf_program_end_early(const exf_program *p, const exf_err *err);

/* Sorts a program's positional arguments into the recipe and the inputs. */

/* Fills r->recipe_file and r->inputs from n arguments; r->inputs is the caller's array.  Where p has
 * no inputs beside the recipe, an argument is the recipe whatever it is called; elsewhere a name
 * that ends in .yaml or .yml, or a file that holds a YAML map.  EXF_USAGE: too few, too many. */
exf_code exf_arguments_sort(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err) EXF_CHECKED;

/* `exfold PROGRAM ARGUMENT ...`: becomes exfold-PROGRAM. */

/* 1 if argv[1] names what exf_run_other is for: a word, no option, and not `help` alone. */
int exf_names_other(int argc, char **argv);
/* Replaces this process by exfold-<argv[1]> with the arguments after it; `help WORD` by that
 * program's --help.  It is taken from the directory of this program's file, or else from PATH.
 * Returns only if that fails: EXF_USAGE for an unknown word, naming the nearest, EXF_IO. */
exf_code exf_run_other(int argc, char **argv, exf_err *err) EXF_CHECKED;
#endif
