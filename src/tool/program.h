/* program.h - what every main shares: one option table, --help, --version,
 * signals, messages, exit status.  A program is a filled exf_program and one call. */
#ifndef EXF_TOOL_PROGRAM_H
#define EXF_TOOL_PROGRAM_H
#include "base/opt.h"
#include "tool/recipe.h"

typedef struct {
    const char *name;      /* "exfold-calibrate" */
    const char *arguments; /* "RECIPE" */
    const char *about;     /* a few lines under the usage */
    int wants_recipe;      /* recipe keys are among the options */
    const exf_opt *rows;   /* options of this program alone, fields of exf_recipe */
    size_t n_rows;
    size_t min_inputs, max_inputs; /* positional arguments that are no recipe */
    int needs_recipe;              /* one of them must be a recipe */
    int lists_targets;             /* --help ends with the export targets */
    /* Results go to stdout, in the order they are made. */
    exf_code (*run)(exf_recipe *r, exf_err *err);
} exf_program;

/* The exit status of main. */
int exf_program_main(const exf_program *p, int argc, char **argv);
#endif
