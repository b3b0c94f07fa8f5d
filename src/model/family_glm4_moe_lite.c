/* family_glm4_moe_lite.c - GLM-4 MoE Lite: GLM-4.7-Flash.
 *
 * The parts of DeepSeek-V3, RoPE without YaRN as released; layers are dense before first_k_dense_replace, or those that
 * mlp_layer_types names.  Multi-token-prediction layers are ignored. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc = exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err);
    if (rc == EXF_OK) rc = exf_config_must_say(c, "rms_norm_eps", 0, err);
    return rc == EXF_OK ? exf_configure_latent_moe(c, a, err) : rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_LATENT_MOE,
};

const exf_family exf_family_glm4_moe_lite = {
    .name = "glm4_moe_lite",
    .architecture = "Glm4MoeLiteForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}."},
};
