/* opt_internal.h - types and functions shared by opt*.c only.
 *
 * opt.c reads the recipe and the command line and stores values with their origins, opt_hint.c finds keys and tells what a wrong
 * one may mean, opt_value.c parses and prints one value, opt_help.c prints --help. */
#ifndef EXF_BASE_OPT_INTERNAL_H
#define EXF_BASE_OPT_INTERNAL_H
#include "base/opt.h"

enum { EXF_OPT_RANKS = 3, EXF_OPT_BOUND_MAX = 64, EXF_OPT_RANGE_MAX = 160, EXF_OPT_HINT_MAX = 400 };

struct exf_opts {
    const exf_opt *table;
    size_t n;
    char *values;
    const exf_opt_scope *scope; /* NULL: the command line may give every row */
    char *(*origin)[EXF_OPT_RANKS]; /* per row and rank: where the value was given ("demo.yaml:12", "--ridge"); NULL: not given */
};

/* ---- keys and what may be meant (opt_hint.c) ----------------------------------------- */

size_t exf_opt_find_key(const exf_opts *o, const char *key); /* the row; o->n: none */
int exf_opt_takes_row(const exf_opts *o, size_t i, exf_opt_rank rank); /* 1 if row i may be given at this rank */
/* The hint after "unknown key": the nearest keys, the section's keys, or nothing; of the keys that this rank may give. */
exf_code exf_opt_hint(const exf_opts *o, exf_opt_rank rank, const char *key, char hint[EXF_OPT_HINT_MAX], exf_err *err) EXF_CHECKED;
/* Fail in any case: a key that --set may not give here, where is "--set KEY"; an option that is none of this table's. */
exf_code exf_opt_refuse_key(const exf_opts *o, const char *where, const char *key, exf_err *err);
exf_code exf_opt_refuse_flag(const exf_opts *o, const char *name, exf_err *err);

/* ---- one value (opt_value.c) ----------------------------------------- */
/* A parsed value that is not yet stored; the row's type names the member. */
typedef union {
    char *text;
    int64_t i;
    double real;
    uint64_t bytes;
    int word;
    exf_text_list texts;
    exf_int_list ints;
} exf_opt_value;

/* The message has no prefix: the caller knows file and key.  *out is zero after an error. */
exf_code exf_opt_parse(exf_opt_value *out, const exf_opt *row, const char *text, exf_err *err) EXF_CHECKED;
/* Parses a TEXT_LIST or INT_LIST from separate items. */
exf_code exf_opt_parse_items(exf_opt_value *out, const exf_opt *row, const char *const *item, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_opt_print(exf_text *out, const exf_opt *row, const exf_opt_value *v, exf_err *err) EXF_CHECKED;
void exf_opt_value_free(exf_opt_type type, exf_opt_value *v); /* and zeroes it */
size_t exf_opt_value_size(exf_opt_type type);                  /* of the field in the struct */
int exf_opt_holds_texts(exf_opt_type type);                    /* 1: a list of names or words */

/* "0 to 1", "at least 1", "at most 5", "" when there is no range.  0 if row->values is no range. */
int exf_opt_range(const exf_opt *row, char text[EXF_OPT_RANGE_MAX]);
#endif
