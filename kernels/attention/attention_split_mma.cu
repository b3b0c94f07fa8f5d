/* attention_split_mma.cu - causal attention in float32 mode on the tensor cores of any GPU since compute capability 8.0
 * (mma.sync) for heads of at most 256; see attention_split.cu, which has the arithmetic and the planes, and attention_mma.cu,
 * which has the order of loads and products.
 *
 * A block has 64 query rows of one head, four warps with 16 each, and loops over KN keys at a time, 64 or 32, whose two planes
 * of keys and two of values lie in shared memory beside the two of the queries.  KN is part of the arithmetic (the power of two
 * of a row's weights is that of KN keys), so it depends on the head's size alone.
 *
 * Cost: three times the products of attention_mma.cu; 32 heads of 128 and T 4096 are 412 GFLOP, 1.32 ms at an A100's 312
 * TFLOP/s.  Shared memory: 96 KB with heads of 128, 88 with 192 and 128, 128 with 256: where a block may have 99 KB, heads of
 * more than 192 are computed in float32. */
#include "kernels/attention/attention_split.cuh"

enum { ROWS = 64, THREADS = 128 };

/* Bytes in shared memory; a plane has ROWS queries, or KN keys or values. */
template <int D, int DV, int KN> struct layout {
    enum { QUERIES = ROWS * D * 2, KEYS = KN * D * 2, VALUES = KN * DV * 2, K = 2 * QUERIES, V = K + 2 * KEYS };
    enum { POWERS = V + 2 * VALUES, BYTES = POWERS + ROWS * 4 + 1024 };
};

#ifdef EXF_MMA
/* Loads KN rows from row r on of both planes of W columns; planes are `size` bytes apart in the tile and each lies in panels
 * of EXF_SPLIT_KEYS rows, of which KN become a panel here.  r is a multiple of 8, so the panels' permutation stays. */
template <int W, int KN> static __device__ __forceinline__ void fetch(uint32_t to, const char *low, int size, int r)
{
    enum { PANEL = KN * 128, PLANE = KN * W * 2 };
#pragma unroll
    for (int i = 0; i < 2 * PLANE / 16 / THREADS; i++) {
        int at = (i * THREADS + (int)threadIdx.x) * 16, plane = at / PLANE, panel = at % PLANE / PANEL, rest = at % PANEL;
        exf_load16(to + at, low + (size_t)plane * size + panel * EXF_SPLIT_PANEL + r * 128 + rest, true);
    }
    exf_loads_commit();
}

/* Adds Q K^T of a plane of either; q, k: where this lane's rows of ldmatrix start in them (attention_mma.cu). */
template <int D, int KN> static __device__ __forceinline__ void multiply(float (&s)[KN / 2], uint32_t q, uint32_t k)
{
#pragma unroll 8
    for (int c = 0; c < D / 16; c++) {
        uint32_t x[4], y[4];
        exf_ldmatrix(x, (q ^ c % 4 * 32) + c / 4 * (ROWS * 128));
#pragma unroll
        for (int n = 0; n < KN / 16; n++) {
            exf_ldmatrix(y, (k ^ c % 4 * 32) + c / 4 * (KN * 128) + n * 2048);
            exf_mma_half(&s[8 * n], x, y[0], y[1]);
            exf_mma_half(&s[8 * n + 4], x, y[2], y[3]);
        }
    }
}

/* Adds weights times 64 columns of a plane of values, from v on. */
template <int KN>
static __device__ __forceinline__ void weigh_plane(float (&part)[32], const uint32_t (&weights)[KN / 4], uint32_t v)
{
#pragma unroll
    for (int c = 0; c < KN / 16; c++) {
        uint32_t x[4] = {weights[4 * c], weights[4 * c + 1], weights[4 * c + 2], weights[4 * c + 3]}, y[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            exf_ldmatrix_transposed(y, (v ^ n * 32) + c * 2048);
            exf_mma_half(&part[8 * n], x, y[0], y[1]);
            exf_mma_half(&part[8 * n + 4], x, y[2], y[3]);
        }
    }
}

/* Computes o = o rescale + (P V) down, a panel of columns at a time; the smallest products first. */
template <int DV, int KN>
static __device__ __forceinline__ void weigh(float (&o)[DV / 2], const uint32_t (&high)[KN / 4], const uint32_t (&low)[KN / 4],
                                             const float (&rescale)[2], const float (&down)[2], uint32_t v_low)
{
    uint32_t v_high = v_low + KN * DV * 2;
#pragma unroll
    for (int panel = 0; panel < DV / 64; panel++) {
        float part[32] = {};
        weigh_plane<KN>(part, high, v_low + panel * (KN * 128));
        weigh_plane<KN>(part, low, v_high + panel * (KN * 128));
        weigh_plane<KN>(part, high, v_high + panel * (KN * 128));
#pragma unroll
        for (int e = 0; e < 32; e++) {
            float &to = o[panel * 32 + e];
            to = fmaf(part[e], down[e % 4 / 2], to * rescale[e % 4 / 2]);
        }
    }
}
#endif

/* Grid: heads within query tiles, the longest tiles first. */
template <int D, int DV, int KN> static __global__ void __launch_bounds__(THREADS, 2) attend_split_mma(exf_split_problem p)
{
#ifdef EXF_MMA
    typedef layout<D, DV, KN> R;
    typedef exf_split_layout<D, DV> T;
    extern __shared__ char raw[];
    char *base = raw + (1024 - exf_shared(raw) % 1024) % 1024;
    float *powers = reinterpret_cast<float *>(base + R::POWERS);
    int lane = threadIdx.x % 32, strip = threadIdx.x / 32 * 16, n_heads = p.s.n_heads, head = blockIdx.x % n_heads;
    int first = (gridDim.x / n_heads - 1 - blockIdx.x / n_heads) * ROWS, end = min(first + ROWS, p.s.n_tokens);
    int kv = head / (n_heads / p.s.n_kv), r = strip + lane / 4, j = (end + KN - 1) / KN - 1;
    const char *tiles = p.tiles + (size_t)kv * p.n_key_tiles * T::TILE;
    const float *of_keys = p.powers + (size_t)kv * p.n_key_tiles * 2 * EXF_SPLIT_KEYS;
    uint32_t q_high = exf_shared(base) + exf_panel_at(strip + lane % 16, lane / 16), q_low = q_high + R::QUERIES;
    uint32_t k = exf_shared(base) + R::K, k_low = k + exf_panel_at(lane % 8 + lane / 16 * 8, lane / 8 % 2),
             k_high = k_low + R::KEYS, v = exf_shared(base) + R::V, v_low = v + exf_panel_at(lane % 16, lane / 16);
    uint32_t high[KN / 4], low[KN / 4];
    float o[DV / 2] = {}, s[KN / 2], down[2], factor[2], scale = p.s.scale * EXF_LOG2_E;
    exf_weighing w = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    fetch<D, KN>(k, tiles + (size_t)(j * KN / EXF_SPLIT_KEYS) * T::TILE, T::K, j * KN % EXF_SPLIT_KEYS);
    exf_split_queries<D, ROWS>(base, powers, p, head, first, 0);
    for (; j >= 0; j--) {
        size_t tile = (size_t)(j * KN / EXF_SPLIT_KEYS), next = (size_t)((j - 1) * KN / EXF_SPLIT_KEYS);
        int at = j * KN % EXF_SPLIT_KEYS;
        bool seen = j * KN < first + strip + 16;
        exf_loads_wait<0>();
        __syncthreads(); /* keys j have arrived, values j + 1 have been read */
        fetch<DV, KN>(v, tiles + tile * T::TILE + 2 * T::K, T::V, at);
        if (seen) {
#pragma unroll
            for (int i = 0; i < KN / 2; i++) s[i] = 0;
            multiply<D, KN>(s, q_high, k_low);
            multiply<D, KN>(s, q_low, k_high);
            multiply<D, KN>(s, q_high, k_high);
        }
        exf_loads_wait<0>();
        __syncthreads(); /* values j have arrived, keys j have been read */
        if (j > 0) fetch<D, KN>(k, tiles + next * T::TILE, T::K, (j - 1) * KN % EXF_SPLIT_KEYS);
        if (!seen) continue;
        float2 power[KN / 8];
        const float *of_tile = of_keys + tile * 2 * EXF_SPLIT_KEYS + at;
        for (int i = 0; i < 2; i++) factor[i] = powers[r + 8 * i] * scale;
        exf_take_powers<KN>(power, of_tile);
        exf_scale_columns<KN>(s, power);
        if (j * KN + KN - 1 > first + strip) exf_mask<KN>(s, first + r, j * KN);
        exf_exponentiate<KN>(s, w, factor);
        exf_take_powers<KN>(power, of_tile + EXF_SPLIT_KEYS);
        exf_scale_columns<KN>(s, power);
        exf_split_weights<KN>(high, low, down, s);
        weigh<DV, KN>(o, high, low, w.rescale, down, v_low);
    }
    exf_tiled_store<DV>(o, w.sum, p, head, first + r, false);
#endif
}

template <int D, int DV, int KN> static void launch(exf_queue *q, const exf_split_problem &p)
{
    typedef layout<D, DV, KN> R;
    int n_tiles = (p.s.n_tokens + ROWS - 1) / ROWS;
    auto kernel = attend_split_mma<D, DV, KN>;
    if (q->err.code != EXF_OK ||
        !exf_cuda_note(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, R::BYTES), "attention"))
        return;
    EXF_LAUNCH(q, "attention keys", (exf_split_tile<D, DV>), dim3((unsigned)p.n_key_tiles, (unsigned)p.s.n_kv), 256, 0, p);
    EXF_LAUNCH(q, "attention", kernel, n_tiles * p.s.n_heads, THREADS, R::BYTES, p);
}

/* Sizes of kernels, those of attention_split.cu, whose planes these are; a head uses the smallest in which it fits. */
static const struct {
    int d, dv;
    size_t shared;
    void (*launch)(exf_queue *q, const exf_split_problem &p);
} sizes[] = {{64, 64, layout<64, 64, 64>::BYTES, launch<64, 64, 64>},
             {128, 128, layout<128, 128, 64>::BYTES, launch<128, 128, 64>},
             {192, 128, layout<192, 128, 32>::BYTES, launch<192, 128, 32>},
             {256, 256, layout<256, 256, 32>::BYTES, launch<256, 256, 32>}};
enum { SIZES = sizeof sizes / sizeof *sizes };

int exf_attention_split_mma_fits(const exf_attention_shape *s)
{
    int i = exf_tiled_size(sizes, s);
    return exf_uses_mma() && i < SIZES && exf_uses_tensor_cores(sizes[i].shared);
}

void exf_attend_split_mma(exf_queue *q, const exf_split_problem &p)
{
    sizes[exf_tiled_size(sizes, &p.s)].launch(q, p);
}
