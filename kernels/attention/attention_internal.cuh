/* attention_internal.cuh - shared by the CUDA files of attention: the entries of the tiled kernels, the view by which
 * kernels that serve both kinds of attention read rows and keys, and the online softmax on the registers of tensor
 * cores; see attention.h. */
#ifndef EXF_KERNELS_ATTENTION_INTERNAL_CUH
#define EXF_KERNELS_ATTENTION_INTERNAL_CUH
#include "kernels/attention/attention.h"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/device/hopper.cuh"

/* Attention on tensor cores for heads of at most 256: floats of workspace, 0 if it does not
 * support the shape; and the operation. */
size_t exf_attention_tiles_workspace(const exf_attention_shape *s);
void exf_attention_tiles(exf_queue *q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                         float *workspace);

/* The same on the tensor cores of any GPU since compute capability 8.0, of the same shapes and in the same workspace. */
void exf_attention_mma(exf_queue *q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                       float *workspace);

/* What both work on.  A block has 128 query rows of one head and three warpgroups: two have 64 rows each, keep their output in
 * registers and loop over tiles of keys from the diagonal to the first; one thread of the third loads the tiles, byte for
 * byte as shared memory holds them, which a kernel before has written to the workspace. */
enum { EXF_TILED_ROWS = 128, EXF_TILED_CONSUMERS = 256, EXF_TILED_THREADS = EXF_TILED_CONSUMERS + 128 };
/* Registers of a thread that loads, that multiplies. */
enum { EXF_TILED_PRODUCER_REGISTERS = 24, EXF_TILED_CONSUMER_REGISTERS = 240 };

struct exf_tiled_attention {
    void *out; /* float32, or bfloat16 if s.rounded_out */
    const float *query, *k, *v;
    char *tiles; /* [n_kv, key tiles, keys | values] */
    exf_attention_shape s;
    int n_key_tiles;
    bool wide_q, wide_k, wide_v, wide_o; /* rows allow 16 bytes at a time */

    /* Rows of token t: of a query head, of a key-value head. */
    __device__ const float *query_row(int t, size_t head) const
    {
        return query + (size_t)t * s.ldq + head * s.d;
    }
    __device__ const float *k_row(int t, size_t head) const
    {
        return k + (size_t)t * s.ldk + head * s.d;
    }
    __device__ const float *v_row(int t, size_t head) const
    {
        return v + (size_t)t * s.ldv + head * s.dv;
    }
    /* Returns where the row's output begins in `out`, in elements. */
    __device__ long long out_at(int t, size_t head) const
    {
        return (long long)((size_t)t * s.ldo + head * s.dv);
    }
};

/* 1 if rows of the output allow 16 bytes at a time. */
static inline bool exf_wide_output(const void *out, const exf_attention_shape *s)
{
    int each = s->rounded_out ? 8 : 4;
    return (uintptr_t)out % 16 == 0 && s->ldo % each == 0 && s->dv % each == 0;
}

/* The arrays of a call; tiles of bn keys. */
static inline exf_tiled_attention exf_tiled_call(void *out, const float *query, const float *k, const float *v,
                                                 const exf_attention_shape *s, int bn, float *workspace)
{
    exf_tiled_attention p = {out, query, k, v, reinterpret_cast<char *>(workspace), *s, (s->n_tokens + bn - 1) / bn};
    p.wide_q = exf_aligned16(query, s->ldq) && s->d % 4 == 0;
    p.wide_k = exf_aligned16(k, s->ldk) && s->d % 4 == 0;
    p.wide_v = exf_aligned16(v, s->ldv) && s->dv % 4 == 0;
    p.wide_o = exf_wide_output(out, s);
    return p;
}

/* Rounds one tile of BN keys and their values: panels (hopper.cuh) of the keys, then of the values.  Grid: tiles, key-value
 * heads. */
template <int D, int DV, int BN> static __global__ void exf_pack_tile(exf_tiled_attention p)
{
    const exf_attention_shape &s = p.s;
    enum { CHUNKS = BN * 8, TILE_BYTES = BN * (D + DV) * 2 }; /* chunks of a panel */
    uint4 *tile = reinterpret_cast<uint4 *>(p.tiles + ((size_t)blockIdx.y * p.n_key_tiles + blockIdx.x) * TILE_BYTES);
    for (int i = threadIdx.x; i < CHUNKS * (D + DV) / 64; i += blockDim.x) {
        int row = i / 8 % BN, panel = i / CHUNKS, t = blockIdx.x * BN + row, c = ((i % 8) ^ (row & 7)) * 8;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (t < s.n_tokens && panel < D / 64)
            x = exf_half8(p.k_row(t, blockIdx.y), panel * 64 + c, s.d, p.wide_k);
        else if (t < s.n_tokens)
            x = exf_half8(p.v_row(t, blockIdx.y), (panel - D / 64) * 64 + c, s.dv, p.wide_v);
        tile[i] = x;
    }
}

/* Index of the first of N kernels' sizes in which a head fits; N: none. */
template <class Size, int N> static int exf_tiled_size(const Size (&sizes)[N], const exf_attention_shape *s)
{
    int i = 0;
    while (i < N && (s->d > sizes[i].d || s->dv > sizes[i].dv)) i++;
    return i;
}

/* A view names the rows and keys of one grid row (blockIdx.y): a query head. */
struct exf_causal_view {
    void *out; /* float32, or bfloat16 if s.rounded_out */
    const float *query, *k, *v;
    exf_attention_shape s;

    __device__ int n_rows() const
    {
        return s.n_tokens;
    }
    __device__ int head_kv() const
    {
        return blockIdx.y / (s.n_heads / s.n_kv);
    }
    __device__ const float *query_row(int r) const
    {
        return query + (size_t)r * s.ldq + (size_t)blockIdx.y * s.d;
    }
    /* Return where a row's output begins in `out`, in elements, and whether these are bfloat16. */
    __device__ long long out_at(int r) const
    {
        return (long long)((size_t)r * s.ldo + (size_t)blockIdx.y * s.dv);
    }
    __device__ bool rounds() const
    {
        return s.rounded_out;
    }
    /* Row access of the wide kernel: loads eight of a query's columns as float16; stores a
     * thread's part of its two output rows, times inverse[]. */
    __device__ uint4 query8(int r, int column, int n, bool quads) const
    {
        return exf_half8(query_row(r), column, n, quads);
    }
    template <int N>
    __device__ void store(const float (&o)[N], const float (&inverse)[2], int row, int column, int n, bool quads) const
    {
        exf_store_view(*this, o, inverse, row, column, n, quads);
    }
    /* Returns the first key that row r attends to. */
    __device__ int first_key(int r) const
    {
        return s.window && r + 1 > s.window ? r + 1 - s.window : 0;
    }
    /* Return the number of keys that any of the 64 rows from `first` attends to, and the j-th of them. */
    __device__ int n_keys(int first) const
    {
        return (first + 64 < s.n_tokens ? first + 64 : s.n_tokens) - first_key(first);
    }
    __device__ int key(int first, int j) const
    {
        return first_key(first) + j;
    }
    __device__ const float *k_row(int key) const
    {
        return k + (size_t)key * s.ldk + (size_t)head_kv() * s.d;
    }
    __device__ const float *v_row(int key) const
    {
        return v + (size_t)key * s.ldv + (size_t)head_kv() * s.dv;
    }
    /* Returns the group of a row; rows of one group attend to the same keys. */
    __device__ int group(int r) const
    {
        return r;
    }
    __device__ bool sees(int group, int key) const
    {
        return key <= group && key >= first_key(group) && (!s.chosen || s.chosen[(size_t)group * s.n_tokens + key]);
    }
    /* Returns the attention sink of a row: a score that counts in the softmax sum but has no value. */
    __device__ float sink(int r) const
    {
        (void)r;
        return s.sinks ? s.sinks[blockIdx.y] : -INFINITY;
    }
};

/* Sets element `at` of an output to x, rounded if the output is bfloat16. */
static __device__ __forceinline__ void exf_set_output(void *out, long long at, float x, bool rounded)
{
    if (rounded)
        exf_set_element(static_cast<uint16_t *>(out) + at, x);
    else
        exf_set_element(static_cast<float *>(out) + at, x);
}

/* Exponentials are powers of two: scores are multiplied by it. */
#define EXF_LOG2_E 1.44269504f

/* ---- online softmax: a thread holds some columns of two of the rows, as wgmma and mma.sync give them ------------- */

#ifdef EXF_MMA
/* The state of a thread's two rows: the largest score, the sum over the thread's columns,
 * and the factor by which earlier sums and outputs must be multiplied. */
struct exf_softmax_state {
    float top[2], sum[2], rescale[2];
};

/* Replaces s by exp(scale s - top), scale in powers of two. */
template <int BN> static __device__ __forceinline__ void exf_online_softmax(float (&s)[BN / 2], exf_softmax_state &w, float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = w.top[r], part[2] = {0, 0};
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        float base = most == -INFINITY ? 0 : most * scale;
        w.rescale[r] = exf_exp2(fmaf(w.top[r], scale, -base));
        w.top[r] = most;
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) {
            part[0] += s[i] = exf_exp2(fmaf(s[i], scale, -base));
            part[1] += s[i + 1] = exf_exp2(fmaf(s[i + 1], scale, -base));
        }
        w.sum[r] = w.sum[r] * w.rescale[r] + (part[0] + part[1]);
    }
}

/* Masks keys: a row sees the keys up to itself; BN keys from first_key on, `row` is this thread's first row. */
template <int BN> static __device__ __forceinline__ void exf_mask(float (&s)[BN / 2], int row, int first_key)
{
    int newest = row - first_key - 2 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < BN / 2; i++)
        if (i / 4 * 8 + i % 2 > newest + i % 4 / 2 * 8) s[i] = -INFINITY;
}

/* Rounds scores to the A operand of the product with the values. */
template <int N> static __device__ __forceinline__ void exf_round_to(uint32_t (&p)[N / 2], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) p[i] = exf_half2(s[2 * i], s[2 * i + 1]);
}

template <int N> static __device__ __forceinline__ void exf_rescale_output(float (&o)[N], const exf_softmax_state &w)
{
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= w.rescale[i % 4 / 2];
}

/* Stores N columns (2 N registers) of this thread's two rows, times inverse[], to out[], which is
 * NULL for a row past the end; columns from `column` on, n in the row.  Neighbouring lanes exchange
 * halves, so that each writes 16 bytes of one row; quads: rows are aligned for that. */
template <int N>
static __device__ __forceinline__ void exf_store_rows(const float (&o)[N], const float (&inverse)[2], float *const (&out)[2],
                                                      int column, int n, bool quads)
{
    int lane = threadIdx.x % 4, odd = lane % 2;
    float *to = odd ? out[1] : out[0];
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float a = o[4 * i] * inverse[0], b = o[4 * i + 1] * inverse[0], c = o[4 * i + 2] * inverse[1],
              d = o[4 * i + 3] * inverse[1];
        float x = __shfl_xor_sync(0xffffffffu, odd ? a : c, 1), y = __shfl_xor_sync(0xffffffffu, odd ? b : d, 1);
        float4 four = odd ? make_float4(x, y, c, d) : make_float4(a, b, x, y);
        int at = column + 8 * i + lane / 2 * 4;
        if (!to) continue;
        if (quads && at + 4 <= n) {
            *reinterpret_cast<float4 *>(to + at) = four;
        } else {
            if (at < n) to[at] = four.x;
            if (at + 1 < n) to[at + 1] = four.y;
            if (at + 2 < n) to[at + 2] = four.z;
            if (at + 3 < n) to[at + 3] = four.w;
        }
    }
}

/* The same rounded to bfloat16.  Lanes exchange with two others, so that a pair of them writes 16 bytes of either row and
 * the other pair the 16 after those; wide: rows are aligned for that. */
template <int N>
static __device__ __forceinline__ void exf_store_rows(const float (&o)[N], const float (&inverse)[2], uint16_t *const (&out)[2],
                                                      int column, int n, bool wide)
{
    static_assert(N % 8 == 0, "16 columns at a time");
    int lane = threadIdx.x % 4, odd = lane % 2, upper = lane / 2;
    uint16_t *to = odd ? out[1] : out[0];
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        uint32_t four[2][2]; /* of this lane's row: four columns of the first eight, four of the second */
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int j = 8 * i + 4 * k;
            uint32_t a = exf_narrow2(o[j] * inverse[0], o[j + 1] * inverse[0]),
                     b = exf_narrow2(o[j + 2] * inverse[1], o[j + 3] * inverse[1]);
            uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1);
            four[k][0] = odd ? other : a;
            four[k][1] = odd ? b : other;
        }
        uint32_t x = __shfl_xor_sync(0xffffffffu, upper ? four[0][0] : four[1][0], 2),
                 y = __shfl_xor_sync(0xffffffffu, upper ? four[0][1] : four[1][1], 2);
        uint32_t eight[4] = {upper ? x : four[0][0], upper ? y : four[0][1], upper ? four[1][0] : x, upper ? four[1][1] : y};
        int at = column + 16 * i + 8 * upper;
        if (!to) continue;
        if (wide && at + 8 <= n) {
            *reinterpret_cast<uint4 *>(to + at) = make_uint4(eight[0], eight[1], eight[2], eight[3]);
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (at + e < n) to[at + e] = (uint16_t)(eight[e / 2] >> e % 2 * 16);
        }
    }
}

/* Stores this thread's two rows as exf_store_rows() does, in an output of T; at[]: where they begin, -1 past the end. */
template <class T, int N>
static __device__ __forceinline__ void exf_store_as(const float (&o)[N], const float (&inverse)[2], void *out,
                                                    const long long (&at)[2], int column, int n, bool wide)
{
    T *rows[2];
    for (int r = 0; r < 2; r++) rows[r] = at[r] < 0 ? nullptr : static_cast<T *>(out) + at[r];
    exf_store_rows(o, inverse, rows, column, n, wide);
}

/* The same in an output of float32, or of bfloat16 if it is rounded. */
template <int N>
static __device__ __forceinline__ void exf_store_output(const float (&o)[N], const float (&inverse)[2], void *out,
                                                        const long long (&at)[2], bool rounded, int column, int n, bool wide)
{
    if (rounded)
        exf_store_as<uint16_t>(o, inverse, out, at, column, n, wide);
    else
        exf_store_as<float>(o, inverse, out, at, column, n, wide);
}

/* Stores rows `row` and `row` + 8 of a view. */
template <class View, int N>
static __device__ __forceinline__ void exf_store_view(const View &w, const float (&o)[N], const float (&inverse)[2], int row,
                                                     int column, int n, bool quads)
{
    long long at[2];
    for (int r = 0; r < 2; r++) at[r] = row + 8 * r < w.n_rows() ? w.out_at(row + 8 * r) : -1;
    exf_store_output(o, inverse, w.out, at, w.rounds(), column, n, quads);
}

/* Returns the sum over the four lanes that share a row. */
static __device__ __forceinline__ float exf_sum4(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Stores rows `row` and `row` + 8 of a head, divided by the sums of their weights; rounded: the output is bfloat16. */
template <int DV>
static __device__ __forceinline__ void exf_tiled_store(const float (&o)[DV / 2], const float (&sum)[2],
                                                       const exf_tiled_attention &p, int head, int row, bool rounded)
{
    float inverse[2] = {1 / exf_sum4(sum[0]), 1 / exf_sum4(sum[1])};
    long long at[2];
    for (int r = 0; r < 2; r++) at[r] = row + 8 * r < p.s.n_tokens ? p.out_at(row + 8 * r, head) : -1;
    exf_store_output(o, inverse, p.out, at, rounded, 0, p.s.dv, p.wide_o);
}
#endif
#endif
