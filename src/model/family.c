/* family.c - the table of families, made from the files in this folder. */
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
    for (size_t i = 0; exf_family_at(i); i++)
        if (strcmp(families[i]->name, model_type) == 0) return families[i];
    return NULL;
}

exf_code exf_family_list(exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && exf_family_at(i); i++) rc = exf_text_addf(out, err, "%s%s", i ? ", " : "", families[i]->name);
    return rc;
}

int exf_dim_length(const exf_architecture *a, exf_dim d)
{
    switch (d) {
    case EXF_DIM_NONE: return 0;
    case EXF_DIM_H: return a->d_model;
    case EXF_DIM_VOCAB: return a->vocab;
    case EXF_DIM_Q: return a->attention.n_heads * a->attention.head_dim;
    case EXF_DIM_KV: return a->attention.n_kv_heads * a->attention.head_dim;
    case EXF_DIM_HEAD: return a->attention.head_dim;
    case EXF_DIM_FFN: return a->d_ffn;
    case EXF_DIM_E: return a->n_experts;
    case EXF_DIM_I: return a->d_expert;
    }
    return 0;
}
