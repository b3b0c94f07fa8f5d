/* mix.h - mixers, and the residual streams that mixers and experts read and update.
 *
 * A mixer mixes the tokens of one sequence: attention of some kind.  There is one file src/pass/mixer_<kind>.c per kind; mix.c
 * has the table in order of exf_mixer_kind.  A mixer takes the normed hidden states of one sequence and computes what is
 * added to the residual.  It finds its weights by role and reads its sizes from the architecture; it does not know the
 * family. */
#ifndef EXF_PASS_MIX_H
#define EXF_PASS_MIX_H
#include "base/err.h"
#include "base/mem.h"
#include "kernels/backend.h"
#include "model/architecture.h"
#include "weights/weight_plan.h"

/* The cosines and sines of all positions of a run, for each kind of rotation, in a backend's memory. */
typedef struct {
    float *cosine[EXF_ROPES], *sine[EXF_ROPES]; /* [max_tokens, dim / 2]; NULL where dim is 0 */
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

/* ---- residual streams ------------------------------------------------------------------------ */

/* A site (mixer or feed-forward part) reads and updates the hidden states, `streams` residual streams of H floats per token,
 * stream after stream; with one stream the update is the plain h + f(norm(h)).
 *
 * Several streams are manifold-constrained hyper-connections.  From the flattened
 * streams f of a token, with r = 1/sqrt(mean(f^2) + norm_eps) and mix = r (fn f):
 *   pre_j  = sigmoid(mix[j] scale[0] + base[j]) + eps
 *   post_j = 2 sigmoid(mix[S+j] scale[1] + base[S+j])
 *   C      = Sinkhorn(softmax over k of (mix[2S+jS+k] scale[2] + base[..]) + eps)
 *   u      = sum_j pre_j X_j                    the input of the site's norm
 *   X'_k   = post_k v + sum_j C[j][k] X_j       v = the site's output */

/* Weights of one site; all NULL with one stream. */
typedef struct {
    const float *fn;    /* [(2 + S) S, S H] */
    const float *base;  /* [(2 + S) S] */
    const float *scale; /* [3] */
} exf_residual_site;

/* Returns those of a site of a layer, by role. */
static inline exf_residual_site exf_residual_site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale)
{
    return (exf_residual_site){lw->w[fn], lw->w[base], lw->w[scale]};
}

/* Returns the floats of a token's hidden state: streams * H. */
size_t exf_row_width(const exf_architecture *a);
/* Returns the floats of mixing coefficients per token: pre [S], post [S], C [S, S]; 0 with one stream. */
int exf_residual_mixing(const exf_architecture *a);

/* Returns the site's input [T, H] for n_tokens rows of hidden: hidden itself with one
 * stream, else u.  Fills mixing [T, exf_residual_mixing] from hidden, for exf_residual_update(). */
const float *exf_residual_read(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                               const float *hidden, int n_tokens, float *u, float *mixing);
/* Updates hidden with the site's output v [T, H]. */
void exf_residual_update(const exf_backend *b, exf_queue *q, const exf_architecture *a, float *hidden, const float *v, int n_tokens,
                        const float *mixing);
/* Returns the weighted sum of the streams [T, H] before the final norm: hidden itself with
 * one stream, else u.  site holds the head's fn [S, S H], base [S], scale [1]. */
const float *exf_residual_collapse(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                                   const float *hidden, int n_tokens, float *u);
#endif
