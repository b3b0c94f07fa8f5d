/* family_gemma4.c - Gemma 4 with experts: Gemma-4-26B-A4B, the text part.
 *
 * Layers attend within a window, or, as layer_types says, to all tokens, with wider heads of which a part of the pairs turn; there
 * values may be the projected keys.  q and k heads are normed with weights, v heads without, and scores are not scaled.  Every
 * layer is a dense network beside experts, each with norms of its own before and after, and a norm after both; a factor a layer
 * ends it (exf_residual_spec).  The router has its own norm, and a factor an expert that its weights are multiplied by, so that
 * weights of routes have it in them.  The embedding is scaled, the logits are capped.  Vision and audio are passed over.
 *
 * Not read are models without experts, with inputs of a layer's own, and whose last layers share keys and values. */
#include "model/rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static exf_code refuse_other_parts(const exf_config *c, exf_err *err)
{
    int per_layer;
    const char *direction;
    exf_code rc;
    EXF_TRY(exf_config_must_be(c, "num_kv_shared_layers", "0", err));
    EXF_TRY(exf_config_must_be(c, "use_double_wide_mlp", "false", err));
    EXF_TRY(exf_config_must_be(c, "attention_bias", "false", err));
    EXF_TRY(exf_config_must_be(c, "hidden_activation", "gelu_pytorch_tanh", err));
    EXF_TRY(exf_config_text_or(c, "use_bidirectional_attention", "vision", &direction, err));
    EXF_TRY(exf_config_int_or(c, "hidden_size_per_layer_input", 0, 1 << 20, 256, &per_layer, err));
    if (strcmp(direction, "vision") != 0) /* of text, vision's are causal */
        return exf_fail(err, EXF_MODEL, "%s: \"use_bidirectional_attention\" is \"%s\"; only causal text is supported", c->path,
                        direction);
    if (per_layer)
        return exf_fail(err, EXF_MODEL, "%s: \"hidden_size_per_layer_input\" is %d; only 0 is supported", c->path, per_layer);
out:
    return rc;
}

/* ---- attention ----------------------------------------------------------------------------- */

/* layer_types, or else every sixth layer attends to all tokens; the last one must. */
static exf_code configure_windows(const exf_config *c, exf_architecture *a, exf_err *err)
{
    static const char *const words[] = {"full_attention", "sliding_attention", NULL};
    const exf_json *types;
    int window;
    exf_code rc;
    EXF_TRY(exf_config_int_or(c, "sliding_window", 1, 1 << 24, 512, &window, err));
    EXF_TRY(exf_config_layer_list(c, "layer_types", a->n_layers, 0, &types, err));
    for (int l = 0; l < a->n_layers; l++) {
        int slides = (l + 1) % 6 != 0 && l < a->n_layers - 1;
        if (types) EXF_TRY(exf_config_layer_word(c, "layer_types", types, l, words, &slides, err));
        a->attention.window[l] = slides ? window : 0;
        a->traits[l] = slides ? EXF_T_NARROW | EXF_T_OWN_VALUES : EXF_T_WIDE;
    }
    if (a->attention.window[a->n_layers - 1])
        rc = exf_fail(err, EXF_MODEL, "%s: \"layer_types\" ends with \"sliding_attention\", expected \"full_attention\"", c->path);
out:
    return rc;
}

/* Newer configs list in per_layer_config what global_head_dim and num_global_key_value_heads say of all layers that attend to all
 * tokens: each of these, and no other, with equal numbers. */
static exf_code read_wide_layers(const exf_config *c, const exf_json *layers, exf_architecture *a, exf_err *err)
{
    exf_attention_spec *s = &a->attention;
    exf_code rc = EXF_OK;
    int n = 0, n_wide = 0;
    for (int l = 0; l < a->n_layers; l++) n_wide += (a->traits[l] & EXF_T_WIDE) != 0;
    for (void *it = exf_json_first(layers); it; it = exf_json_next(layers, it), n++) {
        exf_config one = {exf_json_value(it), c->path};
        char *end;
        long l = strtol(exf_json_key(it), &end, 10);
        int dim, heads;
        if (*end || l < 0 || l >= a->n_layers || !(a->traits[l] & EXF_T_WIDE))
            return exf_fail(err, EXF_MODEL, "%s: \"per_layer_config\" has \"%s\", which is no layer of full attention", c->path,
                            exf_json_key(it));
        EXF_TRY(exf_config_int(&one, "head_dim", 2, 4096, &dim, err));
        EXF_TRY(exf_config_int_or(&one, "num_key_value_heads", 1, 1024, s->n_kv_heads, &heads, err));
        if (n && (dim != s->wide_head_dim || heads != s->wide_kv_heads))
            return exf_fail(err, EXF_MODEL, "%s: \"per_layer_config.%s\" has %d heads of %d, layers before it %d of %d", c->path,
                            exf_json_key(it), heads, dim, s->wide_kv_heads, s->wide_head_dim);
        s->wide_head_dim = dim;
        s->wide_kv_heads = heads;
    }
    if (n != n_wide)
        rc = exf_fail(err, EXF_MODEL, "%s: \"per_layer_config\" has %d layers, expected the %d of full attention", c->path, n,
                      n_wide);
out:
    return rc;
}

static exf_code configure_wide_heads(const exf_config *c, exf_architecture *a, int k_eq_v, exf_err *err)
{
    exf_attention_spec *s = &a->attention;
    const exf_json *layers;
    exf_code rc;
    EXF_TRY(exf_config_find(c, "per_layer_config", &layers, err));
    if (layers) return read_wide_layers(c, layers, a, err);
    EXF_TRY(exf_config_int_or(c, "global_head_dim", 2, 4096, 512, &s->wide_head_dim, err));
    EXF_TRY(exf_config_int_or(c, "num_global_key_value_heads", 1, 1024, s->n_kv_heads, &s->wide_kv_heads, err));
    if (!k_eq_v) s->wide_kv_heads = s->n_kv_heads; /* as the reference has it */
out:
    return rc;
}

/* Reads one kind of layer's rotation, whose words and numbers are those of the release where there are none. */
static exf_code configure_rope(const exf_config *c, exf_rope_spec *r, int full, int head_dim, exf_err *err)
{
    double part = 0.25;
    const exf_json *given;
    exf_code rc;
    EXF_TRY(exf_config_find(c, "rope_parameters", &given, err));
    exf_config one = {NULL, c->path};
    EXF_TRY(exf_config_find(c, full ? "rope_parameters.full_attention" : "rope_parameters.sliding_attention", &one.object, err));
    *r = (exf_rope_spec){.dim = head_dim, .theta = full ? 1e6 : 1e4};
    if (given && !one.object)
        return exf_fail(err, EXF_MODEL, "%s: \"rope_parameters\" lacks \"%s\"", c->path,
                        full ? "full_attention" : "sliding_attention");
    if (given) {
        EXF_TRY(exf_config_must_be(&one, "rope_type", full ? "proportional" : "default", err));
        EXF_TRY(exf_config_must_be(&one, "factor", "1", err));
        EXF_TRY(exf_config_real(&one, "rope_theta", &r->theta, err));
        EXF_TRY(exf_config_real_or(&one, "partial_rotary_factor", 1, &part, err));
        if (!full) EXF_TRY(exf_config_must_be(&one, "partial_rotary_factor", "1", err));
    }
    if (!full) return EXF_OK;
    if (part > 1)
        return exf_fail(err, EXF_MODEL, "%s: \"partial_rotary_factor\" is %g, expected at most 1", c->path, part);
    r->turned = 2 * (int)floor(part * head_dim / 2);
    if (r->turned == 0)
        return exf_fail(err, EXF_MODEL, "%s: \"partial_rotary_factor\" is %g, of heads of %d no pair turns", c->path, part,
                        head_dim);
out:
    return rc;
}

static exf_code configure_attention(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_attention_spec *s = &a->attention;
    int k_eq_v;
    exf_code rc;
    EXF_TRY(exf_config_int(c, "num_attention_heads", 1, 1024, &s->n_heads, err));
    EXF_TRY(exf_config_int_or(c, "num_key_value_heads", 1, 1024, 4, &s->n_kv_heads, err));
    EXF_TRY(exf_config_int_or(c, "head_dim", 2, 4096, 256, &s->head_dim, err));
    EXF_TRY(exf_config_bool_or(c, "attention_k_eq_v", 0, &k_eq_v, err));
    EXF_TRY(configure_windows(c, a, err));
    EXF_TRY(configure_wide_heads(c, a, k_eq_v, err));
    EXF_TRY(configure_rope(c, &a->rope[EXF_ROPE_MAIN], 0, s->head_dim, err));
    EXF_TRY(configure_rope(c, &a->rope[EXF_ROPE_WIDE], 1, s->wide_head_dim, err));
    if (s->n_heads % s->n_kv_heads || s->n_heads % s->wide_kv_heads || s->head_dim % 2 || s->wide_head_dim % 2)
        return exf_fail(err, EXF_MODEL,
                        "%s: %d attention heads must be multiples of %d and %d key-value heads, of even sizes; they have %d and %d",
                        c->path, s->n_heads, s->n_kv_heads, s->wide_kv_heads, s->head_dim, s->wide_head_dim);
    s->score_scale = 1;
    for (int l = 0; l < a->n_layers; l++)
        a->traits[l] |= EXF_T_QK_NORM | EXF_T_V_NORM | (a->traits[l] & EXF_T_WIDE && !k_eq_v ? EXF_T_OWN_VALUES : 0);
    a->dim[EXF_DIM_Q] = s->n_heads * s->head_dim;
    a->dim[EXF_DIM_KV] = s->n_kv_heads * s->head_dim;
    a->dim[EXF_DIM_HEAD] = s->head_dim;
    a->dim[EXF_DIM_WIDE_Q] = s->n_heads * s->wide_head_dim;
    a->dim[EXF_DIM_WIDE_KV] = s->wide_kv_heads * s->wide_head_dim;
    a->dim[EXF_DIM_WIDE_HEAD] = s->wide_head_dim;
out:
    return rc;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static exf_code configure_experts(const exf_config *c, exf_architecture *a, exf_err *err)
{
    int has;
    exf_code rc;
    EXF_TRY(exf_config_bool_or(c, "enable_moe_block", 0, &has, err));
    if (!has)
        return exf_fail(err, EXF_MODEL, "%s: \"enable_moe_block\" is not true: this model has no experts to calibrate", c->path);
    EXF_TRY(exf_config_int(c, "num_experts", 2, EXF_MAX_EXPERTS, &a->n_experts, err));
    EXF_TRY(exf_config_int(c, "top_k_experts", 1, EXF_MAX_TOP_K, &a->top_k, err));
    EXF_TRY(exf_config_int(c, "moe_intermediate_size", 1, 1 << 20, &a->d_expert, err));
    EXF_TRY(exf_config_int(c, "intermediate_size", 1, 1 << 20, &a->d_shared, err));
    if (a->top_k > a->n_experts)
        return exf_fail(err, EXF_MODEL, "%s: %d experts per token, but only %d experts", c->path, a->top_k, a->n_experts);
    a->gelu = 1;
    a->router.score = EXF_ROUTER_SOFTMAX;
    a->router.renormalise = a->router.expert_scaled = 1;
    a->router.input_scale = 1 / sqrt((double)a->d_model);
    for (int l = 0; l < a->n_layers; l++) {
        a->is_moe[l] = 1;
        a->traits[l] |= EXF_T_SHARED;
    }
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_config text;
    exf_code rc;
    EXF_TRY(exf_config_part(c, "text_config", "gemma4_text", &text, err));
    EXF_TRY(exf_configure_sizes(&text, a, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings|text_config.tie_word_embeddings", 1, &a->tied_embeddings, err));
    EXF_TRY(refuse_other_parts(&text, err));
    EXF_TRY(configure_attention(&text, a, err));
    EXF_TRY(configure_experts(&text, a, err));
    EXF_TRY(exf_config_real_or(&text, "final_logit_softcapping", 0, &a->logit_cap, err));
    a->embed_scale = sqrt((double)a->d_model);
    a->residual.normed = 1;
out:
    return rc;
}

#define LAYER "{P}layers.{L}."
#define NARROW (EXF_T_ATTENTION | EXF_T_NARROW)
#define WIDE (EXF_T_ATTENTION | EXF_T_WIDE)
#define EXPERT(name) EXF_EITHER("experts.{E}." name ".weight", "moe.experts.{E}." name ".weight") /* as quantizers part a stack */
#define NORM(role, name) {role, LAYER name ".weight", EXF_IN_LAYER, 0, {EXF_DIM_H}, 0}

static const exf_tensor_rule rules[] = {
    {EXF_W_EMBED, "{P}embed_tokens.weight", EXF_IN_MODEL, 0, {EXF_DIM_VOCAB, EXF_DIM_H}, 0},
    {EXF_W_FINAL_NORM, "{P}norm.weight", EXF_IN_MODEL, 0, {EXF_DIM_H}, 0},
    {EXF_W_HEAD, "lm_head.weight", EXF_IN_MODEL, EXF_T_UNTIED, {EXF_DIM_VOCAB, EXF_DIM_H}, EXF_MAY_BE_TIED},
    NORM(EXF_W_MIXER_NORM, "input_layernorm"),
    NORM(EXF_W_MIXER_OUT_NORM, "post_attention_layernorm"),
    NORM(EXF_W_SHARED_NORM, "pre_feedforward_layernorm"),
    NORM(EXF_W_SHARED_OUT_NORM, "post_feedforward_layernorm_1"),
    NORM(EXF_W_FFN_NORM, "pre_feedforward_layernorm_2"),
    NORM(EXF_W_ROUTED_OUT_NORM, "post_feedforward_layernorm_2"),
    NORM(EXF_W_BLOCK_OUT_NORM, "post_feedforward_layernorm"),
    {EXF_W_LAYER_SCALE, LAYER "layer_scalar", EXF_IN_LAYER, 0, {EXF_DIM_ONE}, 0},
    {EXF_W_Q, LAYER "self_attn.q_proj.weight", EXF_IN_LAYER, NARROW, {EXF_DIM_Q, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_K, LAYER "self_attn.k_proj.weight", EXF_IN_LAYER, NARROW, {EXF_DIM_KV, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_V, LAYER "self_attn.v_proj.weight", EXF_IN_LAYER, NARROW | EXF_T_OWN_VALUES, {EXF_DIM_KV, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_O, LAYER "self_attn.o_proj.weight", EXF_IN_LAYER, NARROW, {EXF_DIM_H, EXF_DIM_Q}, EXF_LINEAR},
    {EXF_W_Q_NORM, LAYER "self_attn.q_norm.weight", EXF_IN_LAYER, NARROW, {EXF_DIM_HEAD}, 0},
    {EXF_W_K_NORM, LAYER "self_attn.k_norm.weight", EXF_IN_LAYER, NARROW, {EXF_DIM_HEAD}, 0},
    {EXF_W_Q, LAYER "self_attn.q_proj.weight", EXF_IN_LAYER, WIDE, {EXF_DIM_WIDE_Q, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_K, LAYER "self_attn.k_proj.weight", EXF_IN_LAYER, WIDE, {EXF_DIM_WIDE_KV, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_V, LAYER "self_attn.v_proj.weight", EXF_IN_LAYER, WIDE | EXF_T_OWN_VALUES, {EXF_DIM_WIDE_KV, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_O, LAYER "self_attn.o_proj.weight", EXF_IN_LAYER, WIDE, {EXF_DIM_H, EXF_DIM_WIDE_Q}, EXF_LINEAR},
    {EXF_W_Q_NORM, LAYER "self_attn.q_norm.weight", EXF_IN_LAYER, WIDE, {EXF_DIM_WIDE_HEAD}, 0},
    {EXF_W_K_NORM, LAYER "self_attn.k_norm.weight", EXF_IN_LAYER, WIDE, {EXF_DIM_WIDE_HEAD}, 0},
    {EXF_W_SHARED_GATE, LAYER "mlp.gate_proj.weight", EXF_IN_LAYER, EXF_T_SHARED, {EXF_DIM_SHARED, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_SHARED_UP, LAYER "mlp.up_proj.weight", EXF_IN_LAYER, EXF_T_SHARED, {EXF_DIM_SHARED, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_SHARED_DOWN, LAYER "mlp.down_proj.weight", EXF_IN_LAYER, EXF_T_SHARED, {EXF_DIM_H, EXF_DIM_SHARED}, EXF_LINEAR},
    {EXF_W_ROUTER, LAYER "router.proj.weight", EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E, EXF_DIM_H}, 0},
    {EXF_W_ROUTER_NORM, LAYER "router.scale", EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_H}, 0},
    {EXF_W_EXPERT_SCALE, LAYER "router.per_expert_scale", EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E}, 0},
    {EXF_W_EXPERT_GATE, LAYER "experts.gate_up_proj", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_FIRST_HALF},
    {EXF_W_EXPERT_UP, LAYER "experts.gate_up_proj", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_SECOND_HALF},
    {EXF_W_EXPERT_DOWN, LAYER "experts.down_proj", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_H, EXF_DIM_I}, 0},
    EXF_RULES_EACH_EXPERT(EXPERT("gate_proj"), EXPERT("up_proj"), EXPERT("down_proj")),
};

const exf_family exf_family_gemma4 = {
    .name = "gemma4",
    .also = "gemma4_text",
    .architecture = "Gemma4ForConditionalGeneration",
    .configure = configure,
    .prefixes = {"model.language_model.", "model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."},
};
