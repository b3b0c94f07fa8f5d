/* compressed.h - compressed attention: windows of tokens pooled into entries, the entries that a query attends to, and
 * attention over a sliding window of tokens and those entries. */
#ifndef EXF_KERNELS_COMPRESSED_H
#define EXF_KERNELS_COMPRESSED_H
#include "kernels/attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the compressor pools each window of `ratio` tokens into one entry -----------------------
 *
 * kv and gate [n_entries * ratio, width], ape [ratio, width], out [n_entries, d].
 * Per channel, an entry is the softmax-weighted sum over its slots of kv, the
 * logits being gate + ape[token mod ratio]:
 *   plain    width d:  slots are the tokens of its window
 *   overlap  width 2d: slots are the tokens of the window before, channels [0, d),
 *            and those of its window, channels [d, 2d); the first entry has only
 *            the latter
 * Sums in double. */

typedef struct {
    int n_entries, ratio, d, overlap;
} exf_compressor_shape;

typedef void exf_compressor_op(exf_queue *q, float *out, const float *kv, const float *gate, const float *ape,
                               const exf_compressor_shape *s);
exf_compressor_op exf_compressor_cpu, exf_compressor_cuda;

/* ---- the indexer chooses the entries to which a query attends, with scores of small heads ------
 *
 *   score[i][w] = sum_h weight[i][h] relu(q[i][h] . key[w])
 * over a block of consecutive queries: row i is the query at position first + i,
 * which sees the entries w < (first + i + 1) / ratio.  Of these the top_k with the
 * largest score are chosen; all where there are no more.
 *
 * Ties at the cut are common: an entry that every head's relu cuts off scores
 * exactly 0.  The reference (PyTorch on a CPU) leaves them to std::nth_element
 * over all entries of the sequence, those not yet visible at -infinity.  Attending
 * to another entry is no rounding error, so this selection repeats the reference's steps.
 * That is why it needs n_entries, and why a tie, and only a tie, may be decided
 * otherwise in a longer sequence.  (Above 64 top_k entries the reference uses another
 * method; this selection does not.) */

typedef struct {
    int first, n_rows;
    int n_heads, d;
    int ratio, top_k;
    int n_entries; /* of the whole sequence */
    int ld;        /* bytes from a row of chosen to the next; 0: N */
} exf_indexer_shape;

/* Floats of workspace. */
typedef size_t exf_indexer_workspace_op(int n_rows, int n_entries);
exf_indexer_workspace_op exf_indexer_workspace_cpu, exf_indexer_workspace_cuda;
/* chosen [n_rows, N] bytes 0 or 1, rows ld apart, N = (first + n_rows) / ratio >= 1; query [n_rows, n_heads, d],
 * weights [n_rows, n_heads], keys [N, d]. */
typedef void exf_indexer_op(exf_queue *q, unsigned char *chosen, const float *query, const float *weights, const float *keys,
                            const exf_indexer_shape *s, float *workspace);
exf_indexer_op exf_indexer_cpu, exf_indexer_cuda;

/* ---- attention of a block of queries, keys being the values and shared by all heads ------------
 *
 * Row i is the query at position t = first + i.  It attends to the tokens
 * max(0, t - window + 1) .. t and, of the entries w < (t + 1) / ratio, the chosen ones.
 *   s_j = scale q.key_j,   p_j = exp(s_j) / (exp(sink_h) + sum_j exp(s_j)),   out = sum_j p_j key_j
 * Scores are never held for T x T: the CPU has one head of one block at a time, the CUDA
 * backend tiles in registers.  scale is positive; numerics as in attention.h. */

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
typedef size_t exf_compressed_attention_workspace_op(int n_heads, int n_rows, int n_tokens, int window, int ratio);
exf_compressed_attention_workspace_op exf_compressed_attention_workspace_cpu, exf_compressed_attention_workspace_cuda;
/* out and query [n_rows, n_heads, d]; they may be the same memory. */
typedef void exf_compressed_attention_op(exf_queue *q, float *out, const float *query, const exf_compressed_keys *k,
                                         const exf_compressed_attention_shape *s, float *workspace);
exf_compressed_attention_op exf_compressed_attention_cpu, exf_compressed_attention_cuda;
/* compressed_heads of the GPU's operations (backend.h). */
int exf_compressed_heads_fit_cuda(const exf_compressed_attention_shape *s, const exf_rope_shape *r);
void exf_compressed_heads_cuda(exf_queue *q, uint16_t *out, const float *query, const exf_compressed_keys *k,
                               const exf_compressed_attention_shape *s, const exf_rope_shape *r, const float *cosine,
                               const float *sine, double eps, float *workspace);

#ifdef __cplusplus
}
#endif
#endif
