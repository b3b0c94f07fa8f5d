/* family_deepseek_v4.c - DeepSeek-V4 (Flash, Pro, Base), in the names of its own
 * release (no "model." before a tensor's name, w1, w3, w2 for gate, up, down) or in
 * those that transformers writes.
 *
 * Several residual streams (hyper-connections) around every site; a sliding
 * window plus compressed entries with one shared key-value head; every layer a
 * mixture of experts, the first ones routed by a table of token ids; clamped
 * SwiGLU.  What differs from layer to layer (compression, routing) comes either
 * as the release writes it (compress_ratios, num_hash_layers) or as transformers
 * normalises it (layer_types + compress_rates, mlp_layer_types). */
#include "model/rules.h"

#include <string.h>

enum { SHORT_RATIO = 4 /* tokens per entry of the overlapping, indexed kind */, MOST_RATIO = 1 << 20 };

/* ---- which layer compresses how ------------------------------------------------ */

typedef struct {
    const exf_json *ratios, *types; /* the two spellings of the schedule; NULL where absent */
    int long_ratio;                 /* what "heavily" stands for in `types` */
} schedule;

static exf_code read_schedule(const exf_config *c, int n_layers, schedule *s, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_config_layer_list(c, "compress_ratios", n_layers, 1, &s->ratios, err));
    EXF_TRY(exf_config_layer_list(c, "layer_types", n_layers, 1, &s->types, err));
    EXF_TRY(exf_config_must_be(c, "compress_rates.compressed_sparse_attention|compress_rate_csa", "4", err));
    EXF_TRY(exf_config_int_or(c, "compress_rates.heavily_compressed_attention|compress_rate_hca", SHORT_RATIO + 1, MOST_RATIO, 128,
                              &s->long_ratio, err));
    if (!s->ratios && !s->types)
        rc = exf_fail(err, EXF_MODEL, "%s: neither \"compress_ratios\" nor \"layer_types\" says how layers compress", c->path);
out:
    return rc;
}

static exf_code ratio_by_number(const exf_config *c, const schedule *s, int layer, int *ratio, exf_err *err)
{
    const exf_json *j = exf_json_at(s->ratios, (size_t)layer);
    int64_t v = exf_json_int(j);
    if (exf_json_type(j) != EXF_JSON_INT)
        return exf_fail(err, EXF_MODEL, "%s: \"compress_ratios\"[%d] is %s, expected an integer", c->path, layer,
                        exf_json_type_name(j));
    if (v < 0 || v > MOST_RATIO)
        return exf_fail(err, EXF_MODEL, "%s: \"compress_ratios\"[%d] is %lld, expected 0 to %d", c->path, layer, (long long)v,
                        MOST_RATIO);
    *ratio = (int)v;
    return EXF_OK;
}

static exf_code ratio_of(const exf_config *c, const schedule *s, int layer, int *ratio, exf_err *err)
{
    static const char *const words[] = {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", NULL};
    const int ratios[] = {0, SHORT_RATIO, s->long_ratio};
    exf_code rc = EXF_OK;
    int which = 0;
    if (s->types) EXF_TRY(exf_config_layer_word(c, "layer_types", s->types, layer, words, &which, err));
    int by_type = *ratio = ratios[which];
    if (s->ratios) EXF_TRY(ratio_by_number(c, s, layer, ratio, err));
    if (s->types && *ratio != by_type)
        rc = exf_fail(err, EXF_MODEL, "%s: layer %d compresses %d tokens by \"compress_ratios\", %d by \"layer_types\"", c->path,
                      layer, *ratio, by_type);
out:
    return rc;
}

/* One axis length serves all tensors of the long kind, so its layers must agree. */
static exf_code set_ratio(const exf_config *c, exf_architecture *a, int layer, int ratio, exf_err *err)
{
    a->compressed.ratio[layer] = ratio;
    if (ratio == 0) return EXF_OK;
    a->traits[layer] |= ratio == SHORT_RATIO ? EXF_T_RATIO_SHORT : EXF_T_RATIO_LONG;
    int *known = &a->dim[ratio == SHORT_RATIO ? EXF_DIM_SHORT : EXF_DIM_LONG];
    if (*known && *known != ratio)
        return exf_fail(err, EXF_MODEL,
                        "%s: layer %d compresses %d tokens into one, an earlier one %d: ratios other than 0 and %d must be equal",
                        c->path, layer, ratio, *known, SHORT_RATIO);
    *known = ratio;
    return EXF_OK;
}

/* ---- which layer routes how ------------------------------------------------------ */

static exf_code configure_moe(const exf_config *c, exf_architecture *a, exf_err *err)
{
    static const char *const words[] = {"hash_moe", "moe", NULL};
    exf_code rc;
    const exf_json *types;
    int n_hash;
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_config_must_be(c, "n_shared_experts", "1", err));
    EXF_TRY(exf_config_must_be(c, "scoring_func", "sqrtsoftplus", err));
    EXF_TRY(exf_config_must_be(c, "norm_topk_prob", "true", err));
    EXF_TRY(exf_config_must_be(c, "mlp_bias", "false", err));
    EXF_TRY(exf_config_real_or(c, "routed_scaling_factor", 1.5, &a->router.scaling, err));
    EXF_TRY(exf_config_real_or(c, "swiglu_limit", 10, &a->swiglu_limit, err));
    EXF_TRY(exf_config_layer_list(c, "mlp_layer_types", a->n_layers, 1, &types, err));
    EXF_TRY(exf_config_int_or(c, "num_hash_layers", 0, EXF_MAX_LAYERS, 3, &n_hash, err));
    for (int l = 0; l < a->n_layers; l++) {
        int scored = l >= n_hash;
        if (types) EXF_TRY(exf_config_layer_word(c, "mlp_layer_types", types, l, words, &scored, err));
        a->is_moe[l] = 1;
        a->traits[l] |= EXF_T_SHARED | (scored ? EXF_T_SCORED : EXF_T_HASHED);
    }
    a->d_shared = a->d_expert;
    a->router.score = EXF_ROUTER_SQRT_SOFTPLUS;
    a->router.renormalise = 1;
    a->router.epsilon = 1e-20;
out:
    return rc;
}

/* ---- attention ------------------------------------------------------------------------ */

#define YARN(field) "rope_scaling." field "|rope_parameters." field "|rope_parameters.compress." field

/* Window-only layers rotate plainly; compressing ones, their entries and their
 * indexer by another base with YaRN, whose amplitude this family leaves at 1. */
static exf_code configure_rope(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_rope_spec *plain = &a->rope[EXF_ROPE_MAIN], *r = &a->rope[EXF_ROPE_COMPRESSED];
    const char *kind;
    *plain = *r = (exf_rope_spec){.dim = a->compressed.rope_dim, .interleaved = 1};
    EXF_TRY(exf_config_real_or(c, "rope_theta|rope_parameters.main.rope_theta", 10000, &plain->theta, err));
    EXF_TRY(exf_config_real_or(c, "compress_rope_theta|rope_parameters.compress.rope_theta", 160000, &r->theta, err));
    EXF_TRY(exf_config_must_be(c, "rope_parameters.main.rope_type", "default", err));
    EXF_TRY(exf_config_text_or(c, YARN("type") "|" YARN("rope_type"), "default", &kind, err));
    if (strcmp(kind, "default") == 0) return EXF_OK;
    if (strcmp(kind, "yarn") != 0)
        return exf_fail(err, EXF_MODEL, "%s: rope scaling \"%s\" is not supported (supported: default, yarn)", c->path, kind);
    r->yarn = 1;
    EXF_TRY(exf_config_real(c, YARN("factor"), &r->factor, err));
    EXF_TRY(exf_config_real_or(c, YARN("beta_fast"), 32, &r->beta_fast, err));
    EXF_TRY(exf_config_real_or(c, YARN("beta_slow"), 1, &r->beta_slow, err));
    EXF_TRY(exf_config_real(c, YARN("original_max_position_embeddings"), &r->original_length, err));
    EXF_TRY(exf_config_bool_or(c, YARN("truncate"), 1, &r->truncate, err));
    EXF_TRY(exf_config_real_or(c, YARN("attention_factor"), 1, &r->amplitude, err));
out:
    return rc;
}

/* qk_rope_head_dim, or the fraction of a head that it is. */
static exf_code configure_rope_dim(const exf_config *c, exf_compressed_spec *s, exf_err *err)
{
    exf_code rc;
    double part;
    EXF_TRY(exf_configure_rotary_part(c, 64.0 / 512, &part, err));
    EXF_TRY(exf_config_int_or(c, "qk_rope_head_dim", 2, 4096, (int)(s->head_dim * part), &s->rope_dim, err));
    if (s->rope_dim < 2 || s->rope_dim % 2 || s->rope_dim > s->head_dim || s->rope_dim > s->index_dim)
        rc = exf_fail(err, EXF_MODEL,
                      "%s: %d rotary dimensions in heads of %d and index heads of %d, expected an even number within", c->path,
                      s->rope_dim, s->head_dim, s->index_dim);
out:
    return rc;
}

static exf_code configure_attention(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_compressed_spec *s = &a->compressed;
    EXF_TRY(exf_config_int(c, "num_attention_heads", 1, 1024, &s->n_heads, err));
    EXF_TRY(exf_config_must_be(c, "num_key_value_heads", "1", err));
    EXF_TRY(exf_config_must_be(c, "attention_bias", "false", err));
    EXF_TRY(exf_config_int(c, "head_dim", 2, 4096, &s->head_dim, err));
    EXF_TRY(exf_config_int(c, "q_lora_rank", 1, 1 << 16, &s->q_rank, err));
    EXF_TRY(exf_config_int(c, "o_groups", 1, s->n_heads, &s->o_groups, err));
    EXF_TRY(exf_config_int(c, "o_lora_rank", 1, 1 << 16, &s->o_rank, err));
    EXF_TRY(exf_config_int(c, "sliding_window", 1, 1 << 20, &s->window, err));
    EXF_TRY(exf_config_int(c, "index_n_heads", 1, 1024, &s->index_heads, err));
    EXF_TRY(exf_config_int(c, "index_head_dim", 2, 4096, &s->index_dim, err));
    EXF_TRY(exf_config_int(c, "index_topk", 1, 1 << 20, &s->index_topk, err));
    EXF_TRY(configure_rope_dim(c, s, err));
    EXF_TRY(configure_rope(c, a, err));
    if (s->n_heads % s->o_groups)
        rc = exf_fail(err, EXF_MODEL, "%s: %d attention heads are no multiple of %d output groups", c->path, s->n_heads,
                      s->o_groups);
    a->dim[EXF_DIM_HEADS] = s->n_heads;
    a->dim[EXF_DIM_HEAD] = s->head_dim;
    a->dim[EXF_DIM_TWO_HEADS_DIM] = 2 * s->head_dim;
    a->dim[EXF_DIM_Q] = s->n_heads * s->head_dim;
    a->dim[EXF_DIM_Q_RANK] = s->q_rank;
    a->dim[EXF_DIM_O_A_IN] = s->n_heads * s->head_dim / s->o_groups;
    a->dim[EXF_DIM_O_A_OUT] = s->o_groups * s->o_rank;
    a->dim[EXF_DIM_INDEX_Q] = s->index_heads * s->index_dim;
    a->dim[EXF_DIM_INDEX_HEADS] = s->index_heads;
    a->dim[EXF_DIM_INDEX_DIM] = s->index_dim;
    a->dim[EXF_DIM_TWO_INDEX_DIM] = 2 * s->index_dim;
    for (int l = 0; l < a->n_layers; l++) a->mixer[l] = EXF_MIXER_COMPRESSED;
out:
    return rc;
}

/* ---- residual streams ------------------------------------------------------------------ */

static exf_code configure_streams(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_residual_spec *r = &a->residual;
    EXF_TRY(exf_config_int(c, "hc_mult", 2, EXF_MAX_STREAMS, &r->streams, err));
    EXF_TRY(exf_config_int_or(c, "hc_sinkhorn_iters", 1, 10000, 20, &r->sinkhorn_iterations, err));
    EXF_TRY(exf_config_real_or(c, "hc_eps", 1e-6, &r->eps, err));
    a->dim[EXF_DIM_STREAMS] = r->streams;
    a->dim[EXF_DIM_STREAMS_H] = r->streams * a->d_model;
    a->dim[EXF_DIM_STREAMS_MIX] = (2 + r->streams) * r->streams;
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(configure_moe(c, a, err));
    EXF_TRY(configure_attention(c, a, err));
    schedule s;
    EXF_TRY(read_schedule(c, a->n_layers, &s, err));
    for (int l = 0; l < a->n_layers; l++) {
        int ratio;
        EXF_TRY(ratio_of(c, &s, l, &ratio, err));
        EXF_TRY(set_ratio(c, a, l, ratio, err));
    }
    EXF_TRY(configure_streams(c, a, err));
out:
    return rc;
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* Names of the release, and of transformers; those of the release as transformers writes them back differ from both in places. */
#define LAYER "{P}layers.{L}."
#define ATTN(name, other) EXF_EITHER("attn." name, "self_attn." other)
#define FFN(name, other) EXF_EITHER("ffn." name, "mlp." other)
#define COMPRESSOR(name, other) ATTN("compressor." name, "compressor." other)
#define INDEXER(name, other) ATTN("indexer." name, "compressor.indexer." other)

static const exf_tensor_rule rules[] = {
    {EXF_W_EMBED, "{P}embed.weight|{P}embed_tokens.weight", EXF_IN_MODEL, 0, {EXF_DIM_VOCAB, EXF_DIM_H}, 0},
    {EXF_W_FINAL_NORM, "{P}norm.weight", EXF_IN_MODEL, 0, {EXF_DIM_H}, 0},
    {EXF_W_HEAD, "head.weight|lm_head.weight", EXF_IN_MODEL, EXF_T_UNTIED, {EXF_DIM_VOCAB, EXF_DIM_H}, EXF_MAY_BE_TIED},
    {EXF_W_HEAD_MIX, "{P}hc_head_fn|{P}hc_head.hc_fn", EXF_IN_MODEL, 0, {EXF_DIM_STREAMS, EXF_DIM_STREAMS_H}, 0},
    {EXF_W_HEAD_MIX_BASE, "{P}hc_head_base|{P}hc_head.hc_base", EXF_IN_MODEL, 0, {EXF_DIM_STREAMS}, 0},
    {EXF_W_HEAD_MIX_SCALE, "{P}hc_head_scale|{P}hc_head.hc_scale", EXF_IN_MODEL, 0, {EXF_DIM_ONE}, 0},

    {EXF_W_MIXER_NORM, EXF_EITHER("attn_norm.weight", "input_layernorm.weight"), EXF_IN_LAYER, 0, {EXF_DIM_H}, 0},
    {EXF_W_MIXER_MIX, EXF_EITHER("hc_attn_fn", "attn_hc.fn"), EXF_IN_LAYER, 0, {EXF_DIM_STREAMS_MIX, EXF_DIM_STREAMS_H}, 0},
    {EXF_W_MIXER_MIX_BASE, EXF_EITHER("hc_attn_base", "attn_hc.base"), EXF_IN_LAYER, 0, {EXF_DIM_STREAMS_MIX}, 0},
    {EXF_W_MIXER_MIX_SCALE, EXF_EITHER("hc_attn_scale", "attn_hc.scale"), EXF_IN_LAYER, 0, {EXF_DIM_THREE}, 0},
    {EXF_W_FFN_NORM, EXF_EITHER("ffn_norm.weight", "post_attention_layernorm.weight"), EXF_IN_LAYER, 0, {EXF_DIM_H}, 0},
    {EXF_W_FFN_MIX, EXF_EITHER("hc_ffn_fn", "ffn_hc.fn"), EXF_IN_LAYER, 0, {EXF_DIM_STREAMS_MIX, EXF_DIM_STREAMS_H}, 0},
    {EXF_W_FFN_MIX_BASE, EXF_EITHER("hc_ffn_base", "ffn_hc.base"), EXF_IN_LAYER, 0, {EXF_DIM_STREAMS_MIX}, 0},
    {EXF_W_FFN_MIX_SCALE, EXF_EITHER("hc_ffn_scale", "ffn_hc.scale"), EXF_IN_LAYER, 0, {EXF_DIM_THREE}, 0},

    {EXF_W_Q_A, ATTN("wq_a.weight", "q_a_proj.weight"), EXF_IN_LAYER, EXF_T_COMPRESSED, {EXF_DIM_Q_RANK, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_Q_A_NORM, ATTN("q_norm.weight", "q_a_norm.weight"), EXF_IN_LAYER, EXF_T_COMPRESSED, {EXF_DIM_Q_RANK}, 0},
    {EXF_W_Q_B, ATTN("wq_b.weight", "q_b_proj.weight"), EXF_IN_LAYER, EXF_T_COMPRESSED, {EXF_DIM_Q, EXF_DIM_Q_RANK}, EXF_LINEAR},
    {EXF_W_KV, ATTN("wkv.weight", "kv_proj.weight"), EXF_IN_LAYER, EXF_T_COMPRESSED, {EXF_DIM_HEAD, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_KV_NORM, ATTN("kv_norm.weight", "kv_norm.weight") "|" LAYER "attn.norm.weight", EXF_IN_LAYER,
     EXF_T_COMPRESSED, {EXF_DIM_HEAD}, 0},
    {EXF_W_SINK, ATTN("attn_sink", "sinks"), EXF_IN_LAYER, EXF_T_COMPRESSED, {EXF_DIM_HEADS}, 0},
    {EXF_W_O_A, ATTN("wo_a.weight", "o_a_proj.weight"), EXF_IN_LAYER,
     EXF_T_COMPRESSED, {EXF_DIM_O_A_OUT, EXF_DIM_O_A_IN}, EXF_LINEAR},
    {EXF_W_O_B, ATTN("wo_b.weight", "o_b_proj.weight"), EXF_IN_LAYER, EXF_T_COMPRESSED, {EXF_DIM_H, EXF_DIM_O_A_OUT}, EXF_LINEAR},

    /* of the compressor: twice as wide where entries overlap */
    {EXF_W_COMPRESS_KV, COMPRESSOR("wkv.weight", "kv_proj.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_TWO_HEADS_DIM, EXF_DIM_H}, 0},
    {EXF_W_COMPRESS_GATE, COMPRESSOR("wgate.weight", "gate_proj.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_TWO_HEADS_DIM, EXF_DIM_H}, 0},
    {EXF_W_COMPRESS_APE, COMPRESSOR("ape", "position_bias"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_SHORT, EXF_DIM_TWO_HEADS_DIM}, 0},
    {EXF_W_COMPRESS_NORM, COMPRESSOR("norm.weight", "kv_norm.weight"), EXF_IN_LAYER, EXF_T_RATIO_SHORT, {EXF_DIM_HEAD}, 0},
    {EXF_W_COMPRESS_KV, COMPRESSOR("wkv.weight", "kv_proj.weight"), EXF_IN_LAYER, EXF_T_RATIO_LONG, {EXF_DIM_HEAD, EXF_DIM_H}, 0},
    {EXF_W_COMPRESS_GATE, COMPRESSOR("wgate.weight", "gate_proj.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_LONG, {EXF_DIM_HEAD, EXF_DIM_H}, 0},
    {EXF_W_COMPRESS_APE, COMPRESSOR("ape", "position_bias"), EXF_IN_LAYER, EXF_T_RATIO_LONG, {EXF_DIM_LONG, EXF_DIM_HEAD}, 0},
    {EXF_W_COMPRESS_NORM, COMPRESSOR("norm.weight", "kv_norm.weight"), EXF_IN_LAYER, EXF_T_RATIO_LONG, {EXF_DIM_HEAD}, 0},
    {EXF_W_INDEX_Q, INDEXER("wq_b.weight", "q_b_proj.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_INDEX_Q, EXF_DIM_Q_RANK}, EXF_LINEAR},
    {EXF_W_INDEX_WEIGHTS, INDEXER("weights_proj.weight", "scorer.weights_proj.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_INDEX_HEADS, EXF_DIM_H}, 0},
    {EXF_W_INDEX_KV, INDEXER("compressor.wkv.weight", "kv_proj.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_TWO_INDEX_DIM, EXF_DIM_H}, 0},
    {EXF_W_INDEX_GATE, INDEXER("compressor.wgate.weight", "gate_proj.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_TWO_INDEX_DIM, EXF_DIM_H}, 0},
    {EXF_W_INDEX_APE, INDEXER("compressor.ape", "position_bias"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_SHORT, EXF_DIM_TWO_INDEX_DIM}, 0},
    {EXF_W_INDEX_NORM, INDEXER("compressor.norm.weight", "kv_norm.weight"), EXF_IN_LAYER,
     EXF_T_RATIO_SHORT, {EXF_DIM_INDEX_DIM}, 0},

    EXF_RULES_EXPERTS("ffn.", "w1", "w3", "w2"),
    EXF_RULES_FUSED_EXPERTS,
    {EXF_W_ROUTER_BIAS, FFN("gate.bias", "gate.e_score_correction_bias"), EXF_IN_LAYER, EXF_T_MOE | EXF_T_SCORED, {EXF_DIM_E}, 0},
    {EXF_W_ROUTER_TABLE, FFN("gate.tid2eid", "gate.tid2eid"), EXF_IN_LAYER,
     EXF_T_MOE | EXF_T_HASHED, {EXF_DIM_VOCAB, EXF_DIM_K}, EXF_INTEGER},
    {EXF_W_SHARED_GATE, FFN("shared_experts.w1.weight", "shared_experts.gate_proj.weight"), EXF_IN_LAYER,
     EXF_T_MOE | EXF_T_SHARED, {EXF_DIM_SHARED, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_SHARED_UP, FFN("shared_experts.w3.weight", "shared_experts.up_proj.weight"), EXF_IN_LAYER,
     EXF_T_MOE | EXF_T_SHARED, {EXF_DIM_SHARED, EXF_DIM_H}, EXF_LINEAR},
    {EXF_W_SHARED_DOWN, FFN("shared_experts.w2.weight", "shared_experts.down_proj.weight"), EXF_IN_LAYER,
     EXF_T_MOE | EXF_T_SHARED, {EXF_DIM_H, EXF_DIM_SHARED}, EXF_LINEAR},
};

const exf_family exf_family_deepseek_v4 = {
    .name = "deepseek_v4",
    .architecture = "DeepseekV4ForCausalLM",
    .configure = configure,
    .prefixes = {"", "model."},
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"mtp.", "{P}mtp."},
};
