/* compressor.h - pools each window of `ratio` tokens into one compressed entry.
 *
 * kv and gate [n_entries * ratio, width], ape [ratio, width], out [n_entries, d].
 * Per channel, an entry is the softmax-weighted sum over its slots of kv, the
 * logits being gate + ape[token mod ratio]:
 *   plain    width d:  slots are the tokens of its window
 *   overlap  width 2d: slots are the tokens of the window before, channels [0, d),
 *            and those of its window, channels [d, 2d); the first entry has only
 *            the latter
 * Sums in double. */
#ifndef EXF_KERNELS_COMPRESSOR_H
#define EXF_KERNELS_COMPRESSOR_H

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int n_entries, ratio, d, overlap;
} exf_compressor_shape;

void exf_compressor_cpu(float *out, const float *kv, const float *gate, const float *ape, const exf_compressor_shape *s);
void exf_compressor_cuda(struct exf_queue *q, float *out, const float *kv, const float *gate, const float *ape,
                         const exf_compressor_shape *s);
#ifdef __cplusplus
}
#endif
#endif
