/* opt.h - an option table describes every option of a program once; argv, recipe, --help
 * and provenance are read from it.
 *
 * A program has an options struct and a table of exf_opt rows that say where in
 * the struct each value lives.  Every value arrives as text (a default, a
 * recipe scalar or list, `--flag value`, `--set key=value`) and goes through
 * the same strict parser.  Precedence: command line > recipe > default; a key
 * given twice at one rank is refused, since which value was meant is unknown; FILES add up.
 *
 * Errors: what the user wrote wrong is EXF_USAGE; a bad table, a bad default
 * included, is EXF_INTERNAL.  After an error the values that were set before it
 * stay, and exf_opts_free() is still due.
 * Ownership: exf_opts owns every string and list it puts into the struct;
 * exf_opts_free() releases them, so the struct must outlive it. */
#ifndef EXF_BASE_OPT_H
#define EXF_BASE_OPT_H
#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

/* type        C type of the field     text form
 * TEXT        char *  (NULL: unset)   anything
 * INT         int64_t                 12
 * REAL        double                  1.0e-3
 * BYTES       uint64_t                8GiB
 * FLAG        int (0/1)               true | false; on argv --name alone is true
 * CHOICE      int (index in values)   one word of values, "auto|cpu|cuda"
 * TEXT_LIST   exf_text_list           a,b,c or a b c   (recipe: [a, b, c] or one scalar)
 * INT_LIST    exf_int_list            8,4 or 8 4       (recipe: [8, 4] or one scalar)
 * WORD_LIST   exf_text_list           a:x,y b          (recipe: ['a:x,y', b] or one scalar)
 * FILES       exf_text_list           one name; on argv only: each --flag NAME adds one
 *
 * Lists: items are separated by commas or, where the text has none, by blanks; blanks around an item are
 * trimmed, brackets around the whole are optional ("[8, 4]" is "8,4"), the empty list is "[]".  An item is not empty,
 * holds no comma and does not start with "[".  Words are separated by either, and hold no blank; after its
 * first colon a word may hold commas, between options: there a blank, or a comma before a blank, ends it. */
typedef enum {
    EXF_OPT_TEXT, EXF_OPT_INT, EXF_OPT_REAL, EXF_OPT_BYTES, EXF_OPT_FLAG,
    EXF_OPT_CHOICE, EXF_OPT_TEXT_LIST, EXF_OPT_INT_LIST, EXF_OPT_WORD_LIST, EXF_OPT_FILES
} exf_opt_type;

typedef struct { char **item; size_t n; } exf_text_list;
typedef struct { int64_t *item; size_t n; } exf_int_list;

typedef struct {
    const char *key;      /* recipe key, dotted: "calibrate.ridge"; NULL: command line only */
    const char *flag;     /* "threads" for --threads; NULL: reached by recipe and --set only */
    char letter;          /* 'o' for -o; 0: none; needs a flag */
    exf_opt_type type;
    size_t offset;        /* offsetof(struct, field) */
    const char *fallback; /* default as text; NULL: unset (TEXT NULL, lists empty, numbers 0) */
    const char *values;   /* CHOICE: "a|b|c".  INT, REAL: "min..max", inclusive, either may be
                             missing.  Others: what help prints after the flag: "DIR" */
    const char *group;    /* heading in --help; rows of one group stand together */
    const char *help;     /* one line, no full stop */
} exf_opt;

typedef enum { EXF_OPT_BY_DEFAULT, EXF_OPT_BY_RECIPE, EXF_OPT_BY_ARGV } exf_opt_rank;

typedef struct exf_opts exf_opts; /* a table, a struct and the origin of each value */

/* Says which rows of a table that several programs share one program's command line may give. */
typedef struct {
    const void *self;
    /* 1 if the row may be given on the command line; any may come from a recipe. */
    int (*takes)(const void *self, const exf_opt *row);
    /* Appends the names of the programs that take "--flag", "-x" or a key; nothing: none does. */
    exf_code (*others)(const char *option, exf_text *out, exf_err *err);
} exf_opt_scope;

/* table: n rows, kept by reference.  values: the program's options struct; the
 * fields that rows point at are zeroed here, then filled with the defaults. */
exf_code exf_opts_new(exf_opts **out, const exf_opt *table, size_t n, void *values, exf_err *err) EXF_CHECKED;
void exf_opts_free(exf_opts *o); /* also frees the strings in values; NULL is allowed */
/* From now on the command line takes what the scope says, and an option that it does not take is
 * an error that names the programs which do.  scope is kept by reference. */
void exf_opts_limit(exf_opts *o, const exf_opt_scope *scope);

/* Sets one recipe key.  `where` is the position for messages: "demo.yaml:12".  A value
 * of lower rank than the present one is checked, then ignored, so the recipe may be
 * read after argv; the same rank twice is an error; an unknown key is an error
 * naming the nearest known key, or its section's keys; a section ("calibrate: 3") gets a message
 * of its own. */
exf_code exf_opts_set(exf_opts *o, exf_opt_rank rank, const char *key, const char *text, const char *where,
                      exf_err *err) EXF_CHECKED;
/* Sets a key from a list of n separate items, as a recipe has them: refused for a
 * row that takes one value, and no item is split at a comma. */
exf_code exf_opts_set_list(exf_opts *o, exf_opt_rank rank, const char *key, const char *const *item, size_t n,
                           const char *where, exf_err *err) EXF_CHECKED;

/* Reads argv[1..argc): --flag value, --flag=value, -x value, --no-flag for FLAG,
 * --set key=value, "--" ends flags, the rest ("-" too) are positional and
 * returned in order (pointers into argv; the array holds argc of them).  A value that
 * starts with "--" must be written --flag=value.  --help and --version are flags
 * of the table like any other; "set" is taken.  An unknown flag is EXF_USAGE
 * with the nearest known one. */
exf_code exf_opts_argv(exf_opts *o, int argc, char **argv, const char **positional, size_t *n_positional, exf_err *err) EXF_CHECKED;

/* 1 if the command line takes --flag. */
int exf_opts_takes(const exf_opts *o, const char *flag);
/* 1 if the key is a section: others begin with it and a dot. */
int exf_opts_is_section(const exf_opts *o, const char *key);
/* 1 if key was given at this rank or above.  A row without a key goes by its flag. */
int exf_opts_given(const exf_opts *o, const char *key, exf_opt_rank rank);
/* Appends the place that set the key's value, to begin a message with: "demo.yaml:12: pools",
 * "--set pools", "--output"; the key alone where the value is the default. */
exf_code exf_opts_place(const exf_opts *o, const char *key, exf_text *out, exf_err *err) EXF_CHECKED;

/* Appends the current value of row i in the text form above ("" when unset);
 * reading it back gives the same value. */
exf_code exf_opts_value(const exf_opts *o, size_t i, exf_text *out, exf_err *err) EXF_CHECKED;

/* Appends the lines of --help for all rows that have a flag, in table order: "  -o, --output DIR
 * help", two columns, at most 80 wide; of each row's help the part before the first "; ". */
exf_code exf_opts_help(const exf_opt *table, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends the lines of --help-keys for all rows that have a key: groups in table order, "  pools
 * SIZES   help (default X; or -o, --output)", two columns, at most 80 wide. */
exf_code exf_opts_help_keys(const exf_opt *table, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends the flags of all rows, one after the other in lines of at most 80: "  -q, --quiet  -v, ...". */
exf_code exf_opts_help_flags(const exf_opt *table, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends one line of two columns, the second from `column` on and wrapped; a long left part stands on a line of its own,
 * unless the line has room for both. */
exf_code exf_opts_help_line(const char *left, const char *right, size_t column, exf_text *out, exf_err *err) EXF_CHECKED;
/* The parts of a row's line, for manual pages: the placeholder of its value
 * ("DIR", "auto|cpu|cuda"), and the right column as one line ("help (default X; recipe: KEY)"). */
const char *exf_opt_placeholder(const exf_opt *row);
exf_code exf_opt_remarks(const exf_opt *row, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
