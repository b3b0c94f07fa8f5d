/* attention.h - causal softmax attention over one sequence, grouped queries.
 *
 * q [T, n_heads, d], k [T, n_kv, d], v [T, n_kv, dv], out [T, n_heads, dv], each
 * with rows its own ld floats apart.  Query head h uses key-value head
 * h / (n_heads / n_kv).  score = scale * q.k; token t sees tokens 0..t.
 * float32; the T x T scores are never held, only EXF_ATTENTION_ROWS rows of them. */
#ifndef EXF_KERNELS_ATTENTION_H
#define EXF_KERNELS_ATTENTION_H
#include <stddef.h>

enum { EXF_ATTENTION_ROWS = 128 };

typedef struct {
    int n_tokens, n_heads, n_kv;
    int d, dv;
    int ldq, ldk, ldv, ldo;
    float scale;
} exf_attention_shape;

/* Floats of workspace that a sequence of n_tokens needs. */
size_t exf_attention_workspace(int n_tokens);
void exf_attention_cpu(float *out, const float *q, const float *k, const float *v, const exf_attention_shape *s, float *workspace);
#endif
