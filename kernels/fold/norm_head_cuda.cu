/* norm_head_cuda.cu - predicts the norms of routes; see norm_head.h.
 *
 * A block has 16 tokens, 16 threads each.  64 directions at a time are summed, four in a thread, in steps of 32 columns through
 * shared memory; then the 16 threads of a token share out its logits, and the q + 4 features of one slot after the other.
 *
 * T 4096, H 2048, q 64: 1.07 GFLOP without tensor cores, 18 us at an H100's 60 TFLOP/s; x and V for every 16 tokens are 16.8 MB
 * once and 134 MB from the cache. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/fold/norm_head.h"

enum { TOKENS = 16, LANES = 16, THREADS = TOKENS * LANES, STEP = 32, COLUMNS = 64, EACH = COLUMNS / LANES };

/* Returns the sum over the 16 threads of a token. */
static __device__ inline double sum_of_token(double v)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step, LANES);
    return v;
}

static __device__ inline float element(const exf_norm_head_call &c, int t, int i)
{
    if (!c.split) return static_cast<const float *>(c.x)[(size_t)t * c.d_model + i];
    const uint16_t *parts = static_cast<const uint16_t *>(c.x) + (size_t)t * 2 * c.d_model;
    return exf_element(parts[i]) + exf_element(parts[c.d_model + i]);
}

/* Sums directions [first, first + COLUMNS) of the block's tokens into `to`, and returns the square of this thread's part of x. */
static __device__ inline double project(const exf_norm_head_call &c, double *to, int first)
{
    __shared__ float xs[TOKENS][STEP + 1], vs[STEP][COLUMNS];
    int own = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = blockIdx.x * TOKENS;
    double sum[EACH] = {}, square = 0;
    for (int at = 0; at < c.d_model; at += STEP) {
        __syncthreads(); /* the step before has been read */
        for (int i = threadIdx.x; i < TOKENS * STEP; i += THREADS) {
            int t = row + i / STEP, k = at + i % STEP;
            xs[i / STEP][i % STEP] = t < c.n_tokens && k < c.d_model ? element(c, t, k) : 0;
        }
        for (int i = threadIdx.x; i < STEP * COLUMNS; i += THREADS) {
            int k = at + i / COLUMNS, r = first + i % COLUMNS;
            vs[i / COLUMNS][i % COLUMNS] = k < c.d_model && r < c.directions ? c.basis[(size_t)k * c.directions + r] : 0;
        }
        __syncthreads();
        float part[EACH] = {};
#pragma unroll
        for (int k = 0; k < STEP; k++)
#pragma unroll
            for (int j = 0; j < EACH; j++) part[j] = fmaf(xs[own][k], vs[k][lane + LANES * j], part[j]);
#pragma unroll
        for (int j = 0; j < EACH; j++) sum[j] += (double)part[j];
        for (int k = lane; k < STEP; k += LANES) square += (double)xs[own][k] * (double)xs[own][k];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (first + lane + LANES * j < c.directions) to[own * c.directions + first + lane + LANES * j] = sum[j];
    return square;
}

/* Returns the first slot of the token that has the expert. */
static __device__ inline int first_slot(const int32_t *ids, int k)
{
    int slot = 0;
    while (ids[slot] != ids[k]) slot++;
    return slot;
}

static __global__ void __launch_bounds__(THREADS) predict(exf_norm_head_call c)
{
    extern __shared__ double projected[]; /* [TOKENS, q] */
    int own = threadIdx.x / LANES, lane = threadIdx.x % LANES, t = blockIdx.x * TOKENS + own, q = c.directions;
    double square = 0, mean = 0;
    for (int first = 0; first < q; first += COLUMNS) {
        double s = project(c, projected, first);
        if (first == 0) square = s;
    }
    __syncthreads();
    int there = t < c.n_tokens, row = there ? t : c.n_tokens - 1; /* a thread without a token takes part in its warp's sums */
    double norm = sqrt(sum_of_token(square));
    for (int e = lane; e < c.n_experts; e += LANES) mean += (double)c.logits[(size_t)row * c.n_experts + e];
    mean = sum_of_token(mean) / c.n_experts;
    const int32_t *ids = c.ids + (size_t)row * c.top_k;
    for (int k = 0; k < c.top_k; k++) {
        size_t slot = (size_t)row * c.top_k + k;
        int id = ids[k], from = id < 0 ? k : first_slot(ids, k);
        double w = (double)c.weights[(size_t)row * c.top_k + from], part = 0;
        const float *theta = c.theta + (size_t)max(id, 0) * (q + 4);
        for (int i = lane; i < q; i += LANES) part += (double)theta[1 + i] * projected[own * q + i];
        double sum = sum_of_token(part) + (double)theta[0];
        sum += (double)theta[q + 1] * ((double)c.logits[(size_t)row * c.n_experts + max(id, 0)] - mean);
        sum += (double)theta[q + 2] * log(w > 1e-6 ? w : 1e-6) + (double)theta[q + 3] * log(norm > 1e-10 ? norm : 1e-10);
        float n = (float)exp(sum);
        if (!there || lane) continue;
        c.routed[slot] = id;
        c.norms[slot] = n;
        if (id >= 0 && (!(n > 0) || !isfinite(n)))
            atomicMin(reinterpret_cast<unsigned long long *>(c.bad), (unsigned long long)(c.row + row));
    }
}

void exf_predict_norms_cuda(exf_queue *q, const exf_norm_head_call *c)
{
    if (c->n_tokens)
        EXF_LAUNCH(q, "predict norms", predict, exf_blocks((size_t)c->n_tokens, TOKENS), THREADS,
                   (size_t)TOKENS * (size_t)c->directions * sizeof(double), *c);
}
