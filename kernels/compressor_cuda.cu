/* compressor_cuda.cu - one thread per channel of an entry; see compressor.h. */
#include "kernels/cuda_queue.cuh"

/* The largest logit of `ratio` slots in rows ld apart. */
static __device__ void raise(float *top, const float *gate, const float *ape, int ratio, int ld)
{
    for (int i = 0; i < ratio; i++) *top = fmaxf(*top, gate[(size_t)i * ld] + ape[(size_t)i * ld]);
}

static __device__ void gather(double *sum, double *total, float top, const float *kv, const float *gate, const float *ape, int ratio, int ld)
{
    for (int i = 0; i < ratio; i++) {
        size_t at = (size_t)i * ld;
        double weight = (double)expf(gate[at] + ape[at] - top);
        *sum += weight;
        *total += weight * (double)kv[at];
    }
}

static __global__ void compress(float *out, const float *kv, const float *gate, const float *ape, exf_compressor_shape s, size_t total_channels)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= total_channels) return;
    int ld = s.overlap ? 2 * s.d : s.d, c = (int)(i % s.d), own = (s.overlap ? s.d : 0) + c;
    size_t w = i / s.d, window = (size_t)s.ratio * ld, at = w * window;
    bool before = s.overlap && w > 0;
    float top = -INFINITY;
    double sum = 0, total = 0;
    raise(&top, gate + at + own, ape + own, s.ratio, ld);
    if (before) raise(&top, gate + at - window + c, ape + c, s.ratio, ld);
    gather(&sum, &total, top, kv + at + own, gate + at + own, ape + own, s.ratio, ld);
    if (before) gather(&sum, &total, top, kv + at - window + c, gate + at - window + c, ape + c, s.ratio, ld);
    out[i] = (float)(total / sum);
}

void exf_compressor_cuda(exf_queue *q, float *out, const float *kv, const float *gate, const float *ape, const exf_compressor_shape *s)
{
    size_t n = (size_t)s->n_entries * s->d;
    if (n) EXF_LAUNCH(q, "compressor", compress, exf_blocks(n, 128), 128, 0, out, kv, gate, ape, *s, n);
}
