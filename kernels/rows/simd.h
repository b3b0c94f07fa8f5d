/* simd.h - macros and inline functions with which the CPU kernels use AVX2.
 *
 * EXF_SIMD_CLONES compiles a function twice, for the baseline and for AVX2, and picks
 * at load time.  Both give the same bits: contraction is off (Makefile) and a
 * strict compiler never reorders a sum, so kernels write their lanes out. */
#ifndef EXF_KERNELS_SIMD_H
#define EXF_KERNELS_SIMD_H
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define EXF_SIMD_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define EXF_SIMD_CLONES
#endif

/* A part of an EXF_SIMD_CLONES function: left to itself, the compiler may keep a large
 * one as a function of its own, for the baseline only. */
#if defined(__GNUC__)
#define EXF_SIMD_INLINE static inline __attribute__((always_inline))
#else
#define EXF_SIMD_INLINE static inline
#endif

/* e^x in float, within 2 ulp on [-87, 88]; below, 0; above, clamped at e^88.
 * Branch-free so that loops over it vectorise.  Cody-Waite reduction by ln 2
 * and the degree-5 polynomial of Cephes' expf. */
static inline float exf_expf(float x)
{
    float c = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float shifted = c * 1.44269504f + magic;
    float n = shifted - magic;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits; /* n is in the low bits of `shifted`; unsigned, so that NaN passes through without a conversion */
    float scale;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4B400000u + 127u) << 23;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

/* <a,b> with doubles as accumulators, eight lanes in fixed order. */
static inline double exf_dot(const float *a, const float *b, int n)
{
    double lane[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) lane[j] += (double)a[i + j] * (double)b[i + j];
    for (int j = 0; i + j < n; j++) lane[j] += (double)a[i + j] * (double)b[i + j];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}
#endif
