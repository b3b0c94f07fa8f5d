/* family_qwen3_moe.c - Qwen3-MoE: Qwen3-30B-A3B, Qwen3-235B-A22B and kin.
 *
 * h += Attention(RMSNorm(h)); h += MoE(RMSNorm(h)).  Grouped-query attention
 * with per-head RMS norm of q and k before half-rotation RoPE, q/k/v/o biases
 * when attention_bias; softmax router over all experts, top-k, renormalised when norm_topk_prob. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias;
    EXF_TRY(exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(exf_configure_qwen_moe(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 0, &bias, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] = EXF_T_QK_NORM | (bias ? EXF_T_QKV_BIAS | EXF_T_O_BIAS : 0);
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
