/* family_qwen3_moe.c - Qwen3-MoE: Qwen3-30B-A3B, Qwen3-235B-A22B and kin.
 *
 * h += Attention(RMSNorm(h)); h += MoE(RMSNorm(h)).  Grouped-query attention
 * with per-head RMS norm of q and k before half-rotation RoPE, q/k/v/o biases
 * when attention_bias; softmax router over all experts, top-k, renormalised when norm_topk_prob. */
#include "model/rules.h"

#include <inttypes.h>

/* Layer i is MoE iff i is not in mlp_only_layers and (i+1) % decoder_sparse_step == 0. */
static exf_code configure_layers(const exf_config *c, exf_architecture *a, exf_err *err)
{
    int step, n_moe = 0;
    const exf_json *dense;
    exf_code rc = exf_config_int_or(c, "decoder_sparse_step", 1, EXF_MAX_LAYERS, 1, &step, err);
    if (rc == EXF_OK) rc = exf_config_find(c, "mlp_only_layers", &dense, err);
    if (rc != EXF_OK) return rc;
    if (dense && exf_json_type(dense) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" is %s, expected an array", c->path, exf_json_type_name(dense));
    for (int l = 0; l < a->n_layers; l++) a->is_moe[l] = (l + 1) % step == 0;
    for (size_t i = 0; i < exf_json_size(dense); i++) {
        const exf_json *number = exf_json_at(dense, i);
        if (exf_json_type(number) != EXF_JSON_INT)
            return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" holds %s, expected layer numbers", c->path,
                            exf_json_type_name(number));
        int64_t l = exf_json_int(number);
        if (l < 0 || l >= a->n_layers)
            return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" holds %" PRId64 ", expected layers 0 to %d", c->path, l,
                            a->n_layers - 1);
        a->is_moe[l] = 0;
    }
    for (int l = 0; l < a->n_layers; l++) {
        a->traits[l] = EXF_T_QK_NORM;
        n_moe += a->is_moe[l];
    }
    if (n_moe == 0) return exf_fail(err, EXF_MODEL, "%s: none of the %d layers is a mixture of experts", c->path, a->n_layers);
    return n_moe < a->n_layers ? exf_config_int(c, "intermediate_size", 1, 1 << 20, &a->d_ffn, err) : EXF_OK;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 0, &bias, err));
    EXF_TRY(exf_config_must_be(c, "use_sliding_window", "false", err));
    a->router.score = EXF_ROUTER_SOFTMAX;
    EXF_TRY(exf_config_bool_or(c, "norm_topk_prob", 0, &a->router.renormalise, err));
    EXF_TRY(configure_layers(c, a, err));
    for (int l = 0; bias && l < a->n_layers; l++) a->traits[l] |= EXF_T_QKV_BIAS | EXF_T_O_BIAS;
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_DENSE,
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
};

const exf_family exf_family_qwen3_moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
