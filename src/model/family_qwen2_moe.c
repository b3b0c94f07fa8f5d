/* family_qwen2_moe.c - Qwen2-MoE: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B.
 *
 * Grouped-query attention with q/k/v biases; softmax router over all experts, top-k, renormalised when norm_topk_prob, beside one
 * gated shared expert. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias;
    EXF_TRY(exf_configure_qwen_moe(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "qkv_bias", 1, &bias, err));
    EXF_TRY(exf_config_int(c, "shared_expert_intermediate_size", 1, 1 << 20, &a->d_shared, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] = EXF_T_SHARED | (bias ? EXF_T_QKV_BIAS : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_DENSE,
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_SHARED("shared_expert"),
    EXF_RULES_SHARED_SWITCH,
};

const exf_family exf_family_qwen2_moe = {
    .name = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
