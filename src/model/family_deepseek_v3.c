/* family_deepseek_v3.c - DeepSeek-V3: V3, V3.1, R1; as kimi_k2 Kimi-K2.
 *
 * Latent attention with low-rank q, interleaved RoPE with YaRN; the first layers dense; sigmoid router with a correction bias
 * that chooses but does not weigh, groups, renormalised and scaled; ungated shared experts.  Multi-token-prediction layers are
 * ignored. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_mla(c, a, err));
    EXF_TRY(exf_config_must_be(c, "rope_interleave", "true", err));
    EXF_TRY(exf_config_must_be(c, "scoring_func", "sigmoid", err));
    EXF_TRY(exf_config_must_be(c, "topk_method", "noaux_tc", err));
    EXF_TRY(exf_configure_sigmoid_router(c, a, err));
    EXF_TRY(exf_configure_dense_first(c, a, err));
    EXF_TRY(exf_configure_shared_experts(c, a, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_SCORED;
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_MLA,
    EXF_RULES_DENSE,
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_SHARED("shared_experts"),
    {EXF_W_ROUTER_BIAS, "{P}layers.{L}.mlp.gate.e_score_correction_bias", EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E}, 0},
};

static const char *const ignored[] = {"{P}layers.{N}."};

const exf_family exf_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .also = "kimi_k2",
    .architecture = "DeepseekV3ForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = ignored,
    .n_ignored = sizeof ignored / sizeof ignored[0],
};
