/* attention_online.cuh - softmax while scores arrive, on wgmma's registers (wgmma.cuh):
 * a thread has two rows of 64, of each the columns that it holds. */
#ifndef EXF_KERNELS_ATTENTION_ONLINE_CUH
#define EXF_KERNELS_ATTENTION_ONLINE_CUH
#include "kernels/wgmma.cuh"

#ifdef EXF_HOPPER
/* Of a thread's two rows: the largest score, the sum over its columns, the factor
 * that what was summed before is to be multiplied with. */
struct exf_running {
    float top[2], sum[2], fade[2];
};

/* s becomes exp(scale s - top), scale in powers of two. */
template <int BN> static __device__ __forceinline__ void exf_soften(float (&s)[BN / 2], exf_running &w, float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = w.top[r], part[2] = {0, 0};
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        float base = most == -INFINITY ? 0 : most * scale;
        w.fade[r] = exf_exp2(fmaf(w.top[r], scale, -base));
        w.top[r] = most;
#pragma unroll
        for (int i = 2 * r; i < BN / 2; i += 4) {
            part[0] += s[i] = exf_exp2(fmaf(s[i], scale, -base));
            part[1] += s[i + 1] = exf_exp2(fmaf(s[i + 1], scale, -base));
        }
        w.sum[r] = w.sum[r] * w.fade[r] + (part[0] + part[1]);
    }
}

/* Scores as the A operand of the product with the values. */
template <int N> static __device__ __forceinline__ void exf_round_to(uint32_t (&p)[N / 2], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) p[i] = exf_half2(s[2 * i], s[2 * i + 1]);
}

template <int N> static __device__ __forceinline__ void exf_fade(float (&o)[N], const exf_running &w)
{
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= w.fade[i % 4 / 2];
}
#endif
#endif
