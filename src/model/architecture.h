/* architecture.h - exf_architecture describes a model: the parts of each decoder layer and
 * their sizes.  A family (family.h) fills it from config.json; the forward pass reads it
 * and never asks for the family.
 *
 *   layer l:  h <- residual(h, mixer[l](norm(h)))      attention of some kind
 *             h <- residual(h, ffn[l](norm(h)))        dense, or router + experts (+ shared experts)
 *
 * Letters: E routed experts, K experts per token, H hidden size, I expert width. */
#ifndef EXF_MODEL_ARCHITECTURE_H
#define EXF_MODEL_ARCHITECTURE_H
#include "base/names.h"
#include "base/text.h"

enum { EXF_MAX_LAYERS = 1024, EXF_MAX_EXPERTS = 4096, EXF_MAX_TOP_K = 64, EXF_MAX_STREAMS = 16 };

/* ---- positions ------------------------------------------------------------ */
/* Rotary embedding of `dim` dimensions in pairs (i, i + dim/2), or (2i, 2i+1) when
 * interleaved; dim 0: unused.  With yarn, frequencies are interpolated by `factor`. */
typedef struct {
    int dim, interleaved;
    double theta;
    int yarn;
    double factor, beta_fast, beta_slow, original_length; /* yarn only */
    int truncate;     /* yarn: correction range rounded to whole dimensions */
    double amplitude; /* on cosine and sine; 0 means 1 */
    int turned;       /* of `dim`, so many have a frequency, which are the first of both halves; the others stay.  0: all */
} exf_rope_spec;

enum { EXF_ROPE_MAIN, EXF_ROPE_COMPRESSED, EXF_ROPE_WIDE, EXF_ROPES };

/* ---- mixers ------------------------------------------------------------------ */
typedef enum {
    EXF_MIXER_ATTENTION,  /* grouped-query attention */
    EXF_MIXER_MLA,        /* multi-head latent attention */
    EXF_MIXER_DELTANET,   /* gated delta rule with causal convolution */
    EXF_MIXER_COMPRESSED, /* sliding window plus compressed entries, one shared key-value head */
    EXF_MIXER_KINDS
} exf_mixer_kind;

typedef struct {
    int n_heads, n_kv_heads; /* n_heads is a multiple of n_kv_heads */
    int head_dim;
    int gated; /* q rows hold per head [query | gate]; heads are multiplied by sigmoid(gate) */
    double clip; /* 0: none; else q and k, normed, and v are cut at +-clip before the rotation; not where gated */
    double score_scale; /* the whole factor on q.k; 0: 1/sqrt(head_dim) */
    int wide_kv_heads, wide_head_dim; /* of layers with EXF_T_WIDE, whose rotation is EXF_ROPE_WIDE; 0: there are none */
    int window[EXF_MAX_LAYERS]; /* a token sees that many tokens, itself the last of them; 0: all before */
} exf_attention_spec;        /* biases, q/k norms and sinks: where the layer has the weights */

typedef struct {
    int n_heads, q_rank; /* q_rank 0: no low-rank q */
    int kv_rank, nope_dim, rope_dim, v_dim;
    double score_scale;  /* the whole factor on q.k */
    double norm_eps;     /* of the norms of the low ranks; 0: that of all norms */
    double query_beta;   /* 0: none; else queries are multiplied by 1 + query_beta ln(1 + floor(position / query_length)) */
    double query_length;
    int index_heads, index_dim, index_topk; /* index_topk 0: no indexer; else a token sees that many of those before it */
    int index_shared;                       /* 1: layers without the trait INDEXED see what the last one with it chose */
    int index_interleaved;                  /* how the indexer's rope_dim first dimensions of a head are rotated */
} exf_mla_spec;

typedef struct {
    int n_key_heads, n_value_heads, key_dim, value_dim; /* per head */
    int conv_width;
} exf_deltanet_spec;

typedef struct {
    int n_heads, head_dim, rope_dim, q_rank, o_groups, o_rank, window;
    int index_heads, index_dim, index_topk;
    int ratio[EXF_MAX_LAYERS]; /* tokens per compressed entry; 0: window only; 4: overlapping, indexed */
} exf_compressed_spec;

/* ---- residual --------------------------------------------------------------------- */
typedef struct {
    int streams; /* 1: h + f(h).  Above: manifold-constrained hyper-connections */
    int sinkhorn_iterations;
    double eps;
    int normed; /* 1, with one stream: what mixers and blocks give is normed before it is added, the routed sum and the shared
                 * experts' output are before that, and the layer's result is scaled (pass/experts.h) */
} exf_residual_spec;

/* ---- router -------------------------------------------------------------------------- */
typedef enum { EXF_GROUP_MAX, EXF_GROUP_TOP2_SUM } exf_group_score;
typedef struct {
    exf_router_score score;        /* over all E; softmax in double */
    int n_groups, top_groups; /* n_groups 1: no groups */
    exf_group_score group_score;
    int renormalise;      /* chosen scores are divided by (their sum + epsilon) */
    double epsilon;
    int expert_scaled;    /* 1: weights are multiplied by a factor of the expert, after the next */
    double scaling;       /* on the weights, after that */
    double input_scale;   /* on the logits; 0: 1 */
} exf_router_spec;        /* a correction bias or a token table: where the layer has the weights */

/* ---- traits: properties of a layer, as bits that tensor rules require ------------------ */
enum {
    EXF_T_DENSE = 1 << 0, EXF_T_MOE = 1 << 1,
    EXF_T_ATTENTION = 1 << 2, EXF_T_MLA = 1 << 3, EXF_T_DELTANET = 1 << 4, EXF_T_COMPRESSED = 1 << 5,
    EXF_T_QKV_BIAS = 1 << 6, EXF_T_QK_NORM = 1 << 7, EXF_T_Q_LORA = 1 << 8, EXF_T_NO_Q_LORA = 1 << 9,
    EXF_T_SHARED = 1 << 10, EXF_T_SCORED = 1 << 11, EXF_T_HASHED = 1 << 12,
    EXF_T_O_BIAS = 1 << 13,
    EXF_T_RATIO_SHORT = 1 << 14, EXF_T_RATIO_LONG = 1 << 15,
    EXF_T_UNTIED = 1 << 16,
    EXF_T_QK_NORM_ROW = 1 << 17, /* q and k normed over the whole projected row, not head by head */
    EXF_T_SINK = 1 << 18, EXF_T_EXPERT_BIAS = 1 << 19, EXF_T_ROUTER_SHIFT = 1 << 20,
    EXF_T_WIDE = 1 << 21, EXF_T_NARROW = 1 << 22, /* heads of wide_head_dim, or of head_dim where a model has both */
    EXF_T_OWN_VALUES = 1 << 23, /* of layers whose heads are wide or narrow: v has a matrix, else it is k before its norm */
    EXF_T_V_NORM = 1 << 24,     /* value heads are normed, without weights */
    EXF_T_INDEXED = 1 << 25     /* an indexer chooses the tokens that latent attention sees */
};

/* ---- axis lengths that tensor rules name; a family sets those it uses ----------------- */
typedef enum {
    EXF_DIM_NONE, EXF_DIM_ONE, EXF_DIM_H, EXF_DIM_VOCAB, EXF_DIM_FFN, EXF_DIM_E, EXF_DIM_K, EXF_DIM_I, EXF_DIM_SHARED,
    EXF_DIM_Q, EXF_DIM_KV, EXF_DIM_HEAD, EXF_DIM_O,        /* projected q, k or v, one head, input of o */
    EXF_DIM_Q_RANK, EXF_DIM_KV_RANK, EXF_DIM_KV_A, EXF_DIM_KV_B,
    EXF_DIM_DELTA_QKV, EXF_DIM_DELTA_Z, EXF_DIM_DELTA_HEADS, EXF_DIM_DELTA_CONV, EXF_DIM_DELTA_VALUE,
    EXF_DIM_DELTA_KEY, EXF_DIM_DELTA_GROUPS, EXF_DIM_DELTA_GROUP_HEADS, EXF_DIM_DELTA_GROUP_VALUES, /* of one key head */
    EXF_DIM_STREAMS, EXF_DIM_STREAMS_H, EXF_DIM_STREAMS_MIX, EXF_DIM_THREE,
    EXF_DIM_HEADS, EXF_DIM_O_A_IN, EXF_DIM_O_A_OUT, EXF_DIM_SHORT, EXF_DIM_LONG, EXF_DIM_TWO_HEADS_DIM,
    EXF_DIM_INDEX_Q, EXF_DIM_INDEX_HEADS, EXF_DIM_INDEX_DIM, EXF_DIM_TWO_INDEX_DIM,
    EXF_DIM_WIDE_Q, EXF_DIM_WIDE_KV, EXF_DIM_WIDE_HEAD,
    EXF_DIM_COUNT
} exf_dim;

typedef struct {
    int n_layers, d_model, vocab; /* d_model = H */
    int tied_embeddings;          /* the head is the embedding */
    double positions; /* the longest sequence that the model is made for, in tokens; 0: config.json does not say */
    double norm_eps;
    double embed_scale; /* on the embedding; 0: 1 */
    double logit_scale; /* on the logits; 0: 1 */
    double logit_cap;   /* logits become cap tanh(logit / cap); 0: they stay */
    exf_rope_spec rope[EXF_ROPES];
    exf_attention_spec attention;
    exf_mla_spec mla;
    exf_deltanet_spec deltanet;
    exf_compressed_spec compressed;
    exf_residual_spec residual;
    int d_ffn;                      /* width of dense layers; 0 if there are none */
    int n_experts, top_k, d_expert; /* E, K, I */
    int d_shared;                   /* width of the shared experts together; 0: none */
    int gelu;                       /* 1: gelu(gate) up by the tanh form, with none of the next three */
    double swiglu_limit;            /* 0: none; else gate <= limit, |up| <= limit before the product */
    double swiglu_slope, swiglu_shift; /* slope 0: silu(gate) up; else gate sigmoid(slope gate) (up + shift) */
    exf_router_spec router;
    exf_mixer_kind mixer[EXF_MAX_LAYERS];
    unsigned char is_moe[EXF_MAX_LAYERS]; /* else a dense SwiGLU */
    unsigned traits[EXF_MAX_LAYERS];
    unsigned model_traits; /* EXF_T_UNTIED: for tensors outside layers */
    int n_moe_layers;
    int dim[EXF_DIM_COUNT];
    const char *prefix; /* what {P} in tensor names stands for */
} exf_architecture;

/* Writes to an empty text what architectures are compared by: a word NAME=VALUE for every field that the forward pass
 * reads, in the order of the table in architecture.c.  A field that is 0 has no word, so that fields which are added later leave
 * the texts of models that lack them as they were.  Numbers are decimal, reals as short as reads back; what each layer has is a
 * list of VALUE*LAYERS.  Where a checkpoint has its tensors, and under which names, is not in it. */
exf_code exf_architecture_text(exf_text *out, const exf_architecture *a, exf_err *err) EXF_CHECKED;
#endif
