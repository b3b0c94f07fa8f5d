/* configure.h - what several families' configs share. */
#ifndef EXF_MODEL_CONFIGURE_H
#define EXF_MODEL_CONFIGURE_H
#include "model/architecture.h"
#include "model/config.h"

/* hidden_size, num_hidden_layers, vocab_size, rms_norm_eps, tie_word_embeddings. */
exf_code exf_configure_sizes(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Experts, top-k and expert width, under every spelling. */
exf_code exf_configure_experts(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Reads the part of a head's dimensions that RoPE rotates, in (0, 1]; EXF_MODEL outside. */
exf_code exf_configure_rotary_part(const exf_config *c, const char *fields, double fallback, double *part,
                                   exf_err *err) EXF_CHECKED;
/* Grouped-query attention: heads, head_dim (default H / heads), rotary part and
 * theta, hidden_act silu, no rope scaling; sets dims Q, KV, HEAD and O. */
exf_code exf_configure_attention(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Multi-head latent attention in every layer: heads, ranks and widths, interleaved
 * RoPE with YaRN if it is there, no biases; sets the mixers, Q_LORA or NO_Q_LORA,
 * and the dims Q, O, Q_RANK, KV_RANK, KV_A and KV_B. */
exf_code exf_configure_mla(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* The router's groups divide the experts, hold as many as their score adds up, and
 * those kept hold top_k experts. */
exf_code exf_configure_check_groups(const exf_config *c, const exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Layers before first_k_dense_replace are dense (intermediate_size), and those
 * whose number is no multiple of moe_layer_freq. */
exf_code exf_configure_dense_first(const exf_config *c, exf_architecture *a, exf_err *err) EXF_CHECKED;
/* YaRN from rope_scaling / rope_parameters, if it is there, into *r; dim, theta
 * and interleaved are the caller's. */
exf_code exf_configure_yarn(const exf_config *c, exf_rope_spec *r, exf_err *err) EXF_CHECKED;
#endif
