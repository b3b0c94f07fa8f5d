/* writer_safetensors.c - the tables as one .safetensors file.
 *
 *   coeff         F32 [L, E, E]     loss   F32 [L, E, E]
 *   expert_norms  F32 [L, E]        count  I64 [L, E, E]
 *   expert_count  I64 [L, E]
 *   pools.<D>.members I32 [L, D], pools.<D>.target_ids I32 [L, E], pools.<D>.target_scale F32 [L, E]
 *
 * L counts MoE layers; metadata "layer_numbers" is a JSON list of the model's
 * layer numbers.  The other metadata are the format's version and the tables'
 * provenance, key by key. */
#include "export/export.h"

#include "base/mem.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <stdio.h>

enum { FIXED = 5, PER_POOL = 3, NAME_LEN = 48, EXTRA_META = 3 };

static exf_tensor view(const char *name, exf_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, const void *data)
{
    return (exf_tensor){.name = name, .dtype = dtype, .rank = rank, .shape = {a, b, c}, .data = data};
}

/* Counts are far below 2^63, so U64 and I64 have the same bytes; loaders know I64. */
static void list_tensors(const exf_tables *t, exf_tensor *out, char (*names)[NAME_LEN])
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    *out++ = view("coeff", EXF_DT_F32, 3, l, e, e, t->coeff);
    *out++ = view("loss", EXF_DT_F32, 3, l, e, e, t->loss);
    *out++ = view("count", EXF_DT_I64, 3, l, e, e, t->count);
    *out++ = view("expert_norms", EXF_DT_F32, 2, l, e, 0, t->expert_norms);
    *out++ = view("expert_count", EXF_DT_I64, 2, l, e, 0, t->expert_count);
    for (int i = 0; i < t->n_pools; i++, names += PER_POOL) {
        const exf_pool *p = &t->pool[i];
        snprintf(names[0], NAME_LEN, "pools.%d.members", p->size);
        snprintf(names[1], NAME_LEN, "pools.%d.target_ids", p->size);
        snprintf(names[2], NAME_LEN, "pools.%d.target_scale", p->size);
        *out++ = view(names[0], EXF_DT_I32, 2, l, p->size, 0, p->members);
        *out++ = view(names[1], EXF_DT_I32, 2, l, e, 0, p->target_ids);
        *out++ = view(names[2], EXF_DT_F32, 2, l, e, 0, p->target_scale);
    }
}

static exf_code layer_list(const exf_tables *t, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < t->n_layers; i++) rc = exf_text_addf(out, err, "%s%d", i ? ", " : "[", (int)t->layer_number[i]);
    return rc == EXF_OK ? exf_text_addf(out, err, "]") : rc;
}

static exf_code write_tables(const exf_tables *t, const char *path, int force, exf_err *err)
{
    exf_code rc;
    exf_tensor *tensors = NULL;
    exf_st_meta *meta = NULL;
    char(*names)[NAME_LEN] = NULL;
    exf_text layers = {0};
    size_t n = FIXED + (size_t)t->n_pools * PER_POOL, n_meta = 0;
    EXF_TRY(exf_mem_new(&tensors, n, sizeof *tensors, "tensor list", err));
    EXF_TRY(exf_mem_new(&names, n, sizeof *names, "tensor names", err));
    EXF_TRY(exf_mem_new(&meta, t->provenance.n + EXTRA_META, sizeof *meta, "metadata", err));
    EXF_TRY(layer_list(t, &layers, err));
    list_tensors(t, tensors, names);
    meta[n_meta++] = (exf_st_meta){"exfold_format", "tables/1"};
    meta[n_meta++] = (exf_st_meta){"layer_numbers", layers.s};
    meta[n_meta++] = (exf_st_meta){"loss_kind", "relative_scalar_reconstruction_error"};
    for (size_t i = 0; i < t->provenance.n; i++) meta[n_meta++] = (exf_st_meta){t->provenance.key[i], t->provenance.value[i]};
    EXF_TRY(exf_st_write(path, force, tensors, n, meta, n_meta, err));
out:
    exf_mem_free(tensors);
    exf_mem_free(names);
    exf_mem_free(meta);
    exf_text_free(&layers);
    return rc;
}

const exf_writer exf_writer_safetensors = {
    .name = "safetensors",
    .file = "tables.safetensors",
    .about = "all tables and pools in one file for any runtime",
    .write = write_tables,
};
