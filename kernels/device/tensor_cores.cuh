/* tensor_cores.cuh - matrix products of a warp on tensor cores (mma.sync): two with operands in shared memory, one in double.
 *
 * The first two give D [16, 8] with float32 accumulation.  Lane l holds of it the rows g = l / 4 and g + 8, columns
 * 2 (l % 4) and the next: d[0], d[1] of row g, d[2], d[3] of row g + 8. */
#ifndef EXF_KERNELS_TENSOR_CORES_CUH
#define EXF_KERNELS_TENSOR_CORES_CUH
#include "kernels/device/hopper.cuh"

#ifdef EXF_MMA
/* ---- 16 x 8 x 16, float16 --------------------------------------------------------
 * Rows in shared memory are LD float16 long, an odd multiple of 16 bytes so that eight meet all banks. */

/* Four matrices of 8 x 8; `at` is where this lane's row of one of them starts. */
static __device__ __forceinline__ void exf_ldmatrix(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void exf_ldmatrix_transposed(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* d[0 .. 3] += A B */
static __device__ __forceinline__ void exf_mma_half(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of bfloat16. */
static __device__ __forceinline__ void exf_mma_bf16(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* d[n] += A [16, 16 STEPS] B [16 STEPS, 8 N].  A is stored as it is or, TRANSPOSED, by its
 * columns; B as it is.  Only the first `steps` are done. */
template <int N, int STEPS, bool TRANSPOSED, int LDA, int LDB>
static __device__ __forceinline__ void exf_half_strip(float (&d)[N][4], uint32_t a, uint32_t b, int steps = STEPS)
{
    int lane = threadIdx.x % 32, low = lane % 8, mid = lane / 8 % 2, high = lane / 16;
    a += TRANSPOSED ? ((low + high * 8) * LDA + mid * 8) * 2 : ((low + mid * 8) * LDA + high * 8) * 2;
    b += ((low + mid * 8) * LDB + high * 8) * 2;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t x[4], y[4];
        if (k >= steps) break;
        if (TRANSPOSED)
            exf_ldmatrix_transposed(x, a + k * 16 * LDA * 2);
        else
            exf_ldmatrix(x, a + k * 32);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            exf_ldmatrix_transposed(y, b + (k * 16 * LDB + n * 8) * 2);
            exf_mma_half(d[n], x, y[0], y[1]);
            exf_mma_half(d[n + 1], x, y[2], y[3]);
        }
    }
}

/* ---- 16 x 8 x 8, float32 ----------------------------------------------------------
 * An operand is rounded to tf32 (11 significant bits) or, where EXACT, split into two such parts whose three larger
 * products are added: a relative error of a product below 2^-20. */

/* The nearest number of 11 significant bits, ties away from 0.  As integers: the
 * conversion instruction has a quarter of their rate, at most. */
static __device__ __forceinline__ uint32_t exf_tf32(float x)
{
    return (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

/* The same of what may be a NaN, and then is one of tf32: the NaN that a GPU computes has all bits but the sign, and would carry
 * into it. */
static __device__ __forceinline__ uint32_t exf_tf32_or_nan(float x)
{
    return ((uint32_t)min(__float_as_int(x), 0x7fffefff) + 0x1000u) & 0xffffe000u;
}

/* N numbers rounded to tf32 and, where EXACT, the rounded remainders, which are NaN where the numbers are not finite. */
template <int N, bool EXACT> struct exf_tf32_parts {
    uint32_t high[N], low[N];
    __device__ __forceinline__ void set(int i, float x)
    {
        high[i] = EXACT ? exf_tf32(x) : exf_tf32_or_nan(x);
        if (EXACT) low[i] = exf_tf32_or_nan(x - __uint_as_float(high[i]));
    }
};

static __device__ __forceinline__ void exf_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <bool EXACT>
static __device__ __forceinline__ void exf_multiply(float (&d)[4], const exf_tf32_parts<4, EXACT> &a,
                                                    const exf_tf32_parts<2, EXACT> &b)
{
    if (EXACT) {
        exf_mma_tf32(d, a.low, b.high);
        exf_mma_tf32(d, a.high, b.low);
    }
    exf_mma_tf32(d, a.high, b.high);
}

/* Element (row, column) of an operand at p[row * R + column * C]. */
template <bool EXACT, int R, int C> static __device__ __forceinline__ void exf_load_a(exf_tf32_parts<4, EXACT> &a, const float *p)
{
    const float *at = p + threadIdx.x % 32 / 4 * R + threadIdx.x % 4 * C;
    a.set(0, at[0]);
    a.set(1, at[8 * R]);
    a.set(2, at[4 * C]);
    a.set(3, at[8 * R + 4 * C]);
}

/* B [8, 8]: row is the summed index. */
template <bool EXACT, int R, int C> static __device__ __forceinline__ void exf_load_b(exf_tf32_parts<2, EXACT> &b, const float *p)
{
    const float *at = p + threadIdx.x % 4 * R + threadIdx.x % 32 / 4 * C;
    b.set(0, at[0]);
    b.set(1, at[4 * R]);
}

/* d[n] += A [16, 8 n_steps] B [8 n_steps, 8 N] */
template <bool EXACT, int N, int AR, int AC, int BR, int BC>
static __device__ __forceinline__ void exf_strip(float (&d)[N][4], const float *a, const float *b, int n_steps)
{
#pragma unroll 2
    for (int k = 0; k < n_steps; k++) {
        exf_tf32_parts<4, EXACT> x;
        exf_load_a<EXACT, AR, AC>(x, a + k * 8 * AC);
#pragma unroll
        for (int n = 0; n < N; n++) {
            exf_tf32_parts<2, EXACT> y;
            exf_load_b<EXACT, BR, BC>(y, b + k * 8 * BR + n * 8 * BC);
            exf_multiply<EXACT>(d[n], x, y);
        }
    }
}

#endif

/* ---- in double, on any GPU: without tensor cores by way of other lanes' registers ----------------- */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 900
/* c += a b of 8 x 4 and 4 x 8 in double: a lane has a[lane / 4][lane % 4], b[lane % 4][lane / 4] and two neighbours of row
 * lane / 4 of c, from column 2 (lane % 4) on. */
static __device__ inline void exf_multiply_small_doubles(double &c0, double &c1, double a, double b)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(c0), "+d"(c1) : "d"(a), "d"(b));
#else
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        double row = __shfl_sync(0xffffffffu, a, (lane & 28) + k);
        c0 = fma(row, __shfl_sync(0xffffffffu, b, (2 * (lane & 3)) * 4 + k), c0);
        c1 = fma(row, __shfl_sync(0xffffffffu, b, (2 * (lane & 3) + 1) * 4 + k), c1);
    }
#endif
}
#endif

/* c += a b of 16 x 16 and 16 x 8 in double: a[2 k + i] is of row lane / 4 + 8 i and column 4 k + lane % 4, b[k] of row
 * 4 k + lane % 4 and column lane / 4, c[2 i + j] of row lane / 4 + 8 i and column 2 (lane % 4) + j.  Hopper has it in one
 * instruction, at twice the rate. */
static __device__ inline void exf_multiply_doubles(double (&c)[4], const double (&a)[8], const double (&b)[4])
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]),
          "d"(b[3]));
#else
#pragma unroll
    for (int k = 0; k < 4; k++) {
        exf_multiply_small_doubles(c[0], c[1], a[2 * k], b[k]);
        exf_multiply_small_doubles(c[2], c[3], a[2 * k + 1], b[k]);
    }
#endif
}
#endif
