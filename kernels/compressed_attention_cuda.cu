/* compressed_attention_cuda.cu - a block of queries, all heads; see compressed_attention.h.
 *
 * Rows are (query, head) pairs, 64 to a tile: with many heads a tile is one query, and
 * the keys that it does not see are left out before anything is multiplied.  So first
 * the keys that some row of a tile sees are listed, in order; then the kernels that
 * causal attention has too, on tensor cores or in float32, go through that list. */
#include "kernels/attention_f32.cuh"
#include "kernels/attention_wide.cuh"

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

/* See exf_causal_view.  A group is a query; key j of a block is a token or an entry. */
struct view {
    float *out;
    const float *query;
    exf_compressed_keys keys;
    exf_compressed_attention_shape s;
    reach r;
    int *count, *list, most; /* of every tile: how many keys, and which, in rows of `most` */

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
    __device__ float *out_row(int row) const
    {
        return out + (size_t)row * s.d;
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
};

/* The keys of tile blockIdx.x: the tokens that its queries' windows cover, which follow one
 * another, then the entries that one of them sees. */
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

/* Where every key goes as a row of `width` float16. */
struct rounded_keys {
    uint4 *to;
    int width;
    bool wide;
};

/* Grid: tiles, then blocks that round keys. */
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

/* Keys that the rows of a tile see at most: a tile has at most TILE queries. */
static size_t most_listed(int window, int n_entries)
{
    return (size_t)window + TILE + (size_t)n_entries;
}

/* Every tile's list, and every key rounded. */
size_t exf_compressed_attention_workspace_cuda(int n_heads, int n_rows, int n_tokens, int window, int ratio)
{
    size_t entries = ratio ? n_tokens / ratio : 0, keys = (size_t)(n_rows + window - 1 < n_tokens ? n_rows + window - 1 : n_tokens) + entries;
    return keys * (MOST_D / 2) + tiles_of(n_heads, n_rows) * (most_listed(window, (int)entries) + 1);
}

template <int D> static void rounded(exf_queue *q, const view &w, char *keys)
{
    const exf_compressed_attention_shape &s = w.s;
    exf_attention_wide<view, D, D, true>(q, w, {keys, keys, 0}, s.d, s.d, s.scale, s.n_rows * s.n_heads, 1, exf_wide(w.query, s.d),
                                         exf_wide(w.out, s.d));
}

void exf_compressed_attention_cuda(exf_queue *q, float *out, const float *query, const exf_compressed_keys *k,
                                   const exf_compressed_attention_shape *s, float *workspace)
{
    reach r = reach_of(s);
    int keys = r.n_tokens + r.n_entries, most = (int)most_listed(s->window, r.n_entries),
        *list = reinterpret_cast<int *>(workspace + (size_t)keys * (MOST_D / 2));
    size_t tiles = tiles_of(s->n_heads, s->n_rows);
    view w = {out, query, *k, *s, r, list + tiles * most, list, most};
    bool wide = exf_wide(k->tokens, s->d) && exf_wide(k->entries, s->d);
    if (s->n_rows == 0 || q->err.code != EXF_OK) return;
    if (s->d > MOST_D) {
        exf_fail(&q->err, EXF_DEVICE, "CUDA: compressed attention: heads of %d, the kernels go to %d", s->d, MOST_D);
        return;
    }
    bool halves = exf_rounds(q) && exf_hopper_code();
    rounded_keys k16 = {reinterpret_cast<uint4 *>(workspace), !halves ? 0 : s->d <= 128 ? 128 : MOST_D, wide};
    unsigned blocks = halves ? exf_blocks((size_t)keys * k16.width / 8, LIST_THREADS) : 0;
    EXF_LAUNCH(q, "compressed keys", prepare, (unsigned)tiles + blocks, LIST_THREADS, 0, w, k16, (unsigned)tiles);
    if (!halves)
        exf_attention_f32(q, w, s->d, s->d, s->scale, s->n_rows * s->n_heads, 1, wide, wide);
    else if (s->d <= 128)
        rounded<128>(q, w, reinterpret_cast<char *>(workspace));
    else
        rounded<MOST_D>(q, w, reinterpret_cast<char *>(workspace));
}
