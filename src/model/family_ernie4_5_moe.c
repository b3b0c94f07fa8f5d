/* family_ernie4_5_moe.c - ERNIE 4.5: ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B.
 *
 * Grouped-query attention without biases, interleaved RoPE; experts in the layers that an interval of numbers and a step name, the
 * others dense; softmax router with a correction bias that chooses but does not weigh, renormalised; ungated shared experts where
 * the config says so.  Multi-token prediction is ignored. */
#include "model/rules.h"

/* The least sum of chosen scores by which they are divided; above this it could change a weight. */
static const double NO_LEAST_SUM = 1e-9;

/* Layer l has experts if it is from moe_layer_start_index to moe_layer_end_index and moe_layer_interval divides l + 1. */
static exf_code configure_sparse_layers(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int first, last, step, n_moe = 0;
    EXF_TRY(exf_config_int(c, "moe_layer_start_index", 0, EXF_MAX_LAYERS, &first, err));
    EXF_TRY(exf_config_int_or(c, "moe_layer_end_index", -1, EXF_MAX_LAYERS, -1, &last, err));
    EXF_TRY(exf_config_int_or(c, "moe_layer_interval", 1, EXF_MAX_LAYERS, 1, &step, err));
    for (int l = 0; l < a->n_layers; l++)
        n_moe += a->is_moe[l] = l >= first && (last < 0 || l <= last) && (l + 1) % step == 0;
    if (n_moe == 0)
        return exf_fail(err, EXF_MODEL, "%s: none of the %d layers is a mixture of experts", c->path, a->n_layers);
    if (n_moe < a->n_layers) rc = exf_config_int(c, "intermediate_size", 1, 1 << 20, &a->d_ffn, err);
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int n_shared;
    double least;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_config_must_say(c, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_config_must_say(c, "tie_word_embeddings", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    a->rope[EXF_ROPE_MAIN].interleaved = 1;
    EXF_TRY(exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(exf_config_must_be(c, "use_bias", "false", err));
    EXF_TRY(configure_sparse_layers(c, a, err));
    a->router.score = EXF_ROUTER_SOFTMAX;
    a->router.renormalise = 1;
    EXF_TRY(exf_config_real_or(c, "moe_norm_min", 1e-12, &least, err));
    if (least > NO_LEAST_SUM)
        return exf_fail(err, EXF_MODEL, "%s: \"moe_norm_min\" is %g, expected at most %g", c->path, least, NO_LEAST_SUM);
    EXF_TRY(exf_config_int(c, "moe_num_shared_experts", 0, 64, &n_shared, err));
    a->d_shared = n_shared * a->d_expert;
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_SCORED | (n_shared ? EXF_T_SHARED : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_GROUPED_QUERY_MOE,
    {EXF_W_ROUTER_BIAS, EXF_EITHER("mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"),
     EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_ONE, EXF_DIM_E}, 0},
};

const exf_family exf_family_ernie4_5_moe = {
    .name = "ernie4_5_moe",
    .architecture = "Ernie4_5_MoeForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}mtp_"},
};
