/* mixer.h - the parts that mix tokens of a sequence: attention of some kind.
 *
 * A registry: one file src/forward/mixer_<name>.c per kind, the table in mixer.c in
 * order of exf_mixer_kind.  A mixer takes the normed hidden states of one
 * sequence and gives what is added to the residual; it knows its weights by role
 * and the architecture's spec, and no family. */
#ifndef EXF_MIXERS_MIXER_H
#define EXF_MIXERS_MIXER_H
#include "base/arena.h"
#include "mixers/rope_tables.h"
#include "kernels/backend.h"
#include "model/family.h"

typedef struct {
    float *out;         /* [T, H] = beta * out + what the mixer gives */
    float beta;         /* 0 or 1 */
    const float *input; /* [T, H] normed; NULL where input16 is all there is */
    const uint16_t *input16; /* the same rounded to bfloat16, or NULL */
    int n_tokens, layer;
    const exf_architecture *a;
    float *const *w;    /* by exf_role; NULL where the layer has none, or has it in w16 */
    uint16_t *const *w16; /* matrices of linear layers in bfloat16, by exf_role; NULL: all are in w */
    const exf_rope_tables *rope_tables;
    exf_arena *arena;   /* what the mixer takes from it is given back by the caller */
    const exf_backend *b;
    exf_queue *q;       /* every array above lives in b's memory */
} exf_mixer_call;

/* What products take: the layer's matrix of a role, the normed input from a row on. */
static inline exf_matrix exf_mixer_weight(const exf_mixer_call *c, exf_role role)
{
    return c->w16 && c->w16[role] ? exf_bf16(c->w16[role]) : exf_f32(c->w[role]);
}

static inline exf_matrix exf_mixer_input(const exf_mixer_call *c, int row)
{
    exf_matrix x = c->input16 ? exf_bf16(c->input16) : exf_f32(c->input);
    return exf_matrix_at(x, (size_t)row * (size_t)c->a->d_model);
}

typedef struct {
    const char *name;
    /* Runs one sequence.  With arena->base NULL it must only take what it would
     * use, for a sequence of n_tokens, and compute nothing. */
    void (*run)(const exf_mixer_call *c);
    /* Floating-point operations for one sequence. */
    double (*flops)(const exf_architecture *a, int layer, double n_tokens);
} exf_mixer;

extern const exf_mixer exf_mixer_attention, exf_mixer_mla, exf_mixer_deltanet, exf_mixer_compressed;

/* NULL for a kind that this build has no part for. */
const exf_mixer *exf_mixer_of(exf_mixer_kind kind);
#endif
