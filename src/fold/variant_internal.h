/* variant_internal.h - reading a variant's text, shared by variant.c, variant_words.c and variant_words.c. */
#ifndef EXF_FOLD_VARIANT_INTERNAL_H
#define EXF_FOLD_VARIANT_INTERNAL_H
#include "fold/variant.h"

/* State of reading a variant, for messages. */
typedef struct exf_variant_reading {
    exf_variant *v;
    const char *text; /* the whole variant */
    exf_err *err;
    exf_variant_terms_fn terms; /* of the runtime; NULL: none */
    const void *runtime;
} exf_variant_reading;

/* Refuses a value with what was expected: EXF_USAGE. */
exf_code exf_variant_bad_value(const exf_variant_reading *r, const char *option, const char *value, const char *expected);
/* Reads one of the words, which a NULL ends, as its place among them. */
exf_code exf_variant_read_word(const exf_variant_reading *r, const char *option, const char *value, const char *const *words,
                               int *out);
/* Reads a number from 0 to `high`. */
exf_code exf_variant_read_real(const exf_variant_reading *r, const char *option, const char *value, double high, double *out);
/* Reads a number for an option of exfold/fold.h, whose 0 is the default: a 0 that was given is EXF_FOLD_ZERO. */
exf_code exf_variant_read_float(const exf_variant_reading *r, const char *option, const char *value, float *out);

/* Set the options of budgets, stand-ins and skipping. */
exf_code exf_variant_set_budget(const exf_variant_reading *r, const char *value);
exf_code exf_variant_set_sensitivity(const exf_variant_reading *r, const char *value);
exf_code exf_variant_set_layer(const exf_variant_reading *r, const char *value);
exf_code exf_variant_set_targets(const exf_variant_reading *r, const char *value);
exf_code exf_variant_set_weights(const exf_variant_reading *r, const char *value);
exf_code exf_variant_set_by(const exf_variant_reading *r, const char *value);
exf_code exf_variant_set_tau(const exf_variant_reading *r, const char *value);
exf_code exf_variant_set_factor(const exf_variant_reading *r, const char *value);
/* Refuse options of these that would be ignored. */
exf_code exf_variant_check_budget(const exf_variant_reading *r);
exf_code exf_variant_check_stand_ins(const exf_variant_reading *r);
#endif
