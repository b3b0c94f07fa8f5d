/* family_mistral4.c - Mistral 4: Mistral-Small-4-119B, the text part.
 *
 * Latent attention as DeepSeek-V3's, whose queries grow with the position (llama_4_scaling_beta); softmax router within the groups
 * whose two best experts sum highest, renormalised and scaled; ungated shared experts.  As mistral3 the text part of a model that
 * sees, whose vision tower is ignored. */
#include "model/rules.h"

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_config text;
    exf_mla_spec *s = &a->mla;
    double part;
    EXF_TRY(exf_config_part(c, "text_config", "mistral4", &text, err));
    EXF_TRY(exf_config_must_say(&text, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_configure_sizes(&text, a, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings", 0, &a->tied_embeddings, err));
    EXF_TRY(exf_configure_experts(&text, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_mla(&text, a, err));
    EXF_TRY(exf_config_must_be(&text, "rope_interleave", "true", err));
    int width = s->nope_dim + s->rope_dim; /* of a head, whose rotated part is told twice */
    EXF_TRY(exf_configure_rotary_part(&text, (double)s->rope_dim / width, &part, err));
    if ((int)(width * part) != s->rope_dim)
        return exf_fail(err, EXF_MODEL, "%s: \"partial_rotary_factor\" is %g of heads of %d, but \"qk_rope_head_dim\" is %d",
                        text.path, part, width, s->rope_dim);
    EXF_TRY(exf_config_real_or(&text, "rope_parameters.llama_4_scaling_beta", 0, &s->query_beta, err));
    if (s->query_beta != 0) /* queries from the original length on are scaled */
        EXF_TRY(exf_config_real(&text, "rope_parameters.original_max_position_embeddings", &s->query_length, err));
    EXF_TRY(exf_configure_sigmoid_router(&text, a, err));
    a->router.score = EXF_ROUTER_SOFTMAX;
    EXF_TRY(exf_configure_dense_first(&text, a, err));
    EXF_TRY(exf_configure_shared_experts(&text, a, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_SCORED;
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_BODY(0),
    EXF_RULES_PREFIXED_HEAD,
    EXF_RULES_MLA,
    EXF_RULES_DENSE,
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_SHARED("shared_experts"),
};

const exf_family exf_family_mistral4 = {
    .name = "mistral4",
    .also = "mistral3",
    .architecture = "Mistral4ForCausalLM",
    .configure = configure,
    .prefixes = {"language_model.model.", "model.language_model.", "model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."},
};
