/* family_solar_open.c - Solar Open: Solar-Open-100B.
 *
 * Grouped-query attention with q/k/v biases when attention_bias, YaRN where the config says so; every layer a mixture of experts
 * after GLM-4 MoE's sigmoid router, beside ungated shared experts. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_config_must_say(c, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_config_must_say(c, "head_dim", 0, err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(exf_config_must_be(c, "use_qk_norm", "false", err));
    EXF_TRY(exf_config_must_be(c, "first_k_dense_replace", "0", err));
    EXF_TRY(exf_configure_sigmoid_router(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 0, &bias, err));
    EXF_TRY(exf_configure_shared_experts(c, a, err));
    for (int l = 0; l < a->n_layers; l++) {
        a->is_moe[l] = 1;
        a->traits[l] |= EXF_T_SCORED | (bias ? EXF_T_QKV_BIAS : 0);
    }
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_SHARED("shared_experts"),
    EXF_RULES_CORRECTION_BIAS,
};

const exf_family exf_family_solar_open = {
    .name = "solar_open",
    .architecture = "SolarOpenForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
