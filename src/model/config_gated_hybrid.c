/* config_gated_hybrid.c - fills an architecture whose layers mix by the gated delta rule or by gated attention, with experts beside
 * a gated shared one; see config.h. */
#include "model/config.h"

#include <string.h>

/* layer_types, or else full attention in every full_attention_interval-th layer. */
static exf_code configure_mixers(const exf_config *c, exf_architecture *a, exf_err *err)
{
    static const char *const words[] = {"linear_attention", "full_attention", NULL};
    exf_code rc;
    const exf_json *types;
    int interval;
    EXF_TRY(exf_config_layer_list(c, "layer_types", a->n_layers, 0, &types, err));
    EXF_TRY(exf_config_int_or(c, "full_attention_interval", 1, EXF_MAX_LAYERS, 4, &interval, err));
    for (int l = 0; l < a->n_layers; l++) {
        int attends = (l + 1) % interval == 0;
        if (types) EXF_TRY(exf_config_layer_word(c, "layer_types", types, l, words, &attends, err));
        a->mixer[l] = attends ? EXF_MIXER_ATTENTION : EXF_MIXER_DELTANET;
    }
out:
    return rc;
}

static exf_code configure_deltanet(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_deltanet_spec *s = &a->deltanet;
    EXF_TRY(exf_config_int(c, "linear_num_key_heads", 1, 1024, &s->n_key_heads, err));
    EXF_TRY(exf_config_int(c, "linear_num_value_heads", 1, 1024, &s->n_value_heads, err));
    EXF_TRY(exf_config_int(c, "linear_key_head_dim", 1, 4096, &s->key_dim, err));
    EXF_TRY(exf_config_int(c, "linear_value_head_dim", 1, 4096, &s->value_dim, err));
    EXF_TRY(exf_config_int(c, "linear_conv_kernel_dim", 1, 64, &s->conv_width, err));
    if (s->n_value_heads % s->n_key_heads)
        rc = exf_fail(err, EXF_MODEL, "%s: \"linear_num_value_heads\" is %d, no multiple of \"linear_num_key_heads\", %d", c->path,
                      s->n_value_heads, s->n_key_heads);
    a->dim[EXF_DIM_DELTA_Z] = s->n_value_heads * s->value_dim;
    a->dim[EXF_DIM_DELTA_QKV] = 2 * s->n_key_heads * s->key_dim + a->dim[EXF_DIM_DELTA_Z];
    a->dim[EXF_DIM_DELTA_HEADS] = s->n_value_heads;
    a->dim[EXF_DIM_DELTA_CONV] = s->conv_width;
    a->dim[EXF_DIM_DELTA_VALUE] = s->value_dim;
    a->dim[EXF_DIM_DELTA_KEY] = s->key_dim;
    a->dim[EXF_DIM_DELTA_GROUPS] = s->n_key_heads;
    a->dim[EXF_DIM_DELTA_GROUP_HEADS] = s->n_value_heads / s->n_key_heads;
    a->dim[EXF_DIM_DELTA_GROUP_VALUES] = s->n_value_heads / s->n_key_heads * s->value_dim;
out:
    return rc;
}

/* The rotary part and theta must be given: what they are when absent differs
 * between versions of the reference. */
static exf_code configure_gated_attention(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    double given;
    const exf_json *part;
    EXF_TRY(exf_config_real(c, "rope_theta|rope_parameters.rope_theta", &given, err));
    EXF_TRY(exf_config_find(c, "rope_parameters.partial_rotary_factor", &part, err));
    if (!part) EXF_TRY(exf_config_real(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", &given, err));
    EXF_TRY(exf_config_must_say(c, "head_dim", 0, err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "attention_bias", "false", err));
    EXF_TRY(exf_config_must_be(c, "attn_output_gate", "true", err));
    a->attention.gated = 1;
    a->dim[EXF_DIM_Q] *= 2;
out:
    return rc;
}

/* Every layer: a softmax router over experts beside one gated shared expert. */
static exf_code configure_moe(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    const exf_json *dense;
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_config_int(c, "shared_expert_intermediate_size", 1, 1 << 20, &a->d_shared, err));
    EXF_TRY(exf_config_must_be(c, "norm_topk_prob", "true", err));
    EXF_TRY(exf_config_must_be(c, "decoder_sparse_step", "1", err));
    EXF_TRY(exf_config_find(c, "mlp_only_layers", &dense, err));
    if (exf_json_size(dense))
        return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" has %zu entries; only layers with experts are supported", c->path,
                        exf_json_size(dense));
    a->router.score = EXF_ROUTER_SOFTMAX;
    a->router.renormalise = 1;
    for (int l = 0; l < a->n_layers; l++) {
        a->is_moe[l] = 1;
        a->traits[l] = EXF_T_QK_NORM | EXF_T_SHARED;
    }
out:
    return rc;
}

exf_code exf_configure_gated_hybrid(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    const char *gate;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(configure_moe(c, a, err));
    EXF_TRY(configure_mixers(c, a, err));
    EXF_TRY(configure_gated_attention(c, a, err));
    EXF_TRY(configure_deltanet(c, a, err));
    /* The delta rule's heads are gated by silu, which newer releases say, as one of two words for it. */
    EXF_TRY(exf_config_text_or(c, "output_gate_type", "silu", &gate, err));
    if (strcmp(gate, "silu") != 0 && strcmp(gate, "swish") != 0)
        rc = exf_fail(err, EXF_MODEL, "%s: \"output_gate_type\" is %s; only silu and swish, its other name, are supported",
                      c->path, gate);
out:
    return rc;
}
