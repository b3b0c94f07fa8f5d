/* device_rows.h - operations on rows of device memory, queued without waiting on the host. */
#ifndef EXF_KERNELS_DEVICE_ROWS_H
#define EXF_KERNELS_DEVICE_ROWS_H
#include "kernels/linear/matrix.h"

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif
/* out [n, streams, width] = row tokens[t] of table [vocab, width], in every stream. */
void exf_embed_cuda(struct exf_queue *q, float *out, exf_matrix table, const int32_t *tokens, size_t n_tokens, int width,
                    int streams);
/* out[t] = sigmoid(x[t, :] . w), x [n_rows, n]. */
void exf_switch_weights_cuda(struct exf_queue *q, float *out, const float *x, const float *w, int n_rows, int n);
/* *least (the device's) becomes min(*least, base + i) over all i whose x[i] is not finite. */
void exf_watch_finite_cuda(struct exf_queue *q, uint64_t *least, const float *x, size_t n, uint64_t base);
#ifdef __cplusplus
}
#endif
#endif
