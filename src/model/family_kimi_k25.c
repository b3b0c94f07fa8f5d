/* family_kimi_k25.c - Kimi-K2.5, K2.6, K2.7-Code: the text part.
 *
 * All of Kimi-K2, which is DeepSeek-V3's, under a prefix; the vision tower and its projector are ignored.  Releases hold the routed
 * experts in 4-bit integers, and say so in text_config (model_open.c). */
#include "model/rules.h"

#include <string.h>

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_config text;
    const char *type;
    EXF_TRY(exf_config_must_say(c, "text_config", 0, err));
    EXF_TRY(exf_config_must_say(c, "tie_word_embeddings", 0, err));
    EXF_TRY(exf_config_text_or(c, "text_config.model_type", "", &type, err)); /* transformers writes deepseek_v3 */
    EXF_TRY(exf_config_part(c, "text_config", strcmp(type, "deepseek_v3") == 0 ? type : "kimi_k2", &text, err));
    EXF_TRY(exf_configure_latent_moe(&text, a, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings", 0, &a->tied_embeddings, err));
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_BODY(0),
    EXF_RULES_PREFIXED_HEAD,
    EXF_RULES_LATENT_LAYERS,
};

const exf_family exf_family_kimi_k25 = {
    .name = "kimi_k25",
    .architecture = "KimiK25ForConditionalGeneration",
    .configure = configure,
    .prefixes = {"language_model.model.", "model.language_model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}.", "vision_tower.", "mm_projector.", "model.vision_tower.", "model.mm_projector."},
};
