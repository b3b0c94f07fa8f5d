/* family_minimax_m2.c - MiniMax-M2: MiniMax-M2, M2.1, M2.5.
 *
 * Every layer has grouped-query attention, q and k normed over their whole rows before RoPE on the first
 * rotary_dim dimensions of each head, and a mixture of experts: sigmoid router with a correction bias that chooses
 * but does not weigh, renormalised, no shared expert.  Multi-token-prediction layers are ignored. */
#include "model/rules.h"

/* attn_type_list says 1 of layers with attention over all positions; the forebear's 0 is linear attention. */
static exf_code check_attention_types(const exf_config *c, exf_err *err)
{
    const exf_json *types;
    exf_code rc = exf_config_find(c, "attn_type_list", &types, err);
    if (rc != EXF_OK) return rc;
    for (size_t l = 0; l < exf_json_size(types); l++)
        if (exf_json_int(exf_json_at(types, l)) != 1)
            return exf_fail(err, EXF_MODEL,
                            "%s: \"attn_type_list\" says of layer %zu that its attention is not full, 1; only that is supported",
                            c->path, l);
    return EXF_OK;
}

/* The release says rotary_dim, transformers 5 partial_rotary_factor; one that says both must mean one width. */
static exf_code configure_rotary_dim(const exf_config *c, exf_architecture *a, exf_err *err)
{
    const exf_json *part;
    exf_rope_spec *r = &a->rope[EXF_ROPE_MAIN];
    int by_part = r->dim;
    exf_code rc;
    EXF_TRY(exf_config_find(c, "rope_parameters.partial_rotary_factor|partial_rotary_factor", &part, err));
    EXF_TRY(exf_config_int_or(c, "rotary_dim", 2, a->attention.head_dim, r->dim, &r->dim, err));
    if (r->dim % 2)
        rc = exf_fail(err, EXF_MODEL, "%s: \"rotary_dim\" is %d, expected an even number", c->path, r->dim);
    else if (part && r->dim != by_part)
        rc = exf_fail(err, EXF_MODEL, "%s: \"rotary_dim\" is %d, but \"partial_rotary_factor\" makes it %d of %d", c->path, r->dim,
                      by_part, a->attention.head_dim);
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int qk_norm;
    EXF_TRY(exf_config_must_say(c, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "intermediate_size", err));
    EXF_TRY(exf_config_must_say(c, "head_dim", 0, err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(configure_rotary_dim(c, a, err));
    EXF_TRY(check_attention_types(c, err));
    EXF_TRY(exf_config_must_be(c, "sliding_window", "null", err));
    EXF_TRY(exf_config_must_be(c, "attention_bias", "false", err));
    EXF_TRY(exf_config_must_be(c, "shared_intermediate_size", "0", err));
    EXF_TRY(exf_config_must_be(c, "scoring_func", "sigmoid", err));
    EXF_TRY(exf_config_must_be(c, "use_routing_bias", "true", err));
    EXF_TRY(exf_config_must_be(c, "qk_norm_type", "per_layer", err));
    EXF_TRY(exf_config_bool_or(c, "use_qk_norm", 1, &qk_norm, err));
    a->router.score = EXF_ROUTER_SIGMOID;
    a->router.renormalise = 1;
    for (int l = 0; l < a->n_layers; l++) {
        a->is_moe[l] = 1;
        a->traits[l] = EXF_T_SCORED | (qk_norm ? EXF_T_QK_NORM_ROW : 0);
    }
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    EXF_RULES_QK_NORM_ROW(0),
    EXF_RULES_SPARSE_EXPERTS(EXF_FLOAT32),
    EXF_RULES_FUSED_EXPERTS,
    {EXF_W_ROUTER_BIAS, EXF_EITHER("block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"), EXF_IN_LAYER,
     EXF_T_MOE, {EXF_DIM_E}, 0},
};

const exf_family exf_family_minimax_m2 = {
    .name = "minimax_m2",
    .architecture = "MiniMaxM2ForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}."},
};
