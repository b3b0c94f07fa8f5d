/* released_models.c - see released_models.h; the Makefile makes gen/released_files.inc. */
#include "recipe/released_models.h"

#include <string.h>

static const struct {
    const char *file, *line;
} lines[] = {
#include "gen/released_files.inc"
};

enum { N_LINES = sizeof lines / sizeof *lines };

static const exf_released_model models[] = {
    {"Qwen3-30B-A3B", "recipes/qwen3-30b-a3b.yaml", "qwen3_moe", 48, 128, 8, 2048},
    {"DeepSeek-V2-Lite", "recipes/deepseek-v2-lite.yaml", "deepseek_v2", 27, 64, 6, 2048},
    {"GLM-4.5-Air", "recipes/glm-4.5-air.yaml", "glm4_moe", 46, 128, 8, 4096},
    {"Qwen3.5-35B-A3B", "recipes/qwen3.5-35b-a3b.yaml", "qwen3_5_moe", 40, 256, 8, 2048},
    {"DeepSeek-V4-Flash", "recipes/deepseek-v4-flash.yaml", "deepseek_v4", 43, 256, 6, 4096},
};

const exf_released_model *exf_released_find(const exf_model *m)
{
    const exf_architecture *a = &m->arch;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const exf_released_model *r = &models[i];
        if (strcmp(r->family, m->family->name) == 0 && r->n_layers == a->n_layers && r->n_experts == a->n_experts &&
            r->top_k == a->top_k && r->d_model == a->d_model)
            return r;
    }
    return NULL;
}

exf_code exf_released_file(exf_text *out, const char *path, exf_err *err)
{
    size_t before = out->len;
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < N_LINES; i++)
        if (strcmp(lines[i].file, path) == 0) rc = exf_text_addf(out, err, "%s\n", lines[i].line);
    if (rc == EXF_OK && out->len == before) rc = exf_fail(err, EXF_INTERNAL, "%s: is not embedded in this program", path);
    return rc;
}
