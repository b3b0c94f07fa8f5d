/* family_deepseek_v32.c - DeepSeek-V3.2: V3.2, V3.2-Exp.
 *
 * The parts of DeepSeek-V3; in every layer an indexer with small heads of its own, rotated by halves, chooses the tokens that
 * latent attention sees.  Multi-token-prediction layers are ignored. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc = exf_configure_latent_moe(c, a, err);
    if (rc == EXF_OK) rc = exf_config_must_be(c, "indexer_rope_interleave", "false", err);
    return rc == EXF_OK ? exf_configure_indexer(c, a, 0, err) : rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_LATENT_MOE,
    EXF_RULES_INDEXER,
};

const exf_family exf_family_deepseek_v32 = {
    .name = "deepseek_v32",
    .architecture = "DeepseekV32ForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}."},
};
