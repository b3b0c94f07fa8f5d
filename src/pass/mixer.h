/* mixer.h - mixers, which mix the tokens of one sequence: attention of some kind.
 *
 * There is one file src/pass/mixer_<kind>.c per kind; mixer.c has the table in order of exf_mixer_kind.  A mixer takes the
 * normed hidden states of one sequence and computes what is added to the residual.  It finds its weights by role and reads its
 * sizes from the architecture; it does not know the family. */
#ifndef EXF_PASS_MIXER_H
#define EXF_PASS_MIXER_H
#include "base/err.h"
#include "base/mem.h"
#include "kernels/backend.h"
#include "model/architecture.h"
#include "weights/weight_plan.h"

/* The cosines and sines of all positions of a run, for each kind of rotation, in a backend's memory. */
typedef struct {
    float *cosine[EXF_ROPES], *sine[EXF_ROPES]; /* [max_tokens, dim / 2]; NULL where dim is 0 */
    float *query_scale; /* [max_tokens], of latent attention whose queries grow with the position; NULL where none is above 1 */
} exf_rope_tables;

exf_code exf_rope_tables_new(exf_rope_tables *p, const exf_backend *b, exf_queue *q, const exf_architecture *a, int max_tokens,
                           exf_err *err) EXF_CHECKED;
void exf_rope_tables_free(exf_rope_tables *p, const exf_backend *b);

typedef struct {
    float *out;         /* [T, H] = beta * out + the mixer's output */
    float beta;         /* 0 or 1 */
    const float *input; /* [T, H] normed; NULL if only input16 is given */
    const uint16_t *input16; /* [T, H] the input rounded to bfloat16, or NULL */
    int n_tokens, layer;
    const exf_architecture *a;
    float *const *w;    /* by exf_role; NULL if the layer has none, or has it in w16 */
    uint16_t *const *w16; /* matrices of linear layers in bfloat16, by exf_role; NULL: all matrices are in w */
    const exf_rope_tables *rope_tables;
    exf_arena *arena;   /* scratch for the mixer; the caller resets it */
    const exf_backend *b;
    exf_queue *q;       /* every array above is in b's memory */
} exf_mixer_call;

/* Return operands of products: the layer's matrix of a role, and the normed input from a row on. */
static inline exf_matrix exf_mixer_weight(const exf_mixer_call *c, exf_role role)
{
    return c->w16 && c->w16[role] ? exf_bf16(c->w16[role]) : exf_f32(c->w[role]);
}

static inline exf_matrix exf_mixer_input(const exf_mixer_call *c, int row)
{
    exf_matrix x = c->input16 ? exf_bf16(c->input16) : exf_f32(c->input);
    return exf_matrix_at(x, (size_t)row * (size_t)c->a->d_model);
}

/* Computes y [n_rows, width] = x [n_rows, depth] w^T with the layer's matrix of a role. */
static inline void exf_mixer_product(const exf_mixer_call *c, float *y, exf_matrix x, exf_role role, int n_rows, int width,
                                     int depth)
{
    c->b->gemm_xwt(c->q, y, width, x, depth, exf_mixer_weight(c, role), depth, n_rows, width, depth, 1, 0);
}

/* The last product: out = beta * out + x [n_rows, depth] w^T, from a row of out on. */
static inline void exf_mixer_output(const exf_mixer_call *c, int row, exf_matrix x, exf_role role, int n_rows, int depth)
{
    int h = c->a->d_model;
    float *out = c->out + (size_t)row * (size_t)h;
    c->b->gemm_xwt(c->q, out, h, x, depth, exf_mixer_weight(c, role), depth, n_rows, h, depth, 1, c->beta);
}

/* Returns 1 if the queue computes in bfloat16, so that operands of products may be rounded.
 * Matrices may be bfloat16 even if the queue computes in float32. */
static inline int exf_products_round(const exf_mixer_call *c)
{
    return c->input16 != NULL;
}

/* Returns the operand of a product that an attention of such a shape has written to p. */
static inline exf_matrix exf_mixer_heads(const exf_attention_shape *s, const float *p)
{
    return s->rounded_out ? exf_bf16((const uint16_t *)(const void *)p) : exf_f32(p);
}

typedef struct {
    const char *name;
    /* Runs one sequence.  With arena->base NULL it only takes from the arena what a sequence of
     * n_tokens needs, and computes nothing. */
    void (*run)(const exf_mixer_call *c);
    /* Returns the floating-point operations for one sequence. */
    double (*flops)(const exf_architecture *a, int layer, double n_tokens);
} exf_mixer;

extern const exf_mixer exf_mixer_attention, exf_mixer_mla, exf_mixer_deltanet, exf_mixer_compressed;

/* Returns the mixer of a kind; NULL if the kind has none. */
const exf_mixer *exf_mixer_of(exf_mixer_kind kind);
#endif
