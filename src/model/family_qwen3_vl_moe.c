/* family_qwen3_vl_moe.c - Qwen3-VL MoE: Qwen3-VL-30B-A3B, Qwen3-VL-235B-A22B, the text part.
 *
 * The parts of Qwen3-MoE, always renormalised.  Releases hold a layer's experts in one tensor, each expert's matrices transposed;
 * transformers 5 writes them the other way round under the same name, so the shape tells.  The vision tower is ignored; without
 * images nothing is added to the first layers, and the three rows of M-RoPE positions are equal, which is RoPE. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_config text;
    int bias;
    EXF_TRY(exf_config_part(c, "text_config", "qwen3_vl_moe_text", &text, err));
    EXF_TRY(exf_config_must_be(&text, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(exf_config_must_say(&text, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_configure_qwen_moe(&text, a, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings", 0, &a->tied_embeddings, err));
    EXF_TRY(exf_config_must_be(&text, "norm_topk_prob", "true", err));
    a->router.renormalise = 1;
    if (a->d_model == a->d_expert || a->d_model == 2 * a->d_expert)
        return exf_fail(err, EXF_MODEL,
                        "%s: \"hidden_size\" is %d and \"moe_intermediate_size\" %d, by which experts that are stored as rows and "
                        "as columns cannot be told apart", c->path, a->d_model, a->d_expert);
    EXF_TRY(exf_config_bool_or(&text, "attention_bias", 0, &bias, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] = EXF_T_QK_NORM | (bias ? EXF_T_QKV_BIAS | EXF_T_O_BIAS : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_DENSE,
    EXF_RULES_TRANSPOSED_EXPERTS, /* as released */
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
};

const exf_family exf_family_qwen3_vl_moe = {
    .name = "qwen3_vl_moe",
    .also = "qwen3_vl_moe_text",
    .architecture = "Qwen3VLMoeForConditionalGeneration",
    .configure = configure,
    .prefixes = {"model.language_model.", "model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"model.visual.", "visual."},
};
