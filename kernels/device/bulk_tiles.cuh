/* bulk_tiles.cuh - bulk tensor copies (TMA) into swizzled tiles and the widest product of a
 * warpgroup, which grouped products use besides hopper.cuh. */
#ifndef EXF_KERNELS_BULK_TILES_CUH
#define EXF_KERNELS_BULK_TILES_CUH
#include "kernels/device/hopper.cuh"
#include "kernels/device/wgmma_registers.cuh"

#include <cuda.h> /* types of tensor maps only */

/* A map over a dense bfloat16 array of shape [n2, n1, n0] (n0 innermost, a multiple of
 * 8) for boxes of [1, rows, 64], 128-byte swizzled; reads outside give 0.  Notes a
 * refusal in q and returns 0. */
int exf_tensor_map(exf_queue *q, CUtensorMap *map, const void *base, size_t n0, size_t n1, size_t n2, int rows);

#ifdef EXF_HOPPER
static __device__ inline void exf_barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* The box at (c0, c1, c2) of a map into shared memory; bytes are counted on the barrier. */
static __device__ inline void exf_tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1, int c2)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
}

static __device__ inline void exf_tensor_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

template <int N> static __device__ inline void exf_registers_raise(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ inline void exf_registers_lower(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* d [64, 256] (+)= A [64, 16] B [256, 16]^T, both K-major in shared memory where
 * descriptors a and b point; accumulate 0 overwrites.  By a warpgroup together. */
static __device__ inline void exf_wgmma_256(float (&d)[128], uint64_t a, uint64_t b, int accumulate)
{
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        EXF_REGISTERS_128
        "}, %128, %129, p, 1, 1, 0, 0; }\n"
        :
          EXF_SUMS_128(d, 0)
        : "l"(a), "l"(b), "r"(accumulate));
}
#endif
#endif
