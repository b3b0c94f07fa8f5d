/* family_glm4v_moe.c - GLM-4.5V, GLM-4.6V: the text part.
 *
 * The parts of GLM-4 MoE without norms of q and k.  The vision tower and the multi-token-prediction layer are ignored; for text
 * the three rows of M-RoPE positions are equal, which is RoPE.  The rotary part must be given: absent, versions differ on it. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_config text;
    double given;
    int bias, tied;
    EXF_TRY(exf_config_part(c, "text_config", "glm4v_moe_text", &text, err));
    EXF_TRY(exf_config_must_say(&text, "rms_norm_eps", 0, err));
    EXF_TRY(exf_configure_sizes(&text, a, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings", 0, &tied, err));
    a->tied_embeddings |= tied; /* older configs say it in text_config */
    EXF_TRY(exf_configure_experts(&text, a, "moe_intermediate_size", err));
    EXF_TRY(exf_config_real(&text, "partial_rotary_factor|rope_parameters.partial_rotary_factor", &given, err));
    EXF_TRY(exf_configure_attention(&text, a, err));
    EXF_TRY(exf_config_must_be(&text, "use_qk_norm", "false", err));
    EXF_TRY(exf_configure_sigmoid_router(&text, a, err));
    EXF_TRY(exf_configure_dense_first(&text, a, err));
    EXF_TRY(exf_config_bool_or(&text, "attention_bias", 1, &bias, err));
    EXF_TRY(exf_configure_shared_experts(&text, a, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_SCORED | (bias ? EXF_T_QKV_BIAS : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_GROUPED_QUERY_MOE,
    EXF_RULES_CORRECTION_BIAS,
};

const exf_family exf_family_glm4v_moe = {
    .name = "glm4v_moe",
    .also = "glm4v_moe_text",
    .architecture = "Glm4vMoeForConditionalGeneration",
    .configure = configure,
    .prefixes = {"model.language_model.", "model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}.", "model.visual.", "visual."},
};
