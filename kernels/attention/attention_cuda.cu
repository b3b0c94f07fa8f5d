/* attention_cuda.cu - chooses the kernel of a causal attention and launches it; rotates queries and keys; see attention.h. */
#include "kernels/attention/attention_f32.cuh"
#include "kernels/attention/attention_wide.cuh"

/* ---- attention -------------------------------------------------------------------------------- */

/* Largest head sizes of the wide kernel, which reads keys and values as rows of float16. */
enum { WIDE_D = 576, WIDE_DV = 512 };

static size_t wide_workspace(const exf_attention_shape *s)
{
    return (size_t)s->n_kv * s->n_tokens * (WIDE_D + WIDE_DV) / 2;
}

size_t exf_attention_workspace_cuda(const exf_attention_shape *s)
{
    size_t tiles = exf_attention_tiles_workspace(s), split = exf_attention_split_workspace(s);
    return !tiles ? wide_workspace(s) : tiles > split ? tiles : split;
}

static void attend_wide(exf_queue *q, const exf_causal_view &w, float *workspace)
{
    const exf_attention_shape &s = w.s;
    size_t apart = (size_t)s.n_tokens;
    char *k = reinterpret_cast<char *>(workspace), *v = k + s.n_kv * apart * WIDE_D * 2;
    exf_round(q, k, w.k, s.ldk, s.n_tokens, s.d, WIDE_D, s.n_kv, apart);
    exf_round(q, v, w.v, s.ldv, s.n_tokens, s.dv, WIDE_DV, s.n_kv, apart);
    exf_attention_wide<exf_causal_view, WIDE_D, WIDE_DV, false>(q, w, {k, v, apart}, s.d, s.dv, s.scale, s.n_tokens, s.n_heads,
                                                                exf_aligned16(w.query, s.ldq) && s.d % 4 == 0,
                                                                exf_wide_output(w.out, &s));
}

/* The kernels on tensor cores know no window and no sink. */
static bool is_plain(const exf_attention_shape *s)
{
    return !s->window && !s->sinks;
}

void exf_attention_cuda(exf_queue *q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                        float *workspace)
{
    exf_causal_view w = {out, query, k, v, *s};
    if (s->n_tokens == 0 || q->err.code != EXF_OK) return;
    if (s->d > WIDE_D || s->dv > WIDE_DV)
        exf_fail(&q->err, EXF_DEVICE, "CUDA: attention: heads of %d and %d, the kernels go to %d and %d", s->d, s->dv, WIDE_D,
                 WIDE_DV);
    else if (s->rounded_out && !exf_rounds(q))
        exf_fail(&q->err, EXF_INTERNAL, "attention of a float32 queue with a rounded output");
    else if (is_plain(s) && !exf_rounds(q) && exf_attention_split_fits(s))
        exf_attention_split(q, static_cast<float *>(out), query, k, v, s, workspace);
    else if (is_plain(s) && exf_rounds(q) && exf_uses_wgmma() && exf_attention_tiles_workspace(s))
        exf_attention_tiles(q, out, query, k, v, s, workspace);
    else if (is_plain(s) && exf_rounds(q) && exf_uses_mma() && exf_attention_tiles_workspace(s))
        exf_attention_mma(q, out, query, k, v, s, workspace);
    else if (is_plain(s) && exf_rounds(q) && exf_uses_wgmma())
        attend_wide(q, w, workspace);
    else
        exf_attention_f32(q, w, s->d, s->dv, s->scale, s->n_tokens, s->n_heads, exf_aligned16(k, s->ldk) && s->d % 4 == 0,
                          exf_aligned16(v, s->ldv) && s->dv % 4 == 0);
}

/* ---- rotation ---------------------------------------------------------------------------------
 * A thread a pair, or four pairs where arrays lie on 16-byte boundaries.  Bytes: the rotated floats read and written, 8 each;
 * 36 heads of 128 and 4096 tokens are 151 MB, 0.036 ms at 4.2 TB/s; it reaches 75 to 94 % of a copy's rate. */

static __device__ __forceinline__ void rotate(float &a, float &b, float c, float s)
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
    rotate(*a, *b, cosine[at], s.inverse ? -sine[at] : sine[at]);
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
        rotate(a.x, a.y, c.x, sn.x);
        rotate(a.z, a.w, c.y, sn.y);
        rotate(b.x, b.y, c.z, sn.z);
        rotate(b.z, b.w, c.w, sn.w);
    } else {
        rotate(a.x, b.x, c.x, sn.x);
        rotate(a.y, b.y, c.y, sn.y);
        rotate(a.z, b.z, c.z, sn.z);
        rotate(a.w, b.w, c.w, sn.w);
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
