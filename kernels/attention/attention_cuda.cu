/* attention_cuda.cu - chooses the kernel of a causal attention and launches it; rotates queries and keys; see attention.h. */
#include "kernels/attention/attention_f32.cuh"
#include "kernels/attention/attention_wide.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/rows/rows.h"

/* ---- attention -------------------------------------------------------------------------------- */

/* Largest head sizes of the wide kernel, which reads keys and values as rows of float16. */
enum { WIDE_D = 576, WIDE_DV = 512 };

size_t exf_attention_workspace_cuda(const exf_attention_shape *s)
{
    size_t tiles = exf_attention_tiles_workspace(s);
    return tiles ? tiles : (size_t)s->n_kv * s->n_tokens * (WIDE_D + WIDE_DV) / 2;
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

void exf_attention_cuda(exf_queue *q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                        float *workspace)
{
    exf_causal_view w = {out, query, k, v, *s};
    bool plain = !s->window && !s->sinks && !s->chosen; /* the kernels on tensor cores know none of them */
    if (s->n_tokens == 0 || q->err.code != EXF_OK) return;
    if (s->d > WIDE_D || s->dv > WIDE_DV)
        exf_fail(&q->err, EXF_DEVICE, "CUDA: attention: heads of %d and %d, the kernels go to %d and %d", s->d, s->dv, WIDE_D,
                 WIDE_DV);
    else if (s->rounded_out && !exf_rounds(q))
        exf_fail(&q->err, EXF_INTERNAL, "attention of a float32 queue with a rounded output");
    else if (plain && exf_rounds(q) && exf_uses_wgmma() && exf_attention_tiles_workspace(s))
        exf_attention_tiles(q, out, query, k, v, s, workspace);
    else if (plain && exf_rounds(q) && exf_uses_mma() && exf_attention_tiles_workspace(s))
        exf_attention_mma(q, out, query, k, v, s, workspace);
    else if (plain && exf_rounds(q) && exf_uses_wgmma())
        attend_wide(q, w, workspace);
    else
        exf_attention_f32(q, w, s->d, s->dv, s->scale, s->n_tokens, s->n_heads, exf_aligned16(k, s->ldk) && s->d % 4 == 0,
                          exf_aligned16(v, s->ldv) && s->dv % 4 == 0);
}

/* ---- rotation ---------------------------------------------------------------------------------
 * A thread a pair, or four pairs where arrays lie on 16-byte boundaries.  Bytes: the rotated floats read and written, 8 each;
 * 36 heads of 128 and 4096 tokens are 151 MB, 0.036 ms at 4.2 TB/s; it reaches 75 to 94 % of a copy's rate.
 *
 * With a norm: heads of at most 512 floats, four quads a lane: 8 lanes a head of 128, 16 of 256, a warp of 512.  A head is
 * read once and written once, so the bytes, and the floor, are those of the rotation alone; a norm before it took as many
 * again.  Interleaved pairs, and halves of a whole head of 128, 256 or 512, lie in one lane; other halves meet in shared
 * memory.  Heads that are wider, or not on 16-byte boundaries, or rotated beyond what is normed, take two kernels. */

/* Returns x turned towards its partner: s is the sine, negative for the first of a pair.  One rounding of the product and one
 * of the sum, whichever kernel asks. */
static __device__ __forceinline__ float turned(float x, float partner, float c, float s)
{
    return __fmaf_rn(x, c, __fmul_rn(partner, s));
}

static __device__ __forceinline__ void rotate(float &a, float &b, float c, float s)
{
    float was = a;
    a = turned(was, b, c, -s);
    b = turned(b, was, c, s);
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

/* ---- norm and rotation ------------------------------------------------------------------------ */

/* NORM_HELD: quads of a head that a lane keeps in registers. */
enum { NORM_THREADS = 128, NORM_HELD = 4 };

/* The cosines of a quad of a head and its sines, negative for the first of a pair. */
typedef struct {
    float4 c, s;
} turn;

/* Loads the turn of the quad `at` of the rotated part: the tables of its token begin at c and s. */
static __device__ __forceinline__ turn load_turn(const exf_rope_shape &s, const float *cosine, const float *sine, int at)
{
    int half = s.d / 8;
    float sign = s.inverse ? -1.0f : 1.0f;
    if (s.interleaved) {
        float2 c = reinterpret_cast<const float2 *>(cosine)[at], sn = reinterpret_cast<const float2 *>(sine)[at];
        return {make_float4(c.x, c.x, c.y, c.y), make_float4(-sign * sn.x, sign * sn.x, -sign * sn.y, sign * sn.y)};
    }
    if (at < half) sign = -sign;
    else at -= half;
    float4 c = reinterpret_cast<const float4 *>(cosine)[at], sn = reinterpret_cast<const float4 *>(sine)[at];
    return {c, make_float4(sign * sn.x, sign * sn.y, sign * sn.z, sign * sn.w)};
}

/* Returns the sum of squares of a head, to every lane of the GROUP that hold it: lane l the quads l + GROUP k.  Terms are paired as
 * rmsnorm_quads<32> pairs them, where lane l holds the quads l + 32 k, so the bits are the same. */
template <int GROUP> static __device__ __forceinline__ double square_sum(const float4 (&a)[NORM_HELD])
{
    double b[NORM_HELD], sum;
#pragma unroll
    for (int k = 0; k < NORM_HELD; k++) b[k] = exf_square_sum(a[k]);
    sum = GROUP == 32 ? ((b[0] + b[1]) + b[2]) + b[3] : (b[0] + b[2]) + (b[1] + b[3]);
#pragma unroll
    for (int step = GROUP / 2; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

/* Rotates a head that has been normed: t holds the turns of a lane's quads.  Halves meet in row. */
template <int GROUP>
static __device__ __forceinline__ void rotate_anywhere(float4 (&a)[NORM_HELD], const turn (&t)[NORM_HELD], float4 *row, int lane,
                                                       const exf_rope_shape &s)
{
    int first = s.offset / 4, half = s.d / 8;
#pragma unroll
    for (int k = 0; k < NORM_HELD; k++)
        if (!s.interleaved) row[lane + GROUP * k] = a[k];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < NORM_HELD; k++) {
        int i = lane + GROUP * k, at = i - first;
        if (at < 0 || at >= 2 * half) continue;
        float4 b = s.interleaved ? make_float4(a[k].y, a[k].x, a[k].w, a[k].z) : row[at < half ? i + half : i - half];
        a[k] = make_float4(turned(a[k].x, b.x, t[k].c.x, t[k].s.x), turned(a[k].y, b.y, t[k].c.y, t[k].s.y),
                           turned(a[k].z, b.z, t[k].c.z, t[k].s.z), turned(a[k].w, b.w, t[k].c.w, t[k].s.w));
    }
}

/* Norms and rotates heads of at most 16 GROUP floats, GROUP lanes each; n_all heads.  All arrays are aligned to 16 bytes, and so
 * are their parts. */
template <int GROUP, bool WHOLE>
static __global__ void __launch_bounds__(NORM_THREADS, WHOLE ? 8 : 5)
    norm_rope_quads(float *x, exf_rope_shape s, const float *cosine, const float *sine, unsigned n_all)
{
    __shared__ float4 rows[WHOLE ? 1 : NORM_THREADS * NORM_HELD];
    unsigned head = blockIdx.x * (NORM_THREADS / GROUP) + threadIdx.x / GROUP, token = head / (unsigned)s.n_heads;
    int lane = threadIdx.x % GROUP, n = head < n_all ? s.normed / 4 : 0;
    float4 *h = reinterpret_cast<float4 *>(x + (size_t)token * s.ld + (size_t)(head % (unsigned)s.n_heads) * s.head_dim);
    const float4 *weight = reinterpret_cast<const float4 *>(s.norm);
    size_t table = (size_t)token * s.step * (s.d / 2);
    float4 a[NORM_HELD];
    turn t[NORM_HELD];
#pragma unroll
    for (int k = 0; k < NORM_HELD; k++) {
        int i = lane + GROUP * k;
        a[k] = i < n ? h[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < (WHOLE ? NORM_HELD / 2 : NORM_HELD); k++) { /* while the head is on its way */
        int i = lane + GROUP * k, at = i - s.offset / 4;
        if (i < n && at >= 0 && at < s.d / 4) t[k] = load_turn(s, cosine + table, sine + table, at);
    }
    float scale = (float)(1.0 / sqrt(square_sum<GROUP>(a) / s.normed + s.eps));
#pragma unroll
    for (int k = 0; k < NORM_HELD; k++) {
        int i = lane + GROUP * k;
        float4 b = s.norm && i < n ? weight[i] : make_float4(1, 1, 1, 1);
        a[k] = make_float4(b.x * (a[k].x * scale), b.y * (a[k].y * scale), b.z * (a[k].z * scale), b.w * (a[k].w * scale));
    }
    if (!WHOLE) rotate_anywhere<GROUP>(a, t, rows + threadIdx.x / GROUP * (GROUP * NORM_HELD), lane, s);
#pragma unroll
    for (int k = 0; WHOLE && k < NORM_HELD / 2; k++) { /* halves of 8 GROUP floats each: partners lie in one lane */
        float4 &b = a[k + NORM_HELD / 2];
        rotate(a[k].x, b.x, t[k].c.x, -t[k].s.x);
        rotate(a[k].y, b.y, t[k].c.y, -t[k].s.y);
        rotate(a[k].z, b.z, t[k].c.z, -t[k].s.z);
        rotate(a[k].w, b.w, t[k].c.w, -t[k].s.w);
    }
#pragma unroll
    for (int k = 0; k < NORM_HELD; k++) {
        int i = lane + GROUP * k;
        if (i < n) h[i] = a[k];
    }
}

template <int GROUP>
static void launch_norm(exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine)
{
    unsigned n = (unsigned)s->n_tokens * (unsigned)s->n_heads, blocks = exf_blocks(n, NORM_THREADS / GROUP);
    if (s->normed == 4 * NORM_HELD * GROUP && s->d == s->normed && !s->interleaved)
        EXF_LAUNCH(q, "norm_rope", (norm_rope_quads<GROUP, true>), blocks, NORM_THREADS, 0, x, *s, cosine, sine, n);
    else
        EXF_LAUNCH(q, "norm_rope", (norm_rope_quads<GROUP, false>), blocks, NORM_THREADS, 0, x, *s, cosine, sine, n);
}

void exf_rope_apply_cuda(exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine)
{
    size_t heads = (size_t)s->n_tokens * s->n_heads, total = heads * (s->d / 2);
    /* Heads and tables lie on 16-byte boundaries, and so do the rotated parts and their halves. */
    bool wide = s->d % 8 == 0 && s->head_dim % 4 == 0 && s->offset % 4 == 0 && exf_aligned16(x, s->ld) &&
                exf_aligned16(cosine, 0) && exf_aligned16(sine, 0);
    if (heads == 0) return;
    if (wide && s->normed && s->normed <= 32 * 4 * NORM_HELD && s->normed % 4 == 0 && s->offset + s->d <= s->normed &&
        exf_aligned16(s->norm, 0) && heads < 0x7fffffff) {
        if (s->normed <= 8 * 4 * NORM_HELD)
            launch_norm<8>(q, x, s, cosine, sine);
        else if (s->normed <= 16 * 4 * NORM_HELD)
            launch_norm<16>(q, x, s, cosine, sine);
        else
            launch_norm<32>(q, x, s, cosine, sine);
        return;
    }
    if (s->normed && s->ld == s->n_heads * s->head_dim) { /* heads of all tokens are as far apart */
        exf_rmsnorm_cuda(q, x, s->head_dim, x, s->head_dim, s->norm, (int)heads, s->normed, s->eps);
    } else {
        for (int h = 0; s->normed && h < s->n_heads; h++) {
            float *head = x + (size_t)h * s->head_dim;
            exf_rmsnorm_cuda(q, head, s->ld, head, s->ld, s->norm, s->n_tokens, s->normed, s->eps);
        }
    }
    if (total == 0) return;
    if (wide && total / 4 < 0x7fffffff)
        EXF_LAUNCH(q, "rope", rope_quads, exf_blocks(total / 4, 256), 256, 0, x, *s, reinterpret_cast<const float4 *>(cosine),
                   reinterpret_cast<const float4 *>(sine), (unsigned)(total / 4));
    else
        EXF_LAUNCH(q, "rope", rope, exf_blocks(total, 256), 256, 0, x, *s, cosine, sine, total);
}
