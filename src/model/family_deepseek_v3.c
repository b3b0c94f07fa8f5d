/* family_deepseek_v3.c - DeepSeek-V3: V3, V3.1, R1; as kimi_k2 Kimi-K2.
 *
 * Latent attention with low-rank q, interleaved RoPE with YaRN; the first layers dense; sigmoid router with a correction bias
 * that chooses but does not weigh, groups, renormalised and scaled; ungated shared experts.  Multi-token-prediction layers are
 * ignored. */
#include "model/rules.h"

static const exf_tensor_rule rules[] = {
    EXF_RULES_LATENT_MOE,
};

const exf_family exf_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .also = "kimi_k2",
    .architecture = "DeepseekV3ForCausalLM",
    .configure = exf_configure_latent_moe,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}."},
};
