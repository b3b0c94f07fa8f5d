/* family.c - the table of families, one row for each family_<name>.c; see family.h. */
#include "model/family.h"

#include "base/registry.h"

#include <string.h>

#define X(name) extern const exf_family exf_family_##name;
#include "gen/family.inc"
#undef X

EXF_REGISTRY_BEGIN
#define X(name) &exf_family_##name,
#include "gen/family.inc"
#undef X
EXF_REGISTRY_END(family)

const exf_family *exf_family_find(const char *model_type)
{
    const exf_family *f = exf_registry_find(&registry, model_type);
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
    for (size_t i = 0; exf_family_at(i); i++) exf_text_appendf(&known, "%s%s", i ? ", " : "", exf_family_at(i)->name);
    exf_code rc = exf_text_end(&known, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL,
                      "model_type \"%s\" is of a family that this version does not read; it reads %s, and under another name in "
                      "config.json the weights would be computed as another model; if transformers or vLLM runs it, "
                      "docs/any-model.md has how to make its tables",
                      model_type, known.s);
    exf_text_free(&known);
    return rc;
}
