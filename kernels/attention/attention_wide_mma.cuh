/* attention_wide_mma.cuh - the kernel of attention_wide.cuh, where the values are the keys, for the tensor cores of any GPU since
 * compute capability 8.0 (mma.sync); no rows x keys matrix is written.
 *
 * A block has 64 rows and loops over their keys 32 at a time.  Eight warps: four have 16 rows each and the first half of their
 * output's columns, four the same rows and the second half; both compute all scores of their rows and their softmax.  With two
 * stages of shared memory the next keys load while these are multiplied; the sums are the same with one.
 *
 * Cost of compressed attention with 64 heads of 512: 4 * 512 FLOP a head, query and key; 128 keys of a window and 4096 queries
 * are 69 GFLOP, 0.22 ms at an A100's 312 TFLOP/s, and with 512 entries more at most 344 GFLOP, 1.1 ms.  A tile's warps read 512
 * KB of shared memory for 2,097,152 products that count: 128 bytes a clock allow 512 of them a clock.  Bytes as in
 * attention_wide.cuh.  Shared memory: queries 64 KB and 32 KB a stage for D 512, so one stage where a block may have 99 KB. */
#ifndef EXF_KERNELS_ATTENTION_WIDE_MMA_CUH
#define EXF_KERNELS_ATTENTION_WIDE_MMA_CUH
#include "kernels/attention/attention_wide.cuh"
#include "kernels/device/tensor_cores.cuh"

enum { EXF_NARROW_TILE = 32, EXF_NARROW_PANEL = EXF_NARROW_TILE * 128 };

/* The layout of shared memory in bytes. */
template <int D, int STAGES> struct exf_narrow_layout {
    enum { Q = D * 128, STAGE = EXF_NARROW_TILE * D * 2, MASKS = Q + STAGES * STAGE };
    enum { BYTES = MASKS + 2 * EXF_WIDE_TILE * 4 + 1024 };
};

#ifdef EXF_MMA
/* Returns the key of which this thread loads a part, -1 past the last; eight threads load a row. */
template <class View> static __device__ __forceinline__ int exf_narrow_key(const View &w, int first, int at, int n_keys)
{
    int j = at + threadIdx.x / 8;
    return j < n_keys ? w.key(first, j) : -1;
}

/* Loads this thread's part of a key: chunk threadIdx.x % 8 of every panel, as one group. */
template <int D> static __device__ __forceinline__ void exf_narrow_fetch(uint32_t to, const char *from, int key)
{
    int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const char *part = from + (size_t)(key < 0 ? 0 : key) * D * 2 + chunk * 16;
#pragma unroll
    for (int i = 0; i < D / 64; i++)
        exf_load16(to + i * EXF_NARROW_PANEL + exf_panel_at(row, chunk), part + i * 128, key >= 0);
    exf_loads_commit();
}

/* Sets one bit for every group of rows and every key of the tile that the group sees. */
template <class View>
static __device__ void exf_narrow_masks(uint32_t *mask, const View &w, int first, int n_groups, int at, int n_keys)
{
    int lane = threadIdx.x % 32, j = at + lane;
    for (int i = threadIdx.x / 32; i < n_groups; i += EXF_WIDE_THREADS / 32) {
        bool seen = j < n_keys && w.sees(w.group(first) + i, w.key(first, j));
        uint32_t bits = __ballot_sync(0xffffffffu, seen);
        if (lane == 0) mask[i] = bits;
    }
}

/* Masks scores: bit 8 i + 2 (lane % 4) + e is that of s[4 i + 2 r + e], r counting this thread's two rows. */
static __device__ __forceinline__ void exf_narrow_hide(float (&s)[16], const uint32_t *mask, const int *group)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t bits = mask[group[r]] >> (2 * (threadIdx.x % 4));
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (!(bits >> (8 * i + e) & 1)) s[4 * i + 2 * r + e] = -INFINITY;
    }
}

/* Computes s = Q K^T; q, k: where this lane's rows of ldmatrix start (attention_mma.cu). */
template <int D> static __device__ __forceinline__ void exf_narrow_score(float (&s)[16], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int i = 0; i < 16; i++) s[i] = 0;
#pragma unroll 8
    for (int c = 0; c < D / 16; c++) {
        uint32_t x[4], y[4];
        exf_ldmatrix(x, (q ^ c % 4 * 32) + c / 4 * EXF_WIDE_PANEL);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            exf_ldmatrix(y, (k ^ c % 4 * 32) + c / 4 * EXF_NARROW_PANEL + n * 2048);
            exf_mma_half(&s[8 * n], x, y[0], y[1]);
            exf_mma_half(&s[8 * n + 4], x, y[2], y[3]);
        }
    }
}

/* Computes o += P V of H columns, which begin at a panel. */
template <int H> static __device__ __forceinline__ void exf_narrow_weigh(float (&o)[H / 2], const uint32_t (&p)[8], uint32_t v)
{
#pragma unroll
    for (int c = 0; c < 2; c++) {
        uint32_t x[4] = {p[4 * c], p[4 * c + 1], p[4 * c + 2], p[4 * c + 3]}, y[4];
#pragma unroll
        for (int n = 0; n < H / 16; n++) {
            exf_ldmatrix_transposed(y, (v ^ n % 4 * 32) + n / 4 * EXF_NARROW_PANEL + c * 2048);
            exf_mma_half(&o[8 * n], x, y[0], y[1]);
            exf_mma_half(&o[8 * n + 4], x, y[2], y[3]);
        }
    }
}
#endif

/* Grid: tiles of rows, the last first; heads. */
template <class View, int D, int STAGES>
static __global__ void __launch_bounds__(EXF_WIDE_THREADS, 1)
    exf_attend_narrow(View w, const char *keys, int d, float natural, bool wide, bool wide_o)
{
#ifdef EXF_MMA
    typedef exf_narrow_layout<D, STAGES> R;
    extern __shared__ char raw[];
    char *base = raw + (1024 - exf_shared(raw) % 1024) % 1024;
    int lane = threadIdx.x % 32, strip = threadIdx.x % 128 / 32, half = threadIdx.x / 128; /* 16 rows, half of the columns */
    uint32_t ring = exf_shared(base) + R::Q, q = exf_shared(base) + exf_panel_at(strip * 16 + lane % 16, lane / 16);
    uint32_t k_lane = exf_panel_at(lane % 8 + lane / 16 * 8, lane / 8 % 2),
             v_lane = exf_panel_at(lane % 16, lane / 16) + half * (D / 128) * EXF_NARROW_PANEL;
    uint32_t(*masks)[EXF_WIDE_TILE] = reinterpret_cast<uint32_t(*)[EXF_WIDE_TILE]>(base + R::MASKS);
    int first = (gridDim.x - 1 - blockIdx.x) * EXF_WIDE_TILE, n_keys = w.n_keys(first), row = first + strip * 16 + lane / 4;
    int last = first + EXF_WIDE_TILE < w.n_rows() ? first + EXF_WIDE_TILE - 1 : w.n_rows() - 1,
        n_groups = w.group(last) - w.group(first) + 1, group[2];
    float o[D / 4] = {}, s[16], scale = natural * EXF_LOG2_E;
    uint32_t weights[8];
    exf_softmax_state state = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    for (int r = 0; r < 2; r++) {
        group[r] = row + 8 * r <= last ? w.group(row + 8 * r) - w.group(first) : 0;
        if (row + 8 * r <= last) state.top[r] = w.sink(row + 8 * r) / natural;
    }
    exf_narrow_fetch<D>(ring, keys, exf_narrow_key(w, first, 0, n_keys));
    exf_narrow_masks(masks[0], w, first, n_groups, 0, n_keys);
    int key = exf_narrow_key(w, first, EXF_NARROW_TILE, n_keys);
    exf_wide_queries<View, D>(base, w, first, d, wide);
    for (int at = 0, turn = 0; at < n_keys; at += EXF_NARROW_TILE, turn ^= 1) {
        uint32_t tile = ring + (STAGES == 2 ? turn : 0) * R::STAGE, other = ring + (STAGES == 2 ? turn ^ 1 : 0) * R::STAGE;
        int next = at + EXF_NARROW_TILE;
        exf_loads_wait<0>();
        __syncthreads(); /* this tile has arrived, the one before has been read */
        if (STAGES == 2 && next < n_keys) {
            exf_narrow_fetch<D>(other, keys, key);
            exf_narrow_masks(masks[turn ^ 1], w, first, n_groups, next, n_keys);
            key = exf_narrow_key(w, first, next + EXF_NARROW_TILE, n_keys);
        }
        exf_narrow_score<D>(s, q, tile + k_lane);
        exf_narrow_hide(s, masks[turn], group);
        exf_online_softmax<EXF_NARROW_TILE>(s, state, scale);
        exf_rescale_output(o, state);
        exf_round_to(weights, s);
        exf_narrow_weigh<D / 2>(o, weights, tile + v_lane);
        if (STAGES == 1 && next < n_keys) {
            __syncthreads(); /* this tile has been read */
            exf_narrow_fetch<D>(other, keys, key);
            exf_narrow_masks(masks[turn ^ 1], w, first, n_groups, next, n_keys);
            key = exf_narrow_key(w, first, next + EXF_NARROW_TILE, n_keys);
        }
    }
    exf_wide_store<View, D / 2>(o, state, w, row, half * (D / 2), d, scale, wide_o);
#endif
}

template <class View, int D, int STAGES>
static void exf_launch_narrow(exf_queue *q, const View &w, const char *keys, int d, float scale, int n_rows, bool wide, bool wide_o)
{
    int bytes = exf_narrow_layout<D, STAGES>::BYTES;
    auto kernel = exf_attend_narrow<View, D, STAGES>;
    if (q->err.code != EXF_OK ||
        !exf_cuda_note(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention"))
        return;
    EXF_LAUNCH(q, "attention", kernel, dim3((unsigned)(n_rows + EXF_WIDE_TILE - 1) / EXF_WIDE_TILE, 1), EXF_WIDE_THREADS, bytes, w,
               keys, d, scale, wide, wide_o);
}

/* Keys are rows of D float16. */
template <class View, int D>
static void exf_attention_narrow(exf_queue *q, const View &w, const char *keys, int d, float scale, int n_rows, bool wide,
                                 bool wide_o)
{
    if (exf_most_shared_bytes() >= exf_narrow_layout<D, 2>::BYTES)
        exf_launch_narrow<View, D, 2>(q, w, keys, d, scale, n_rows, wide, wide_o);
    else
        exf_launch_narrow<View, D, 1>(q, w, keys, d, scale, n_rows, wide, wide_o);
}
#endif
