/* mixer_attention.h - the mixer "grouped-query attention": per-head norms of q
 * and k, RoPE, causal softmax, output projection. */
#ifndef EXF_FORWARD_MIXER_ATTENTION_H
#define EXF_FORWARD_MIXER_ATTENTION_H
#include "forward/layer_weights.h"
#include "forward/workspace.h"

/* RoPE tables for the longest sequence of a run: [max_tokens, rope_dim / 2] each. */
typedef struct {
    float *cosine, *sine;
} exf_rope_tables;

exf_code exf_rope_tables_new(exf_rope_tables *r, const exf_attention_spec *s, int max_tokens, exf_err *err) EXF_CHECKED;
void exf_rope_tables_free(exf_rope_tables *r);

/* hidden [T, H] += attention(normed), normed = s->normed [T, H]; one sequence. */
void exf_mixer_attention(float *hidden, int n_tokens, const exf_architecture *a, const exf_layer_weights *lw, const exf_rope_tables *rope,
                         const exf_mixer_space *s);
#endif
