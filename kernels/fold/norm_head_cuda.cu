/* norm_head_cuda.cu - predicts the norms of routes; see norm_head.h.
 *
 * V'x is a product of the matrix library.  With x in two bfloat16 terms it is one over 2 H columns and 2 q rows, as the router's
 * is: V rounded meets both terms of x, and its remainder the first.
 *
 * predict: a block has 4 tokens of two warps; eight threads add up q directions of a slot, and a thread finishes it.  T 4096,
 * E 128, K 8, q 64: products and logits are 4.2 MB, 1 us at 4.2 TB/s, theta comes from the cache; measured 8.0: four reads that
 * wait for one another, and double arithmetic. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/fold/norm_head.h"
#include "kernels/linear/linear.h"

/* ---- V as rows of a product ------------------------------------------------------------------------- */

/* A thread per element of V of a layer (blockIdx.y), along its columns. */
static __global__ void write_rows(uint16_t *rows, const float *basis, int h, int q)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, c = i % h, r = i / h;
    if (r >= q) return;
    float v = basis[(size_t)blockIdx.y * h * q + (size_t)c * q + r];
    uint16_t high = exf_narrow(v), *row = rows + (size_t)blockIdx.y * EXF_NORM_HEAD_ROWS * h * q + (size_t)r * 2 * h + c;
    row[0] = row[h] = high;
    row += (size_t)q * 2 * h;
    row[0] = exf_narrow(v - exf_widen(high));
    row[h] = 0;
}

void exf_norm_head_rows_cuda(exf_queue *q, uint16_t *rows, const float *basis, int n_layers, int d_model, int directions)
{
    dim3 grid(exf_blocks((size_t)d_model * (size_t)directions, 256), (unsigned)n_layers);
    if (n_layers > 0) EXF_LAUNCH(q, "norm head's rows", write_rows, grid, 256, 0, rows, basis, d_model, directions);
}

/* ---- norms ------------------------------------------------------------------------------------------ */

enum { PREDICT_THREADS = 256, PREDICT_TOKENS = 4, TOKEN_WARPS = PREDICT_THREADS / 32 / PREDICT_TOKENS, SLOT_LANES = 8 };
static_assert(TOKEN_WARPS == 2, "one warp of a token reads products, the other logits");

/* What a block of predict knows of its tokens, in shared memory. */
struct head_tokens {
    double *mean, *norm; /* [tokens] of the logits; ||x|| */
    double *projected;   /* [tokens, q] V'x */
    double *sums;        /* [tokens, K] theta . V'x */
    int32_t *ids;        /* [tokens, K]; -1 in tokens after the last */
};

/* Reads V'x and ||x|| of token t, by one warp. */
static __device__ __forceinline__ void read_products(double *projected, double *norm, const exf_norm_head_call &c,
                                                     const float *products, size_t t, int lane)
{
    int q = c.directions;
    const float *row = products + t * q * (c.split ? 2 : 1);
    for (int r = lane; r < q; r += 32) projected[r] = (double)__ldg(row + r) + (c.split ? (double)__ldg(row + q + r) : 0);
    double square = 0;
    if (c.split) {
        square = (double)__ldg(c.squares + t);
    } else {
        const float *x = static_cast<const float *>(c.x) + t * c.d_model;
        for (int i = lane; i < c.d_model; i += 32) square += (double)x[i] * (double)x[i];
        square = exf_warp_sum(square);
    }
    if (lane == 0) *norm = sqrt(square);
}

/* Reads ids and the mean logit of token t, by one warp; a token after the last has no routes. */
static __device__ __forceinline__ void read_routes(int32_t *ids, double *mean, const exf_norm_head_call &c, size_t t, bool there,
                                                   int lane)
{
    double sum = 0;
    for (int k = lane; k < c.top_k; k += 32) ids[k] = there ? __ldg(c.ids + t * c.top_k + k) : -1;
#pragma unroll 4
    for (int e = lane; e < c.n_experts; e += 32) sum += (double)__ldg(c.logits + t * c.n_experts + e);
    sum = exf_warp_sum(sum);
    if (lane == 0) *mean = sum / c.n_experts;
}

/* Adds up the directions of the block's slots, eight threads a slot: whole warps, for 4 K is a multiple of four. */
static __device__ __forceinline__ void add_directions(const head_tokens &s, const exf_norm_head_call &c)
{
    int lane = threadIdx.x % SLOT_LANES, q = c.directions;
    for (int slot = threadIdx.x / SLOT_LANES; slot < PREDICT_TOKENS * c.top_k; slot += PREDICT_THREADS / SLOT_LANES) {
        const float *theta = c.theta + (size_t)max(s.ids[slot], 0) * (q + 4) + 1;
        const double *projected = s.projected + slot / c.top_k * q;
        double sum = 0;
#pragma unroll 8
        for (int r = lane; r < q; r += SLOT_LANES) sum += (double)__ldg(theta + r) * projected[r];
#pragma unroll
        for (int step = SLOT_LANES / 2; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step, SLOT_LANES);
        if (lane == 0) s.sums[slot] = sum;
    }
}

/* Returns what of a slot's logarithm does not need V'x. */
static __device__ __forceinline__ double other_features(const head_tokens &s, const exf_norm_head_call &c, int slot)
{
    int own = slot / c.top_k, id = s.ids[slot], first = own * c.top_k;
    size_t t = (size_t)blockIdx.x * PREDICT_TOKENS + own;
    if (id < 0) return 0;
    while (s.ids[first] != id) first++; /* the token's first slot with this expert */
    const float *theta = c.theta + (size_t)id * (c.directions + 4);
    float w = __ldg(c.weights + t * c.top_k + first % c.top_k), z = __ldg(c.logits + t * c.n_experts + id);
    double sum = (double)__ldg(theta) + (double)__ldg(theta + c.directions + 1) * ((double)z - s.mean[own]);
    sum += (double)__ldg(theta + c.directions + 2) * log(fmax((double)w, 1e-6));
    return sum + (double)__ldg(theta + c.directions + 3) * log(fmax(s.norm[own], 1e-10));
}

/* Writes the norm of a slot; `sum` is its logarithm. */
static __device__ __forceinline__ void write_norm(const head_tokens &s, const exf_norm_head_call &c, int slot, double sum)
{
    size_t t = (size_t)blockIdx.x * PREDICT_TOKENS + slot / c.top_k, at = t * c.top_k + slot % c.top_k;
    if (t >= (size_t)c.n_tokens) return;
    c.routed[at] = s.ids[slot];
    if (s.ids[slot] < 0) return;
    float n = (float)exp(sum);
    c.norms[at] = n;
    if (!(n > 0) || !isfinite(n))
        atomicMin(reinterpret_cast<unsigned long long *>(c.bad), (unsigned long long)(c.row + (unsigned long long)t));
}

static __global__ void __launch_bounds__(PREDICT_THREADS) predict(exf_norm_head_call c, const float *products)
{
    extern __shared__ double numbers[];
    __shared__ double mean[PREDICT_TOKENS], norm[PREDICT_TOKENS];
    int slots = PREDICT_TOKENS * c.top_k, q = c.directions, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double *sums = numbers + PREDICT_TOKENS * q;
    const head_tokens s = {mean, norm, numbers, sums, reinterpret_cast<int32_t *>(sums + slots)};
    int own = warp / TOKEN_WARPS, token = blockIdx.x * PREDICT_TOKENS + own, slot = threadIdx.x;
    size_t t = (size_t)min(token, c.n_tokens - 1);
    if (warp % TOKEN_WARPS)
        read_routes(s.ids + own * c.top_k, &mean[own], c, t, token < c.n_tokens, lane);
    else
        read_products(numbers + own * q, &norm[own], c, products, t, lane);
    __syncthreads();
    double others = slot < slots ? other_features(s, c, slot) : 0; /* beside the sums over directions */
    add_directions(s, c);
    __syncthreads();
    for (; slot < slots; slot += PREDICT_THREADS) {
        if (slot >= PREDICT_THREADS) others = other_features(s, c, slot);
        write_norm(s, c, slot, s.sums[slot] + others);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* Tokens of a product at most: a fixed number, since a matrix library's sums depend on the rows of a product. */
enum { TOKENS_AT_ONCE = 16384 };
static_assert((size_t)TOKENS_AT_ONCE * 2 * EXF_NORM_HEAD_MOST * sizeof(float) <= EXF_BUFFER_BYTES, "products fit the buffer");

void exf_predict_norms_cuda(exf_queue *q, const exf_norm_head_call *c)
{
    float *products = reinterpret_cast<float *>(exf_queue_buffer(q));
    int h = c->d_model, d = c->directions;
    size_t slots = PREDICT_TOKENS * (size_t)c->top_k; /* and what the arrays of head_tokens take: */
    size_t bytes = (PREDICT_TOKENS * (size_t)d + slots) * sizeof(double) + slots * sizeof(int32_t);
    for (size_t at = 0, n; products && at < (size_t)c->n_tokens; at += n) {
        size_t k = at * (size_t)c->top_k;
        exf_norm_head_call some = *c;
        n = (size_t)c->n_tokens - at < TOKENS_AT_ONCE ? (size_t)c->n_tokens - at : TOKENS_AT_ONCE;
        some.n_tokens = (int)n;
        some.x = static_cast<const float *>(c->x) + at * (size_t)c->d_model; /* two bfloat16 are as long */
        if (c->split) some.squares += at;
        some.logits += at * (size_t)c->n_experts;
        some.ids += k;
        some.weights += k;
        some.norms += k;
        some.routed += k;
        some.row += at;
        if (c->split)
            exf_gemm_xwt_cuda(q, products, 2 * d, exf_bf16(static_cast<const uint16_t *>(some.x)), 2 * h, exf_bf16(c->rows), 2 * h,
                              (int)n, 2 * d, 2 * h, 1, 0);
        else
            exf_gemm_xw_cuda(q, products, d, static_cast<const float *>(some.x), h, c->basis, d, (int)n, d, h, 1, 0);
        EXF_LAUNCH(q, "predict norms", predict, exf_blocks(n, PREDICT_TOKENS), PREDICT_THREADS, bytes, some, products);
    }
}
