/* family_hy_v3.c - Hunyuan 3: Hy3, Hy3-preview.
 *
 * Grouped-query attention with per-head norms of q and k, biases when attention_bias; the first layer dense; sigmoid router with a
 * correction bias that chooses but does not weigh, renormalised and scaled, beside ungated shared experts.  The layer of
 * multi-token prediction is ignored. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    static const char *const true_keys[] = {"qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"};
    exf_code rc;
    const exf_json *width;
    int bias, n_shared;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_config_must_say(c, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_config_must_say(c, "head_dim", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    /* Of the release's keys that transformers has no field for, one value is what its code computes. */
    for (size_t i = 0; i < sizeof true_keys / sizeof *true_keys; i++) EXF_TRY(exf_config_must_be(c, true_keys[i], "true", err));
    EXF_TRY(exf_config_must_be(c, "mlp_bias", "false", err));
    EXF_TRY(exf_config_find(c, "moe_intermediate_size|expert_hidden_dim", &width, err)); /* which must agree */
    a->router.score = EXF_ROUTER_SIGMOID;
    a->router.renormalise = 1;
    a->router.epsilon = 1e-20;
    EXF_TRY(exf_config_real(c, "router_scaling_factor", &a->router.scaling, err));
    EXF_TRY(exf_configure_dense_first(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 0, &bias, err));
    EXF_TRY(exf_config_int(c, "num_shared_experts", 1, 64, &n_shared, err));
    a->d_shared = n_shared * a->d_expert;
    for (int l = 0; l < a->n_layers; l++)
        a->traits[l] |= EXF_T_SCORED | EXF_T_QK_NORM | EXF_T_SHARED | (bias ? EXF_T_QKV_BIAS | EXF_T_O_BIAS : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_DENSE,
    {EXF_W_ROUTER, "{P}layers.{L}.mlp.router.gate.weight", EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E, EXF_DIM_H}, 0},
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_SHARED("shared_mlp"),
    EXF_RULES_SHARED("shared_experts"),
    {EXF_W_ROUTER_BIAS, EXF_EITHER("mlp.expert_bias", "mlp.e_score_correction_bias"), EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E}, 0},
};

const exf_family exf_family_hy_v3 = {
    .name = "hy_v3",
    .architecture = "HYV3ForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}."},
};
