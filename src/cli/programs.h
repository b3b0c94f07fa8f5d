/* programs.h - the table of the programs, and which of them takes an option or a recipe key. */
#ifndef EXF_CLI_PROGRAMS_H
#define EXF_CLI_PROGRAMS_H
#include "base/text.h"
#include "cli/command.h"

/* All programs but `exfold` itself, in order of name; NULL: past the end. */
const exf_program *exf_program_at(size_t i);
/* The program that a word names, "solve" or "exfold-solve"; EXF_USAGE naming all and the nearest. */
exf_code exf_program_require(const char *word, const exf_program **out, exf_err *err) EXF_CHECKED;

/* The groups in which programs are listed, in their order, up to a name of NULL. */
typedef struct {
    const char *name, *heading;
} exf_program_group;
extern const exf_program_group exf_program_groups[];

/* 1 if p reads the recipe key. */
int exf_program_uses(const exf_program *p, const char *key);
/* Appends the names of all programs that take an option: "--layers", "-l" or a recipe key, as
 * "exfold-capture and exfold-inspect"; nothing where none does. */
exf_code exf_programs_taking(const char *option, exf_text *out, exf_err *err) EXF_CHECKED;

/* The options of p: those of every program that are of use to p, *n_common of them, then the recipe's
 * keys if it takes a recipe, then its own.  all: keys that only a recipe may set for p are among
 * them.  n_common may be NULL.  The caller frees *rows. */
exf_code exf_program_rows(const exf_program *p, int all, exf_opt **rows, size_t *n, size_t *n_common, exf_err *err) EXF_CHECKED;
/* Returns the scope that says which of those rows the command line of p may give. */
exf_opt_scope exf_program_scope(const exf_program *p);
#endif
