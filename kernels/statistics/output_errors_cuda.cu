/* output_errors_cuda.cu - see output_errors.h.  A block takes every gridDim.x-th row; its
 * first thread keeps the exact sums in registers until the block is done. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/statistics/exact_registers.cuh"
#include "kernels/statistics/output_errors.h"

enum { THREADS = 256 };

static __device__ void add_digits(unsigned long long *to, exf_exact_registers sum)
{
    unsigned long long digit[6];
    exf_exact_registers_digits(digit, sum);
#pragma unroll
    for (int i = 0; i < 6; i++)
        if (digit[i]) atomicAdd(to + i, digit[i]);
}

static __global__ void __launch_bounds__(THREADS)
    add_rows(exf_output_errors *sums, const float *a, const float *b, int n_rows, int n)
{
    exf_exact_registers error_sum = {}, norm_sum = {};
    unsigned long long bad = 0;
    for (int r = blockIdx.x; r < n_rows; r += gridDim.x) {
        const float *x = a + (size_t)r * n, *y = b + (size_t)r * n;
        double error_sq = 0, norm_sq = 0;
        for (int i = threadIdx.x; i < n; i += THREADS) {
            double d = (double)y[i] - (double)x[i];
            error_sq += d * d;
            norm_sq += (double)x[i] * (double)x[i];
        }
        error_sq = exf_block_sum(error_sq);
        norm_sq = exf_block_sum(norm_sq);
        if (threadIdx.x) continue;
        if (exf_exact_fits(error_sq) && exf_exact_fits(norm_sq)) {
            exf_exact_registers_add(&error_sum, error_sq);
            exf_exact_registers_add(&norm_sum, norm_sq);
        } else {
            bad++;
        }
    }
    if (threadIdx.x) return;
    add_digits(sums->digit[0], error_sum);
    add_digits(sums->digit[1], norm_sum);
    if (bad) atomicAdd(&sums->out_of_range, bad);
}

void exf_output_errors_cuda(exf_queue *q, exf_output_errors *sums, const float *a, const float *b, int n_rows, int n)
{
    int blocks = q->multiprocessors * 4;
    if (n_rows) EXF_LAUNCH(q, "output_errors", add_rows, n_rows < blocks ? n_rows : blocks, THREADS, 0, sums, a, b, n_rows, n);
}
