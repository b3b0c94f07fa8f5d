/* cuda_rows.cuh - what kernels that go along rows share: bfloat16, eight elements at a time, sums over a warp or a block,
 * exact sums.
 *
 * Sums and maxima over a warp or a block run in a fixed order: equal inputs give equal bits.  blockDim.x is a multiple of
 * 32, at most 1024; every thread calls and every thread gets the result. */
#ifndef EXF_KERNELS_CUDA_ROWS_CUH
#define EXF_KERNELS_CUDA_ROWS_CUH
#include "base/exact.h"

#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>

/* ---- bfloat16 ---------------------------------------------------------------------- */

/* A bfloat16 in the lower half of u, the upper half 0; and the one in the upper half of u. */
static __device__ __forceinline__ float exf_widen(uint32_t u)
{
    return __uint_as_float(u << 16);
}

static __device__ __forceinline__ float exf_widen_upper(uint32_t u)
{
    return __uint_as_float(u & 0xffff0000u);
}

/* Nearest, ties to even. */
static __device__ __forceinline__ uint16_t exf_narrow(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* Two of them, the first in the lower half. */
static __device__ __forceinline__ uint32_t exf_narrow2(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

/* Returns true for the bits of an infinity or a NaN. */
static __device__ __forceinline__ bool exf_not_finite(uint32_t bits)
{
    return (bits & 0x7f800000u) == 0x7f800000u;
}

/* ---- elements of a row of either number type ------------------------------------------- */

static __device__ __forceinline__ float exf_element(float x)
{
    return x;
}

static __device__ __forceinline__ float exf_element(uint16_t x)
{
    return exf_widen(x);
}

static __device__ __forceinline__ void exf_set_element(float *to, float x)
{
    *to = x;
}

static __device__ __forceinline__ void exf_set_element(uint16_t *to, float x)
{
    *to = exf_narrow(x);
}

/* The first eight elements at p, which is aligned to 16 bytes. */
static __device__ __forceinline__ void exf_load8(float (&v)[8], const float *p)
{
    float4 a = *reinterpret_cast<const float4 *>(p), b = *reinterpret_cast<const float4 *>(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

static __device__ __forceinline__ void exf_load8(float (&v)[8], const uint16_t *p)
{
    uint4 a = *reinterpret_cast<const uint4 *>(p);
    uint32_t u[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = exf_widen(u[i]);
        v[2 * i + 1] = exf_widen_upper(u[i]);
    }
}

/* Eight consecutive elements of a row of h from column c on, 0 past its end.  Rows start at multiples of 16 bytes if h
 * is a multiple of so many. */
enum { EXF_STEP = 8 };
template <class T> static __device__ inline void exf_load_step(float (&v)[EXF_STEP], const T *row, int c, int h)
{
    if (h % (int)(16 / sizeof(T)) == 0 && c + EXF_STEP <= h) {
        exf_load8(v, row + c);
        return;
    }
#pragma unroll
    for (int i = 0; i < EXF_STEP; i++) v[i] = c + i < h ? exf_element(row[c + i]) : 0;
}

static __device__ __forceinline__ void exf_store8(float *p, const float (&v)[8])
{
    reinterpret_cast<float4 *>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4 *>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

static __device__ __forceinline__ void exf_store8(uint16_t *p, const float (&v)[8])
{
    *reinterpret_cast<uint4 *>(p) =
        make_uint4(exf_narrow2(v[0], v[1]), exf_narrow2(v[2], v[3]), exf_narrow2(v[4], v[5]), exf_narrow2(v[6], v[7]));
}

/* Cuts x at limit and at -limit; what is no number stays, which fminf() and fmaxf() would take for the limit. */
static __device__ __forceinline__ float exf_cut(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* swiglu of rows.h, of one element. */
static __device__ __forceinline__ float exf_swiglu(float g, float u, float limit)
{
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = exf_cut(u, limit);
    }
    return g / (1.0f + expf(-g)) * u;
}

/* geglu of rows.h, of one element. */
static __device__ __forceinline__ float exf_geglu(float g, float u)
{
    float inner = 0.7978845608f * (g + 0.044715f * (g * g * g));
    return 0.5f * g * (1.0f + tanhf(inner)) * u;
}

/* The scaled form of rows.h, of one element. */
static __device__ __forceinline__ float exf_swiglu_scaled(float g, float u, float limit, float slope, float shift)
{
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = exf_cut(u, limit);
    }
    return g / (1.0f + expf(-slope * g)) * (u + shift);
}

/* ---- sums ------------------------------------------------------------------------------- */

static __device__ __forceinline__ double exf_square_sum(float4 a)
{
    return ((double)a.x * a.x + (double)a.y * a.y) + ((double)a.z * a.z + (double)a.w * a.w);
}

template <class T> __device__ inline T exf_warp_sum(T v)
{
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

template <class T> __device__ inline T exf_warp_max(T v)
{
    for (int step = 16; step > 0; step >>= 1) {
        T other = __shfl_xor_sync(0xffffffffu, v, step);
        v = other > v ? other : v;
    }
    return v;
}

template <class T> __device__ inline T exf_block_sum(T v)
{
    __shared__ T part[32];
    __syncthreads(); /* an earlier call's readers are done */
    v = exf_warp_sum(v);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    T total = 0;
    for (unsigned i = 0; i < blockDim.x >> 5; i++) total += part[i];
    return total;
}

template <class T> __device__ inline T exf_block_max(T v)
{
    __shared__ T part[32];
    __syncthreads();
    v = exf_warp_max(v);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    T most = part[0];
    for (unsigned i = 1; i < blockDim.x >> 5; i++) most = part[i] > most ? part[i] : most;
    return most;
}

/* ---- exact sums (base/exact.h) in a thread's registers ------------------------------------
 * Adding a term takes a few integer instructions and no memory access. */

typedef struct {
    unsigned long long low, middle, high; /* two's complement, in units of 2^-96 */
} exf_exact_registers;

/* Adds x to *sum, rounded to the grid; x must fit: its mantissa then ends below bit 160. */
static __device__ inline void exf_exact_registers_add(exf_exact_registers *sum, double x)
{
    unsigned long long u = (unsigned long long)__double_as_longlong(x), m = u & 0xfffffffffffffull, negative = u >> 63,
                       flip = 0 - negative;
    int biased = (int)(u >> 52 & 0x7ff), shift = (biased ? biased : 1) - 1075 + 96;
    if (biased) m |= 1ull << 52;
    if (shift < 0) { /* half to even, like exf_exact_place() */
        int drop = -shift < 55 ? -shift : 55; /* below half a unit: a mantissa has 53 bits */
        unsigned long long half = 1ull << (drop - 1), rest = m & ((half << 1) - 1);
        m >>= drop;
        m += rest > half || (rest == half && (m & 1));
        shift = 0;
    }
    int bit = shift & 63;
    unsigned long long a = m << bit, b = m >> 1 >> (63 - bit);
    unsigned long long x0 = (shift < 64 ? a : 0) ^ flip, x1 = (shift < 64 ? b : a) ^ flip, x2 = (shift < 64 ? 0 : b) ^ flip;
    asm("{\n\t.reg .u64 none;\n\t"
        "add.cc.u64 none, %6, 0xffffffffffffffff;\n\t" /* carries if x is to be negated */
        "addc.cc.u64 %0, %0, %3;\n\t"
        "addc.cc.u64 %1, %1, %4;\n\t"
        "addc.u64 %2, %2, %5;\n\t}"
        : "+l"(sum->low), "+l"(sum->middle), "+l"(sum->high)
        : "l"(x0), "l"(x1), "l"(x2), "l"(negative));
}

/* Splits a sum into six digits of 2^32, all of the sum's sign (layer_sums_internal.cuh). */
static __device__ inline void exf_exact_registers_digits(unsigned long long (&digit)[6], exf_exact_registers sum)
{
    bool negative = sum.high >> 63;
    unsigned long long flip = negative ? ~0ull : 0, limb[3] = {sum.low ^ flip, sum.middle ^ flip, sum.high ^ flip};
    if (negative && ++limb[0] == 0 && ++limb[1] == 0) ++limb[2];
#pragma unroll
    for (int i = 0; i < 6; i++) digit[i] = ((limb[i / 2] >> 32 * (i & 1) & 0xffffffffu) ^ flip) - flip;
}
#endif
