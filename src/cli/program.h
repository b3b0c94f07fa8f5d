/* program.h - exf_program describes a program as data: its name, texts, options, recipe keys and commands.  Each
 * src/cli/exfold-<name>.c defines one, and they are listed in a table.  exf_program_main() is the main function of all;
 * documentation and completion read the same data. */
#ifndef EXF_CLI_PROGRAM_H
#define EXF_CLI_PROGRAM_H
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
    int takes_ranks; /* it runs as several ranks under mpirun or srun; others refuse that */
    int runs_others; /* it is `exfold`: its first argument names the program that takes the others */
} exf_program;

/* The main function of p, in program_main.c; returns the exit status. */
int exf_program_main(const exf_program *p, int argc, char **argv);
/* Ends a program whose main has not begun, with the message and the status of err. */
_Noreturn void exf_program_end_early(const exf_program *p, const exf_err *err);

/* ---- the table of the programs --------------------------------------------------------- */

extern const exf_program exf_program_exfold;
/* All programs but `exfold` itself, in order of name; NULL: past the end. */
const exf_program *exf_program_at(size_t i);
/* The program that a word names, "solve" or "exfold-solve"; EXF_USAGE naming all and the nearest. */
exf_code exf_program_require(const char *word, const exf_program **out, exf_err *err) EXF_CHECKED;
/* `exfold PROGRAM ARGUMENT ...`: replaces this process by exfold-<argv[1]> with the arguments after it; `help WORD` by that
 * program's --help.  It is taken from the directory of this program's file, or else from PATH.
 * Returns only if that fails: EXF_USAGE for an unknown word, naming the nearest, EXF_IO. */
exf_code exf_program_become(int argc, char **argv, exf_err *err) EXF_CHECKED;

/* The groups in which programs are listed, in their order, up to a name of NULL. */
typedef struct {
    const char *name, *heading;
} exf_program_group;
extern const exf_program_group exf_program_groups[];

/* 1 if p reads the recipe key. */
int exf_program_uses(const exf_program *p, const char *key);
/* 1 if the command takes the program's own option of this flag, "layers". */
int exf_command_takes(const exf_command *c, const char *flag);
/* Appends the names of all programs that take an option: "--layers", "-l" or a recipe key, as
 * "exfold-capture and exfold-inspect"; nothing where none does. */
exf_code exf_programs_taking(const char *option, exf_text *out, exf_err *err) EXF_CHECKED;

/* The options of p: those of every program that are of use to p, *n_common of them, then the recipe's
 * keys if it takes a recipe, then its own.  all: keys that only a recipe may set for p are among
 * them.  n_common may be NULL.  The caller frees *rows. */
exf_code exf_program_rows(const exf_program *p, int all, exf_opt **rows, size_t *n, size_t *n_common, exf_err *err) EXF_CHECKED;

/* ---- completion ------------------------------------------------------------------------------------- */

/* `PROGRAM --complete WORD ...`, which no --help names, prints what a shell may offer while a command line is typed;
 * scripts/completion.bash and scripts/completion.zsh call it.
 *
 * words: the n words after the program's name up to the cursor, the last of them unfinished.  Appends a line for each word
 * that may stand there, which begins as the last one does, and after a tab what it means, if that is known; then, or instead,
 *
 *   @file PATTERN FRONT   files may stand there too, after what FRONT says of the word ("--output="): those that match one
 *                         of PATTERN, "*.yaml|*.h5", and directories; of "*" followed by a slash directories alone
 *   @nospace              no blank follows the words: they are not complete */
exf_code exf_complete(const exf_program *p, const char *const *words, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;

/* ---- help ------------------------------------------------------------------------------------------- */

/* --help, in lines of at most 80: purpose, two examples, the options that p takes; c: of one command of p alone, or NULL. */
exf_code exf_help_text(const exf_program *p, const exf_command *c, exf_text *out, exf_err *err) EXF_CHECKED;
/* --help-keys: the recipe keys that p, which takes a recipe, reads, and the export targets where it writes them. */
exf_code exf_help_keys_text(const exf_program *p, exf_text *out, exf_err *err) EXF_CHECKED;

/* --help-json, which no --help names: all tables that manual pages and docs are made from (scripts/make_pages.py), as one
 * object, the same from every program:
 *
 *   release    "1.4.0"
 *   programs   `exfold` last: name, arguments, group, brief, about, examples, keys (as in exf_program, null for NULL),
 *              exports (it writes export targets), runs_others, commands [{name, arguments, about}], options
 *   keys       the rows of the recipe
 *   targets    [{name, file, about}] of output.targets; a directory's file ends in "/"
 *   manifest   {source, formats, origin}: [{name, default, about}]
 *   variants   [{example, about, options: [{name, values, default, about}]}]
 *   statuses   [{status, meaning}]
 *
 * Options and keys are rows of exf_opt: key, flag, letter, is_flag, is_common (an option of every program), value (its
 * placeholder), default, limits ("1 to 9", "one of a, b"; ""), group, help. */
exf_code exf_help_json(exf_text *out, exf_err *err) EXF_CHECKED;

/* ---- --init ----------------------------------------------------------------------------------------- */

/* Writes r->init_path, a recipe with every key, its comment from the option table: keys that
 * exf_default_settings_set() or the command line set stand as they are, all others commented out with
 * their defaults.  Beside it NAME-manifest.yaml: the files of --text; without --text those of a released
 * model, and its held-out text in NAME-validation-manifest.yaml.  All begin with the line
 * by which an editor finds their JSON Schema.  Reads of the model config.json alone.
 * EXF_USAGE without --text for a model that is not released, EXF_IO for a file that exists, unless --force. */
exf_code exf_init_recipe(exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
