/* runtime_tables.c - tables with all layers of the model, as the two public plugins load them. */
#include "export/writer_internal.h"

#include "artifact/provenance.h"
#include "base/mem.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

/* ---- the model's layer axis ------------------------------------------------------ */

/* Fills all layers as if they had no evidence. */
static void fill_unknown(exf_runtime_tables *r)
{
    size_t e = (size_t)r->n_experts, m = (size_t)r->n_layers;
    for (size_t i = 0; i < m * e * e; i++) r->loss[i] = EXF_LOSS_NEVER;
    for (size_t i = 0; i < m * e; i++) {
        r->norms[i] = 1;
        r->coeff[i * e + i % e] = 1;
    }
}

/* Copies the layers of the tables. */
static void fill_known(exf_runtime_tables *r, const exf_tables *t, const float *loss)
{
    size_t e = (size_t)r->n_experts;
    for (size_t l = 0; l < (size_t)t->n_layers; l++) {
        size_t to = (size_t)t->layer_number[l];
        memcpy(r->coeff + to * e * e, t->coeff + l * e * e, e * e * sizeof *r->coeff);
        memcpy(r->loss + to * e * e, loss + l * e * e, e * e * sizeof *r->loss);
        /* Plugins refuse 0; the least normal number ranks such an expert last, too. */
        for (size_t i = 0; i < e; i++) r->norms[to * e + i] = t->expert_norms[l * e + i] > 0 ? t->expert_norms[l * e + i] : FLT_MIN;
    }
}

exf_code exf_runtime_tables_make(exf_runtime_tables *out, const exf_tables *t, const float *loss, exf_err *err)
{
    exf_code rc;
    const char *layers = exf_provenance_get(&t->provenance, "model.layers");
    size_t e = (size_t)t->shape.n_experts, matrices, rows;
    memset(out, 0, sizeof *out);
    out->n_experts = t->shape.n_experts;
    if (!layers || !exf_parse_i64(layers, &out->n_layers) || out->n_layers < 0 || out->n_layers > INT32_MAX)
        return exf_fail(err, EXF_MODEL, "model.layers is %s, expected a number of layers", layers ? layers : "missing");
    EXF_TRY(exf_mem_mul(&rows, (size_t)out->n_layers, e, "tables of all layers", err));
    EXF_TRY(exf_mem_mul(&matrices, rows, e, "tables of all layers", err));
    EXF_TRY(exf_mem_new(&out->coeff, matrices, sizeof *out->coeff, "tables of all layers", err));
    EXF_TRY(exf_mem_new(&out->loss, matrices, sizeof *out->loss, "tables of all layers", err));
    EXF_TRY(exf_mem_new(&out->norms, rows, sizeof *out->norms, "tables of all layers", err));
    fill_unknown(out);
    fill_known(out, t, loss);
out:
    if (rc != EXF_OK) exf_runtime_tables_free(out);
    return rc;
}

void exf_runtime_tables_free(exf_runtime_tables *r)
{
    exf_mem_free(r->coeff);
    exf_mem_free(r->loss);
    exf_mem_free(r->norms);
    memset(r, 0, sizeof *r);
}

/* ---- the file ---------------------------------------------------------------------- */

exf_pt exf_runtime_matrices(const char *key, const exf_runtime_tables *r, const float *data)
{
    return (exf_pt){.key = key,
                    .kind = EXF_PT_TENSOR,
                    .tensor = {.dtype = EXF_DT_F32, .rank = 3, .shape = {r->n_layers, r->n_experts, r->n_experts}, .data = data}};
}

exf_pt exf_runtime_norms(const char *key, const exf_runtime_tables *r)
{
    return (exf_pt){.key = key,
                    .kind = EXF_PT_TENSOR,
                    .tensor = {.dtype = EXF_DT_F32, .rank = 2, .shape = {r->n_layers, r->n_experts}, .data = r->norms}};
}

exf_code exf_runtime_write(const char *path, int force, const exf_pt *dict, const exf_export *x, exf_err *err)
{
    exf_text json = {0};
    exf_code rc;
    EXF_TRY(exf_table_facts_json(&json, x, err));
    exf_pt_record extra = {"extra/provenance.json", json.s, json.len};
    EXF_TRY(exf_pt_write(path, force, dict, &extra, 1, err));
out:
    exf_text_free(&json);
    return rc;
}
