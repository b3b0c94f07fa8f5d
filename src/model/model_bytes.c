/* model_bytes.c - how many bytes a model's tensors take: in the checkpoint that is
 * open, or in the release that a config alone describes. */
#include "model/model.h"

#include "base/mem.h"

/* Releases are BF16, but for small tensors whose precision matters, which come in
 * float32 in every family that has them. */
exf_dtype exf_stored_dtype(exf_role role, unsigned how)
{
    if (how & EXF_INTEGER) return EXF_DT_I64;
    switch (role) {
    case EXF_W_ROUTER_BIAS:
    case EXF_W_DELTA_A_LOG: case EXF_W_DELTA_NORM:
    case EXF_W_SINK: case EXF_W_COMPRESS_APE: case EXF_W_INDEX_APE:
    case EXF_W_HEAD_MIX: case EXF_W_HEAD_MIX_BASE: case EXF_W_HEAD_MIX_SCALE:
    case EXF_W_MIXER_MIX: case EXF_W_MIXER_MIX_BASE: case EXF_W_MIXER_MIX_SCALE:
    case EXF_W_FFN_MIX: case EXF_W_FFN_MIX_BASE: case EXF_W_FFN_MIX_SCALE: return EXF_DT_F32;
    default: return EXF_DT_BF16;
    }
}

static uint64_t blocks(int64_t n, int size)
{
    return (uint64_t)((n + size - 1) / size);
}

/* One tensor as the release stores it; a quantised one with its scales. */
static uint64_t expected_bytes(const exf_quantization *q, const exf_tensor_rule *r, const int64_t *shape, int rank)
{
    uint64_t n = 1;
    for (int i = 0; i < rank; i++) n *= (uint64_t)shape[i];
    if (!q->fp8 || !(r->how & EXF_LINEAR) || rank != 2) return n * exf_dtype_bits(exf_stored_dtype(r->role, r->how)) / 8;
    if (q->fp4_experts && r->where == EXF_IN_EXPERT) return n / 2 + (uint64_t)shape[0] * blocks(shape[1], EXF_FP4_BLOCK);
    return n + blocks(shape[0], q->block_rows) * blocks(shape[1], q->block_cols) * (q->e8m0_scales ? 1 : 4);
}

static uint64_t stored_bytes(const exf_model *m, const exf_tensor_rule *r, int layer, int expert, const int64_t *shape, int rank)
{
    char name[EXF_TENSOR_NAME_LEN];
    exf_weight_source w;
    exf_err ignored;
    exf_tensor_name(name, &m->arch, r->name, layer, expert);
    exf_code rc = exf_weight_source_find(&w, m->checkpoint, &m->quantization, m->config_path, name, shape, rank, r->how, &ignored);
    return rc == EXF_OK ? exf_weight_source_bytes(&w) : 0;
}

/* A rule's tensors in one layer; the two halves of a stack share one. */
static uint64_t rule_bytes(const exf_model *m, const exf_tensor_rule *r, int layer)
{
    uint64_t bytes = 0;
    int64_t shape[4];
    int n = r->where == EXF_IN_EXPERT ? m->arch.n_experts : 1, rank = exf_rule_shape(&m->arch, r, shape);
    if (r->how & EXF_SECOND_HALF) return 0;
    if (m->part == EXF_MODEL_CONFIG) return (uint64_t)n * expected_bytes(&m->quantization, r, shape, rank);
    for (int e = 0; e < n; e++) bytes += stored_bytes(m, r, layer, e, shape, rank);
    return bytes;
}

/* role EXF_W_COUNT: all of them. */
static uint64_t bytes_of(const exf_model *m, exf_role role, int layer)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->family->n_rules; i++) {
        const exf_tensor_rule *r = &m->family->rules[i];
        if ((role == EXF_W_COUNT || r->role == role) && exf_rule_opened(m, r) && exf_rule_applies(&m->arch, r, layer))
            bytes += rule_bytes(m, r, layer);
    }
    return bytes;
}

uint64_t exf_model_role_bytes(const exf_model *m, exf_role role, int layer)
{
    return bytes_of(m, role, layer);
}

uint64_t exf_model_layer_bytes(const exf_model *m, int layer)
{
    return bytes_of(m, EXF_W_COUNT, layer);
}

uint64_t exf_model_bytes(const exf_model *m)
{
    uint64_t bytes = 0;
    for (int l = -1; l < m->arch.n_layers; l++) bytes += exf_model_layer_bytes(m, l);
    return bytes;
}

/* ---- model tables ------------------------------------------------------------------------------ */

/* Integer tensors hold expert numbers, a row for each token of the vocabulary: each must name an expert,
 * since the router indexes with them.  A row may name one twice: that is one route (kernels/moe/moe.h). */

static exf_code check_numbers(const exf_model *m, const exf_tensor_rule *r, int layer, const float *v, size_t n, exf_err *err)
{
    size_t cols = r->dims[1] == EXF_DIM_NONE ? 1 : (size_t)m->arch.dim[r->dims[1]];
    for (size_t i = 0; i < n; i++) {
        char name[EXF_TENSOR_NAME_LEN];
        if (v[i] >= 0 && v[i] < (float)m->arch.n_experts) continue;
        exf_tensor_name(name, &m->arch, r->name, layer, 0);
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\", token %zu names expert %.0f, %s has experts 0 to %d", m->dir, name,
                        i / cols, (double)v[i], m->config_path, m->arch.n_experts - 1);
    }
    return EXF_OK;
}

static exf_code check_table(const exf_model *m, const exf_tensor_rule *r, int layer, exf_err *err)
{
    exf_code rc;
    float *v = NULL;
    size_t n = exf_model_count(m, r->role, layer);
    EXF_TRY(exf_mem_new(&v, n, sizeof *v, "table of experts", err));
    EXF_TRY(exf_model_read(m, r->role, layer, 0, v, err));
    EXF_TRY(check_numbers(m, r, layer, v, n, err));
out:
    exf_mem_free(v);
    return rc;
}

exf_code exf_model_check_tables(const exf_model *m, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < m->family->n_rules; i++) {
        const exf_tensor_rule *r = &m->family->rules[i];
        if (!(r->how & EXF_INTEGER)) continue;
        for (int l = 0; rc == EXF_OK && l < m->arch.n_layers; l++)
            if (exf_rule_applies(&m->arch, r, l)) rc = check_table(m, r, l, err);
    }
    return rc;
}
