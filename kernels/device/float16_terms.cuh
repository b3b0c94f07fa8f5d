/* float16_terms.cuh - float32 numbers as sums of two float16, so that tensor cores multiply them
 * at float16's speed: x y = high high + high low + low high, and what is left out.
 *
 * A group of numbers is first multiplied with a power of two that brings its largest into
 * [2^14, 2^15).  Then |x - high - low| <= 2^-22 |x|, or 2^-39 of the group's largest if
 * that is more (low is a subnormal float16); a product of two such numbers loses at most
 * 3 * 2^-22 of itself.  A largest number below 2^-112 counts as 2^-112.  An infinite number
 * becomes inf - inf, a NaN stays one. */
#ifndef EXF_KERNELS_FLOAT16_TERMS_CUH
#define EXF_KERNELS_FLOAT16_TERMS_CUH
#include "kernels/device/hopper.cuh"

/* The power of two and its inverse. */
struct exf_power {
    float up, down;
};

/* For numbers of which the largest is `most` >= 0. */
static __device__ __forceinline__ exf_power exf_power_for(float most)
{
    int e = (int)(__float_as_uint(most) >> 23);
    e = e < 15 ? 15 : e > 254 ? 254 : e;
    return {__uint_as_float((uint32_t)(268 - e) << 23), __uint_as_float((uint32_t)(e - 14) << 23)};
}

/* Two numbers; the first in the lower halves. */
static __device__ __forceinline__ void exf_split2(uint32_t &high, uint32_t &low, float x, float y)
{
    float a, b;
    high = exf_half2(x, y);
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(a), "=f"(b) : "r"(high));
    low = exf_half2(x - a, y - b);
}

static __device__ __forceinline__ void exf_split8(uint4 &high, uint4 &low, const float (&x)[8], float up)
{
    exf_split2(high.x, low.x, x[0] * up, x[1] * up);
    exf_split2(high.y, low.y, x[2] * up, x[3] * up);
    exf_split2(high.z, low.z, x[4] * up, x[5] * up);
    exf_split2(high.w, low.w, x[6] * up, x[7] * up);
}

/* Floats c .. c + 7 of a row of n, 0 after its end or if the row is NULL.  wide: the row
 * and n allow loads of 16 bytes. */
static __device__ __forceinline__ void exf_take8(float (&x)[8], const float *row, int c, int n, bool wide)
{
    if (row && wide && c + 8 <= n) {
        float4 a = *reinterpret_cast<const float4 *>(row + c), b = *reinterpret_cast<const float4 *>(row + c + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = row && c + i < n ? row[c + i] : 0.0f;
}

/* A row of at most 256, of which each lane of a warp has taken eight numbers, to row r of
 * the panels (hopper.cuh) at `high` and `low`; panels are `apart` bytes apart and `width`
 * columns are written.  Every lane gets the inverse of the power of two. */
static __device__ __forceinline__ float exf_split_row(char *high, char *low, uint32_t apart, int r, int width, const float (&x)[8])
{
    int lane = threadIdx.x % 32;
    uint32_t at = lane / 8 * apart + exf_panel_at(r, lane % 8);
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(x[i]));
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    exf_power power = exf_power_for(most);
    if (lane < width / 8) {
        uint4 h, l;
        exf_split8(h, l, x, power.up);
        *reinterpret_cast<uint4 *>(high + at) = h;
        *reinterpret_cast<uint4 *>(low + at) = l;
    }
    return power.down;
}
#endif
