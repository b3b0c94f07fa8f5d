/* family.c - the table of families, made from the files in this directory. */
#include "model/family.h"

#include <string.h>

#define X(name) extern const exf_family exf_family_##name;
#include "gen/family.inc"
#undef X

static const exf_family *const families[] = {
#define X(name) &exf_family_##name,
#include "gen/family.inc"
#undef X
};

const exf_family *exf_family_at(size_t i)
{
    return i < sizeof families / sizeof families[0] ? families[i] : NULL;
}

const exf_family *exf_family_find(const char *model_type)
{
    for (size_t i = 0; exf_family_at(i); i++) {
        const char *also = families[i]->also;
        if (strcmp(families[i]->name, model_type) == 0 || (also && strcmp(also, model_type) == 0)) return families[i];
    }
    return NULL;
}

exf_code exf_family_list(exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && exf_family_at(i); i++) rc = exf_text_addf(out, err, "%s%s", i ? ", " : "", families[i]->name);
    return rc;
}
