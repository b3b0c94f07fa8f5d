/* variant_values.c - reads the values of a variant's options; see variant_internal.h. */
#include "fold/variant_internal.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

exf_code exf_variant_bad_value(const exf_variant_reading *r, const char *option, const char *value, const char *expected)
{
    return exf_fail(r->err, EXF_USAGE, "variant \"%s\": %s=%s, expected %s", r->text, option, value, expected);
}

exf_code exf_variant_read_word(const exf_variant_reading *r, const char *option, const char *value, const char *const *words,
                               int *out)
{
    exf_text list = {0};
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], value) == 0) {
            *out = i;
            return EXF_OK;
        }
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && words[i]; i++) rc = exf_text_addf(&list, r->err, "%s%s", i ? ", " : "", words[i]);
    if (rc == EXF_OK) rc = exf_variant_bad_value(r, option, value, list.s);
    exf_text_free(&list);
    return rc;
}

exf_code exf_variant_read_real(const exf_variant_reading *r, const char *option, const char *value, double high, double *out)
{
    char expected[48];
    if (exf_parse_f64(value, out) && *out >= 0 && *out <= high) return EXF_OK;
    snprintf(expected, sizeof expected, "a number from 0 to %g", high);
    return exf_variant_bad_value(r, option, value, expected);
}

exf_code exf_variant_read_float(const exf_variant_reading *r, const char *option, const char *value, float *out)
{
    double x = 0;
    exf_code rc = exf_variant_read_real(r, option, value, 1e30, &x);
    *out = (float)x == 0 ? EXF_FOLD_ZERO : (float)x;
    return rc;
}
