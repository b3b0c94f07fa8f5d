/* rope_cuda.cu - one thread per pair, or per four pairs; see rope.h. */
#include "kernels/attention/rope.h"
#include "kernels/device/hopper.cuh"

static __device__ __forceinline__ void turn(float &a, float &b, float c, float s)
{
    float was = a;
    a = was * c - b * s;
    b = b * c + was * s;
}

static __global__ void rope(float *x, exf_rope_shape s, const float *cosine, const float *sine, size_t total)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= total) return;
    int half = s.d / 2, pair = (int)(i % half);
    size_t head = i / half % s.n_heads, token = i / half / s.n_heads, at = token * s.step * half + pair;
    float *h = x + token * s.ld + head * s.head_dim + s.offset;
    float *a = h + (s.interleaved ? 2 * pair : pair), *b = a + (s.interleaved ? 1 : half);
    turn(*a, *b, cosine[at], s.inverse ? -sine[at] : sine[at]);
}

/* Rotates four pairs per thread; all arrays are aligned to 16 bytes. */
static __global__ void rope_quads(float *x, exf_rope_shape s, const float4 *cosine, const float4 *sine, unsigned total)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, n = (unsigned)s.d / 8, quad = i % n, head = i / n % (unsigned)s.n_heads,
             token = i / n / (unsigned)s.n_heads;
    if (i >= total) return;
    size_t at = (size_t)token * s.step * n + quad;
    float4 *h = reinterpret_cast<float4 *>(x + (size_t)token * s.ld + (size_t)head * s.head_dim + s.offset), c = cosine[at],
           sn = sine[at];
    unsigned first = s.interleaved ? 2 * quad : quad, second = s.interleaved ? 2 * quad + 1 : quad + n;
    float4 a = h[first], b = h[second];
    if (s.inverse) sn = make_float4(-sn.x, -sn.y, -sn.z, -sn.w);
    if (s.interleaved) {
        turn(a.x, a.y, c.x, sn.x);
        turn(a.z, a.w, c.y, sn.y);
        turn(b.x, b.y, c.z, sn.z);
        turn(b.z, b.w, c.w, sn.w);
    } else {
        turn(a.x, b.x, c.x, sn.x);
        turn(a.y, b.y, c.y, sn.y);
        turn(a.z, b.z, c.z, sn.z);
        turn(a.w, b.w, c.w, sn.w);
    }
    h[first] = a;
    h[second] = b;
}

void exf_rope_apply_cuda(exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine)
{
    size_t total = (size_t)s->n_tokens * s->n_heads * (s->d / 2);
    bool wide = s->d % 8 == 0 && s->head_dim % 4 == 0 && s->offset % 4 == 0 && exf_aligned16(x, s->ld) &&
                exf_aligned16(cosine, 0) && exf_aligned16(sine, 0);
    if (total == 0) return;
    if (wide && total / 4 < 0x7fffffff)
        EXF_LAUNCH(q, "rope", rope_quads, exf_blocks(total / 4, 256), 256, 0, x, *s, reinterpret_cast<const float4 *>(cosine),
                   reinterpret_cast<const float4 *>(sine), (unsigned)(total / 4));
    else
        EXF_LAUNCH(q, "rope", rope, exf_blocks(total, 256), 256, 0, x, *s, cosine, sine, total);
}
