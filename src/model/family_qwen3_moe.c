/* family_qwen3_moe.c - Qwen3-MoE: Qwen3-30B-A3B, Qwen3-235B-A22B and kin.
 *
 * h += Attention(RMSNorm(h)); h += MoE(RMSNorm(h)).  Grouped-query attention
 * with per-head RMS norm of q and k before half-rotation RoPE, no biases;
 * softmax router over all experts, top-k, renormalised when norm_topk_prob. */
#include "model/family.h"

#include <string.h>

static exf_code configure_attention(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_attention_spec *s = &a->attention;
    EXF_TRY(exf_config_int(c, "num_attention_heads", 1, 1024, &s->n_heads, err));
    EXF_TRY(exf_config_int_or(c, "num_key_value_heads", 1, 1024, s->n_heads, &s->n_kv_heads, err));
    EXF_TRY(exf_config_int_or(c, "head_dim", 2, 4096, a->d_model / s->n_heads, &s->head_dim, err));
    EXF_TRY(exf_config_real_or(c, "rope_theta|rope_parameters.rope_theta", 10000.0, &s->rope_theta, err));
    EXF_TRY(exf_config_must_be(c, "rope_scaling.type|rope_scaling.rope_type|rope_parameters.rope_type", "default", err));
    EXF_TRY(exf_config_must_be(c, "rope_parameters.partial_rotary_factor|partial_rotary_factor", "1", err));
    EXF_TRY(exf_config_must_be(c, "attention_bias", "false", err));
    EXF_TRY(exf_config_must_be(c, "use_sliding_window", "false", err));
    EXF_TRY(exf_config_must_be(c, "hidden_act", "silu", err));
    s->rope_dim = s->head_dim;
    s->qk_norm = EXF_QK_NORM_HEAD;
    if (s->n_heads % s->n_kv_heads)
        rc = exf_fail(err, EXF_MODEL, "%s: %d attention heads are no multiple of %d key-value heads", c->path, s->n_heads, s->n_kv_heads);
    else if (s->head_dim % 2)
        rc = exf_fail(err, EXF_MODEL, "%s: \"head_dim\" is %d, expected an even number", c->path, s->head_dim);
out:
    return rc;
}

/* Layer i is MoE iff i is not in mlp_only_layers and (i+1) % decoder_sparse_step == 0. */
static exf_code configure_layers(const exf_config *c, exf_architecture *a, exf_err *err)
{
    int step;
    const exf_json *dense;
    exf_code rc = exf_config_int_or(c, "decoder_sparse_step", 1, EXF_MAX_LAYERS, 1, &step, err);
    if (rc == EXF_OK) rc = exf_config_find(c, "mlp_only_layers", &dense, err);
    if (rc != EXF_OK) return rc;
    if (dense && exf_json_type(dense) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" is %s, expected an array", c->path, exf_json_type_name(dense));
    for (int l = 0; l < a->n_layers; l++) a->is_moe[l] = (l + 1) % step == 0;
    for (size_t i = 0; i < exf_json_size(dense); i++) {
        const exf_json *number = exf_json_at(dense, i);
        if (exf_json_type(number) != EXF_JSON_INT)
            return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" holds %s, expected layer numbers", c->path, exf_json_type_name(number));
        int64_t l = exf_json_int(number);
        if (l >= 0 && l < a->n_layers) a->is_moe[l] = 0;
    }
    for (int l = 0; l < a->n_layers; l++) a->n_moe_layers += a->is_moe[l];
    if (a->n_moe_layers == 0) return exf_fail(err, EXF_MODEL, "%s: none of the %d layers is a mixture of experts", c->path, a->n_layers);
    if (a->n_moe_layers < a->n_layers) return exf_config_int(c, "intermediate_size", 1, 1 << 20, &a->d_ffn, err);
    return EXF_OK;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    int renormalise;
    EXF_TRY(exf_config_int(c, "hidden_size", 1, 1 << 20, &a->d_model, err));
    EXF_TRY(exf_config_int(c, "num_hidden_layers", 1, EXF_MAX_LAYERS, &a->n_layers, err));
    EXF_TRY(exf_config_int(c, "vocab_size", 1, 1 << 24, &a->vocab, err));
    EXF_TRY(exf_config_real_or(c, "rms_norm_eps", 1e-6, &a->norm_eps, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings", 0, &a->tied_embeddings, err));
    EXF_TRY(exf_config_int(c, "num_experts|num_local_experts|n_routed_experts", 2, EXF_MAX_EXPERTS, &a->n_experts, err));
    EXF_TRY(exf_config_int(c, "num_experts_per_tok", 1, EXF_MAX_TOP_K, &a->top_k, err));
    EXF_TRY(exf_config_int(c, "moe_intermediate_size", 1, 1 << 20, &a->d_expert, err));
    EXF_TRY(exf_config_bool_or(c, "norm_topk_prob", 0, &renormalise, err));
    a->router = (exf_router_spec){.score = EXF_SCORE_SOFTMAX, .renormalise = renormalise};
    if (a->top_k > a->n_experts) {
        rc = exf_fail(err, EXF_MODEL, "%s: %d experts per token, but only %d experts", c->path, a->top_k, a->n_experts);
        goto out;
    }
    EXF_TRY(configure_attention(c, a, err));
    EXF_TRY(configure_layers(c, a, err));
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    {EXF_W_EMBED, "model.embed_tokens.weight", EXF_ONCE, {EXF_DIM_VOCAB, EXF_DIM_H}},
    {EXF_W_FINAL_NORM, "model.norm.weight", EXF_ONCE, {EXF_DIM_H}},
    {EXF_W_HEAD, "lm_head.weight", EXF_UNLESS_TIED, {EXF_DIM_VOCAB, EXF_DIM_H}},
    {EXF_W_MIXER_NORM, "model.layers.{L}.input_layernorm.weight", EXF_EACH_LAYER, {EXF_DIM_H}},
    {EXF_W_Q, "model.layers.{L}.self_attn.q_proj.weight", EXF_EACH_LAYER, {EXF_DIM_Q, EXF_DIM_H}},
    {EXF_W_K, "model.layers.{L}.self_attn.k_proj.weight", EXF_EACH_LAYER, {EXF_DIM_KV, EXF_DIM_H}},
    {EXF_W_V, "model.layers.{L}.self_attn.v_proj.weight", EXF_EACH_LAYER, {EXF_DIM_KV, EXF_DIM_H}},
    {EXF_W_O, "model.layers.{L}.self_attn.o_proj.weight", EXF_EACH_LAYER, {EXF_DIM_H, EXF_DIM_Q}},
    {EXF_W_Q_NORM, "model.layers.{L}.self_attn.q_norm.weight", EXF_EACH_LAYER, {EXF_DIM_HEAD}},
    {EXF_W_K_NORM, "model.layers.{L}.self_attn.k_norm.weight", EXF_EACH_LAYER, {EXF_DIM_HEAD}},
    {EXF_W_FFN_NORM, "model.layers.{L}.post_attention_layernorm.weight", EXF_EACH_LAYER, {EXF_DIM_H}},
    {EXF_W_DENSE_GATE, "model.layers.{L}.mlp.gate_proj.weight", EXF_DENSE_LAYER, {EXF_DIM_FFN, EXF_DIM_H}},
    {EXF_W_DENSE_UP, "model.layers.{L}.mlp.up_proj.weight", EXF_DENSE_LAYER, {EXF_DIM_FFN, EXF_DIM_H}},
    {EXF_W_DENSE_DOWN, "model.layers.{L}.mlp.down_proj.weight", EXF_DENSE_LAYER, {EXF_DIM_H, EXF_DIM_FFN}},
    {EXF_W_ROUTER, "model.layers.{L}.mlp.gate.weight", EXF_MOE_LAYER, {EXF_DIM_E, EXF_DIM_H}},
    {EXF_W_EXPERT_GATE, "model.layers.{L}.mlp.experts.{E}.gate_proj.weight", EXF_EACH_EXPERT, {EXF_DIM_I, EXF_DIM_H}},
    {EXF_W_EXPERT_UP, "model.layers.{L}.mlp.experts.{E}.up_proj.weight", EXF_EACH_EXPERT, {EXF_DIM_I, EXF_DIM_H}},
    {EXF_W_EXPERT_DOWN, "model.layers.{L}.mlp.experts.{E}.down_proj.weight", EXF_EACH_EXPERT, {EXF_DIM_H, EXF_DIM_I}},
};

const exf_family exf_family_qwen3_moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
