/* rope_cuda.cu - one thread per pair; see rope.h. */
#include "kernels/cuda_queue.cuh"

static __global__ void rope(float *x, exf_rope_shape s, const float *cosine, const float *sine, size_t total)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    int half = s.d / 2, pair = (int)(i % half);
    size_t head = i / half % s.n_heads, token = i / half / s.n_heads, at = token * s.step * half + pair;
    float *h = x + token * s.ld + head * s.head_dim + s.offset;
    float *a = h + (s.interleaved ? 2 * pair : pair), *b = a + (s.interleaved ? 1 : half);
    float va = *a, vb = *b, c = cosine[at], sn = s.inverse ? -sine[at] : sine[at];
    *a = va * c - vb * sn;
    *b = vb * c + va * sn;
}

void exf_rope_apply_cuda(exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine)
{
    size_t total = (size_t)s->n_tokens * s->n_heads * (s->d / 2);
    if (total) EXF_LAUNCH(q, "rope", rope, exf_blocks(total, 256), 256, 0, x, *s, cosine, sine, total);
}
