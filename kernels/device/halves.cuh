/* halves.cuh - matrix products of 16 x 8 x 16 on tensor cores with float16 operands in shared memory,
 * float32 accumulation.  Lane l holds of D [16, 8] the rows g = l / 4 and g + 8, columns
 * 2 (l % 4) and the next: d[0], d[1] of row g, d[2], d[3] of row g + 8.  Rows in shared
 * memory are LD float16 long, an odd multiple of 16 bytes so that eight meet all banks. */
#ifndef EXF_KERNELS_HALVES_CUH
#define EXF_KERNELS_HALVES_CUH
#include "kernels/device/hopper.cuh"

#ifdef EXF_HOPPER
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

static __device__ __forceinline__ void exf_mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
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
#endif
#endif
