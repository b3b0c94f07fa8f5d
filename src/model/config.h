/* config.h - functions that read typed fields of a checkpoint's config.json, strictly, and that fill the parts of an
 * architecture which several families have.
 *
 * A field can have several spellings ("num_experts|num_local_experts"); the
 * ones present must agree (EXF_MODEL names two that do not, with their values).  A dotted step goes into an object
 * ("rope_parameters.rope_theta").  null counts as absent; for a flag that is on by default it is refused, since the reference
 * takes it for off.  Messages name the file, the field and what was found. */
#ifndef EXF_MODEL_CONFIG_H
#define EXF_MODEL_CONFIG_H
#include "base/hash.h"
#include "format/json.h"
#include "model/architecture.h"

typedef struct {
    const exf_json *object; /* the object that fields are looked up in */
    const char *path;       /* of config.json, for messages */
} exf_config;

/* The single value at `fields`, NULL if absent under every spelling. */
exf_code exf_config_find(const exf_config *c, const char *fields, const exf_json **out, exf_err *err) EXF_CHECKED;

/* Required integer in [min, max]. */
exf_code exf_config_int(const exf_config *c, const char *fields, int64_t min, int64_t max, int *out, exf_err *err) EXF_CHECKED;
/* The same, *out = fallback when absent. */
exf_code exf_config_int_or(const exf_config *c, const char *fields, int64_t min, int64_t max, int fallback, int *out,
                           exf_err *err) EXF_CHECKED;
/* Required real > 0. */
exf_code exf_config_real(const exf_config *c, const char *fields, double *out, exf_err *err) EXF_CHECKED;
exf_code exf_config_real_or(const exf_config *c, const char *fields, double fallback, double *out, exf_err *err) EXF_CHECKED;
exf_code exf_config_bool_or(const exf_config *c, const char *fields, int fallback, int *out, exf_err *err) EXF_CHECKED;
/* Checks that a field is there, whose absence would mean a default that families and versions do not share; or_null: 1 if it may
 * say null. */
exf_code exf_config_must_say(const exf_config *c, const char *fields, int or_null, exf_err *err) EXF_CHECKED;
/* Text, NULL when absent; borrowed from the document. */
exf_code exf_config_text_or(const exf_config *c, const char *fields, const char *fallback, const char **out,
                            exf_err *err) EXF_CHECKED;
/* Checks a field of which only one value is supported: it must be absent, null, or have
 * exactly this text form ("false", "null", "silu", "1"); EXF_MODEL otherwise. */
exf_code exf_config_must_be(const exf_config *c, const char *fields, const char *only, exf_err *err) EXF_CHECKED;

/* Finds a list with an element for each layer; *list NULL: the field is absent or null.  may_go_on: 1 if elements may follow, of
 * prediction layers. */
exf_code exf_config_layer_list(const exf_config *c, const char *field, int n_layers, int may_go_on, const exf_json **list,
                               exf_err *err) EXF_CHECKED;
/* Finds which of `words`, up to a NULL, a layer's element of the list is; EXF_MODEL names them all where it is none. */
exf_code exf_config_layer_word(const exf_config *c, const char *field, const exf_json *list, int layer, const char *const *words,
                               int *which, exf_err *err) EXF_CHECKED;

/* Finds the object of one model in a config of several: `part` ("text_config"; "thinker_config.text_config"), or all of a config
 * that has none.  EXF_MODEL where the part is no object or has another model_type than `type`. */
exf_code exf_config_part(const exf_config *c, const char *part, const char *type, exf_config *out, exf_err *err) EXF_CHECKED;

/* ---- what families share (config_families.c) --------------------------------- */

/* hidden_size, num_hidden_layers, vocab_size, max_position_embeddings, rms_norm_eps, tie_word_embeddings. */
exf_code exf_configure_sizes(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Experts and top-k, under every spelling; expert width, in the field `width`. */
exf_code exf_configure_experts(const exf_config *c, exf_architecture *a, const char *width, exf_err *err) EXF_CHECKED;
/* Reads the part of a head's dimensions that RoPE rotates, in (0, 1]; EXF_MODEL outside.  rope_parameters' word counts more
 * than partial_rotary_factor beside it: transformers 5.17 writes its default there, and reads it so. */
exf_code exf_configure_rotary_part(const exf_config *c, double fallback, double *part, exf_err *err) EXF_CHECKED;
/* Grouped-query attention: heads, head_dim (default H / heads), rotary part and
 * theta, hidden_act silu, YaRN if it is there; sets dims Q, KV, HEAD and O. */
exf_code exf_configure_attention(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Multi-head latent attention in every layer: heads, ranks and widths, interleaved
 * RoPE with YaRN if it is there, no biases; sets the mixers, Q_LORA or NO_Q_LORA,
 * and the dims Q, O, Q_RANK, KV_RANK, KV_A and KV_B.  The norms of the low ranks add 1e-6, whatever rms_norm_eps is: so do the
 * codes that are released with these models and transformers. */
exf_code exf_configure_mla(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* All of a model whose layers are gated attention or the gated delta rule (layer_types, or full_attention_interval), each with
 * experts and a gated shared one. */
exf_code exf_configure_gated_hybrid(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* The router's groups divide the experts, hold as many as their score adds up, and
 * those kept hold top_k experts. */
exf_code exf_configure_check_groups(const exf_config *c, const exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Layers before first_k_dense_replace are dense (intermediate_size), and those
 * whose number is no multiple of moe_layer_freq; or those that are "dense" in mlp_layer_types, as transformers 5 writes for some
 * families.  EXF_MODEL where the two disagree. */
exf_code exf_configure_dense_first(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* What Qwen2-MoE and Qwen3-MoE share: sizes, grouped-query attention over all positions, experts of moe_intermediate_size after a
 * softmax router, renormalised when norm_topk_prob.  Layer i has experts if it is not in mlp_only_layers and
 * decoder_sparse_step divides i + 1; the others are dense (intermediate_size). */
exf_code exf_configure_qwen_moe(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* n_shared_experts (default 0) ungated shared experts, each as wide as a routed one: d_shared, and the trait SHARED of every
 * layer. */
exf_code exf_configure_shared_experts(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* A sigmoid router whose correction bias chooses but does not weigh, within the groups whose two best experts sum highest;
 * renormalised where norm_topk_prob says so, and scaled. */
exf_code exf_configure_sigmoid_router(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* All of DeepSeek-V3 and its kin: sizes, latent attention, dense layers first, a sigmoid router and ungated shared experts. */
exf_code exf_configure_latent_moe(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* The indexer by which every layer of latent attention chooses tokens, from index_n_heads, index_head_dim and index_topk; sets the
 * trait INDEXED and the dims INDEX_Q, INDEX_HEADS and INDEX_DIM.  Needs a low-rank q. */
exf_code exf_configure_indexer(const exf_config *c, exf_architecture *a, int interleaved, exf_err *err) EXF_CHECKED;
/* Derives from the other fields n_moe_layers, the traits DENSE, MOE, UNTIED and the mixers', the positions that YaRN adds,
 * and the axis lengths H, VOCAB, FFN, E, K, I, SHARED, ONE, THREE. */
void exf_architecture_finish(exf_architecture *a);
#endif
