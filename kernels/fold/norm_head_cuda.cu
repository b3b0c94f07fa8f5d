/* norm_head_cuda.cu - predicts the norms of routes; see norm_head.h.
 *
 * A block has 32 tokens, 16 threads each.  Its two halves take half of the columns of x each, in steps of 32 through shared
 * memory: 64 directions at a time, of which warp w of a half computes those of 16 tokens from 16 (w % 4) on, by mma.sync on
 * numbers that are the sum of two of 11 bits.  Then the 16 threads of a token share out its logits, and the q + 4 features of one
 * slot after the other.
 *
 * T 4096, H 2048, q 64: 3.2 GFLOP on tensor cores, 9 us at 350 TFLOP/s; x once, 33.5 MB (11 us), and V for every 32 tokens, 67 MB
 * from the cache. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/device/tensor_cores.cuh"
#include "kernels/fold/norm_head.h"

enum { TOKENS = 32, LANES = 16, THREADS = TOKENS * LANES, HALF = THREADS / 2, STEP = 32, COLUMNS = 64 };
enum { X_EACH = TOKENS * STEP / HALF, V_EACH = STEP * COLUMNS / HALF, TILES = 2, TO_DOUBLE = 4 /* steps in float32 */ };

/* Returns the sum over the 16 threads of a token. */
static __device__ inline double sum_of_token(double v)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step, LANES);
    return v;
}

/* A step of one half of the block; rows are longer than they need be, so that what a warp reads lies in different banks. */
struct head_step {
    float x[TOKENS][STEP + 4], v[STEP][COLUMNS + 8];
};

/* A thread's elements of the next step. */
struct head_loaded {
    float x[X_EACH], v[V_EACH];
};

static __device__ inline void load(head_loaded *l, const exf_norm_head_call &c, int first, int at, int end)
{
    int own = threadIdx.x % HALF, t = blockIdx.x * TOKENS + own / (STEP / X_EACH), column = at + own % (STEP / X_EACH) * X_EACH;
    int row = at + own / (COLUMNS / V_EACH), r = first + own % (COLUMNS / V_EACH) * V_EACH;
#pragma unroll
    for (int i = 0; i < X_EACH; i++) {
        l->x[i] = 0;
        if (t >= c.n_tokens || column + i >= end) continue;
        if (!c.split) {
            l->x[i] = static_cast<const float *>(c.x)[(size_t)t * c.d_model + column + i];
        } else {
            const uint16_t *parts = static_cast<const uint16_t *>(c.x) + (size_t)t * 2 * c.d_model + column + i;
            l->x[i] = exf_element(parts[0]) + exf_element(parts[c.d_model]);
        }
    }
#pragma unroll
    for (int i = 0; i < V_EACH; i++)
        l->v[i] = row < end && r + i < c.directions ? c.basis[(size_t)row * c.directions + r + i] : 0;
}

/* Adds the products of a step to the warp's tiles. */
static __device__ inline void multiply_step(float (&part)[TILES][4], const head_step &s)
{
    int warp = threadIdx.x % HALF / 32, row = 16 * (warp / 4), column = 8 * TILES * (warp % 4);
#ifdef EXF_MMA
    exf_strip<true, TILES, STEP + 4, 1, COLUMNS + 8, 1>(part, &s.x[row][0], &s.v[0][column], STEP / 8);
#else
    int lane = threadIdx.x % 32;
    for (int i = 0; i < TILES * 4; i++)
        for (int k = 0; k < STEP; k++)
            part[i / 4][i % 4] = fmaf(s.x[row + lane / 4 + i % 4 / 2 * 8][k], s.v[k][column + i / 4 * 8 + lane % 4 * 2 + i % 2],
                                      part[i / 4][i % 4]);
#endif
}

/* Sums directions [first, first + COLUMNS) of the block's tokens into `to` [TOKENS, q], of both halves of x, and, where `squares`
 * is not NULL, the squares of x into it [TOKENS, 2]. */
static __device__ inline void project(const exf_norm_head_call &c, double *to, double (*squares)[2], int first)
{
    __shared__ head_step steps[2];
    int half = threadIdx.x / HALF, own = threadIdx.x % HALF, width = (c.d_model + 2 * STEP - 1) / (2 * STEP) * STEP;
    int begin = half * width, end = min(begin + width, c.d_model), warp = own / 32, lane = own % 32;
    head_step *s = &steps[half];
    float part[TILES][4] = {};
    double sum[TILES][4] = {}, square = 0;
    head_loaded next;
    load(&next, c, first, begin, end);
    for (int at = 0, step = 1; at < width; at += STEP, step++) {
        __syncthreads(); /* the step before has been read */
#pragma unroll
        for (int i = 0; i < X_EACH; i++) {
            s->x[own / (STEP / X_EACH)][own % (STEP / X_EACH) * X_EACH + i] = next.x[i];
            square += (double)next.x[i] * (double)next.x[i];
        }
#pragma unroll
        for (int i = 0; i < V_EACH; i++) s->v[own / (COLUMNS / V_EACH)][own % (COLUMNS / V_EACH) * V_EACH + i] = next.v[i];
        __syncthreads();
        load(&next, c, first, begin + at + STEP, end);
        multiply_step(part, *s);
        if (step % TO_DOUBLE && at + STEP < width) continue;
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            sum[i / 4][i % 4] += (double)part[i / 4][i % 4];
            part[i / 4][i % 4] = 0;
        }
    }
    for (int turn = 0; turn < 2; turn++) { /* the halves, one after the other */
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES * 4 && half == turn; i++) {
            int t = 16 * (warp / 4) + lane / 4 + i % 4 / 2 * 8;
            int r = first + 8 * TILES * (warp % 4) + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (r < c.directions) to[t * c.directions + r] = (turn ? to[t * c.directions + r] : 0) + sum[i / 4][i % 4];
        }
    }
#pragma unroll
    for (int step = STEP / X_EACH / 2; step > 0; step >>= 1) square += __shfl_xor_sync(0xffffffffu, square, step);
    if (squares && own % (STEP / X_EACH) == 0) squares[own / (STEP / X_EACH)][half] = square;
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
    __shared__ double squares[TOKENS][2];
    int own = threadIdx.x / LANES, lane = threadIdx.x % LANES, t = blockIdx.x * TOKENS + own, q = c.directions;
    double mean = 0;
    for (int first = 0; first < q; first += COLUMNS) project(c, projected, first ? NULL : squares, first);
    __syncthreads();
    int there = t < c.n_tokens, row = there ? t : c.n_tokens - 1; /* a thread without a token takes part in its warp's sums */
    double norm = sqrt(squares[own][0] + squares[own][1]);
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
    size_t bytes = (size_t)TOKENS * (size_t)c->directions * sizeof(double);
    if (c->n_tokens == 0) return;
    if (q->err.code == EXF_OK)
        exf_cuda_note(q, cudaFuncSetAttribute(predict, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "predict norms");
    EXF_LAUNCH(q, "predict norms", predict, exf_blocks((size_t)c->n_tokens, TOKENS), THREADS, bytes, *c);
}
