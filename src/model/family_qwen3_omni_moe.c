/* family_qwen3_omni_moe.c - Qwen3-Omni MoE: Qwen3-Omni-30B-A3B, the thinker's text part.
 *
 * The parts of Qwen3-MoE.  What hears, sees and speaks (audio_tower, visual, talker, code2wav) is ignored; for text the three rows
 * of M-RoPE positions are equal, which is RoPE. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_config thinker, text;
    int bias;
    EXF_TRY(exf_config_part(c, "thinker_config", "qwen3_omni_moe_thinker", &thinker, err));
    EXF_TRY(exf_config_part(&thinker, "text_config", "qwen3_omni_moe_text", &text, err));
    EXF_TRY(exf_config_must_be(&text, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(exf_config_must_say(&text, "norm_topk_prob", 0, err));
    EXF_TRY(exf_config_must_say(&text, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_configure_qwen_moe(&text, a, err));
    EXF_TRY(exf_config_bool_or(&thinker, "tie_word_embeddings", a->tied_embeddings, &a->tied_embeddings, err));
    EXF_TRY(exf_config_bool_or(&text, "attention_bias", 0, &bias, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] = EXF_T_QK_NORM | (bias ? EXF_T_QKV_BIAS | EXF_T_O_BIAS : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_BODY(0),
    {EXF_W_HEAD, "thinker.lm_head.weight|lm_head.weight", EXF_IN_MODEL, EXF_T_UNTIED, {EXF_DIM_VOCAB, EXF_DIM_H}, EXF_MAY_BE_TIED},
    EXF_RULES_ATTENTION(0),
    EXF_RULES_DENSE,
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
};

const exf_family exf_family_qwen3_omni_moe = {
    .name = "qwen3_omni_moe",
    .also = "qwen3_omni_moe_thinker",
    .architecture = "Qwen3OmniMoeForConditionalGeneration",
    .configure = configure,
    .prefixes = {"thinker.model.", "thinker.model.language_model.", "model.language_model.", "model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"thinker.audio_tower.", "thinker.visual.", "talker.", "code2wav.", "audio_tower.", "visual.",
                 "thinker.model.audio_tower.", "thinker.model.visual.", "model.audio_tower.", "model.visual."},
};
