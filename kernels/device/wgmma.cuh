/* wgmma.cuh - matrix products of one warpgroup on Hopper's tensor cores: D [64, N] in
 * registers, float16 operands, float32 accumulation, for the shapes in use.
 *
 * Thread t of the 128 holds of D the rows r = 16 (t / 32) + t % 32 / 4 and r + 8:
 * d[4 i + 0, 1] are the columns 8 i + 2 (t % 4) + 0, 1 of row r, d[4 i + 2, 3] of r + 8.
 *   ss  A [64, 16] and B [N, 16] in shared memory, both with the summed index inmost
 *   rs  A in registers as the same threads hold it, B [16, N] with N inmost */
#ifndef EXF_KERNELS_WGMMA_CUH
#define EXF_KERNELS_WGMMA_CUH
#include "kernels/device/hopper.cuh"
#include "kernels/device/wgmma_registers.cuh"

#ifdef EXF_HOPPER
template <int N> struct exf_wgmma;

template <> struct exf_wgmma<64> {
    static __device__ __forceinline__ void ss(float (&d)[32], uint64_t a, uint64_t b, int keep)
    {
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     EXF_REGISTERS_32
                     "}, %32, %33, p, 1, 1, 0, 0; }"
                     : EXF_SUMS_32(d, 0)
                     : "l"(a), "l"(b), "r"(keep));
    }
    static __device__ __forceinline__ void rs(float (&d)[32], const uint32_t *a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     EXF_REGISTERS_32
                     "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                     : EXF_SUMS_32(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};

template <> struct exf_wgmma<128> {
    static __device__ __forceinline__ void ss(float (&d)[64], uint64_t a, uint64_t b, int keep)
    {
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                     EXF_REGISTERS_64
                     "}, %64, %65, p, 1, 1, 0, 0; }"
                     : EXF_SUMS_64(d, 0)
                     : "l"(a), "l"(b), "r"(keep));
    }
    static __device__ __forceinline__ void rs(float (&d)[64], const uint32_t *a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                     EXF_REGISTERS_64
                     "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                     : EXF_SUMS_64(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};

template <> struct exf_wgmma<256> {
    static __device__ __forceinline__ void ss(float (&d)[128], uint64_t a, uint64_t b, int keep)
    {
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                     EXF_REGISTERS_128
                     "}, %128, %129, p, 1, 1, 0, 0; }"
                     : EXF_SUMS_128(d, 0)
                     : "l"(a), "l"(b), "r"(keep));
    }
    static __device__ __forceinline__ void rs(float (&d)[128], const uint32_t *a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                     EXF_REGISTERS_128
                     "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                     : EXF_SUMS_128(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};
#endif
#endif
