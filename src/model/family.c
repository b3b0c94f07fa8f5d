/* family.c - the table of families, made from the files in this folder. */
#include "model/family.h"

#include "base/drawer.h"

#include <string.h>

#define X(name) extern const exf_family exf_family_##name;
#include "gen/family.inc"
#undef X

EXF_DRAWER_BEGIN
#define X(name) &exf_family_##name,
#include "gen/family.inc"
#undef X
EXF_DRAWER_END(family)

const exf_family *exf_family_find(const char *model_type)
{
    const exf_family *f = exf_drawer_find(&drawer, model_type);
    for (size_t i = 0; !f && exf_family_at(i); i++) {
        const char *also = exf_family_at(i)->also;
        if (also && strcmp(also, model_type) == 0) f = exf_family_at(i);
    }
    return f;
}

exf_code exf_family_require(const char *model_type, const exf_family **out, exf_err *err)
{
    exf_text known = {0};
    *out = exf_family_find(model_type);
    if (*out) return EXF_OK;
    exf_code rc = exf_drawer_known(&known, &drawer, "supported", model_type, err);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_MODEL, "model_type \"%s\" is not supported %s", model_type, known.s);
    exf_text_free(&known);
    return rc;
}
