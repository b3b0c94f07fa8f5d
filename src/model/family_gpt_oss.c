/* family_gpt_oss.c - gpt-oss: gpt-oss-20b, gpt-oss-120b.
 *
 * Grouped-query attention with biases, YaRN and a sink a head; layer_types says which layers see a window.  Every layer is a
 * mixture of experts with biases, whose gates and ups are cut before gate sigmoid(slope gate) (up + 1).  The router's logits
 * have a bias; its weights are the softmax over the chosen logits, which is that over all, renormalised.  Releases hold the
 * experts as MXFP4, transformers as [E, in, out]; in both, rows of gate and up take turns. */
#include "model/rules.h"

/* layer_types, or else a window in every other layer, the first among them. */
static exf_code configure_windows(const exf_config *c, exf_architecture *a, exf_err *err)
{
    static const char *const words[] = {"full_attention", "sliding_attention", NULL};
    const exf_json *types;
    int window;
    exf_code rc;
    EXF_TRY(exf_config_int(c, "sliding_window", 1, 1 << 24, &window, err));
    EXF_TRY(exf_config_layer_list(c, "layer_types", a->n_layers, 0, &types, err));
    for (int l = 0; l < a->n_layers; l++) {
        int slides = l % 2 == 0;
        if (types) EXF_TRY(exf_config_layer_word(c, "layer_types", types, l, words, &slides, err));
        a->attention.window[l] = slides ? window : 0;
    }
out:
    return rc;
}

static exf_code configure_experts(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    const exf_json *packed;
    EXF_TRY(exf_configure_experts(c, a, "intermediate_size", err));
    EXF_TRY(exf_config_real_or(c, "swiglu_limit", 7, &a->swiglu_limit, err));
    EXF_TRY(exf_config_real_or(c, "swiglu_alpha", 1.702, &a->swiglu_slope, err));
    EXF_TRY(exf_config_find(c, "quantization_config", &packed, err));
    a->swiglu_shift = 1;
    a->router.score = EXF_ROUTER_SOFTMAX;
    a->router.renormalise = 1;
    if (packed && (a->d_model % 32 || a->d_expert % 32))
        rc = exf_fail(err, EXF_MODEL,
                      "%s: MXFP4 has blocks of 32, of which \"hidden_size\" %d or \"intermediate_size\" %d is no multiple", c->path,
                      a->d_model, a->d_expert);
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int bias;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_config_must_say(c, "rope_theta|rope_parameters.rope_theta", 0, err));
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_config_must_say(c, "head_dim", 0, err));
    EXF_TRY(exf_config_must_say(c, "rope_scaling|rope_parameters", 0, err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(configure_windows(c, a, err));
    EXF_TRY(configure_experts(c, a, err));
    EXF_TRY(exf_config_bool_or(c, "attention_bias", 1, &bias, err));
    for (int l = 0; l < a->n_layers; l++) {
        a->is_moe[l] = 1;
        a->traits[l] = EXF_T_SINK | EXF_T_EXPERT_BIAS | EXF_T_ROUTER_SHIFT | (bias ? EXF_T_QKV_BIAS | EXF_T_O_BIAS : 0);
    }
out:
    return rc;
}

#define MLP "{P}layers.{L}.mlp."

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_ATTENTION(0),
    {EXF_W_HEAD_SINK, "{P}layers.{L}.self_attn.sinks", EXF_IN_LAYER, EXF_T_ATTENTION | EXF_T_SINK, {EXF_DIM_HEADS}, 0},
    {EXF_W_ROUTER, MLP "router.weight", EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E, EXF_DIM_H}, 0},
    {EXF_W_ROUTER_SHIFT, MLP "router.bias", EXF_IN_LAYER, EXF_T_MOE | EXF_T_ROUTER_SHIFT, {EXF_DIM_E}, 0},
    /* as released */
    {EXF_W_EXPERT_GATE, MLP "experts.gate_up_proj_blocks", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H},
     EXF_MXFP4 | EXF_EVEN_ROWS},
    {EXF_W_EXPERT_UP, MLP "experts.gate_up_proj_blocks", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H},
     EXF_MXFP4 | EXF_ODD_ROWS},
    {EXF_W_EXPERT_DOWN, MLP "experts.down_proj_blocks", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_H, EXF_DIM_I}, EXF_MXFP4},
    /* as transformers holds and writes them */
    {EXF_W_EXPERT_GATE, MLP "experts.gate_up_proj", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H},
     EXF_TRANSPOSED | EXF_EVEN_ROWS},
    {EXF_W_EXPERT_UP, MLP "experts.gate_up_proj", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H},
     EXF_TRANSPOSED | EXF_ODD_ROWS},
    {EXF_W_EXPERT_DOWN, MLP "experts.down_proj", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_H, EXF_DIM_I}, EXF_TRANSPOSED},
    {EXF_W_EXPERT_GATE_BIAS, MLP "experts.gate_up_proj_bias", EXF_IN_STACK, EXF_T_MOE | EXF_T_EXPERT_BIAS, {EXF_DIM_I},
     EXF_EVEN_ROWS},
    {EXF_W_EXPERT_UP_BIAS, MLP "experts.gate_up_proj_bias", EXF_IN_STACK, EXF_T_MOE | EXF_T_EXPERT_BIAS, {EXF_DIM_I},
     EXF_ODD_ROWS},
    {EXF_W_EXPERT_DOWN_BIAS, MLP "experts.down_proj_bias", EXF_IN_STACK, EXF_T_MOE | EXF_T_EXPERT_BIAS, {EXF_DIM_H}, 0},
};

const exf_family exf_family_gpt_oss = {
    .name = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
