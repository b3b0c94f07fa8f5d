/* tables_safetensors.c - tables that others made: what scripts/pt_to_safetensors.py takes out of a public plugin's .pt file.
 *
 *   coeff, loss F32 [L, E, E], expert_norms F32 [L, E], frobenius F32 [L, E, E], which may be absent
 *   metadata: exfold_format "plugin-tables/1"; layer_numbers, a JSON list; facts of the file, whose keys start with read_from or
 *   plugin.
 *
 * The numbers are those of tables.h and checked as such.  What such a file does not say is not there: experts per token and hidden
 * size are 0, cosine, rms, contribution, similarity, std_error and pools are missing, and the count of a pair with evidence is 1.
 * Any other tensor or fact is refused, so that nothing of a file is passed over: tables.safetensors of an export among them. */
#include "artifact/tables.h"

#include "base/mem.h"
#include "format/json.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <string.h>

#define LAYOUT "plugin-tables/1"

/* ---- metadata -------------------------------------------------------------------------- */

/* Parses layer_numbers; *numbers [*n] is the caller's to free. */
static exf_code read_layer_numbers(int32_t **numbers, int64_t *n, const exf_st_file *f, exf_err *err)
{
    const char *text = exf_st_metadata(f, "layer_numbers");
    char where[512];
    exf_json *list = NULL;
    exf_code rc;
    snprintf(where, sizeof where, "%.480s: layer_numbers", exf_st_path(f));
    if (!text) return exf_fail(err, EXF_FORMAT, "%s: has no layer_numbers", exf_st_path(f));
    EXF_TRY(exf_json_parse(&list, text, strlen(text), where, err));
    *n = exf_json_type(list) == EXF_JSON_ARRAY ? (int64_t)exf_json_size(list) : 0;
    if (*n > 0) EXF_TRY(exf_mem_new(numbers, (size_t)*n, sizeof **numbers, "layer numbers", err));
    int64_t before = -1, i = 0;
    for (; i < *n; i++) {
        const exf_json *x = exf_json_at(list, (size_t)i);
        if (exf_json_type(x) != EXF_JSON_INT || exf_json_int(x) <= before || exf_json_int(x) > INT32_MAX) break;
        (*numbers)[i] = (int32_t)(before = exf_json_int(x));
    }
    if (*n == 0 || i < *n)
        rc = exf_fail(err, EXF_FORMAT, "%s: layer_numbers is %.60s, expected a list of ascending layer numbers", exf_st_path(f),
                      text);
out:
    exf_json_free(list);
    return rc;
}

/* Takes the facts, once the layout is the expected one. */
static exf_code read_facts(exf_provenance *p, const exf_st_file *f, exf_err *err)
{
    const char *layout = exf_st_metadata(f, "exfold_format");
    exf_code rc = exf_artifact_refuse_export(f, err);
    if (rc != EXF_OK) return rc;
    if (!layout || strcmp(layout, LAYOUT) != 0)
        return exf_fail(err, EXF_FORMAT,
                        "%s: exfold_format is %.40s, expected " LAYOUT ", as scripts/pt_to_safetensors.py writes it of a plugin's "
                        ".pt file",
                        exf_st_path(f), layout ? layout : "missing");
    for (size_t i = 0; rc == EXF_OK && i < f->n_meta; i++) {
        const char *key = f->meta[i].key, *value = f->meta[i].value;
        if (strcmp(key, "exfold_format") == 0 || strcmp(key, "layer_numbers") == 0) continue;
        if (strncmp(key, "read_from", 9) == 0 || strncmp(key, "plugin.", 7) == 0)
            rc = exf_provenance_add(p, err, key, "%s", value);
        else
            rc = exf_fail(err, EXF_FORMAT, "%s: holds the fact %.60s, which is no part of " LAYOUT, exf_st_path(f), key);
    }
    return rc;
}

/* ---- tensors ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int rank, optional;
} tensors[] = {{"coeff", 3, 0}, {"loss", 3, 0}, {"expert_norms", 2, 0}, {"frobenius", 3, 1}};
enum { N_TENSORS = sizeof tensors / sizeof *tensors, FROBENIUS = 3, MOST_EXPERTS = 4096 };

/* Finds the tensors, each F32 [l, e, e] or [l, e], before memory is taken for them; *e is what the scalars say. */
static exf_code find_tensors(const exf_st_tensor *found[N_TENSORS], int64_t l, int64_t *e, const exf_st_file *f, exf_err *err)
{
    char is[96], expected[96];
    size_t n = 0;
    for (size_t i = 0; i < N_TENSORS; i++) {
        const exf_st_tensor *t = found[i] = exf_st_find(f, tensors[i].name);
        if (!t && tensors[i].optional) continue;
        if (!t) return exf_fail(err, EXF_FORMAT, "%s: has no tensor %s", exf_st_path(f), tensors[i].name);
        if (i == 0 && t->view.rank == 3) *e = t->view.shape[1];
        const int64_t shape[3] = {l, *e, *e};
        if (*e < 1 || *e > MOST_EXPERTS || t->view.dtype != EXF_DT_F32 || t->view.rank != tensors[i].rank ||
            memcmp(t->view.shape, shape, (size_t)t->view.rank * sizeof *shape) != 0)
            return exf_fail(err, EXF_FORMAT, "%s: %s is %s %s, expected F32 %s of %lld layers and up to %d experts", exf_st_path(f),
                            tensors[i].name, exf_dtype_name(t->view.dtype),
                            exf_shape_text(is, sizeof is, t->view.shape, t->view.rank),
                            *e ? exf_shape_text(expected, sizeof expected, shape, tensors[i].rank) : "[L, E, E]", (long long)l,
                            MOST_EXPERTS);
        n++;
    }
    for (size_t i = 0, k; n < f->n_tensors && i < f->n_tensors; i++) {
        for (k = 0; k < N_TENSORS && strcmp(f->tensor[i].view.name, tensors[k].name) != 0; k++) {}
        if (k == N_TENSORS)
            return exf_fail(err, EXF_FORMAT, "%s: holds the tensor %.60s, which is no part of " LAYOUT, exf_st_path(f),
                            f->tensor[i].view.name);
    }
    return EXF_OK;
}

exf_code exf_tables_read_safetensors(exf_tables *t, const char *path, exf_err *err)
{
    exf_st_file *f = NULL;
    const exf_st_tensor *found[N_TENSORS];
    exf_provenance facts = {0};
    exf_run_shape shape = {0};
    int32_t *numbers = NULL;
    int64_t l = 0;
    exf_code rc;
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_st_open(&f, path, err));
    EXF_TRY(read_facts(&facts, f, err));
    EXF_TRY(read_layer_numbers(&numbers, &l, f, err));
    EXF_TRY(find_tensors(found, l, &shape.n_experts, f, err));
    EXF_TRY(exf_tables_new(t, &shape, numbers, (int)l, NULL, 0, err));
    t->provenance = facts;
    memset(&facts, 0, sizeof facts);
    if (found[FROBENIUS]) EXF_TRY(exf_mem_new(&t->frobenius, (size_t)found[FROBENIUS]->nbytes, 1, "tables", err));
    float *to[N_TENSORS] = {t->coeff, t->loss, t->expert_norms, t->frobenius};
    for (size_t i = 0; i < N_TENSORS; i++)
        if (found[i]) EXF_TRY(exf_st_read(f, found[i], 0, to[i], (size_t)found[i]->nbytes, err));
    size_t e = (size_t)t->shape.n_experts; /* a pair has evidence, and its source was observed, where the loss is below never */
    for (size_t i = 0; i < (size_t)t->n_layers * e * e; i++) {
        t->count[i] = !(t->loss[i] >= EXF_LOSS_NEVER); /* NaN too, to be refused */
        t->expert_count[i / e] |= t->count[i];
    }
    rc = exf_tables_check(t, path, err);
out:
    exf_st_close(f);
    exf_mem_free(numbers);
    exf_provenance_free(&facts);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}
