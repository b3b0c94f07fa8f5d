/* command.h - exf_program describes a program as data: its name, texts, options, recipe keys and
 * commands.  Each src/cli/exfold-<name>.c defines one; help, manual page, completions and the
 * checks of the command line are read from it. */
#ifndef EXF_CLI_COMMAND_H
#define EXF_CLI_COMMAND_H
#include "base/opt.h"
#include "recipe/recipe.h"

/* One of several things a program does, chosen by its first argument. */
typedef struct {
    const char *name;      /* "summary" */
    const char *arguments; /* "FILE.h5 [STATISTICS.h5]" */
    const char *about;     /* a line or two; --help shows it up to the first "; " */
    size_t min_inputs, max_inputs; /* arguments after the name */
    const char *flags;     /* of the program's own rows those that it takes: "layers output"; "" for none */
    exf_code (*run)(exf_recipe *r, exf_err *err); /* r->inputs start after the name */
} exf_command;

typedef struct {
    const char *name;      /* "exfold-calibrate" */
    const char *arguments; /* "RECIPE" */
    const char *group;     /* the word under which `exfold` lists it: a group of exf_program_groups */
    const char *brief;     /* what it does in at most 60 characters, for lists */
    const char *about;     /* a few lines under the usage */
    const char *examples;  /* a command a line, "#" before what it does; the first two are in --help; NULL: none */
    /* The recipe keys that it reads, with blanks between; a section's name stands for all of its
     * keys.  These alone it takes on the command line, by flag or --set; a recipe may hold the keys
     * of other programs.  NULL: it takes no recipe. */
    const char *keys;
    const exf_opt *rows;   /* options of this program alone, fields of exf_recipe; help: the first clause is in --help */
    size_t n_rows;
    size_t min_inputs, max_inputs; /* positional arguments that are no recipe */
    int needs_recipe;              /* one of them must be a recipe */
    /* Results go to stdout, in the order they are made.  NULL where there are commands. */
    exf_code (*run)(exf_recipe *r, exf_err *err);
    /* The first runs also where the first argument names none of them but a file. */
    const exf_command *commands;
    size_t n_commands;
    int takes_ranks; /* it runs as several ranks under mpirun or srun (run_ranks.h); others refuse that */
    int runs_others; /* it is `exfold`: its first argument names the program that takes the others */
} exf_program;
#endif
