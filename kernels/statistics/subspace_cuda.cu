/* subspace_cuda.cu - subspace iteration on second moments; see subspace.h.
 *
 * Products are cuBLAS's in double; a matrix of rows [m, n] here is one of columns [n, m] there.  The factorisation of [k, k] is
 * one block's, a step a column.
 *
 * Floor of an iteration: 2 H^2 k + 4 H k^2 operations in double.  H 2048, k 80, at 60 TFLOP/s: 12 us; gram is read once, 33.5 MB,
 * 10 us.  The factorisation takes k steps, each a barrier and a division in double. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/subspace.h"

enum { THREADS = 1024 };

/* ---- the moments ---------------------------------------------------------------------------------- */

/* The mean of the diagonal times 1e-12, or 1 where that is no positive number: one block, in fixed order. */
static __global__ void take_ridge(double *to, const double *gram, int h)
{
    __shared__ double part[THREADS];
    double sum = 0;
    for (int i = threadIdx.x; i < h; i += THREADS) sum += gram[(size_t)i * h + i];
    part[threadIdx.x] = sum;
    for (int step = THREADS / 2; step > 0; step >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x == 0) *to = part[0] > 0 ? 1e-12 * part[0] / h : 1;
}

/* Takes the mean's moments away, and adds the multiple of the identity. */
static __global__ void centre(exf_subspace_call c)
{
    size_t h = (size_t)c.d_model, at = blockIdx.x * (size_t)blockDim.x + threadIdx.x, i = at / h, j = at % h;
    if (i >= h) return;
    double v = c.gram[at];
    if (c.sum && c.n > 0) v -= c.sum[i] * (c.sum[j] / (double)c.n);
    c.gram[at] = i == j ? v + *c.ridge : v;
}

/* ---- orthonormal columns ---------------------------------------------------------------------------- */

/* Both kernels that follow factor S [k, k], scaled to a unit diagonal and with `shift` added to it, as L D L', and make `out` the
 * matrix by which columns with the products S become orthonormal: the scale, times the transpose of (L D^1/2)^-1.  One matrix has
 * what is left of S, to the right of the present column, and what L^-1 has so far, to its left. */

static __device__ inline double pivot_of(double p)
{
    return fmax(p, 1e-13);
}

enum { WARPS = THREADS / 32, EACH = 3, IN_REGISTERS = 32 * EACH };

/* Up to IN_REGISTERS columns: a lane has elements [warp + WARPS i, lane + 32 j] of the matrix, and the row of the present pivot
 * goes through shared memory. */
static __global__ void __launch_bounds__(THREADS) factor_in_registers(const double *s, double *out, int k, double shift)
{
    __shared__ double scale[IN_REGISTERS], pivot[IN_REGISTERS], rows[2][IN_REGISTERS], over[2];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double m[EACH][EACH];
    for (int i = threadIdx.x; i < k; i += THREADS) scale[i] = s[i * k + i] > 0 ? rsqrt(s[i * k + i]) : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH * EACH; i++) {
        int r = warp + WARPS * (i / EACH), c = lane + 32 * (i % EACH);
        m[i / EACH][i % EACH] = r < k && c < k ? (r == c ? 1 + shift : s[r * k + c] * scale[r] * scale[c]) : 0;
    }
    for (int j = 0; j < k; j++) {
        double *row = rows[j & 1];
        if (warp == j % WARPS) { /* the pivot's row, with the 1 of L^-1 in place of the pivot */
            double p = 0;
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                double held = j < 32 ? m[0][c] : j < 64 ? m[1][c] : m[2][c];
                row[lane + 32 * c] = lane + 32 * c == j ? 1 : held;
                if (lane + 32 * c == j) p = pivot_of(held);
            }
            if (lane == j % 32) {
                pivot[j] = p;
                over[j & 1] = 1 / p;
            }
        }
        __syncthreads();
        double by = over[j & 1], of[EACH];
#pragma unroll
        for (int c = 0; c < EACH; c++) of[c] = row[lane + 32 * c];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (warp + WARPS * i <= j) continue; /* the whole warp */
            double held = j < 32 ? m[i][0] : j < 64 ? m[i][1] : m[i][2];
            double below = __shfl_sync(0xffffffffu, held, j % 32) * by;
#pragma unroll
            for (int c = 0; c < EACH; c++) m[i][c] = (lane + 32 * c == j ? 0 : m[i][c]) - below * of[c];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH * EACH; i++) {
        int r = warp + WARPS * (i / EACH), c = lane + 32 * (i % EACH);
        if (r < k && c < k) out[c * k + r] = c <= r ? scale[c] * (c == r ? 1 : m[i / EACH][i % EACH]) * rsqrt(pivot[r]) : 0;
    }
}

/* Any number of columns: the matrix is S itself. */
static __global__ void __launch_bounds__(THREADS) factor_in_place(double *m, double *out, int k, double shift)
{
    extern __shared__ double scale[]; /* [k], the pivots [k], the present column [k] */
    double *pivot = scale + k, *column = pivot + k;
    int all = k * k, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < k; i += THREADS) scale[i] = m[(size_t)i * k + i] > 0 ? rsqrt(m[(size_t)i * k + i]) : 0;
    __syncthreads();
    for (int at = threadIdx.x; at < all; at += THREADS)
        m[at] = at / k == at % k ? 1 + shift : m[at] * scale[at / k] * scale[at % k];
    for (int j = 0; j < k; j++) {
        __syncthreads();
        double p = pivot_of(m[(size_t)j * k + j]), over = 1 / p;
        for (int i = j + 1 + threadIdx.x; i < k; i += THREADS) column[i] = m[(size_t)i * k + j] * over;
        if (threadIdx.x == 0) pivot[j] = p;
        __syncthreads();
        for (int i = j + 1 + warp; i < k; i += WARPS) { /* a warp a row below j */
            double *row = m + (size_t)i * k, below = column[i];
            for (int c = lane; c <= i; c += 32) {
                double factor = c < j ? m[(size_t)j * k + c] : c == j ? 1 : column[c] * p;
                row[c] = (c == j ? 0 : row[c]) - below * factor;
            }
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < all; at += THREADS) {
        int i = at / k, c = at % k;
        out[at] = i <= c ? scale[i] * (i == c ? 1 : m[(size_t)c * k + i]) * rsqrt(pivot[c]) : 0;
    }
}

static void factor(exf_queue *q, const exf_subspace_call *c, double shift)
{
    int k = c->columns;
    size_t bytes = 3 * (size_t)k * sizeof(double);
    if (k <= IN_REGISTERS)
        EXF_LAUNCH(q, "subspace: factor", factor_in_registers, 1, THREADS, 0, c->small, c->factor, k, shift);
    else
        EXF_LAUNCH(q, "subspace: factor", factor_in_place, 1, THREADS, bytes, c->small, c->factor, k, shift);
}

/* Makes y [m, n] = x' w with x [k, m] if `transposed`, else x w with x [m, k]; w [k, n]. */
static void multiply(exf_queue *q, double *y, const double *x, int transposed, const double *w, int m, int n, int k)
{
    double one = 1, zero = 0;
    if (!exf_cublas_ready(q)) return;
    exf_cublas_note(q,
                    q->cublas->gemm(q->blas, CUBLAS_OP_N, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, w, CUDA_R_64F, n,
                                    x, CUDA_R_64F, transposed ? m : k, &zero, y, CUDA_R_64F, n, CUBLAS_COMPUTE_64F,
                                    CUBLAS_GEMM_DEFAULT),
                    "subspace");
}

/* Makes the columns of `from` orthonormal, or with a shift nearly, into `to`. */
static void orthonormalize(exf_queue *q, const exf_subspace_call *c, double *to, const double *from, double shift)
{
    int k = c->columns, h = c->d_model;
    multiply(q, c->small, from, 1, from, k, k, h);
    factor(q, c, shift);
    multiply(q, to, from, 0, c->factor, h, k, k);
}

void exf_subspace_iterate_cuda(exf_queue *q, const exf_subspace_call *c, int iterations)
{
    const double shift = 1e-11; /* more than the rounding of the products: no factorisation breaks off */
    int k = c->columns, h = c->d_model;
    size_t cells = (size_t)h * (size_t)h;
    const double *from = c->start;
    EXF_LAUNCH(q, "subspace: ridge", take_ridge, 1, THREADS, 0, c->ridge, c->gram, h);
    EXF_LAUNCH(q, "subspace: moments", centre, exf_blocks(cells, 256), 256, 0, *c);
    for (int i = 0; i < iterations; i++) {
        multiply(q, c->image, c->gram, 0, from, h, k, h);
        orthonormalize(q, c, c->subspace, c->image, shift);
        from = c->subspace;
    }
    orthonormalize(q, c, c->image, c->subspace, 0);
    orthonormalize(q, c, c->subspace, c->image, 0);
    multiply(q, c->image, c->gram, 0, c->subspace, h, k, h);
    multiply(q, c->small, c->subspace, 1, c->image, k, k, h);
}

void exf_subspace_rotate_cuda(exf_queue *q, const exf_subspace_call *c, const double *rotation, int r)
{
    multiply(q, c->image, c->subspace, 0, rotation, c->d_model, r, c->columns);
}
