/* attention_wide.cuh - a kernel of softmax attention on Hopper's tensor cores for heads up to
 * 576 and for gathered keys, for the rows and keys of a view (attention_internal.cuh); no
 * rows x keys matrix is written.
 *
 * A block has 64 rows and loops over their keys 64 at a time.  A row's output, up to 512
 * columns, fills the registers of two warpgroups: each has half the columns, and both
 * compute all scores and their softmax, which costs half as much again as either's own half
 * but needs no exchange between them.  Keys and values are first rounded to
 * rows of float16; if the values are the keys, a tile is loaded once.
 *
 * Cost of compressed attention with 64 heads of 512: 2 * 1024 FLOP a head, query and key; 128 keys of a window and 4096
 * queries are 69 GFLOP, 0.09 ms at 794 TFLOP/s, and with 512 entries more at most 344 GFLOP, 0.43 ms; measured 0.716 and
 * 1.32 (95 and 207 TFLOP/s).  Bytes: queries read and outputs written, 2 T 64 512 floats, 1.07 GB, 0.26 ms at 4.2 TB/s; keys
 * come from the cache.  Shared memory: 64 queries and two tiles of 64 keys of D float16, 192 KB of D 512, so a block a
 * multiprocessor. */
#ifndef EXF_KERNELS_ATTENTION_WIDE_CUH
#define EXF_KERNELS_ATTENTION_WIDE_CUH
#include "kernels/attention/attention_internal.cuh"

enum { EXF_WIDE_TILE = 64, EXF_WIDE_PANEL = EXF_WIDE_TILE * 128, EXF_WIDE_THREADS = 256 };

/* The layout of shared memory in bytes; SAME: values are the keys, and it holds two tiles. */
template <int D, int DV, bool SAME> struct exf_wide_layout {
    enum { Q = D * 128, K = D * 128, STAGE = K + (SAME ? 0 : DV * 128), STAGES = SAME ? 2 : 1, MASKS = Q + STAGES * STAGE };
    enum { BYTES = MASKS + 2 * EXF_WIDE_TILE * 8 + 1024 };
};

/* Rounded rows of D and DV columns; each key-value head has `apart` rows. */
struct exf_wide_keys {
    const char *k, *v;
    size_t apart;
};

/* Rounds x [n_rows, n], rows ld apart, to rows of `width` float16.  Grid: chunks, heads (n columns apart). */
static __global__ void exf_round_rows(char *to, const float *x, int ld, int n_rows, int n, int width, size_t apart, bool wide)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / (width / 8);
    int chunk = (int)(i % (width / 8));
    if (r >= (size_t)n_rows) return;
    uint4 *row = reinterpret_cast<uint4 *>(to + (blockIdx.y * apart + r) * width * 2);
    row[chunk] = exf_half8(x + r * ld + (size_t)blockIdx.y * n, chunk * 8, n, wide);
}

static inline void exf_round(exf_queue *q, char *to, const float *x, int ld, int n_rows, int n, int width, int n_heads,
                             size_t apart)
{
    size_t chunks = (size_t)n_rows * (width / 8);
    if (chunks)
        EXF_LAUNCH(q, "attention keys", exf_round_rows, dim3(exf_blocks(chunks, 256), (unsigned)n_heads), 256, 0, to, x, ld, n_rows,
                   n, width, apart, exf_aligned16(x, ld) && n % 4 == 0);
}

#ifdef EXF_MMA
/* Returns the key of which this thread loads a part, -1 past the last; four threads load a row. */
template <class View> static __device__ __forceinline__ int exf_wide_key(const View &w, int first, int at, int n_keys)
{
    int j = at + threadIdx.x / 4;
    return j < n_keys ? w.key(first, j) : -1;
}

/* Loads this thread's part of W columns of a key. */
template <int W> static __device__ __forceinline__ void exf_wide_fetch(uint32_t to, const char *from, int key)
{
    int row = threadIdx.x / 4;
    const char *part = from + (size_t)(key < 0 ? 0 : key) * W * 2 + threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < W / 32; i++)
        exf_load16(to + i / 2 * EXF_WIDE_PANEL + exf_panel_at(row, i % 2 * 4 + threadIdx.x % 4), part + i * 64, key >= 0);
}

/* Sets one bit for every group of rows and every key of the tile that the group sees. */
template <class View>
static __device__ void exf_wide_masks(uint32_t (*mask)[2], const View &w, int first, int n_groups, int at, int n_keys)
{
    int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < 2 * n_groups; i += EXF_WIDE_THREADS / 32) {
        int j = at + i % 2 * 32 + lane;
        bool seen = j < n_keys && w.sees(w.group(first) + i / 2, w.key(first, j));
        uint32_t bits = __ballot_sync(0xffffffffu, seen);
        if (lane == 0) mask[i / 2][i % 2] = bits;
    }
}

/* Masks scores; rows[r]: the masks of this thread's row r. */
static __device__ __forceinline__ void exf_wide_hide(float (&s)[32], const uint32_t (*mask)[2], const int *group)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t bits = mask[group[r]][half] >> (2 * (threadIdx.x % 4));
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(bits >> (8 * i + e) & 1)) s[16 * half + 4 * i + 2 * r + e] = -INFINITY;
        }
}

/* Loads queries.  A thread starts several loads before it stores one, since a block has little else to do meanwhile. */
template <class View, int D> static __device__ void exf_wide_queries(char *to, const View &w, int first, int d, bool wide)
{
    enum { EACH = EXF_WIDE_TILE * D / 8 / EXF_WIDE_THREADS, BATCH = EACH % 8 == 0 ? 8 : EACH % 6 == 0 ? 6 : EACH };
    for (int at = 0; at < EACH; at += BATCH) {
        uint4 x[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int i = (at + k) * EXF_WIDE_THREADS + threadIdx.x, row = i / (D / 8), chunk = i % (D / 8);
            x[k] = first + row < w.n_rows() ? w.query8(first + row, chunk * 8, d, wide) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int i = (at + k) * EXF_WIDE_THREADS + threadIdx.x, row = i / (D / 8), chunk = i % (D / 8);
            *reinterpret_cast<uint4 *>(to + chunk / 8 * EXF_WIDE_PANEL + exf_panel_at(row, chunk % 8)) = x[k];
        }
    }
}

#ifdef EXF_HOPPER
template <int D> static __device__ __forceinline__ void exf_wide_score(float (&s)[32], uint32_t q, uint32_t k)
{
    exf_wgmma_begin();
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t at = c / 4 * EXF_WIDE_PANEL + c % 4 * 32;
        exf_wgmma<64>::ss(s, exf_operand(q + at, 16), exf_operand(k + at, 16), c > 0);
    }
    exf_wgmma_commit();
    exf_wgmma_wait<0>();
    exf_settle(s);
}

template <int H> static __device__ __forceinline__ void exf_wide_weigh(float (&o)[H / 2], const uint32_t (&p)[16], uint32_t v)
{
    exf_wgmma_begin();
#pragma unroll
    for (int c = 0; c < 4; c++) exf_wgmma<H>::rs(o, p + 4 * c, exf_operand(v + c * 2048, EXF_WIDE_PANEL));
    exf_wgmma_commit();
    exf_wgmma_wait<0>();
    exf_settle(o);
}

#endif

/* Stores columns from `column` on of this thread's two rows. */
template <class View, int H>
static __device__ __forceinline__ void exf_wide_store(const float (&o)[H / 2], const exf_softmax_state &state, const View &w,
                                                      int row, int column, int dv, float scale, bool quads)
{
    float inverse[2];
    for (int r = 0; r < 2; r++) {
        bool valid = row + 8 * r < w.n_rows();
        float sum = exf_sum4(state.sum[r]), sink = valid ? w.sink(row + 8 * r) * EXF_LOG2_E : -INFINITY;
        inverse[r] = 1 / (sum + (sink == -INFINITY ? 0 : exf_exp2(sink - state.top[r] * scale)));
    }
    w.store(o, inverse, row, column, dv, quads);
}
#endif

/* Grid: tiles of rows, the last first; heads. */
template <class View, int D, int DV, bool SAME>
static __global__ void __launch_bounds__(EXF_WIDE_THREADS, 1)
    exf_attend_wide(View w, exf_wide_keys keys, int d, int dv, float natural, bool wide, bool wide_o)
{
#ifdef EXF_HOPPER
    typedef exf_wide_layout<D, DV, SAME> R;
    extern __shared__ char raw[];
    char *base = raw + (1024 - exf_shared(raw) % 1024) % 1024;
    uint32_t q = exf_shared(base), half = threadIdx.x / 128, scale_row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    uint32_t(*masks)[EXF_WIDE_TILE][2] = reinterpret_cast<uint32_t(*)[EXF_WIDE_TILE][2]>(base + R::MASKS);
    int first = (gridDim.x - 1 - blockIdx.x) * EXF_WIDE_TILE, n_keys = w.n_keys(first), row = first + (int)scale_row;
    int last = first + EXF_WIDE_TILE < w.n_rows() ? first + EXF_WIDE_TILE - 1 : w.n_rows() - 1,
        n_groups = w.group(last) - w.group(first) + 1;
    float o[DV / 4] = {}, s[32], scale = natural * EXF_LOG2_E;
    uint32_t weights[16];
    int group[2];
    exf_softmax_state state = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    const char *k = keys.k + w.head_kv() * keys.apart * D * 2, *v = keys.v + w.head_kv() * keys.apart * DV * 2;
    for (int r = 0; r < 2; r++) {
        group[r] = row + 8 * r <= last ? w.group(row + 8 * r) - w.group(first) : 0;
        if (row + 8 * r <= last) state.top[r] = w.sink(row + 8 * r) / natural;
    }
    int key = exf_wide_key(w, first, 0, n_keys);
    exf_wide_fetch<D>(q + R::Q, k, key);
    if (!SAME) exf_wide_fetch<DV>(q + R::Q + R::K, v, key);
    exf_loads_commit();
    exf_wide_masks(masks[0], w, first, n_groups, 0, n_keys);
    key = exf_wide_key(w, first, EXF_WIDE_TILE, n_keys);
    exf_wide_queries<View, D>(base, w, first, d, wide);
    for (int at = 0, stage = 0; at < n_keys; at += EXF_WIDE_TILE, stage ^= SAME) {
        uint32_t tile = q + R::Q + stage * R::STAGE, next = q + R::Q + (stage ^ SAME) * R::STAGE;
        exf_loads_wait<0>();
        exf_proxy_fence();
        __syncthreads(); /* this tile is loaded, the one before has been read */
        if (SAME && at + EXF_WIDE_TILE < n_keys) {
            exf_wide_fetch<D>(next, k, key);
            exf_loads_commit();
            key = exf_wide_key(w, first, at + 2 * EXF_WIDE_TILE, n_keys);
            exf_wide_masks(masks[stage ^ 1], w, first, n_groups, at + EXF_WIDE_TILE, n_keys);
        }
        exf_wide_score<D>(s, q, tile);
        exf_wide_hide(s, masks[stage], group);
        exf_online_softmax<64>(s, state, scale);
        exf_rescale_output(o, state);
        exf_round_to(weights, s);
        exf_wide_weigh<DV / 2>(o, weights, tile + (SAME ? 0 : R::K) + half * (DV / 128) * EXF_WIDE_PANEL);
        if (!SAME && at + EXF_WIDE_TILE < n_keys) {
            __syncthreads();
            exf_wide_fetch<D>(next, k, key);
            exf_wide_fetch<DV>(next + R::K, v, key);
            exf_loads_commit();
            key = exf_wide_key(w, first, at + 2 * EXF_WIDE_TILE, n_keys);
            exf_wide_masks(masks[0], w, first, n_groups, at + EXF_WIDE_TILE, n_keys);
        }
    }
    exf_wide_store<View, DV / 2>(o, state, w, row, half * (DV / 2), dv, scale, wide_o);
#endif
}

template <class View, int D, int DV, bool SAME>
static void exf_attention_wide(exf_queue *q, const View &w, exf_wide_keys keys, int d, int dv, float scale, int n_rows, int n_heads,
                               bool wide, bool wide_o)
{
    int bytes = exf_wide_layout<D, DV, SAME>::BYTES;
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(exf_attend_wide<View, D, DV, SAME>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "attention");
    EXF_LAUNCH(q, "attention", (exf_attend_wide<View, D, DV, SAME>),
               dim3((unsigned)(n_rows + EXF_WIDE_TILE - 1) / EXF_WIDE_TILE, (unsigned)n_heads), EXF_WIDE_THREADS, bytes, w, keys, d,
               dv, scale, wide, wide_o);
}
#endif
