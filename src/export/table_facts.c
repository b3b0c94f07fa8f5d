/* table_facts.c - what every file of tables says beside its numbers: their facts, whether each layer has evidence, and tables
 * with all layers of the model, as the two public plugins load them; see writer_internal.h. */
#include "export/writer_internal.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "format/json.h"
#include "model/family.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

/* ---- layers without evidence ------------------------------------------------------------------ */

exf_code exf_writer_refuse_unobserved(const exf_tables *t, int first, int n, exf_err *err)
{
    size_t cells = (size_t)t->shape.n_experts * (size_t)t->shape.n_experts;
    for (int l = first; l < n; l++) {
        int index = exf_tables_index(t, l), has_pair = 0;
        for (size_t i = 0; index >= 0 && i < cells && !has_pair; i++) has_pair = t->loss[(size_t)index * cells + i] < EXF_NO_PAIR;
        if (!has_pair)
            return exf_fail(err, EXF_THRESHOLD,
                            "layer %d has no pair of experts with evidence, and the runtime folds it all the same: what it leaves "
                            "out there is lost; calibrate the layer too (calibrate.pairs: common_input observes every one), or "
                            "accept the loss with serve.unobserved_layers=accept",
                            l);
    }
    return EXF_OK;
}

exf_code exf_writer_covers_own(const exf_tables *t, int by_token, exf_err *err)
{
    exf_code rc = EXF_OK;
    (void)by_token;
    for (int i = 0; i < t->n_layers && rc == EXF_OK; i++)
        rc = exf_writer_refuse_unobserved(t, t->layer_number[i], t->layer_number[i] + 1, err);
    return rc;
}

/* ---- facts ------------------------------------------------------------------------------------ */

exf_code exf_table_facts(exf_provenance *out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    const char *family = exf_provenance_get(&t->provenance, "model.family");
    const exf_family *f = family ? exf_family_find(family) : NULL;
    exf_code rc;
    exf_text layers = {0};
    for (int i = 0; i < t->n_layers; i++) exf_text_appendf(&layers, "%s%d", i ? ", " : "", (int)t->layer_number[i]);
    EXF_TRY(exf_text_end(&layers, err));
    EXF_TRY(exf_provenance_copy(out, &t->provenance, err));
    EXF_TRY(exf_provenance_add(out, err, "exfold_format", "tables/1"));
    if (f) /* the values of model_type that are of the family: "deepseek_v3 kimi_k2" */
        EXF_TRY(exf_provenance_add(out, err, "model.types", "%s%s%s", f->name, f->also ? " " : "", f->also ? f->also : ""));
    EXF_TRY(exf_provenance_add(out, err, "layer_numbers", "[%s]", layers.s ? layers.s : ""));
    if (x->digest) EXF_TRY(exf_provenance_add(out, err, EXF_MADE_FROM, "%s", x->digest));
    if (x->other_weights) EXF_TRY(exf_provenance_add(out, err, "export.other_weights", "%s", x->other_weights));
    EXF_TRY(exf_provenance_add(out, err, "loss_kind", "relative_scalar_reconstruction_error"));
out:
    exf_text_free(&layers);
    if (rc != EXF_OK) exf_provenance_free(out);
    return rc;
}

/* Append the same as a JSON object of strings, a line each; write it as the next file of a directory. */
static exf_code facts_json(exf_text *out, const exf_export *x, exf_err *err)
{
    exf_provenance facts = {0};
    exf_code rc;
    EXF_TRY(exf_table_facts(&facts, x, err));
    for (size_t i = 0; i < facts.n; i++) {
        exf_text_appendf(out, i ? ",\n  " : "{\n  ");
        EXF_TRY(exf_json_quote(out, facts.key[i], err));
        exf_text_appendf(out, ": ");
        EXF_TRY(exf_json_quote(out, facts.value[i], err));
    }
    exf_text_appendf(out, "\n}\n");
    rc = exf_text_end(out, err);
out:
    exf_provenance_free(&facts);
    return rc;
}

exf_code exf_table_facts_file(exf_output_directory *f, const exf_export *x, exf_err *err)
{
    exf_text facts = {0};
    exf_code rc;
    EXF_TRY(facts_json(&facts, x, err));
    EXF_TRY(exf_output_directory_file(f, EXF_FACTS_FILE, err));
    EXF_TRY(exf_output_directory_write(f, facts.s, facts.len, err));
out:
    exf_text_free(&facts);
    return rc;
}

/* ---- the model's layer axis ------------------------------------------------------ */

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
    for (size_t i = 0; i < matrices; i++) out->loss[i] = EXF_LOSS_NEVER; /* as if no layer had evidence */
    for (size_t i = 0; i < rows; i++) {
        out->norms[i] = 1;
        out->coeff[i * e + i % e] = 1;
    }
    for (size_t l = 0; l < (size_t)t->n_layers; l++) {
        size_t to = (size_t)t->layer_number[l];
        memcpy(out->coeff + to * e * e, t->coeff + l * e * e, e * e * sizeof *out->coeff);
        memcpy(out->loss + to * e * e, loss + l * e * e, e * e * sizeof *out->loss);
        /* Plugins refuse 0; the least normal number ranks such an expert last, too. */
        for (size_t i = 0; i < e; i++)
            out->norms[to * e + i] = t->expert_norms[l * e + i] > 0 ? t->expert_norms[l * e + i] : FLT_MIN;
    }
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

exf_pt exf_runtime_array(const char *key, const exf_runtime_tables *r, const float *data)
{
    return (exf_pt){.key = key, .kind = EXF_PT_TENSOR,
                    .tensor = {.dtype = EXF_DT_F32, .rank = data == r->norms ? 2 : 3,
                               .shape = {r->n_layers, r->n_experts, r->n_experts}, .data = data}};
}

exf_code exf_runtime_write(const char *path, int force, const exf_pt *dict, const exf_export *x, exf_err *err)
{
    exf_text json = {0};
    exf_code rc;
    EXF_TRY(facts_json(&json, x, err));
    exf_pt_record extra = {"extra/provenance.json", json.s, json.len};
    EXF_TRY(exf_pt_write(path, force, dict, &extra, 1, err));
out:
    exf_text_free(&json);
    return rc;
}
