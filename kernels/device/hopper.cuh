/* hopper.cuh - which tensor-core kernels the device runs; what they all share, swizzled tiles in shared memory and copies
 * of 16 bytes; and the device functions of compute capability 9.0: barriers, bulk and tensor copies (TMA), a warpgroup's
 * registers and its products (wgmma).
 *
 * EXF_HOPPER is defined where the code is compiled for sm_90a, EXF_MMA where it is for compute capability 8.0 or later,
 * sm_90a included.  Elsewhere such a kernel has an empty body.  The host asks exf_uses_wgmma() and exf_uses_mma(), at most one
 * of which is 1, and takes another kernel where neither is. */
#ifndef EXF_KERNELS_HOPPER_CUH
#define EXF_KERNELS_HOPPER_CUH
#include "kernels/device/cuda_queue.cuh"

#include <cuda.h> /* types of tensor maps only */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define EXF_HOPPER 1
#endif
#if __CUDA_ARCH__ >= 800
#define EXF_MMA 1
#endif

/* Return 1 if kernels run on a warpgroup's products (wgmma), on a warp's (mma.sync; tensor_cores.cuh). */
int exf_uses_wgmma(void);
int exf_uses_mma(void);
/* Chooses which (operation.h); EXF_DEVICE where the device has no code of this build for it.  Workspaces are sized by the
 * choice, so it is made before the first. */
exf_code exf_choose_tensor_cores_cuda(exf_tensor_cores choice, exf_err *err);
/* Bytes of shared memory that one block may have: 163 KB on compute capability 8.0, 227 on 9.0 and 10.0, 99 on 8.6, 8.9 and
 * 12.0; 0: unknown. */
size_t exf_most_shared_bytes(void);
/* Returns 1 for kernels of either that take so many bytes of shared memory a block. */
static inline int exf_uses_tensor_cores(size_t shared)
{
    return (exf_uses_wgmma() || exf_uses_mma()) && shared <= exf_most_shared_bytes();
}
/* 1 if products of the queue's mixers run on tensor cores, with rounded operands. */
static inline bool exf_rounds(const exf_queue *q)
{
    return q->products == CUBLAS_COMPUTE_32F_FAST_16BF;
}

/* Makes a map over a dense bfloat16 array of shape [n2, n1, n0] (n0 innermost, a multiple of
 * 8) for boxes of [1, rows, 64], 128-byte swizzled; reads outside give 0.  Notes a
 * refusal in q and returns 0. */
int exf_tensor_map(exf_queue *q, CUtensorMap *map, const void *base, size_t n0, size_t n1, size_t n2, int rows);

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

/* 2^x, flushing what is below the normal numbers to 0. */
static __device__ inline float exf_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#ifdef EXF_MMA
/* ---- copies that a thread waits for (cp.async) ---------------------------------- */
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
#endif

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

static __device__ inline void exf_barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
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
    exf_barrier_expect(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

/* The box at (c0, c1, c2) of a map into shared memory; bytes are counted on the barrier. */
static __device__ inline void exf_tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1, int c2)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
        : "memory");
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

/* ---- registers -----------------------------------------------------------------
 * A warpgroup asks for N registers a thread (raise), or gives back what it has above N (lower).  N is a multiple of 8;
 * all threads of the warpgroup call. */
template <int N> static __device__ inline void exf_registers_raise(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ inline void exf_registers_lower(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
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

/* The operands of wgmma: the 32, 64 or 128 sums of a thread, which its PTX names one by one. */
#define EXF_REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EXF_REGISTERS_64 \
    EXF_REGISTERS_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define EXF_REGISTERS_128 \
    EXF_REGISTERS_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* The operands of these registers: d[i], d[i + 1], ..., read and written. */
#define EXF_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define EXF_SUMS_16(d, i) EXF_SUMS_4(d, i), EXF_SUMS_4(d, i + 4), EXF_SUMS_4(d, i + 8), EXF_SUMS_4(d, i + 12)
#define EXF_SUMS_32(d, i) EXF_SUMS_16(d, i), EXF_SUMS_16(d, i + 16)
#define EXF_SUMS_64(d, i) EXF_SUMS_32(d, i), EXF_SUMS_32(d, i + 32)
#define EXF_SUMS_128(d, i) EXF_SUMS_64(d, i), EXF_SUMS_64(d, i + 64)

/* exf_wgmma<N, T>: D [64, N] of one warpgroup in registers, operands of type T (float16 or bfloat16), float32
 * accumulation.  Thread t of the 128 holds of D the rows r = 16 (t / 32) + t % 32 / 4 and r + 8: d[4 i + 0, 1] are the
 * columns 8 i + 2 (t % 4) + 0, 1 of row r, d[4 i + 2, 3] of r + 8.
 *   ss  A [64, 16] and B [N, 16] in shared memory, both with the summed index inmost; keep 0: D is overwritten
 *   rs  A in registers as the same threads hold it, B [16, N] with N inmost */
enum exf_half_type { EXF_FLOAT16, EXF_BFLOAT16 };
template <int N, exf_half_type T = EXF_FLOAT16> struct exf_wgmma;

/* The instruction names its R = N / 2 sums %0 to %(R - 1); the operands after them are %a to %e, written out. */
#define EXF_WGMMA(N, R, T, TEXT, a, b, c, d, e)                                                                            \
    template <> struct exf_wgmma<N, T> {                                                                                   \
        static __device__ __forceinline__ void ss(float (&x)[R], uint64_t rows, uint64_t columns, int keep)                \
        {                                                                                                                  \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" c ", 0; wgmma.mma_async.sync.aligned.m64n" #N                  \
                         "k16.f32." TEXT "." TEXT " {" EXF_REGISTERS_##R "}, %" a ", %" b ", p, 1, 1, 0, 0; }"             \
                         : EXF_SUMS_##R(x, 0)                                                                              \
                         : "l"(rows), "l"(columns), "r"(keep));                                                            \
        }                                                                                                                  \
        static __device__ __forceinline__ void rs(float (&x)[R], const uint32_t *rows, uint64_t columns)                   \
        {                                                                                                                  \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TEXT "." TEXT " {" EXF_REGISTERS_##R            \
                         "}, {%" a ", %" b ", %" c ", %" d "}, %" e ", 1, 1, 1, 1;"                                        \
                         : EXF_SUMS_##R(x, 0)                                                                              \
                         : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(columns));                          \
        }                                                                                                                  \
    };
EXF_WGMMA(64, 32, EXF_FLOAT16, "f16", "32", "33", "34", "35", "36")
EXF_WGMMA(128, 64, EXF_FLOAT16, "f16", "64", "65", "66", "67", "68")
EXF_WGMMA(256, 128, EXF_FLOAT16, "f16", "128", "129", "130", "131", "132")
EXF_WGMMA(256, 128, EXF_BFLOAT16, "bf16", "128", "129", "130", "131", "132")
#endif
#endif
