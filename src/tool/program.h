/* program.h - exf_program_main() is the main of every program: option table, --help,
 * --version, signals, messages, exit status.  A program fills an exf_program and calls it. */
#ifndef EXF_TOOL_PROGRAM_H
#define EXF_TOOL_PROGRAM_H
#include "base/opt.h"
#include "tool/recipe.h"

/* A command of a program, chosen by its first argument. */
typedef struct {
    const char *name;      /* "summary" */
    const char *arguments; /* "FILE.h5 [STATISTICS.h5]" */
    const char *about;     /* a line or two */
    size_t min_inputs, max_inputs; /* arguments behind the name */
    const char *flags;     /* of the program's own rows those that it takes: "layers output"; "" for none */
    exf_code (*run)(exf_recipe *r, exf_err *err); /* r->inputs start behind the name */
} exf_command;

typedef struct {
    const char *name;      /* "exfold-calibrate" */
    const char *arguments; /* "RECIPE" */
    const char *about;     /* a few lines under the usage */
    const char *examples;  /* of the manual page: a command a line, "#" before what it does; NULL: none */
    int wants_recipe;      /* recipe keys are among the options */
    const exf_opt *rows;   /* options of this program alone, fields of exf_recipe */
    size_t n_rows;
    size_t min_inputs, max_inputs; /* positional arguments that are no recipe */
    int needs_recipe;              /* one of them must be a recipe */
    int lists_targets;             /* --help ends with the export targets */
    /* Results go to stdout, in the order they are made.  NULL where there are commands. */
    exf_code (*run)(exf_recipe *r, exf_err *err);
    /* The first runs also where the first argument names none of them but a file. */
    const exf_command *commands;
    size_t n_commands;
} exf_program;

/* The exit status of main.  PROGRAM --help=FORM prints a page for the build instead (tool/manual.h). */
int exf_program_main(const exf_program *p, int argc, char **argv);
#endif
