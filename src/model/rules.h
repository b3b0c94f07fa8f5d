/* rules.h - rows of tensor rules that several families share, with the tensor names of
 * transformers-style checkpoints.  {P} is "model.", or what family.h says. */
#ifndef EXF_MODEL_RULES_H
#define EXF_MODEL_RULES_H
#include "model/family.h"

/* A tensor of a layer under the release's name or under another. */
#define EXF_EITHER(name, other) "{P}layers.{L}." name "|{P}layers.{L}." other

/* All outside the layers but the head, and their norms.  norm: 0, or EXF_PLUS_ONE where norm weights are zero-centred. */
#define EXF_RULES_BODY(norm)                                                                                       \
    {EXF_W_EMBED, "{P}embed_tokens.weight", EXF_IN_MODEL, 0, {EXF_DIM_VOCAB, EXF_DIM_H}, 0},                       \
    {EXF_W_FINAL_NORM, "{P}norm.weight", EXF_IN_MODEL, 0, {EXF_DIM_H}, norm},                                      \
    {EXF_W_MIXER_NORM, "{P}layers.{L}.input_layernorm.weight", EXF_IN_LAYER, 0, {EXF_DIM_H}, norm},                \
    {EXF_W_FFN_NORM, "{P}layers.{L}.post_attention_layernorm.weight", EXF_IN_LAYER, 0, {EXF_DIM_H}, norm}

#define EXF_RULES_MODEL(norm)                                                                                      \
    EXF_RULES_BODY(norm),                                                                                          \
    {EXF_W_HEAD, "lm_head.weight", EXF_IN_MODEL, EXF_T_UNTIED, {EXF_DIM_VOCAB, EXF_DIM_H}, EXF_MAY_BE_TIED}

/* The head of the text part of a model that sees, under the prefix of releases or without. */
#define EXF_RULES_PREFIXED_HEAD                                                                     \
    {EXF_W_HEAD, "language_model.lm_head.weight|lm_head.weight", EXF_IN_MODEL,                      \
     EXF_T_UNTIED, {EXF_DIM_VOCAB, EXF_DIM_H}, EXF_MAY_BE_TIED}

#define EXF_RULES_ATTENTION(norm)                                                                                              \
    {EXF_W_Q, "{P}layers.{L}.self_attn.q_proj.weight", EXF_IN_LAYER, EXF_T_ATTENTION, {EXF_DIM_Q, EXF_DIM_H}, EXF_LINEAR},     \
    {EXF_W_K, "{P}layers.{L}.self_attn.k_proj.weight", EXF_IN_LAYER, EXF_T_ATTENTION, {EXF_DIM_KV, EXF_DIM_H}, EXF_LINEAR},    \
    {EXF_W_V, "{P}layers.{L}.self_attn.v_proj.weight", EXF_IN_LAYER, EXF_T_ATTENTION, {EXF_DIM_KV, EXF_DIM_H}, EXF_LINEAR},    \
    {EXF_W_O, "{P}layers.{L}.self_attn.o_proj.weight", EXF_IN_LAYER, EXF_T_ATTENTION, {EXF_DIM_H, EXF_DIM_O}, EXF_LINEAR},     \
    {EXF_W_Q_BIAS, "{P}layers.{L}.self_attn.q_proj.bias", EXF_IN_LAYER, EXF_T_ATTENTION | EXF_T_QKV_BIAS, {EXF_DIM_Q}, 0},     \
    {EXF_W_K_BIAS, "{P}layers.{L}.self_attn.k_proj.bias", EXF_IN_LAYER, EXF_T_ATTENTION | EXF_T_QKV_BIAS, {EXF_DIM_KV}, 0},    \
    {EXF_W_V_BIAS, "{P}layers.{L}.self_attn.v_proj.bias", EXF_IN_LAYER, EXF_T_ATTENTION | EXF_T_QKV_BIAS, {EXF_DIM_KV}, 0},    \
    {EXF_W_O_BIAS, "{P}layers.{L}.self_attn.o_proj.bias", EXF_IN_LAYER, EXF_T_ATTENTION | EXF_T_O_BIAS, {EXF_DIM_H}, 0},       \
    {EXF_W_Q_NORM, "{P}layers.{L}.self_attn.q_norm.weight", EXF_IN_LAYER, EXF_T_ATTENTION | EXF_T_QK_NORM, {EXF_DIM_HEAD}, norm}, \
    {EXF_W_K_NORM, "{P}layers.{L}.self_attn.k_norm.weight", EXF_IN_LAYER, EXF_T_ATTENTION | EXF_T_QK_NORM, {EXF_DIM_HEAD}, norm}

/* Norms over the whole projected row of q and of k, before it is parted into heads. */
#define EXF_RULES_QK_NORM_ROW(norm)                                                     \
    {EXF_W_Q_NORM, "{P}layers.{L}.self_attn.q_norm.weight", EXF_IN_LAYER,               \
     EXF_T_ATTENTION | EXF_T_QK_NORM_ROW, {EXF_DIM_Q}, norm},                           \
    {EXF_W_K_NORM, "{P}layers.{L}.self_attn.k_norm.weight", EXF_IN_LAYER,               \
     EXF_T_ATTENTION | EXF_T_QK_NORM_ROW, {EXF_DIM_KV}, norm}

#define EXF_RULES_MLA                                                                                                  \
    {EXF_W_Q, "{P}layers.{L}.self_attn.q_proj.weight", EXF_IN_LAYER,                                                   \
     EXF_T_MLA | EXF_T_NO_Q_LORA, {EXF_DIM_Q, EXF_DIM_H}, EXF_LINEAR},                                                 \
    {EXF_W_Q_A, "{P}layers.{L}.self_attn.q_a_proj.weight", EXF_IN_LAYER,                                               \
     EXF_T_MLA | EXF_T_Q_LORA, {EXF_DIM_Q_RANK, EXF_DIM_H}, EXF_LINEAR},                                               \
    {EXF_W_Q_A_NORM, "{P}layers.{L}.self_attn.q_a_layernorm.weight", EXF_IN_LAYER,                                     \
     EXF_T_MLA | EXF_T_Q_LORA, {EXF_DIM_Q_RANK}, 0},                                                                   \
    {EXF_W_Q_B, "{P}layers.{L}.self_attn.q_b_proj.weight", EXF_IN_LAYER,                                               \
     EXF_T_MLA | EXF_T_Q_LORA, {EXF_DIM_Q, EXF_DIM_Q_RANK}, EXF_LINEAR},                                               \
    {EXF_W_KV_A, "{P}layers.{L}.self_attn.kv_a_proj_with_mqa.weight", EXF_IN_LAYER,                                    \
     EXF_T_MLA, {EXF_DIM_KV_A, EXF_DIM_H}, EXF_LINEAR},                                                                \
    {EXF_W_KV_A_NORM, "{P}layers.{L}.self_attn.kv_a_layernorm.weight", EXF_IN_LAYER, EXF_T_MLA, {EXF_DIM_KV_RANK}, 0}, \
    {EXF_W_KV_B, "{P}layers.{L}.self_attn.kv_b_proj.weight", EXF_IN_LAYER,                                             \
     EXF_T_MLA, {EXF_DIM_KV_B, EXF_DIM_KV_RANK}, EXF_LINEAR},                                                          \
    {EXF_W_O, "{P}layers.{L}.self_attn.o_proj.weight", EXF_IN_LAYER, EXF_T_MLA, {EXF_DIM_H, EXF_DIM_O}, EXF_LINEAR}

/* The indexer that chooses the tokens which latent attention sees. */
#define EXF_RULES_INDEXER                                                                                                     \
    {EXF_W_INDEX_Q, "{P}layers.{L}.self_attn.indexer.wq_b.weight", EXF_IN_LAYER,                                              \
     EXF_T_INDEXED, {EXF_DIM_INDEX_Q, EXF_DIM_Q_RANK}, EXF_LINEAR},                                                           \
    {EXF_W_INDEX_KV, "{P}layers.{L}.self_attn.indexer.wk.weight", EXF_IN_LAYER,                                               \
     EXF_T_INDEXED, {EXF_DIM_INDEX_DIM, EXF_DIM_H}, EXF_LINEAR},                                                              \
    {EXF_W_INDEX_WEIGHTS, "{P}layers.{L}.self_attn.indexer.weights_proj.weight", EXF_IN_LAYER,                                \
     EXF_T_INDEXED, {EXF_DIM_INDEX_HEADS, EXF_DIM_H}, 0},                                                                     \
    {EXF_W_INDEX_NORM, "{P}layers.{L}.self_attn.indexer.k_norm.weight", EXF_IN_LAYER, EXF_T_INDEXED, {EXF_DIM_INDEX_DIM}, 0}, \
    {EXF_W_INDEX_NORM_BIAS, "{P}layers.{L}.self_attn.indexer.k_norm.bias", EXF_IN_LAYER, EXF_T_INDEXED, {EXF_DIM_INDEX_DIM}, 0}

#define EXF_RULES_DENSE                                                                                                       \
    {EXF_W_DENSE_GATE, "{P}layers.{L}.mlp.gate_proj.weight", EXF_IN_LAYER, EXF_T_DENSE, {EXF_DIM_FFN, EXF_DIM_H}, EXF_LINEAR}, \
    {EXF_W_DENSE_UP, "{P}layers.{L}.mlp.up_proj.weight", EXF_IN_LAYER, EXF_T_DENSE, {EXF_DIM_FFN, EXF_DIM_H}, EXF_LINEAR},     \
    {EXF_W_DENSE_DOWN, "{P}layers.{L}.mlp.down_proj.weight", EXF_IN_LAYER, EXF_T_DENSE, {EXF_DIM_H, EXF_DIM_FFN}, EXF_LINEAR}

/* The routed experts with a tensor a matrix, each of these names whole. */
#define EXF_RULES_EACH_EXPERT(gate, up, down)                                                  \
    {EXF_W_EXPERT_GATE, gate, EXF_IN_EXPERT, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_LINEAR},   \
    {EXF_W_EXPERT_UP, up, EXF_IN_EXPERT, EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_LINEAR},       \
    {EXF_W_EXPERT_DOWN, down, EXF_IN_EXPERT, EXF_T_MOE, {EXF_DIM_H, EXF_DIM_I}, EXF_LINEAR}

/* how: 0 or EXF_FLOAT32. */
#define EXF_RULES_ROUTER(block, how) \
    {EXF_W_ROUTER, EXF_EITHER(block "gate.weight", "mlp.gate.weight"), EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E, EXF_DIM_H}, how}

/* Both.  block: "mlp."; gate, up, down: the names of an expert's matrices. */
#define EXF_RULES_EXPERTS(block, gate, up, down)                                               \
    EXF_RULES_ROUTER(block, 0),                                                                \
    EXF_RULES_EACH_EXPERT("{P}layers.{L}." block "experts.{E}." gate ".weight",                \
                          "{P}layers.{L}." block "experts.{E}." up ".weight",                  \
                          "{P}layers.{L}." block "experts.{E}." down ".weight")

/* Both in block_sparse_moe: releases name an expert's matrices w1, w3 and w2, llm-compressor and AutoRound as other families do,
 * and GPTQModel in their block, mlp. */
#define EXF_SPARSE_EXPERT(release, other)                                                                                    \
    EXF_EITHER("block_sparse_moe.experts.{E}." release ".weight", "block_sparse_moe.experts.{E}." other ".weight")           \
    "|{P}layers.{L}.mlp.experts.{E}." other ".weight"
#define EXF_RULES_SPARSE_EXPERTS(how)                                                          \
    EXF_RULES_ROUTER("block_sparse_moe.", how),                                                \
    EXF_RULES_EACH_EXPERT(EXF_SPARSE_EXPERT("w1", "gate_proj"), EXF_SPARSE_EXPERT("w3", "up_proj"), \
                          EXF_SPARSE_EXPERT("w2", "down_proj"))

/* The routed experts as transformers 5 holds them: [E, 2 I, H], each expert's gate above its up, and [E, H, I]. */
#define EXF_RULES_FUSED_EXPERTS                                                                                     \
    {EXF_W_EXPERT_GATE, "{P}layers.{L}.mlp.experts.gate_up_proj", EXF_IN_STACK,                                     \
     EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_FIRST_HALF},                                                            \
    {EXF_W_EXPERT_UP, "{P}layers.{L}.mlp.experts.gate_up_proj", EXF_IN_STACK,                                       \
     EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_SECOND_HALF},                                                           \
    {EXF_W_EXPERT_DOWN, "{P}layers.{L}.mlp.experts.down_proj", EXF_IN_STACK, EXF_T_MOE, {EXF_DIM_H, EXF_DIM_I}, 0}

/* The same with each expert's matrices transposed: [E, H, 2 I], gates before ups, and [E, I, H]. */
#define EXF_RULES_TRANSPOSED_EXPERTS                                                                                \
    {EXF_W_EXPERT_GATE, "{P}layers.{L}.mlp.experts.gate_up_proj", EXF_IN_STACK,                                     \
     EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_TRANSPOSED | EXF_FIRST_HALF},                                           \
    {EXF_W_EXPERT_UP, "{P}layers.{L}.mlp.experts.gate_up_proj", EXF_IN_STACK,                                       \
     EXF_T_MOE, {EXF_DIM_I, EXF_DIM_H}, EXF_TRANSPOSED | EXF_SECOND_HALF},                                          \
    {EXF_W_EXPERT_DOWN, "{P}layers.{L}.mlp.experts.down_proj", EXF_IN_STACK,                                        \
     EXF_T_MOE, {EXF_DIM_H, EXF_DIM_I}, EXF_TRANSPOSED}

/* name: "shared_expert" or "shared_experts". */
#define EXF_RULES_SHARED(name)                                                       \
    {EXF_W_SHARED_GATE, "{P}layers.{L}.mlp." name ".gate_proj.weight", EXF_IN_LAYER, \
     EXF_T_MOE | EXF_T_SHARED, {EXF_DIM_SHARED, EXF_DIM_H}, EXF_LINEAR},             \
    {EXF_W_SHARED_UP, "{P}layers.{L}.mlp." name ".up_proj.weight", EXF_IN_LAYER,     \
     EXF_T_MOE | EXF_T_SHARED, {EXF_DIM_SHARED, EXF_DIM_H}, EXF_LINEAR},             \
    {EXF_W_SHARED_DOWN, "{P}layers.{L}.mlp." name ".down_proj.weight", EXF_IN_LAYER, \
     EXF_T_MOE | EXF_T_SHARED, {EXF_DIM_H, EXF_DIM_SHARED}, EXF_LINEAR}

/* The bias on a sigmoid router's choices. */
#define EXF_RULES_CORRECTION_BIAS \
    {EXF_W_ROUTER_BIAS, "{P}layers.{L}.mlp.gate.e_score_correction_bias", EXF_IN_LAYER, EXF_T_MOE, {EXF_DIM_E}, 0}

/* A model of grouped-query attention, dense layers, and experts beside shared ones, but for the bias of its router. */
#define EXF_RULES_GROUPED_QUERY_MOE                                              \
    EXF_RULES_MODEL(0), EXF_RULES_ATTENTION(0), EXF_RULES_DENSE,                 \
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),              \
    EXF_RULES_FUSED_EXPERTS, EXF_RULES_SHARED("shared_experts")

/* The layers of a model of exf_configure_latent_moe(), but for their norms; and all of it. */
#define EXF_RULES_LATENT_LAYERS                                                  \
    EXF_RULES_MLA, EXF_RULES_DENSE,                                              \
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),              \
    EXF_RULES_FUSED_EXPERTS, EXF_RULES_SHARED("shared_experts"), EXF_RULES_CORRECTION_BIAS
#define EXF_RULES_LATENT_MOE EXF_RULES_MODEL(0), EXF_RULES_LATENT_LAYERS

/* The gate of a shared expert that has one. */
#define EXF_RULES_SHARED_SWITCH                                                      \
    {EXF_W_SHARED_SWITCH, "{P}layers.{L}.mlp.shared_expert_gate.weight", EXF_IN_LAYER, \
     EXF_T_MOE | EXF_T_SHARED, {EXF_DIM_ONE, EXF_DIM_H}, 0}

/* The gated delta rule, but for the projections of its input. */
#define EXF_RULES_DELTANET                                                                                                     \
    {EXF_W_DELTA_CONV, "{P}layers.{L}.linear_attn.conv1d.weight", EXF_IN_LAYER,                                                \
     EXF_T_DELTANET, {EXF_DIM_DELTA_QKV, EXF_DIM_ONE, EXF_DIM_DELTA_CONV}, 0},                                                 \
    {EXF_W_DELTA_DT_BIAS, "{P}layers.{L}.linear_attn.dt_bias", EXF_IN_LAYER, EXF_T_DELTANET, {EXF_DIM_DELTA_HEADS}, 0},        \
    {EXF_W_DELTA_A_LOG, "{P}layers.{L}.linear_attn.A_log", EXF_IN_LAYER, EXF_T_DELTANET, {EXF_DIM_DELTA_HEADS}, 0},            \
    {EXF_W_DELTA_NORM, "{P}layers.{L}.linear_attn.norm.weight", EXF_IN_LAYER, EXF_T_DELTANET, {EXF_DIM_DELTA_VALUE}, 0},       \
    {EXF_W_DELTA_OUT, "{P}layers.{L}.linear_attn.out_proj.weight", EXF_IN_LAYER,                                               \
     EXF_T_DELTANET, {EXF_DIM_H, EXF_DIM_DELTA_Z}, EXF_LINEAR}
#endif
