/* divergence_cuda.cu - scores rows of logits, and errors of output rows, in device memory; see divergence.h. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/divergence.h"

#include <climits>
#include <cmath>

/* ---- logits -------------------------------------------------------------------------------
 * A block of 512 threads scores a row in two passes: the first finds the largest logit and the sum of exponentials together
 * (a thread that meets a larger logit rescales its sum), the second computes the terms that need that sum.  Where rows allow it
 * a thread has two loads of four logits on their way: 256 rows are two blocks a multiprocessor, too few to wait for single ones.
 *
 * Bytes: a row's logits read twice, its log_p read or written: 12 n; 256 rows of 151,936 are 467 MB, 0.11 ms at 4.2 TB/s, and take
 * 0.15 on an H200. */
enum { SCORE_THREADS = 512, AHEAD = 2 };

/* W logits that a thread loads at once. */
template <int W> struct logit_group {
    float v[W];
};

static __device__ inline void load_group(logit_group<1> &s, const float *x, int i)
{
    s.v[0] = x[i];
}

static __device__ inline void load_group(logit_group<4> &s, const float *x, int i)
{
    float4 a = reinterpret_cast<const float4 *>(x)[i];
    s = {{a.x, a.y, a.z, a.w}};
}

/* Calls each(i, logits) for a thread's share of n / W groups of a row, which are loaded AHEAD at a time. */
template <int W, class F> static __device__ inline void each_group(const float *x, int n, F each)
{
    int i = threadIdx.x, groups = n / W;
    for (; i + (AHEAD - 1) * SCORE_THREADS < groups; i += AHEAD * SCORE_THREADS) {
        logit_group<W> s[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) load_group(s[k], x, i + k * SCORE_THREADS);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) each(i + k * SCORE_THREADS, s[k]);
    }
    for (; i < groups; i += SCORE_THREADS) {
        logit_group<W> s;
        load_group(s, x, i);
        each(i, s);
    }
}

/* e^(v - most), most at least v; 1 and 0 where both are infinite, for which the formula has a NaN. */
static __device__ inline float exp_below(float v, float most)
{
    return v == -INFINITY ? 0 : v == most ? 1 : expf(v - most);
}

/* Returns log sum_i e^(x_i) over the block, and the index of the largest, ties to the lower. */
template <int W> static __device__ double log_sum_exp(const float *x, int n, int *top)
{
    float most = -INFINITY;
    double sum = 0;
    int at = 0;
    each_group<W>(x, n, [&](int i, const logit_group<W> &s) {
        float here = s.v[0];
#pragma unroll
        for (int k = 1; k < W; k++) here = fmaxf(here, s.v[k]);
        if (here > most) {
            sum *= (double)exp_below(most, here);
            most = here;
#pragma unroll
            for (int k = W - 1; k >= 0; k--) at = s.v[k] == here ? i * W + k : at;
        }
#pragma unroll
        for (int k = 0; k < W; k++) sum += (double)exp_below(s.v[k], most);
    });
    float all = exf_block_max(most);
    *top = -exf_block_max(most == all && (int)threadIdx.x < n / W ? -at : INT_MIN + 1);
    double total = exf_block_sum(sum == 0 ? 0 : sum * (double)exp_below(most, all));
    return (double)all + log(total);
}

/* Writes log q = x - log_sum of a row, or returns this thread's share of the sum of p (log p - log q). */
template <int W> static __device__ double compare(float *log_p, const float *x, int n, float log_sum, int first)
{
    double gap = 0;
    each_group<W>(x, n, [&](int i, const logit_group<W> &s) {
        logit_group<W> p = {};
        if (!first) load_group(p, log_p, i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float log_q = s.v[k] - log_sum;
            if (first)
                log_p[i * W + k] = log_q;
            else
                gap += (double)(expf(p.v[k]) * (p.v[k] - log_q));
        }
    });
    return gap;
}

/* W: 4 where rows of n logits begin at multiples of 16 bytes and n is a multiple of 4, else 1. */
template <int W> static __global__ void __launch_bounds__(SCORE_THREADS) score(exf_score_call c)
{
    size_t row = blockIdx.x;
    const float *x = c.logits + row * c.n;
    int top, next = c.next[row];
    double log_sum = log_sum_exp<W>(x, c.n, &top);
    float rounded = (float)log_sum;
    double gap = exf_block_sum(compare<W>(c.log_p + row * c.n, x, c.n, rounded, c.first));
    if (threadIdx.x) return;
    c.nll[row] = c.first ? -(x[next] - rounded) : (float)(log_sum - (double)x[next]);
    c.kl[row] = gap > 0 ? (float)gap : gap <= 0 ? 0 : NAN; /* rounding may fall below 0; NaN stays */
    c.same[row] = c.first || top == c.top[row];
    if (c.first) c.top[row] = top;
}

void exf_score_rows_cuda(exf_queue *q, const exf_score_call *c)
{
    bool quads = c->n % 4 == 0 && ((uintptr_t)c->logits | (uintptr_t)c->log_p) % sizeof(float4) == 0;
    if (c->n_rows && quads)
        EXF_LAUNCH(q, "scores", score<4>, c->n_rows, SCORE_THREADS, 0, *c);
    else if (c->n_rows)
        EXF_LAUNCH(q, "scores", score<1>, c->n_rows, SCORE_THREADS, 0, *c);
}

/* ---- outputs ------------------------------------------------------------------------------
 * A warp takes every n-th row; its first lane keeps the exact sums in registers until the warp is done.  The order of a
 * row's sum depends on n alone: four elements at a time where n is a multiple of four.
 *
 * Bytes: both rows read once, 8 n, or 4 n for energies alone; 4096 rows of 2048 are 67 MB, 0.016 ms at 4.2 TB/s. */

enum { THREADS = 256 };

static __device__ void add_digits(unsigned long long *to, exf_exact_registers sum)
{
    unsigned long long digit[6];
    exf_exact_registers_digits(digit, sum);
#pragma unroll
    for (int i = 0; i < 6; i++)
        if (digit[i]) atomicAdd(to + i, digit[i]);
}

/* Adds up a lane's share of a row: of (y - x)^2 and x^2.  ALONE: of x^2. */
template <bool ALONE> static __device__ inline void lane_sums(double *error_sq, double *norm_sq, const float *x, const float *y,
                                                              int n)
{
    int lane = threadIdx.x & 31;
    if (n % 4 == 0 && ((size_t)x | (ALONE ? 0 : (size_t)y)) % sizeof(float4) == 0) {
        for (int i = lane; i < n / 4; i += 32) {
            float4 u = reinterpret_cast<const float4 *>(x)[i], v = ALONE ? u : reinterpret_cast<const float4 *>(y)[i];
            double d[4] = {(double)v.x - u.x, (double)v.y - u.y, (double)v.z - u.z, (double)v.w - u.w};
            if (!ALONE) *error_sq += d[0] * d[0] + d[1] * d[1] + (d[2] * d[2] + d[3] * d[3]);
            *norm_sq += (double)u.x * u.x + (double)u.y * u.y + ((double)u.z * u.z + (double)u.w * u.w);
        }
        return;
    }
    for (int i = lane; i < n; i += 32) {
        double d = ALONE ? 0 : (double)y[i] - (double)x[i];
        *error_sq += d * d;
        *norm_sq += (double)x[i] * (double)x[i];
    }
}

/* ALONE: *first is the sum of ||a||^2 and *second that of its inverse; else the sums of ||b - a||^2 and ||a||^2. */
template <bool ALONE>
static __global__ void __launch_bounds__(THREADS)
    add_rows(unsigned long long *first, unsigned long long *second, unsigned long long *out_of_range, const float *a,
             const float *b, int n_rows, int n)
{
    exf_exact_registers first_sum = {}, second_sum = {};
    unsigned long long bad = 0;
    int warp = (int)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32), warps = (int)gridDim.x * (THREADS / 32);
    for (int r = warp; r < n_rows; r += warps) {
        double error_sq = 0, norm_sq = 0;
        lane_sums<ALONE>(&error_sq, &norm_sq, a + (size_t)r * n, b + (size_t)r * n, n);
        error_sq = ALONE ? 0 : exf_warp_sum(error_sq);
        norm_sq = exf_warp_sum(norm_sq);
        if (threadIdx.x & 31) continue;
        if (exf_exact_fits(error_sq) && exf_exact_fits(norm_sq)) {
            exf_exact_registers_add(&first_sum, ALONE ? norm_sq : error_sq);
            exf_exact_registers_add(&second_sum, ALONE ? 1 / fmax(norm_sq, EXF_LEAST_ENERGY) : norm_sq);
        } else {
            bad++;
        }
    }
    if (threadIdx.x & 31) return;
    add_digits(first, first_sum);
    add_digits(second, second_sum);
    if (bad) atomicAdd(out_of_range, bad);
}

static int blocks_of_rows(const exf_queue *q, int n_rows)
{
    int blocks = (n_rows + THREADS / 32 - 1) / (THREADS / 32), most = q->multiprocessors * 8;
    return blocks < most ? blocks : most;
}

void exf_output_errors_cuda(exf_queue *q, exf_output_errors *sums, const float *a, const float *b, int n_rows, int n)
{
    if (n_rows)
        EXF_LAUNCH(q, "output_errors", add_rows<false>, blocks_of_rows(q, n_rows), THREADS, 0, sums->digit[0], sums->digit[1],
                   &sums->out_of_range, a, b, n_rows, n);
}

void exf_row_energies_cuda(exf_queue *q, exf_row_energies *sums, const float *x, int n_rows, int n)
{
    if (n_rows)
        EXF_LAUNCH(q, "row_energies", add_rows<true>, blocks_of_rows(q, n_rows), THREADS, 0, sums->digit[0], sums->digit[1],
                   &sums->out_of_range, x, x, n_rows, n);
}
