/* compressed_attention.h - softmax attention of a block of queries over a sliding
 * window of tokens and over compressed entries, keys being the values and shared
 * by all heads.
 *
 * Row i is the query at position t = first + i.  It attends to the tokens
 * max(0, t - window + 1) .. t and, of the entries w < (t + 1) / ratio, the chosen ones.
 *   s_j = scale q.key_j,   p_j = exp(s_j) / (exp(sink_h) + sum_j exp(s_j)),   out = sum_j p_j key_j
 * Scores are never held for T x T: the CPU has one head of one block at a time, the CUDA
 * backend tiles in registers.  scale is positive; numerics as in attention.h. */
#ifndef EXF_KERNELS_COMPRESSED_ATTENTION_H
#define EXF_KERNELS_COMPRESSED_ATTENTION_H
#include "kernels/attention/rope.h"

#include <stddef.h>
#include <stdint.h>
struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int first, n_rows;
    int n_heads, d;
    int window;
    int ratio;   /* 0: there are no entries */
    float scale;
} exf_compressed_attention_shape;

typedef struct {
    const float *tokens;         /* [T, d] of the whole sequence */
    const float *entries;        /* [N, d], N = (first + n_rows) / ratio */
    const unsigned char *chosen; /* [n_rows, N]; NULL: all that are visible */
    const float *sink;           /* [n_heads] */
} exf_compressed_keys;

/* Floats of workspace for blocks of n_rows in a sequence of n_tokens. */
size_t exf_compressed_attention_workspace(int n_rows, int n_tokens, int window, int ratio);
/* out and q [n_rows, n_heads, d]; they may be the same memory. */
void exf_compressed_attention_cpu(float *out, const float *q, const exf_compressed_keys *k, const exf_compressed_attention_shape *s,
                                  float *workspace);
size_t exf_compressed_attention_workspace_cuda(int n_heads, int n_rows, int n_tokens, int window, int ratio); /* floats */
void exf_compressed_attention_cuda(struct exf_queue *q, float *out, const float *query, const exf_compressed_keys *k,
                                   const exf_compressed_attention_shape *s, float *workspace);
/* compressed_heads of the GPU's operations (backend.h). */
int exf_compressed_heads_fit_cuda(const exf_compressed_attention_shape *s, const exf_rope_shape *r);
void exf_compressed_heads_cuda(struct exf_queue *q, uint16_t *out, const float *query, const exf_compressed_keys *k,
                               const exf_compressed_attention_shape *s, const exf_rope_shape *r, const float *cosine,
                               const float *sine, double eps, float *workspace);
#ifdef __cplusplus
}
#endif
#endif
