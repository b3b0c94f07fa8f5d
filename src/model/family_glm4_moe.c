/* family_glm4_moe.c - GLM-4 MoE: GLM-4.5, GLM-4.5-Air, GLM-4.6 and kin.
 *
 * Grouped-query attention with q/k/v biases, RoPE on part of each head, per-head
 * q/k norms when use_qk_norm; the first layers dense; sigmoid router with a
 * correction bias that chooses but does not weigh, groups, renormalised and
 * scaled; ungated shared experts.  The multi-token-prediction layer is ignored. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias, qk_norm;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_config_must_say(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", 0, err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_configure_sigmoid_router(c, a, err));
    EXF_TRY(exf_configure_dense_first(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 0, &bias, err));
    EXF_TRY(exf_config_bool_or(c, "use_qk_norm", 0, &qk_norm, err));
    EXF_TRY(exf_configure_shared_experts(c, a, err));
    for (int l = 0; l < a->n_layers; l++)
        a->traits[l] |= EXF_T_SCORED | (bias ? EXF_T_QKV_BIAS : 0) | (qk_norm ? EXF_T_QK_NORM : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_GROUPED_QUERY_MOE,
    EXF_RULES_CORRECTION_BIAS,
};

const exf_family exf_family_glm4_moe = {
    .name = "glm4_moe",
    .architecture = "Glm4MoeForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}."},
};
