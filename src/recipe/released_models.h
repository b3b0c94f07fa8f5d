/* released_models.h - recognises a released model by the sizes in its config.json, and holds the
 * recipes and manifests that the project has for it (recipes, data-manifests), embedded by the build. */
#ifndef EXF_RECIPE_RELEASED_MODELS_H
#define EXF_RECIPE_RELEASED_MODELS_H
#include "base/text.h"
#include "model/model.h"

typedef struct {
    const char *title;  /* "Qwen3-30B-A3B" */
    const char *recipe; /* "recipes/qwen3-30b-a3b.yaml" */
    const char *family;
    int n_layers, n_experts, top_k, d_model;
} exf_released_model;

/* The released model of these sizes; NULL: none. */
const exf_released_model *exf_released_find(const exf_model *m);
/* Appends an embedded file, named by its path from the project's root.  EXF_INTERNAL if there is none. */
exf_code exf_released_file(exf_text *out, const char *path, exf_err *err) EXF_CHECKED;
#endif
