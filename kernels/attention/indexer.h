/* indexer.h - chooses the compressed entries to which a query attends, with scores of small heads.
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
#ifndef EXF_KERNELS_INDEXER_H
#define EXF_KERNELS_INDEXER_H
#include <stddef.h>
#include <stdint.h>
struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int first, n_rows;
    int n_heads, d;
    int ratio, top_k;
    int n_entries; /* of the whole sequence */
} exf_indexer_shape;

/* Floats of workspace. */
size_t exf_indexer_workspace(int n_rows, int n_entries);
/* chosen [n_rows, N] bytes 0 or 1, N = (first + n_rows) / ratio >= 1; q [n_rows, n_heads, d],
 * weights [n_rows, n_heads], keys [N, d]. */
void exf_indexer_cpu(unsigned char *chosen, const float *q, const float *weights, const float *keys, const exf_indexer_shape *s,
                     float *workspace);
/* Only selects: from score [n_rows, N] into chosen; order: n_entries int32 of scratch. */
void exf_indexer_select_cpu(unsigned char *chosen, const float *score, const exf_indexer_shape *s, int32_t *order);
size_t exf_indexer_workspace_cuda(int n_rows, int n_entries); /* floats */
void exf_indexer_cuda(struct exf_queue *q, unsigned char *chosen, const float *query, const float *weights, const float *keys,
                      const exf_indexer_shape *s, float *workspace);
#ifdef __cplusplus
}
#endif
#endif
