/* runtime_tables.c - see runtime_tables.h. */
#include "export/runtime_tables.h"

#include "artifact/made_from.h"
#include "base/mem.h"
#include "format/json.h"

#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model's layer axis ------------------------------------------------------ */

static void fill_unknown(exf_runtime_tables *r)
{
    size_t e = (size_t)r->n_experts, m = (size_t)r->n_layers;
    for (size_t i = 0; i < m * e * e; i++) r->loss[i] = EXF_LOSS_NEVER;
    for (size_t i = 0; i < m * e; i++) {
        r->norms[i] = 1;
        r->coeff[i * e + i % e] = 1;
    }
}

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

/* ---- the validator's rule -------------------------------------------------------- */

static const float no_pair = 1e20f;   /* losses from here on stand for pairs that there are not */
static const double degenerate = 0.9; /* of the median */

static int rising(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* best[n] = the losses to the best target of a layer's experts that have any. */
static size_t best_losses(float *best, const float *loss, size_t e)
{
    size_t n = 0;
    for (size_t s = 0; s < e; s++) {
        float least = no_pair;
        for (size_t t = 0; t < e; t++)
            if (t != s && loss[s * e + t] < least) least = loss[s * e + t];
        if (least < no_pair) best[n++] = least;
    }
    return n;
}

exf_code exf_runtime_refuse_degenerate(const exf_tables *t, const float *loss, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    float *best = NULL;
    int any = 0;
    exf_code rc = exf_mem_new(&best, e, sizeof *best, "best losses", err);
    for (size_t l = 0; rc == EXF_OK && l < (size_t)t->n_layers; l++) {
        size_t n = best_losses(best, loss + l * e * e, e);
        if (n == 0) continue;
        any = 1;
        qsort(best, n, sizeof *best, rising);
        double median = (double)best[(n - 1) / 2];
        if (median >= degenerate)
            rc = exf_fail(err, EXF_THRESHOLD,
                          "layer %d: half of its experts lose %.4g of their output or more with the best target, the runtime's "
                          "validator refuses %g and more as degenerate; the experts are nearly orthogonal, so that folding one "
                          "into another replaces little of it, on whatever data; keep all experts of this model, or validate "
                          "P:projector=joint for a runtime of your own",
                          (int)t->layer_number[l], median, degenerate);
    }
    if (rc == EXF_OK && !any)
        rc = exf_fail(err, EXF_THRESHOLD, "no layer has a pair of experts with evidence: there is nothing that could be folded");
    exf_mem_free(best);
    return rc;
}

static int has_pairs(const exf_tables *t, int index)
{
    size_t cells = (size_t)t->shape.n_experts * (size_t)t->shape.n_experts, i = 0;
    const float *loss = t->loss + (size_t)(index < 0 ? 0 : index) * cells;
    while (index >= 0 && i < cells && !(loss[i] < no_pair)) i++;
    return index >= 0 && i < cells;
}

exf_code exf_runtime_refuse_unobserved(const exf_tables *t, int first, int n, exf_err *err)
{
    for (int l = first; l < n; l++)
        if (!has_pairs(t, exf_tables_index(t, l)))
            return exf_fail(err, EXF_THRESHOLD,
                            "layer %d has no pair of experts with evidence, and the runtime folds it all the same: what it leaves "
                            "out there is lost; calibrate the layer too (calibrate.pairs: common_input observes every one), or "
                            "accept the loss with serve.unobserved_layers=accept",
                            l);
    return EXF_OK;
}

/* 1 if the tables hold all layers of their model that have experts: the forward pass that they are of captured all.
 * Recorded hidden states, which name no domains, may be of some alone. */
static int has_all_layers(const exf_tables *t)
{
    const char *layers = exf_provenance_get(&t->provenance, "capture.layers");
    return layers && strcmp(layers, "all") == 0 && exf_provenance_get(&t->provenance, "data.domains");
}

exf_code exf_runtime_covers_own(const exf_tables *t, int by_token, exf_err *err)
{
    exf_code rc = EXF_OK;
    (void)by_token;
    for (int i = 0; i < t->n_layers && rc == EXF_OK; i++)
        rc = exf_runtime_refuse_unobserved(t, t->layer_number[i], t->layer_number[i] + 1, err);
    return rc;
}

exf_code exf_runtime_refuse_unobserved_layers(const exf_tables *t, exf_err *err)
{
    const char *layers = exf_provenance_get(&t->provenance, "model.layers");
    int64_t n = 0;
    exf_code rc = exf_runtime_covers_own(t, 1, err);
    if (rc != EXF_OK || has_all_layers(t) || !layers || !exf_parse_i64(layers, &n) || n < 0 || n > INT32_MAX) return rc;
    return exf_runtime_refuse_unobserved(t, 0, (int)n, err);
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

/* ---- table facts ------------------------------------------------------------------------------- */

exf_code exf_table_facts(exf_provenance *out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    exf_code rc;
    exf_text layers = {0};
    for (int i = 0; i < t->n_layers; i++) EXF_TRY(exf_text_addf(&layers, err, "%s%d", i ? ", " : "", (int)t->layer_number[i]));
    EXF_TRY(exf_provenance_copy(out, &t->provenance, err));
    EXF_TRY(exf_provenance_add(out, err, "exfold_format", "tables/1"));
    EXF_TRY(exf_provenance_add(out, err, "layer_numbers", "[%s]", layers.s ? layers.s : ""));
    if (x->digest) EXF_TRY(exf_provenance_add(out, err, EXF_MADE_FROM, "%s", x->digest));
    EXF_TRY(exf_provenance_add(out, err, "loss_kind", "relative_scalar_reconstruction_error"));
out:
    exf_text_free(&layers);
    if (rc != EXF_OK) exf_provenance_free(out);
    return rc;
}

exf_code exf_table_facts_json(exf_text *out, const exf_export *x, exf_err *err)
{
    exf_provenance facts = {0};
    exf_code rc;
    EXF_TRY(exf_table_facts(&facts, x, err));
    for (size_t i = 0; i < facts.n; i++) {
        EXF_TRY(exf_text_addf(out, err, i ? ",\n  " : "{\n  "));
        EXF_TRY(exf_json_quote(out, facts.key[i], err));
        EXF_TRY(exf_text_addf(out, err, ": "));
        EXF_TRY(exf_json_quote(out, facts.value[i], err));
    }
    EXF_TRY(exf_text_addf(out, err, "\n}\n"));
out:
    exf_provenance_free(&facts);
    return rc;
}
