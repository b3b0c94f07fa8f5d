/* family_mixtral.c - Mixtral: Mixtral-8x7B, Mixtral-8x22B and kin.
 *
 * Every layer has grouped-query attention without biases and a mixture of experts: softmax router over all experts, top-k,
 * renormalised, no shared expert. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_config_must_say(c, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "intermediate_size", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "sliding_window", "null", err));
    a->router.score = EXF_ROUTER_SOFTMAX;
    a->router.renormalise = 1;
    for (int l = 0; l < a->n_layers; l++) a->is_moe[l] = 1;
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_SPARSE_EXPERTS(0),
    EXF_RULES_FUSED_EXPERTS,
};

const exf_family exf_family_mixtral = {
    .name = "mixtral",
    .architecture = "MixtralForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
