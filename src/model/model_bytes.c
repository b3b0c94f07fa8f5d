/* model_bytes.c - the bytes and number types of a model's tensors: of the checkpoint that is open, or of the release that a config
 * alone describes; see model.h. */
#include "model/model.h"

/* Releases are BF16, but for small tensors whose precision matters, which come in
 * float32 in every family that has them. */
exf_dtype exf_stored_dtype(exf_role role, unsigned how)
{
    if (how & EXF_INTEGER) return EXF_DT_I64;
    if (how & EXF_FLOAT32) return EXF_DT_F32;
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

/* Returns 1 if the config alone lets a rule's matrix be quantized. */
static int is_planned_coded(const exf_model *m, const exf_tensor_rule *r, int layer)
{
    char name[EXF_TENSOR_NAME_LEN];
    if (m->quantization.quantizer == EXF_QUANTIZER_MXFP4) return (r->how & EXF_MXFP4) != 0;
    if (m->quantization.quantizer == EXF_QUANTIZER_NONE || !(r->how & EXF_LINEAR)) return 0;
    exf_rule_name(name, m, r, layer, 0);
    return !exf_quantization_exempts(&m->quantization, name);
}

int exf_model_fits_bf16(const exf_model *m, exf_role role, int layer)
{
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    if (m->beyond_bf16) return !m->beyond_bf16[(size_t)(layer + 1) * EXF_W_COUNT + (size_t)role];
    const exf_tensor_rule *r = exf_model_rule(m, role, layer);
    if (!r || r->how & (EXF_PLUS_ONE | EXF_INTEGER)) return 0;
    if (is_planned_coded(m, r, layer)) return exf_quantization_fits_bf16(&m->quantization, r->where == EXF_IN_EXPERT);
    return exf_stored_dtype(role, r->how) == EXF_DT_BF16;
}

/* The bytes of a rule's tensors in one layer; the two halves of a stack share one, as do rows in turn and rows in groups. */
static uint64_t rule_bytes(const exf_model *m, const exf_tensor_rule *r, int layer)
{
    char name[EXF_TENSOR_NAME_LEN];
    uint64_t bytes = 0, elements = 1;
    int64_t shape[4];
    int n = r->where == EXF_IN_EXPERT ? m->arch.n_experts : 1, rank = exf_rule_shape(&m->arch, r, shape);
    if (!exf_rule_begins_tensor(r)) return 0;
    for (int e = 0; m->part != EXF_MODEL_CONFIG && e < n; e++) {
        exf_weight_source w;
        exf_err ignored;
        exf_rule_name(name, m, r, layer, e);
        exf_code rc = exf_weight_source_find(&w, m->checkpoint, &m->quantization, m->config_path, name, shape, rank, r->how,
                                             &ignored);
        bytes += rc == EXF_OK ? exf_weight_source_bytes(&w) : 0;
    }
    if (m->part != EXF_MODEL_CONFIG) return bytes;
    /* As the release stores it; a quantised one with its scales. */
    for (int i = 0; i < rank; i++) elements *= (uint64_t)shape[i];
    if (r->how & EXF_MXFP4)
        bytes = elements + elements / (EXF_FP4_BLOCK / 2); /* a byte of scale to each 16 of codes */
    else if (rank == 2 && is_planned_coded(m, r, layer))
        bytes = exf_quantization_bytes(&m->quantization, shape[0], shape[1], r->where == EXF_IN_EXPERT);
    else
        bytes = elements * exf_dtype_bits(exf_stored_dtype(r->role, r->how)) / 8;
    return (uint64_t)n * bytes;
}

uint64_t exf_model_role_bytes(const exf_model *m, exf_role role, int layer)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->family->n_rules; i++) {
        const exf_tensor_rule *r = &m->family->rules[i];
        if ((role == EXF_W_COUNT || r->role == role) && exf_rule_applies(m, r, layer)) bytes += rule_bytes(m, r, layer);
    }
    return bytes;
}

uint64_t exf_model_layer_bytes(const exf_model *m, int layer)
{
    return exf_model_role_bytes(m, EXF_W_COUNT, layer);
}

uint64_t exf_model_bytes(const exf_model *m)
{
    uint64_t bytes = 0;
    for (int l = -1; l < m->arch.n_layers; l++) bytes += exf_model_layer_bytes(m, l);
    return bytes;
}
