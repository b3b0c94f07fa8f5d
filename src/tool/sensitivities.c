/* sensitivities.c - see sensitivities.h. */
#include "tool/sensitivities.h"

#include "artifact/statistics.h"
#include "base/mem.h"
#include "format/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 1 << 26 };

static void name_variant(char out[EXF_VARIANT_NAME_LEN], int64_t top_k, int layer)
{
    snprintf(out, EXF_VARIANT_NAME_LEN, "P%d:projector=joint,layer=%d", (int)(top_k / 2 ? top_k / 2 : 1), layer);
}

exf_code exf_sensitivity_variants(exf_variant **out, size_t *n, const exf_tables *t, exf_err *err)
{
    exf_code rc;
    *n = 0;
    EXF_TRY(exf_mem_new(out, (size_t)t->n_layers, sizeof **out, "variants", err));
    for (; *n < (size_t)t->n_layers; ++*n) {
        char name[EXF_VARIANT_NAME_LEN];
        name_variant(name, t->shape.top_k, t->layer_number[*n]);
        EXF_TRY(exf_variant_parse(&(*out)[*n], name, err));
    }
out:
    return rc;
}

/* ---- reading ------------------------------------------------------------------------ */

static const exf_json *find(const exf_json *variants, const char *name)
{
    for (size_t i = 0; i < exf_json_size(variants); i++) {
        const char *s = exf_json_string(exf_json_get(exf_json_at(variants, i), "name"), NULL);
        if (s && strcmp(s, name) == 0) return exf_json_at(variants, i);
    }
    return NULL;
}

static exf_code read_layer(double *kl, const exf_json *variants, int64_t top_k, int layer, const char *path, exf_err *err)
{
    char name[EXF_VARIANT_NAME_LEN];
    name_variant(name, top_k, layer);
    const exf_json *v = find(variants, name), *number = exf_json_get(v, "kl_mean");
    if (!v)
        return exf_fail(err, EXF_FORMAT, "%s: has no variant \"%s\": measure it with exfold-validate --sensitivities", path, name);
    *kl = exf_json_type(number) == EXF_JSON_INT || exf_json_type(number) == EXF_JSON_REAL ? exf_json_real(number) : NAN;
    if (*kl > 0 && isfinite(*kl)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: variant \"%s\" has kl_mean %g, expected a number above 0: measure it on more text", path,
                    name, *kl);
}

exf_code exf_sensitivities_read(double **kl, const char *path, const char *statistics, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_json *doc = NULL;
    exf_code rc;
    *kl = NULL;
    EXF_TRY(exf_json_load(&doc, path, MOST_BYTES, err));
    EXF_TRY(exf_statistics_open(&r, statistics, err));
    EXF_TRY(exf_mem_new(kl, (size_t)r.n_layers, sizeof **kl, "sensitivities", err));
    for (int l = 0; l < r.n_layers; l++)
        EXF_TRY(read_layer(&(*kl)[l], exf_json_get(doc, "variants"), r.shape.top_k, r.layer_number[l], path, err));
out:
    exf_statistics_close(&r);
    exf_json_free(doc);
    return rc;
}
