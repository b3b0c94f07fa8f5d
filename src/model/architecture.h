/* architecture.h - what a config.json means: which parts a decoder layer is
 * made of and their sizes.  A family (family.h) fills it; the forward reads it
 * and never asks which family it was.
 *
 * Letters: E routed experts, K experts per token, H hidden size, I expert width. */
#ifndef EXF_MODEL_ARCHITECTURE_H
#define EXF_MODEL_ARCHITECTURE_H

enum { EXF_MAX_LAYERS = 1024, EXF_MAX_EXPERTS = 4096, EXF_MAX_TOP_K = 64 };

/* Per-head RMS norm of q and k before RoPE. */
typedef enum { EXF_QK_NORM_NONE, EXF_QK_NORM_HEAD } exf_qk_norm;

/* Grouped-query attention with rotary positions. */
typedef struct {
    int n_heads, n_kv_heads; /* n_heads is a multiple of n_kv_heads */
    int head_dim;
    int rope_dim;            /* first dims of a head that rotate; pairs (i, i + rope_dim/2) */
    double rope_theta;
    int qkv_bias;            /* q, k and v have a bias, o has none */
    exf_qk_norm qk_norm;
} exf_attention_spec;

/* Scores, choice and weights of the router. */
typedef enum { EXF_SCORE_SOFTMAX } exf_score;
typedef struct {
    exf_score score; /* over all E */
    int renormalise; /* chosen weights are divided by their sum */
} exf_router_spec;

typedef struct {
    int n_layers, d_model, vocab; /* d_model = H */
    int tied_embeddings;          /* the head is the embedding */
    double norm_eps;
    exf_attention_spec attention;
    int d_ffn;                    /* width of dense layers; 0 if there are none */
    int n_experts, top_k, d_expert; /* E, K, I */
    exf_router_spec router;
    unsigned char is_moe[EXF_MAX_LAYERS]; /* else a dense SwiGLU */
    int n_moe_layers;
} exf_architecture;

#endif
