/* family_olmoe.c - OLMoE: OLMoE-1B-7B.
 *
 * Every layer has attention without biases, q and k normed over their whole rows before RoPE, q, k and v cut at +-clip_qkv
 * where the config says so, and a mixture of experts: softmax router over all experts, top-k, renormalised when
 * norm_topk_prob, no shared expert. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "intermediate_size", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "attention_bias", "false", err));
    EXF_TRY(exf_config_real_or(c, "clip_qkv", 0, &a->attention.clip, err));
    a->router.score = EXF_ROUTER_SOFTMAX;
    EXF_TRY(exf_config_bool_or(c, "norm_topk_prob", 0, &a->router.renormalise, err));
    for (int l = 0; l < a->n_layers; l++) {
        a->is_moe[l] = 1;
        a->traits[l] = EXF_T_QK_NORM_ROW;
    }
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_QK_NORM_ROW(0),
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
};

const exf_family exf_family_olmoe = {
    .name = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
