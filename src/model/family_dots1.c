/* family_dots1.c - dots.llm1: dots.llm1.base, dots.llm1.inst.
 *
 * Grouped-query attention with per-head norms of q and k, biases when attention_bias, a window in the layers that layer_types or
 * max_window_layers names; the first layers dense; sigmoid router with a correction bias, groups, renormalised where the config
 * says so, and scaled; ungated shared experts. */
#include "model/rules.h"

/* layer_types, or else a window from layer max_window_layers on, where sliding_window says how wide. */
static exf_code configure_windows(const exf_config *c, exf_architecture *a, exf_err *err)
{
    static const char *const words[] = {"full_attention", "sliding_attention", NULL};
    const exf_json *types;
    int window, first;
    exf_code rc;
    EXF_TRY(exf_config_layer_list(c, "layer_types", a->n_layers, 0, &types, err));
    EXF_TRY(exf_config_must_say(c, "sliding_window", 1, err));
    EXF_TRY(exf_config_int_or(c, "sliding_window", 1, 1 << 24, 0, &window, err));
    EXF_TRY(exf_config_int_or(c, "max_window_layers", 0, EXF_MAX_LAYERS, 62, &first, err));
    for (int l = 0; l < a->n_layers; l++) {
        int slides = window && l >= first;
        if (types) EXF_TRY(exf_config_layer_word(c, "layer_types", types, l, words, &slides, err));
        if (slides && !window)
            return exf_fail(err, EXF_MODEL, "%s: layer %d is of sliding_attention, but \"sliding_window\" is not there", c->path,
                            l);
        a->attention.window[l] = slides ? window : 0;
    }
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "partial_rotary_factor|rope_parameters.partial_rotary_factor", "1", err));
    EXF_TRY(configure_windows(c, a, err));
    EXF_TRY(exf_configure_sigmoid_router(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "norm_topk_prob", 0, &a->router.renormalise, err));
    EXF_TRY(exf_configure_dense_first(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 0, &bias, err));
    EXF_TRY(exf_configure_shared_experts(c, a, err));
    for (int l = 0; l < a->n_layers; l++)
        a->traits[l] |= EXF_T_SCORED | EXF_T_QK_NORM | (bias ? EXF_T_QKV_BIAS | EXF_T_O_BIAS : 0);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_GROUPED_QUERY_MOE,
    EXF_RULES_CORRECTION_BIAS,
};

const exf_family exf_family_dots1 = {
    .name = "dots1",
    .architecture = "Dots1ForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
