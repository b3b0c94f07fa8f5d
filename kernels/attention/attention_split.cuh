/* attention_split.cuh - what the kernels of attention in float32 mode on tensor cores share: keys and values as planes of
 * float16, and a softmax whose weights are split; see attention_split.cu, which says how and why. */
#ifndef EXF_KERNELS_ATTENTION_SPLIT_CUH
#define EXF_KERNELS_ATTENTION_SPLIT_CUH
#include "kernels/attention/attention_internal.cuh"
#include "kernels/device/tensor_cores.cuh"

enum { EXF_SPLIT_KEYS = 64, EXF_SPLIT_PANEL = EXF_SPLIT_KEYS * 128 };
enum { EXF_K_LOW, EXF_K_HIGH, EXF_V_LOW, EXF_V_HIGH, EXF_SPLIT_PLANES };

/* Bytes of the planes of a tile: low and high parts of EXF_SPLIT_KEYS keys, then of their values. */
template <int D, int DV> struct exf_split_layout {
    enum { K = EXF_SPLIT_KEYS * D * 2, V = EXF_SPLIT_KEYS * DV * 2, TILE = 2 * (K + V) };
    /* Return the offset of a plane in its tile, and its size. */
    static __host__ __device__ int start(int plane)
    {
        return plane < EXF_V_LOW ? plane * K : 2 * K + (plane - EXF_V_LOW) * V;
    }
    static __host__ __device__ int size(int plane)
    {
        return plane < EXF_V_LOW ? K : V;
    }
};

/* Tiles are planes here. */
struct exf_split_problem : exf_tiled_attention {
    float *powers; /* [n_kv, key tiles, keys | values, EXF_SPLIT_KEYS] factor of every product with the key */
};

/* Splits a tile, a warp per key, then per value.  Grid: tiles, key-value heads. */
template <int D, int DV> static __global__ void __launch_bounds__(256) exf_split_tile(exf_split_problem p)
{
    typedef exf_split_layout<D, DV> R;
    const exf_attention_shape &s = p.s;
    size_t tile = (size_t)blockIdx.y * p.n_key_tiles + blockIdx.x;
    char *to = p.tiles + tile * R::TILE;
#pragma unroll 2
    for (int i = threadIdx.x / 32; i < 2 * EXF_SPLIT_KEYS; i += 8) {
        int r = i % EXF_SPLIT_KEYS, t = blockIdx.x * EXF_SPLIT_KEYS + r, c = threadIdx.x % 32 * 8;
        float x[8], down;
        if (i < EXF_SPLIT_KEYS) {
            exf_take8(x, t < s.n_tokens ? p.k_row(t, blockIdx.y) : nullptr, c, s.d, p.wide_k);
            down = exf_split_row(to + R::start(EXF_K_HIGH), to + R::start(EXF_K_LOW), EXF_SPLIT_PANEL, r, D, x);
        } else {
            exf_take8(x, t < s.n_tokens ? p.v_row(t, blockIdx.y) : nullptr, c, s.dv, p.wide_v);
            down = exf_split_row(to + R::start(EXF_V_HIGH), to + R::start(EXF_V_LOW), EXF_SPLIT_PANEL, r, DV, x);
        }
        if (threadIdx.x % 32 == 0) p.powers[tile * 2 * EXF_SPLIT_KEYS + i] = down;
    }
}

/* The kernel by mma.sync (attention_split_mma.cu): returns 1 if the device runs it for this shape; launches it. */
int exf_attention_split_mma_fits(const exf_attention_shape *s);
void exf_attend_split_mma(exf_queue *q, const exf_split_problem &p);

#ifdef EXF_MMA
/* Splits 64 query rows from `first` on by four warps, into panels of ROWS rows; rows_before: of the block's. */
template <int D, int ROWS>
static __device__ void exf_split_queries(char *to, float *powers, const exf_split_problem &p, int head, int first, int rows_before)
{
    enum { BATCH = 8 };
    int warp = threadIdx.x % 128 / 32, c = threadIdx.x % 32 * 8;
    for (int at = warp * 16; at < warp * 16 + 16; at += BATCH) {
        float x[BATCH][8];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int t = first + at + i;
            exf_take8(x[i], t < p.s.n_tokens ? p.query_row(t, head) : nullptr, c, p.s.d, p.wide_q);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int r = rows_before + at + i;
            float down = exf_split_row(to, to + ROWS * D * 2, ROWS * 128, r, D, x[i]);
            if (threadIdx.x % 32 == 0) powers[r] = down;
        }
    }
}

/* Loads the powers of columns 2 (t % 4) and the next of every eight. */
template <int BN> static __device__ __forceinline__ void exf_take_powers(float2 (&x)[BN / 8], const float *powers)
{
#pragma unroll
    for (int i = 0; i < BN / 8; i++) x[i] = __ldg(reinterpret_cast<const float2 *>(powers) + 4 * i + threadIdx.x % 4);
}

template <int BN> static __device__ __forceinline__ void exf_scale_columns(float (&s)[BN / 2], const float2 (&x)[BN / 8])
{
#pragma unroll
    for (int i = 0; i < BN / 2; i++) s[i] *= i % 2 ? x[i / 4].y : x[i / 4].x;
}

/* State of a thread's two rows: base of its weights' exponents, the sum over its columns, the factor
 * by which earlier sums must be multiplied. */
struct exf_weighing {
    float base[2], sum[2], rescale[2];
};

/* Replaces s by 2^(factor s - base). */
template <int BN>
static __device__ __forceinline__ void exf_exponentiate(float (&s)[BN / 2], exf_weighing &w, const float (&factor)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = -INFINITY, part[2] = {0, 0};
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        most = fmaxf(w.base[r], most * factor[r]);
        float base = most == -INFINITY ? 0 : most;
        w.rescale[r] = exf_exp2(w.base[r] - base);
        w.base[r] = most;
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) {
            part[0] += s[i] = exf_exp2(fmaf(s[i], factor[r], -base));
            part[1] += s[i + 1] = exf_exp2(fmaf(s[i + 1], factor[r], -base));
        }
        w.sum[r] = w.sum[r] * w.rescale[r] + (part[0] + part[1]);
    }
}

/* Splits the weights into the A operands of products with the values; down: the factor of these products. */
template <int BN>
static __device__ __forceinline__ void exf_split_weights(uint32_t (&high)[BN / 4], uint32_t (&low)[BN / 4], float (&down)[2],
                                                         float (&s)[BN / 2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = 0;
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        exf_power power = exf_power_for(most);
        down[r] = power.down;
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) exf_split2(high[i / 2], low[i / 2], s[i] * power.up, s[i + 1] * power.up);
    }
}
#endif
#endif
