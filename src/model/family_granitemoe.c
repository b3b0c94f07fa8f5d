/* family_granitemoe.c - Granite MoE: Granite-3.1-1B-A400M, Granite-3.1-3B-A800M, PowerMoE-3B.
 *
 * Every layer has grouped-query attention whose scores are multiplied by attention_multiplier, and a mixture of experts: the
 * softmax of the chosen logits, which is the renormalised softmax of all.  Embeddings, what a layer adds to the residual stream,
 * and logits are scaled.  The experts of a layer are one tensor. */
#include "model/rules.h"

/* With r = residual_multiplier the model computes h + r f(norm(h)).  Here the stream is h / r, so that layers add f alone: the
 * embedding is divided by r and the eps of every norm by r^2, which leaves what norms give as it was. */
static exf_code configure_scales(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    double embedding, residual, logits;
    EXF_TRY(exf_config_real_or(c, "embedding_multiplier", 1, &embedding, err));
    EXF_TRY(exf_config_real_or(c, "residual_multiplier", 1, &residual, err));
    EXF_TRY(exf_config_real_or(c, "logits_scaling", 1, &logits, err));
    EXF_TRY(exf_config_real_or(c, "attention_multiplier", 1, &a->attention.score_scale, err));
    if (embedding != residual) a->embed_scale = embedding / residual;
    a->norm_eps /= residual * residual;
    if (logits != 1) a->logit_scale = 1 / logits;
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "intermediate_size", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(configure_scales(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 0, &bias, err));
    a->router.score = EXF_ROUTER_SOFTMAX;
    a->router.renormalise = 1;
    for (int l = 0; l < a->n_layers; l++) {
        a->is_moe[l] = 1;
        a->traits[l] = bias ? EXF_T_QKV_BIAS | EXF_T_O_BIAS : 0;
    }
out:
    return rc;
}

#define MOE "block_sparse_moe."
#define GATE_UP EXF_EITHER(MOE "input_linear.weight", MOE "experts.gate_up_proj")

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    {EXF_W_ROUTER, EXF_EITHER(MOE "router.layer.weight", MOE "router.weight"), EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E, EXF_DIM_H}, 0},
    {EXF_W_EXPERT_GATE, GATE_UP, EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_FIRST_HALF},
    {EXF_W_EXPERT_UP, GATE_UP, EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_SECOND_HALF},
    {EXF_W_EXPERT_DOWN, EXF_EITHER(MOE "output_linear.weight", MOE "experts.down_proj"), EXF_IN_STACK, EXF_T_MOE,
     {EXF_DIM_H, EXF_DIM_I}, 0},
};

const exf_family exf_family_granitemoe = {
    .name = "granitemoe",
    .architecture = "GraniteMoeForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
