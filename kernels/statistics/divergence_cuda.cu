/* divergence_cuda.cu - scores rows of logits in device memory; see divergence.h.
 *
 * A block scores a row in two passes: the first finds the largest logit and the sum of
 * exponentials together (a thread that meets a larger logit rescales its sum), the second
 * computes the terms that need that sum. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_reduce.cuh"
#include "kernels/statistics/divergence.h"

#include <climits>
#include <cmath>

enum { THREADS = 512 };

/* Returns log sum_i e^(x_i) over the block, and the index of the largest, ties to the lower. */
static __device__ double log_sum_exp(const float *x, int n, int *top)
{
    float most = -INFINITY;
    double sum = 0;
    int at = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float v = x[i];
        if (v > most) {
            sum = sum * (double)expf(most - v) + 1;
            most = v;
            at = i;
        } else if (v != -INFINITY) { /* e^-infinity is 0, which this formula would not give */
            sum += (double)expf(v - most);
        }
    }
    float all = exf_block_max(most);
    *top = -exf_block_max(most == all && (int)threadIdx.x < n ? -at : INT_MIN + 1);
    double total = exf_block_sum(sum == 0 ? 0 : sum * (double)expf(most - all));
    return (double)all + log(total);
}

static __global__ void __launch_bounds__(THREADS) score(exf_score_call c)
{
    size_t row = blockIdx.x;
    const float *x = c.logits + row * c.n;
    float *log_p = c.log_p + row * c.n;
    int top, next = c.next[row];
    double log_sum = log_sum_exp(x, c.n, &top), gap = 0;
    float rounded = (float)log_sum;
    for (int i = threadIdx.x; i < c.n; i += THREADS) {
        float log_q = x[i] - rounded;
        if (c.first)
            log_p[i] = log_q;
        else
            gap += (double)(expf(log_p[i]) * (log_p[i] - log_q));
    }
    gap = exf_block_sum(gap);
    if (threadIdx.x) return;
    c.nll[row] = c.first ? -(x[next] - rounded) : (float)(log_sum - (double)x[next]);
    c.kl[row] = gap > 0 ? (float)gap : gap <= 0 ? 0 : NAN; /* rounding may fall below 0; NaN stays */
    c.same[row] = c.first || top == c.top[row];
    if (c.first) c.top[row] = top;
}

void exf_score_rows_cuda(exf_queue *q, const exf_score_call *c)
{
    if (c->n_rows) EXF_LAUNCH(q, "scores", score, c->n_rows, THREADS, 0, *c);
}
