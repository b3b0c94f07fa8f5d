/* compressed_cuda.cu - attention of a block of queries, all heads; see compressed.h.
 *
 * Rows are (query, head) pairs, 64 to a tile: with many heads a tile is one query, and
 * keys to which it does not attend are left out before the products.  A first kernel lists
 * the keys to which some row of a tile attends, in order; then the kernels of causal
 * attention, on tensor cores or in float32, process that list; attention_wide.cuh and
 * attention_wide_mma.cuh have their cost.
 *
 * Listing: 256 threads a tile; a byte of `chosen` for each query and visible entry, 4 MB of 4096 queries and 1024 entries.
 * Rounding keys: 6 bytes a number, 13 MB of 4096 tokens of 512, 3 us at 4.2 TB/s.  Whole heads: queries read as float32,
 * written as float16, then outputs written as bfloat16 over them: 10 bytes a number for 8. */
#include "kernels/attention/attention_f32.cuh"
#include "kernels/attention/attention_wide_mma.cuh"
#include "kernels/attention/compressed.h"
#include "kernels/device/cuda_rows.cuh"

enum { TILE = 64, LIST_THREADS = 256, MOST_D = 512 };

/* The keys of a block: tokens from `from`, then entries. */
struct reach {
    int from, n_tokens, n_entries;
};

static reach reach_of(const exf_compressed_attention_shape *s)
{
    int from = s->first - s->window + 1 > 0 ? s->first - s->window + 1 : 0;
    return {from, s->first + s->n_rows - from, s->ratio ? (s->first + s->n_rows) / s->ratio : 0};
}

/* A view like exf_causal_view.  A group is a query; key j of a block is a token or an entry. */
struct view {
    float *out;
    const float *query;
    exf_compressed_keys keys;
    exf_compressed_attention_shape s;
    reach r;
    int *count, *list, most; /* of every tile: the number of its keys, and their list, in rows of `most` */

    __device__ int n_rows() const
    {
        return s.n_rows * s.n_heads;
    }
    __device__ int head_kv() const
    {
        return 0;
    }
    __device__ const float *query_row(int row) const
    {
        return query + (size_t)row * s.d;
    }
    __device__ long long out_at(int row) const
    {
        return (long long)row * s.d;
    }
    __device__ bool rounds() const
    {
        return false;
    }
    __device__ int n_keys(int first) const
    {
        return count[first / TILE];
    }
    __device__ int key(int first, int j) const
    {
        return list[(size_t)(first / TILE) * most + j];
    }
    __device__ const float *k_row(int key) const
    {
        return key < r.n_tokens ? keys.tokens + (size_t)(r.from + key) * s.d : keys.entries + (size_t)(key - r.n_tokens) * s.d;
    }
    __device__ const float *v_row(int key) const
    {
        return k_row(key);
    }
    __device__ int group(int row) const
    {
        return row / s.n_heads;
    }
    __device__ bool sees(int group, int key) const
    {
        int t = s.first + group, w = key - r.n_tokens;
        if (w < 0) return r.from + key <= t && r.from + key > t - s.window;
        return (w + 1) * s.ratio <= t + 1 && (!keys.chosen || keys.chosen[(size_t)group * r.n_entries + w]);
    }
    __device__ float sink(int row) const
    {
        return keys.sink[row % s.n_heads];
    }
    __device__ uint4 query8(int row, int column, int n, bool quads) const
    {
        return exf_half8(query_row(row), column, n, quads);
    }
    template <int N>
    __device__ void store(const float (&o)[N], const float (&inverse)[2], int row, int column, int n, bool quads) const
    {
        exf_store_view(*this, o, inverse, row, column, n, quads);
    }
};

/* The same for float16 queries, which the outputs overwrite as bfloat16, rotated back: of every pair
 * of neighbouring columns from `turned` on. */
struct halves_view : view {
    uint16_t *rows;
    const float *cosine, *sine; /* [n_rows, pairs] */
    int turned, pairs;

    __device__ uint4 query8(int row, int column, int, bool) const
    {
        return *reinterpret_cast<const uint4 *>(rows + (size_t)row * s.d + column);
    }
    template <int N> __device__ void store(const float (&o)[N], const float (&inverse)[2], int row, int column, int, bool) const
    {
        int lane = threadIdx.x % 4, odd = lane % 2, mine = row + 8 * odd;
        uint32_t *to = reinterpret_cast<uint32_t *>(rows + (size_t)mine * s.d + column) + lane / 2 * 2;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            uint32_t two[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float a = o[4 * i + 2 * r] * inverse[r], b = o[4 * i + 2 * r + 1] * inverse[r];
                int at = column + 8 * i + 2 * lane, pair = (at - turned) / 2, clamped = min(row + 8 * r, n_rows() - 1);
                if (at >= turned) {
                    size_t place = (size_t)(clamped / s.n_heads) * pairs + pair;
                    float c = cosine[place], sn = sine[place], was = a;
                    a = was * c + b * sn;
                    b = b * c - was * sn;
                }
                two[r] = (uint32_t)exf_narrow(b) << 16 | exf_narrow(a);
            }
            uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? two[0] : two[1], 1);
            if (mine < n_rows())
                *reinterpret_cast<uint2 *>(to + 4 * i) = odd ? make_uint2(other, two[1]) : make_uint2(two[0], other);
        }
    }
};

/* Lists the keys of tile blockIdx.x: the consecutive tokens that its queries' windows cover, then
 * the entries that one of them sees. */
static __device__ void list_keys(const view &w)
{
    __shared__ int found[LIST_THREADS / 32];
    int first = blockIdx.x * TILE, end = first + TILE < w.n_rows() ? first + TILE : w.n_rows();
    int g0 = w.group(first), g1 = w.group(end - 1), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int from = max(w.s.first + g0 - w.s.window + 1, 0) - w.r.from, n = w.s.first + g1 + 1 - w.r.from - from;
    int entries = w.s.ratio ? (w.s.first + g1 + 1) / w.s.ratio : 0, *list = w.list + (size_t)blockIdx.x * w.most;
    for (int i = threadIdx.x; i < n; i += LIST_THREADS) list[i] = from + i;
    for (int at = 0; at < entries; at += LIST_THREADS) {
        int entry = at + threadIdx.x, before = n;
        bool seen = false;
        for (int g = g0; entry < entries && !seen && g <= g1; g++) seen = w.sees(g, w.r.n_tokens + entry);
        unsigned bits = __ballot_sync(0xffffffffu, seen);
        if (lane == 0) found[warp] = __popc(bits);
        __syncthreads();
        for (int i = 0; i < LIST_THREADS / 32; i++) {
            before += i < warp ? found[i] : 0;
            n += found[i];
        }
        if (seen) list[before + __popc(bits & ((1u << lane) - 1))] = w.r.n_tokens + entry;
        __syncthreads();
    }
    if (threadIdx.x == 0) w.count[blockIdx.x] = n;
}

/* Destination of the keys as rows of `width` float16. */
struct rounded_keys {
    uint4 *to;
    int width;
    bool wide;
};

/* Lists and rounds keys.  Grid: tiles, then blocks that round keys. */
static __global__ void prepare(view w, rounded_keys k, unsigned tiles)
{
    if (blockIdx.x < tiles) {
        list_keys(w);
        return;
    }
    int n = k.width / 8, i = (int)(blockIdx.x - tiles) * LIST_THREADS + (int)threadIdx.x, key = i / n;
    if (key < w.r.n_tokens + w.r.n_entries) k.to[i] = exf_half8(w.k_row(key), i % n * 8, w.s.d, k.wide);
}

static size_t tiles_of(int n_heads, int n_rows)
{
    return ((size_t)n_heads * n_rows + TILE - 1) / TILE;
}

/* Returns the most keys that the rows of a tile see: a tile has at most TILE queries. */
static size_t most_listed(int window, int n_entries)
{
    return (size_t)window + TILE + (size_t)n_entries;
}

/* Workspace: every tile's list, and every key rounded. */
size_t exf_compressed_attention_workspace_cuda(int n_heads, int n_rows, int n_tokens, int window, int ratio)
{
    size_t entries = ratio ? n_tokens / ratio : 0,
           keys = (size_t)(n_rows + window - 1 < n_tokens ? n_rows + window - 1 : n_tokens) + entries;
    return keys * (MOST_D / 2) + tiles_of(n_heads, n_rows) * (most_listed(window, (int)entries) + 1);
}

/* Starts both operations: lists the keys that tiles see, and rounds keys if `width` is not 0. */
static view make_view(exf_queue *q, float *out, const float *query, const exf_compressed_keys *k,
                      const exf_compressed_attention_shape *s, float *workspace, int width)
{
    reach r = reach_of(s);
    int keys = r.n_tokens + r.n_entries, most = (int)most_listed(s->window, r.n_entries),
        *list = reinterpret_cast<int *>(workspace + (size_t)keys * (MOST_D / 2));
    size_t tiles = tiles_of(s->n_heads, s->n_rows);
    view w = {out, query, *k, *s, r, list + tiles * most, list, most};
    rounded_keys k16 = {reinterpret_cast<uint4 *>(workspace), width,
                        exf_aligned16(k->tokens, s->d) && exf_aligned16(k->entries, s->d)};
    unsigned blocks = width ? exf_blocks((size_t)keys * width / 8, LIST_THREADS) : 0;
    EXF_LAUNCH(q, "compressed keys", prepare, (unsigned)tiles + blocks, LIST_THREADS, 0, w, k16, (unsigned)tiles);
    return w;
}

template <class View, int D> static void attend_rounded(exf_queue *q, const View &w, const float *workspace)
{
    const exf_compressed_attention_shape &s = w.s;
    const char *keys = reinterpret_cast<const char *>(workspace);
    int rows = s.n_rows * s.n_heads;
    bool wide = exf_aligned16(w.query, s.d), wide_o = exf_aligned16(w.out, s.d);
    if (exf_uses_wgmma())
        exf_attention_wide<View, D, D, true>(q, w, {keys, keys, 0}, s.d, s.d, s.scale, rows, 1, wide, wide_o);
    else
        exf_attention_narrow<View, D>(q, w, keys, s.d, s.scale, rows, wide, wide_o);
}

void exf_compressed_attention_cuda(exf_queue *q, float *out, const float *query, const exf_compressed_keys *k,
                                   const exf_compressed_attention_shape *s, float *workspace)
{
    bool halves = exf_rounds(q) && exf_uses_tensor_cores(0);
    bool wide = exf_aligned16(k->tokens, s->d) && exf_aligned16(k->entries, s->d);
    if (s->n_rows == 0 || q->err.code != EXF_OK) return;
    if (s->d > MOST_D) {
        exf_fail(&q->err, EXF_DEVICE, "CUDA: compressed attention: heads of %d, the kernels go to %d", s->d, MOST_D);
        return;
    }
    view w = make_view(q, out, query, k, s, workspace, !halves ? 0 : s->d <= 128 ? 128 : MOST_D);
    if (!halves)
        exf_attention_f32(q, w, s->d, s->d, s->scale, s->n_rows * s->n_heads, 1, wide, wide);
    else if (s->d <= 128)
        attend_rounded<view, 128>(q, w, workspace);
    else
        attend_rounded<view, MOST_D>(q, w, workspace);
}

/* ---- whole heads: norm, rotation, attention, rotation back ---------------------------------- */

/* Norms a head of a row and rotates its pairs from `turned` on, with a warp of 4 QUADS times 32 columns. */
template <int QUADS>
static __global__ void round_queries(uint16_t *out, const float *x, int n, int n_heads, int turned, int pairs, const float *cosine,
                                     const float *sine, double eps)
{
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 a[QUADS];
    double sum = 0;
    if (row >= n) return;
    const float4 *in = reinterpret_cast<const float4 *>(x) + (size_t)row * QUADS * 32;
    uint2 *to = reinterpret_cast<uint2 *>(out) + (size_t)row * QUADS * 32;
#pragma unroll
    for (int k = 0; k < QUADS; k++) a[k] = in[lane + 32 * k];
#pragma unroll
    for (int k = 0; k < QUADS; k++) sum += exf_square_sum(a[k]);
    float scale = (float)(1.0 / sqrt(exf_warp_sum(sum) / (QUADS * 128) + eps));
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        int at = 4 * (lane + 32 * k);
        float4 b = make_float4(a[k].x * scale, a[k].y * scale, a[k].z * scale, a[k].w * scale);
        if (at >= turned) {
            size_t place = (size_t)(row / n_heads) * pairs + (at - turned) / 2;
            float2 c = *reinterpret_cast<const float2 *>(cosine + place), s = *reinterpret_cast<const float2 *>(sine + place);
            b = make_float4(b.x * c.x - b.y * s.x, b.y * c.x + b.x * s.x, b.z * c.y - b.w * s.y, b.w * c.y + b.z * s.y);
        }
        to[lane + 32 * k] = make_uint2(exf_half2(b.x, b.y), exf_half2(b.z, b.w));
    }
}

int exf_compressed_heads_fit_cuda(const exf_compressed_attention_shape *s, const exf_rope_shape *r)
{
    return exf_uses_tensor_cores(0) && (s->d == 128 || s->d == MOST_D) && r->interleaved && r->step == 1 &&
           r->offset + r->d == s->d && r->d % 4 == 0 && r->offset % 4 == 0;
}

template <int D>
static void whole_heads(exf_queue *q, uint16_t *out, const float *query, const view &w, const exf_rope_shape *r,
                        const float *cosine, const float *sine, double eps, const float *workspace)
{
    int n = w.s.n_rows * w.s.n_heads;
    halves_view v;
    static_cast<view &>(v) = w;
    v.rows = out;
    v.cosine = cosine;
    v.sine = sine;
    v.turned = r->offset;
    v.pairs = r->d / 2;
    EXF_LAUNCH(q, "queries", round_queries<D / 128>, exf_blocks((size_t)n, 8), 256, 0, out, query, n, w.s.n_heads, r->offset,
               r->d / 2, cosine, sine, eps);
    attend_rounded<halves_view, D>(q, v, workspace);
}

void exf_compressed_heads_cuda(exf_queue *q, uint16_t *out, const float *query, const exf_compressed_keys *k,
                               const exf_compressed_attention_shape *s, const exf_rope_shape *r, const float *cosine,
                               const float *sine, double eps, float *workspace)
{
    if (s->n_rows == 0 || q->err.code != EXF_OK) return;
    view w = make_view(q, nullptr, nullptr, k, s, workspace, s->d);
    s->d == 128 ? whole_heads<128>(q, out, query, w, r, cosine, sine, eps, workspace)
                : whole_heads<MOST_D>(q, out, query, w, r, cosine, sine, eps, workspace);
}
