/* writer_exfold_qwen3.c - the file that the public vLLM plugin for Qwen3-MoE
 * loads with torch.load(weights_only=True); a dict, M layers of the model:
 *
 *   format_version 1, coeff F32 [M, E, E], loss F32 [M, E, E], expert_norms F32 [M, E],
 *   loss_kind, weighting, ridge, clip_min, clip_max, num_samples, max_length
 *
 * The plugin indexes the first axis with the model's layer number, asks for
 * finite numbers, losses from 0 and norms above 0, takes a loss of 1e30 for "no
 * such pair" and never reads a dense layer.  The settings are for people: a
 * plugin ignores them; what is not known, or no clip, is None. */
#include "export/writer_internal.h"

#include <string.h>

/* Makes an item of a text, or of the number that it spells; None where that is not known. */
static exf_pt item_of(const char *key, exf_pt_kind kind, const char *value)
{
    exf_pt v = {.key = key, .kind = EXF_PT_NONE, .text = value};
    if (kind == EXF_PT_TEXT ? value != NULL
        : kind == EXF_PT_INT ? value && exf_parse_i64(value, &v.integer)
                             : value && exf_parse_f64(value, &v.real))
        v.kind = kind;
    return v;
}

static exf_code serves_qwen3(const exf_export_model *m, exf_err *err)
{
    if (strcmp(m->family, "qwen3_moe") == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "its plugin serves qwen3_moe, the model is of the family %s", m->family);
}

/* Refuses layers of the tables without evidence, and the model's others unless the tables are known to hold all that have
 * experts: a dense layer that they lack is not folded. */
static exf_code covers_qwen3(const exf_tables *t, int by_token, exf_err *err)
{
    const char *layers = exf_provenance_get(&t->provenance, "model.layers");
    const char *captured = exf_provenance_get(&t->provenance, "capture.layers");
    int64_t n = 0;
    exf_code rc = exf_writer_covers_own(t, by_token, err); /* the family has no layers that route by token */
    /* A forward pass captured all.  Recorded hidden states, which name no domains, may be of some alone. */
    int has_all = captured && strcmp(captured, "all") == 0 && exf_provenance_get(&t->provenance, "data.domains");
    if (rc != EXF_OK || has_all || !layers || !exf_parse_i64(layers, &n) || n < 0 || n > INT32_MAX) return rc;
    return exf_writer_refuse_unobserved(t, 0, (int)n, err);
}

static exf_code write_qwen3(const exf_export *x, const char *path, int force, exf_err *err)
{
    enum { ITEMS = 11 };
    const exf_provenance *p = &x->tables->provenance;
    const char *weighting = exf_provenance_get(p, "accumulate.weighting"), *clip = exf_provenance_get(p, "solve.clip");
    const char *comma = clip ? strchr(clip, ',') : NULL; /* "-4,4" or "none" */
    char low[40] = "";
    exf_runtime_tables r;
    exf_code rc = exf_runtime_tables_make(&r, x->tables, x->tables->loss, err);
    if (rc != EXF_OK) return rc;
    if (comma && (size_t)(comma - clip) < sizeof low) memcpy(low, clip, (size_t)(comma - clip));
    exf_pt item[ITEMS] = {
        {.key = "format_version", .kind = EXF_PT_INT, .integer = 1},
        exf_runtime_array("coeff", &r, r.coeff),
        exf_runtime_array("loss", &r, r.loss),
        exf_runtime_array("expert_norms", &r, r.norms),
        item_of("loss_kind", EXF_PT_TEXT, "relative_scalar_reconstruction_error"),
        item_of("weighting", EXF_PT_TEXT, weighting && strcmp(weighting, "source_norm") == 0 ? "source_output_norm" : weighting),
        item_of("ridge", EXF_PT_REAL, exf_provenance_get(p, "solve.ridge")),
        item_of("clip_min", EXF_PT_REAL, comma ? low : NULL),
        item_of("clip_max", EXF_PT_REAL, comma ? comma + 1 : NULL),
        item_of("num_samples", EXF_PT_INT, exf_provenance_get(p, "data.sequences")),
        item_of("max_length", EXF_PT_INT, exf_provenance_get(p, "data.max_tokens")),
    };
    rc = exf_runtime_write(path, force, &(exf_pt){.kind = EXF_PT_DICT, .item = item, .n = ITEMS}, x, err);
    exf_runtime_tables_free(&r);
    return rc;
}

const exf_writer exf_writer_exfold_qwen3 = {
    .name = "exfold-qwen3",
    .file = "exfold-qwen3.pt",
    .about = "for the public vLLM plugin for Qwen3-MoE",
    .load = {"pt_qwen3", "The plugin's file, with PyTorch",
             "import torch\n"
             "\n"
             "tables = torch.load(\"exfold-qwen3.pt\", map_location=\"cpu\", weights_only=True)\n"
             "coeff, loss = tables[\"coeff\"], tables[\"loss\"]  # float32 [layers of the model, experts, experts]\n"
             "target = loss[0, 3].argmin()\n"
             "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"},
    .of_plugin = 1,
    .serves = serves_qwen3,
    .covers = covers_qwen3,
    .write = write_qwen3,
};
