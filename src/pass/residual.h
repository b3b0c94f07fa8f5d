/* residual.h - the residual streams of hidden states, which mixers and experts read and update.
 *
 * A site (mixer or feed-forward part) reads and updates the hidden states, `streams` residual streams of H floats per token,
 * stream after stream; with one stream the update is the plain h + f(norm(h)).
 *
 * Several streams are manifold-constrained hyper-connections.  From the flattened
 * streams f of a token, with r = 1/sqrt(mean(f^2) + norm_eps) and mix = r (fn f):
 *   pre_j  = sigmoid(mix[j] scale[0] + base[j]) + eps
 *   post_j = 2 sigmoid(mix[S+j] scale[1] + base[S+j])
 *   C      = Sinkhorn(softmax over k of (mix[2S+jS+k] scale[2] + base[..]) + eps)
 *   u      = sum_j pre_j X_j                    the input of the site's norm
 *   X'_k   = post_k v + sum_j C[j][k] X_j       v = the site's output */
#ifndef EXF_PASS_RESIDUAL_H
#define EXF_PASS_RESIDUAL_H
#include "kernels/backend.h"
#include "model/architecture.h"
#include "weights/weight_plan.h"

/* Weights of one site; all NULL with one stream. */
typedef struct {
    const float *fn;    /* [(2 + S) S, S H] */
    const float *base;  /* [(2 + S) S] */
    const float *scale; /* [3] */
} exf_residual_site;

/* Returns those of a site of a layer, by role. */
exf_residual_site exf_residual_site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale);

/* Returns the floats of a token's hidden state: streams * H. */
size_t exf_row_width(const exf_architecture *a);
/* Returns the floats of mixing coefficients per token: pre [S], post [S], C [S, S]; 0 with one stream. */
int exf_residual_mixing(const exf_architecture *a);

/* Returns the site's input [T, H] for n_tokens rows of hidden: hidden itself with one
 * stream, else u.  Fills mixing [T, exf_residual_mixing] from hidden, for exf_residual_update(). */
const float *exf_residual_read(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                               const float *hidden, int n_tokens, float *u, float *mixing);
/* Returns the same from mixing as exf_residual_read() filled it from the same hidden. */
const float *exf_residual_read_again(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                                     const float *hidden, int n_tokens, float *u, const float *mixing);
/* Updates hidden with the site's output v [T, H]. */
void exf_residual_update(const exf_backend *b, exf_queue *q, const exf_architecture *a, float *hidden, const float *v, int n_tokens,
                        const float *mixing);
/* Returns the weighted sum of the streams [T, H] before the final norm: hidden itself with
 * one stream, else u.  site holds the head's fn [S, S H], base [S], scale [1]. */
const float *exf_residual_collapse(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                                   const float *hidden, int n_tokens, float *u);
#endif
