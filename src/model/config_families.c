/* config_families.c - fills what several families share of an architecture: sizes, attention, RoPE, routers, dense layers; see
 * config.h. */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

exf_code exf_configure_sizes(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_config_int(c, "hidden_size", 1, 1 << 20, &a->d_model, err));
    EXF_TRY(exf_config_int(c, "num_hidden_layers", 1, EXF_MAX_LAYERS, &a->n_layers, err));
    EXF_TRY(exf_config_int(c, "vocab_size", 1, 1 << 24, &a->vocab, err));
    EXF_TRY(exf_config_real_or(c, "max_position_embeddings", 0, &a->positions, err));
    EXF_TRY(exf_config_real_or(c, "rms_norm_eps", 1e-6, &a->norm_eps, err));
    EXF_TRY(exf_config_bool_or(c, "tie_word_embeddings", 0, &a->tied_embeddings, err));
    EXF_TRY(exf_config_must_be(c, "hidden_act", "silu", err));
out:
    return rc;
}

exf_code exf_configure_experts(const exf_config *c, exf_architecture *a, const char *width, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_config_int(c, "num_experts|num_local_experts|n_routed_experts|moe_num_experts", 2, EXF_MAX_EXPERTS, &a->n_experts,
                           err));
    EXF_TRY(exf_config_int(c, "num_experts_per_tok|moe_k", 1, EXF_MAX_TOP_K, &a->top_k, err));
    EXF_TRY(exf_config_int(c, width, 1, 1 << 20, &a->d_expert, err));
    if (a->top_k > a->n_experts)
        rc = exf_fail(err, EXF_MODEL, "%s: %d experts per token, but only %d experts", c->path, a->top_k, a->n_experts);
out:
    return rc;
}

exf_code exf_configure_rotary_part(const exf_config *c, double fallback, double *part, exf_err *err)
{
    static const char inner[] = "rope_parameters.partial_rotary_factor", outer[] = "partial_rotary_factor";
    const exf_json *said;
    exf_code rc = exf_config_find(c, inner, &said, err);
    if (rc == EXF_OK) rc = exf_config_real_or(c, said ? inner : outer, fallback, part, err);
    if (rc != EXF_OK || (*part > 0 && *part <= 1)) return rc;
    return exf_fail(err, EXF_MODEL, "%s: \"partial_rotary_factor\" is %g, expected a number above 0, at most 1", c->path, *part);
}

/* 0.1 k ln s + 1, the YaRN amplitude law. */
static double yarn_law(double factor, double k)
{
    return factor > 1 ? 0.1 * k * log(factor) + 1 : 1;
}

#define ORIGINAL_LENGTH "rope_scaling.original_max_position_embeddings|rope_parameters.original_max_position_embeddings"

/* Reads YaRN from rope_scaling / rope_parameters, if it is there, into *r; dim, theta and interleaved are the caller's.  The
 * original length is max_position_embeddings if it is not said. */
static exf_code configure_yarn(const exf_config *c, exf_rope_spec *r, exf_err *err)
{
    exf_code rc;
    const exf_json *original, *scaling, *said;
    const char *kind;
    double amplitude, mscale, mscale_all;
    EXF_TRY(exf_config_find(c, "rope_scaling", &scaling, err));
    EXF_TRY(exf_config_find(c, "rope_scaling.type|rope_scaling.rope_type", &said, err));
    if (scaling && !said) /* one that is no object, or does not say of what kind it is, must not pass for none */
        return exf_fail(err, EXF_MODEL, "%s: \"rope_scaling\" is %s without a \"type\"", c->path, exf_json_type_name(scaling));
    EXF_TRY(exf_config_text_or(c, "rope_scaling.type|rope_scaling.rope_type|rope_parameters.rope_type", "default", &kind, err));
    if (strcmp(kind, "default") == 0) return EXF_OK;
    if (strcmp(kind, "yarn") != 0)
        return exf_fail(err, EXF_MODEL, "%s: rope scaling \"%s\" is not supported (supported: default, yarn)", c->path, kind);
    r->yarn = 1;
    EXF_TRY(exf_config_real(c, "rope_scaling.factor|rope_parameters.factor", &r->factor, err));
    EXF_TRY(exf_config_real_or(c, "rope_scaling.beta_fast|rope_parameters.beta_fast", 32, &r->beta_fast, err));
    EXF_TRY(exf_config_real_or(c, "rope_scaling.beta_slow|rope_parameters.beta_slow", 1, &r->beta_slow, err));
    EXF_TRY(exf_config_find(c, ORIGINAL_LENGTH, &original, err));
    EXF_TRY(exf_config_real(c, original ? ORIGINAL_LENGTH : "max_position_embeddings", &r->original_length, err));
    EXF_TRY(exf_config_bool_or(c, "rope_scaling.truncate|rope_parameters.truncate", 1, &r->truncate, err));
    EXF_TRY(exf_config_real_or(c, "rope_scaling.attention_factor|rope_parameters.attention_factor", 0, &amplitude, err));
    EXF_TRY(exf_config_real_or(c, "rope_scaling.mscale|rope_parameters.mscale", 0, &mscale, err));
    EXF_TRY(exf_config_real_or(c, "rope_scaling.mscale_all_dim|rope_parameters.mscale_all_dim", 0, &mscale_all, err));
    if (amplitude > 0)
        r->amplitude = amplitude;
    else
        r->amplitude =
            mscale > 0 && mscale_all > 0 ? yarn_law(r->factor, mscale) / yarn_law(r->factor, mscale_all) : yarn_law(r->factor, 1);
out:
    return rc;
}

exf_code exf_configure_attention(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_attention_spec *s = &a->attention;
    exf_rope_spec *r = &a->rope[EXF_ROPE_MAIN];
    double part;
    EXF_TRY(exf_config_int(c, "num_attention_heads", 1, 1024, &s->n_heads, err));
    EXF_TRY(exf_config_must_say(c, "num_key_value_heads", 1, err));
    EXF_TRY(exf_config_int_or(c, "num_key_value_heads", 1, 1024, s->n_heads, &s->n_kv_heads, err));
    EXF_TRY(exf_config_int_or(c, "head_dim", 2, 4096, a->d_model / s->n_heads, &s->head_dim, err));
    EXF_TRY(exf_config_real_or(c, "rope_theta|rope_parameters.rope_theta", 10000.0, &r->theta, err));
    EXF_TRY(exf_configure_rotary_part(c, 1.0, &part, err));
    EXF_TRY(configure_yarn(c, r, err));
    r->dim = (int)(s->head_dim * part);
    if (s->n_heads % s->n_kv_heads)
        rc = exf_fail(err, EXF_MODEL, "%s: %d attention heads are no multiple of %d key-value heads", c->path, s->n_heads,
                      s->n_kv_heads);
    else if (s->head_dim % 2)
        rc = exf_fail(err, EXF_MODEL, "%s: \"head_dim\" is %d, expected an even number", c->path, s->head_dim);
    else if (s->head_dim < 2 || r->dim < 2 || r->dim % 2 || r->dim > s->head_dim)
        rc = exf_fail(err, EXF_MODEL, "%s: %d rotary dimensions in heads of %d, expected an even number within", c->path, r->dim,
                      s->head_dim);
    a->dim[EXF_DIM_Q] = a->dim[EXF_DIM_O] = s->n_heads * s->head_dim;
    a->dim[EXF_DIM_KV] = s->n_kv_heads * s->head_dim;
    a->dim[EXF_DIM_HEAD] = s->head_dim;
    a->dim[EXF_DIM_HEADS] = s->n_heads;
out:
    return rc;
}

exf_code exf_configure_check_groups(const exf_config *c, const exf_architecture *a, exf_err *err)
{
    const exf_router_spec *r = &a->router;
    int size = a->n_experts / r->n_groups, scored = r->group_score == EXF_GROUP_TOP2_SUM ? 2 : 1;
    if (a->n_experts % r->n_groups || r->top_groups > r->n_groups || size < scored)
        return exf_fail(err, EXF_MODEL, "%s: %d experts in %d groups of which %d are kept cannot be", c->path, a->n_experts,
                        r->n_groups, r->top_groups);
    if (a->top_k > r->top_groups * size)
        return exf_fail(err, EXF_MODEL, "%s: %d experts per token, the %d groups kept hold %d", c->path, a->top_k, r->top_groups,
                        r->top_groups * size);
    return EXF_OK;
}

/* By first_k_dense_replace and moe_layer_freq. */
static exf_code dense_by_number(const exf_config *c, exf_architecture *a, int *n_moe, exf_err *err)
{
    exf_code rc;
    int first = 0, step;
    EXF_TRY(exf_config_int(c, "first_k_dense_replace", 0, EXF_MAX_LAYERS, &first, err));
    EXF_TRY(exf_config_int_or(c, "moe_layer_freq", 1, EXF_MAX_LAYERS, 1, &step, err));
    *n_moe = 0;
    for (int l = 0; l < a->n_layers; l++) *n_moe += a->is_moe[l] = l >= first && l % step == 0;
    if (first >= a->n_layers)
        rc = exf_fail(err, EXF_MODEL, "%s: the first %d of %d layers are dense: none is a mixture of experts", c->path, first,
                      a->n_layers);
    else if (*n_moe == 0)
        rc = exf_fail(err, EXF_MODEL,
                      "%s: the first %d of %d layers are dense and \"moe_layer_freq\" is %d: none is a mixture of experts", c->path,
                      first, a->n_layers, step);
out:
    return rc;
}

/* By mlp_layer_types, with which first_k_dense_replace, where it is there, must agree. */
static exf_code dense_by_type(const exf_config *c, const exf_json *types, exf_architecture *a, int *n_moe, exf_err *err)
{
    static const char *const words[] = {"dense", "sparse", NULL};
    exf_code rc = EXF_OK;
    const exf_json *first;
    int sparse;
    EXF_TRY(exf_config_find(c, "first_k_dense_replace", &first, err));
    if (first) EXF_TRY(dense_by_number(c, a, n_moe, err));
    *n_moe = 0;
    for (int l = 0; l < a->n_layers; l++) {
        EXF_TRY(exf_config_layer_word(c, "mlp_layer_types", types, l, words, &sparse, err));
        if (first && sparse != a->is_moe[l])
            return exf_fail(err, EXF_MODEL, "%s: layer %d is %s by \"mlp_layer_types\", %s by \"first_k_dense_replace\"", c->path,
                            l, words[sparse], words[a->is_moe[l]]);
        *n_moe += a->is_moe[l] = (unsigned char)sparse;
    }
    if (*n_moe == 0)
        rc = exf_fail(err, EXF_MODEL, "%s: none of the %d layers is a mixture of experts", c->path, a->n_layers);
out:
    return rc;
}

exf_code exf_configure_dense_first(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    const exf_json *types;
    int n_moe = 0;
    EXF_TRY(exf_config_layer_list(c, "mlp_layer_types", a->n_layers, 0, &types, err));
    EXF_TRY(types ? dense_by_type(c, types, a, &n_moe, err) : dense_by_number(c, a, &n_moe, err));
    if (n_moe < a->n_layers) rc = exf_config_int(c, "intermediate_size", 1, 1 << 20, &a->d_ffn, err);
out:
    return rc;
}

static exf_code configure_sparse_layers(const exf_config *c, exf_architecture *a, exf_err *err)
{
    int step, n_moe = 0;
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
            return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" holds %s, expected layer numbers", c->path,
                            exf_json_type_name(number));
        int64_t l = exf_json_int(number);
        if (l < 0 || l >= a->n_layers)
            return exf_fail(err, EXF_MODEL, "%s: \"mlp_only_layers\" holds %" PRId64 ", expected layers 0 to %d", c->path, l,
                            a->n_layers - 1);
        a->is_moe[l] = 0;
    }
    for (int l = 0; l < a->n_layers; l++) n_moe += a->is_moe[l];
    if (n_moe == 0) return exf_fail(err, EXF_MODEL, "%s: none of the %d layers is a mixture of experts", c->path, a->n_layers);
    return n_moe < a->n_layers ? exf_config_int(c, "intermediate_size", 1, 1 << 20, &a->d_ffn, err) : EXF_OK;
}

exf_code exf_configure_qwen_moe(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_attention(c, a, err));
    EXF_TRY(exf_config_must_be(c, "use_sliding_window", "false", err));
    a->router.score = EXF_ROUTER_SOFTMAX;
    EXF_TRY(exf_config_bool_or(c, "norm_topk_prob", 0, &a->router.renormalise, err));
    rc = configure_sparse_layers(c, a, err);
out:
    return rc;
}

exf_code exf_configure_shared_experts(const exf_config *c, exf_architecture *a, exf_err *err)
{
    int n = 0;
    exf_code rc = exf_config_must_say(c, "n_shared_experts", 1, err);
    if (rc == EXF_OK) rc = exf_config_int_or(c, "n_shared_experts", 0, 64, 0, &n, err);
    if (rc != EXF_OK || n == 0) return rc;
    a->d_shared = n * a->d_expert;
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_SHARED;
    return EXF_OK;
}

exf_code exf_configure_sigmoid_router(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_router_spec *r = &a->router;
    r->score = EXF_ROUTER_SIGMOID;
    r->group_score = EXF_GROUP_TOP2_SUM;
    r->epsilon = 1e-20;
    EXF_TRY(exf_config_int_or(c, "n_group", 1, EXF_MAX_EXPERTS, 1, &r->n_groups, err));
    EXF_TRY(exf_config_int_or(c, "topk_group", 1, EXF_MAX_EXPERTS, 1, &r->top_groups, err));
    EXF_TRY(exf_config_bool_or(c, "norm_topk_prob", 1, &r->renormalise, err));
    EXF_TRY(exf_config_real(c, "routed_scaling_factor", &r->scaling, err));
    rc = exf_configure_check_groups(c, a, err);
out:
    return rc;
}

/* What the norms of the low ranks add, in every code that is released with these models. */
static const double LOW_RANK_EPS = 1e-6;

exf_code exf_configure_mla(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_mla_spec *s = &a->mla;
    exf_rope_spec *r = &a->rope[EXF_ROPE_MAIN];
    double mscale_all;
    EXF_TRY(exf_config_int(c, "num_attention_heads", 1, 1024, &s->n_heads, err));
    EXF_TRY(exf_config_must_say(c, "q_lora_rank", 1, err));
    EXF_TRY(exf_config_int_or(c, "q_lora_rank", 1, 1 << 16, 0, &s->q_rank, err));
    EXF_TRY(exf_config_int(c, "kv_lora_rank", 1, 1 << 16, &s->kv_rank, err));
    EXF_TRY(exf_config_int(c, "qk_nope_head_dim", 1, 4096, &s->nope_dim, err));
    EXF_TRY(exf_config_int(c, "qk_rope_head_dim", 2, 4096, &s->rope_dim, err));
    EXF_TRY(exf_config_int(c, "v_head_dim", 1, 4096, &s->v_dim, err));
    EXF_TRY(exf_config_must_be(c, "attention_bias", "false", err));
    EXF_TRY(exf_config_real_or(c, "rope_theta|rope_parameters.rope_theta", 10000.0, &r->theta, err));
    EXF_TRY(configure_yarn(c, r, err));
    r->dim = s->rope_dim;
    r->interleaved = 1;
    if (a->norm_eps != LOW_RANK_EPS) s->norm_eps = LOW_RANK_EPS;
    /* Without rotary scaling 1/sqrt(d); YaRN's share of the softmax temperature, m^2, is kept out of the
     * rotation so that it reaches the unrotated part of a head too. */
    EXF_TRY(exf_config_real_or(c, "rope_scaling.mscale_all_dim|rope_parameters.mscale_all_dim", 0, &mscale_all, err));
    double m = r->yarn ? yarn_law(r->factor, mscale_all) : 1;
    s->score_scale = m * m / sqrt((double)(s->nope_dim + s->rope_dim));
    if (s->rope_dim % 2)
        rc = exf_fail(err, EXF_MODEL, "%s: \"qk_rope_head_dim\" is %d, expected an even number", c->path, s->rope_dim);
    a->dim[EXF_DIM_Q] = s->n_heads * (s->nope_dim + s->rope_dim);
    a->dim[EXF_DIM_O] = s->n_heads * s->v_dim;
    a->dim[EXF_DIM_Q_RANK] = s->q_rank;
    a->dim[EXF_DIM_KV_RANK] = s->kv_rank;
    a->dim[EXF_DIM_KV_A] = s->kv_rank + s->rope_dim;
    a->dim[EXF_DIM_KV_B] = s->n_heads * (s->nope_dim + s->v_dim);
    for (int l = 0; l < a->n_layers; l++) {
        a->mixer[l] = EXF_MIXER_MLA;
        a->traits[l] |= s->q_rank ? EXF_T_Q_LORA : EXF_T_NO_Q_LORA;
    }
out:
    return rc;
}

exf_code exf_configure_latent_moe(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_mla(c, a, err));
    EXF_TRY(exf_config_must_be(c, "rope_interleave", "true", err));
    EXF_TRY(exf_config_must_be(c, "scoring_func", "sigmoid", err));
    EXF_TRY(exf_config_must_be(c, "topk_method", "noaux_tc", err));
    EXF_TRY(exf_config_must_say(c, "n_group", 0, err));
    EXF_TRY(exf_config_must_say(c, "topk_group", 0, err));
    EXF_TRY(exf_configure_sigmoid_router(c, a, err));
    EXF_TRY(exf_configure_dense_first(c, a, err));
    EXF_TRY(exf_configure_shared_experts(c, a, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_SCORED;
out:
    return rc;
}

exf_code exf_configure_indexer(const exf_config *c, exf_architecture *a, int interleaved, exf_err *err)
{
    exf_code rc;
    exf_mla_spec *s = &a->mla;
    s->index_interleaved = interleaved;
    EXF_TRY(exf_config_int(c, "index_n_heads", 1, 1024, &s->index_heads, err));
    EXF_TRY(exf_config_int(c, "index_head_dim", 2, 4096, &s->index_dim, err));
    EXF_TRY(exf_config_int(c, "index_topk", 1, 1 << 20, &s->index_topk, err));
    if (!s->q_rank)
        rc = exf_fail(err, EXF_MODEL, "%s: the indexer reads the low-rank query, but \"q_lora_rank\" is not there", c->path);
    else if (s->rope_dim > s->index_dim)
        rc = exf_fail(err, EXF_MODEL, "%s: %d rotary dimensions in index heads of %d, expected a number within", c->path,
                      s->rope_dim, s->index_dim);
    a->dim[EXF_DIM_INDEX_Q] = s->index_heads * s->index_dim;
    a->dim[EXF_DIM_INDEX_HEADS] = s->index_heads;
    a->dim[EXF_DIM_INDEX_DIM] = s->index_dim;
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_INDEXED;
out:
    return rc;
}

void exf_architecture_finish(exf_architecture *a)
{
    static const unsigned mixer_trait[EXF_MIXER_KINDS] = {EXF_T_ATTENTION, EXF_T_MLA, EXF_T_DELTANET, EXF_T_COMPRESSED};
    a->n_moe_layers = 0;
    for (int l = 0; l < a->n_layers; l++) {
        a->traits[l] |= mixer_trait[a->mixer[l]] | (a->is_moe[l] ? EXF_T_MOE : EXF_T_DENSE);
        if (!a->tied_embeddings) a->traits[l] |= EXF_T_UNTIED;
        a->n_moe_layers += a->is_moe[l];
    }
    a->model_traits |= a->tied_embeddings ? 0 : EXF_T_UNTIED;
    /* YaRN makes `factor` times the original length of it, whether or not max_position_embeddings counts that already */
    for (int i = 0; i < EXF_ROPES; i++)
        if (a->positions > 0 && a->rope[i].yarn) a->positions = fmax(a->positions, a->rope[i].factor * a->rope[i].original_length);
    if (a->residual.streams == 0) a->residual.streams = 1;
    if (a->router.scaling == 0) a->router.scaling = 1;
    if (a->router.n_groups == 0) a->router.n_groups = a->router.top_groups = 1;
    a->dim[EXF_DIM_ONE] = 1;
    a->dim[EXF_DIM_THREE] = 3;
    a->dim[EXF_DIM_H] = a->d_model;
    a->dim[EXF_DIM_VOCAB] = a->vocab;
    a->dim[EXF_DIM_FFN] = a->d_ffn;
    a->dim[EXF_DIM_E] = a->n_experts;
    a->dim[EXF_DIM_K] = a->top_k;
    a->dim[EXF_DIM_I] = a->d_expert;
    a->dim[EXF_DIM_SHARED] = a->d_shared;
}
