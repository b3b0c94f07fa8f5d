/* hopper.cuh - device functions of compute capability 9.0 for the tensor-core kernels:
 * barriers in shared memory, bulk copies, swizzled tiles, descriptors, rounding.
 *
 * EXF_HOPPER is defined where the code is compiled for sm_90a.  Elsewhere (the PTX
 * for other GPUs) such a kernel has an empty body, and exf_hopper_code() tells the
 * host to take the float32 kernel instead. */
#ifndef EXF_KERNELS_HOPPER_CUH
#define EXF_KERNELS_HOPPER_CUH
#include "kernels/device/cuda_queue.cuh"

#include <stdint.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define EXF_HOPPER 1
#endif

/* 1 if the running device has this build's sm_90a code. */
int exf_hopper_code(void);
/* 1 if products of the queue's mixers run on tensor cores, with rounded operands. */
static inline bool exf_rounds(const exf_queue *q)
{
    return q->products == CUBLAS_COMPUTE_32F_FAST_16BF;
}

/* ---- tiles ---------------------------------------------------------------------
 * A tile of `rows` rows is cut into panels of 64 float16 columns; a panel's rows are
 * 128 bytes, their 16-byte chunks permuted so that eight rows meet all banks. */
static __host__ __device__ inline uint32_t exf_panel_at(int row, int chunk)
{
    return (uint32_t)row * 128 + (uint32_t)((chunk ^ (row & 7)) << 4);
}

static __device__ inline uint32_t exf_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Two floats rounded to float16, the first in the lower half. */
static __device__ inline uint32_t exf_half2(float low, float high)
{
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#endif
    return r;
}

/* Floats c .. c + 7 of a row of n, 0 after its end, as float16.  wide: the row and n
 * allow loads of 16 bytes. */
static __device__ inline uint4 exf_half8(const float *row, int c, int n, bool wide)
{
    float x[8];
    if (wide && c + 8 <= n) {
        float4 a = *reinterpret_cast<const float4 *>(row + c), b = *reinterpret_cast<const float4 *>(row + c + 4);
        return make_uint4(exf_half2(a.x, a.y), exf_half2(a.z, a.w), exf_half2(b.x, b.y), exf_half2(b.z, b.w));
    }
    for (int i = 0; i < 8; i++) x[i] = c + i < n ? row[c + i] : 0.0f;
    return make_uint4(exf_half2(x[0], x[1]), exf_half2(x[2], x[3]), exf_half2(x[4], x[5]), exf_half2(x[6], x[7]));
}

/* 1 if rows that start at p and are ld floats apart can be read 16 bytes at a time. */
static inline bool exf_aligned16(const void *p, int ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 4 == 0;
}

/* 2^x, flushing what is below the normal numbers to 0. */
static __device__ inline float exf_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#ifdef EXF_HOPPER
/* ---- barriers and copies ------------------------------------------------------- */
static __device__ inline void exf_barrier_init(uint32_t at, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

static __device__ inline void exf_barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

static __device__ inline void exf_barrier_wait(uint32_t at, uint32_t parity)
{
    uint32_t done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    while (!done);
}

/* `bytes` from global to shared memory, both 16-byte aligned; arrives at `barrier`. */
static __device__ inline void exf_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Copies 16 bytes to shared memory, zeros unless `valid`. */
static __device__ inline void exf_load16(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

static __device__ inline void exf_loads_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ inline void exf_loads_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Makes the threads' stores visible to the tensor cores and the copy engine. */
static __device__ inline void exf_proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Lets some of a block's threads wait for one another; id 0 is __syncthreads. */
static __device__ inline void exf_named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Arrives at the barrier without waiting. */
static __device__ inline void exf_named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- products ------------------------------------------------------------------ */
static __device__ inline void exf_wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ inline void exf_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ inline void exf_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Keeps the compiler from moving uses of registers across a wait. */
template <int N> static __device__ __forceinline__ void exf_settle(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

/* A swizzled operand at `at`.  apart: bytes between panels, where N runs over several
 * (B with N inmost); the eight-row groups are always 1024 bytes apart. */
static __device__ inline uint64_t exf_operand(uint32_t at, uint32_t apart)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
#endif
#endif
