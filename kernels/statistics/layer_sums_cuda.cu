/* layer_sums_cuda.cu - adds layer sums in device memory; see layer_sums.h.
 *
 * A warp has a token, four warps a block (one where K > 16).  It reads the token's K outputs once (K <= 8), makes their Gram
 * matrix, and adds every term to a cell (layer_sums_internal.cuh): a term changes at most three digits of its sum, by integer
 * atomics that return nothing.
 *
 * K 8, H 2048, bf16, 4096 tokens: 134 MB of outputs read, 0.03 ms at 4.2 TB/s; measured 0.08.  The atomics bound it: 56
 * pairs and 8 experts have five sums and a count each, so that 4096 tokens add 1.6 M terms. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/layer_sums_internal.cuh"

enum { STEP = EXF_STEP };

/* ---- inner products ------------------------------------------------------------- */

/* Elements of a row that are added in float32 before the sum becomes a double: 64 per lane. */
enum { SEGMENT = 64 * 32 };

/* Returns the row of the triangle in which entry x lies; entries are counted row by row. */
static __device__ inline int triangle_row(int x)
{
    int r = 0;
    while ((r + 1) * (r + 2) / 2 <= x) r++;
    return r;
}

/* Sums v[i] over all lanes into lane i: every step halves the number of values that a lane has. */
template <int STEP_SIZE> static __device__ inline void halve(double (&v)[32], int lane)
{
    bool upper = lane & STEP_SIZE;
#pragma unroll
    for (int i = 0; i < STEP_SIZE; i++) {
        double give = upper ? v[i] : v[i + STEP_SIZE], keep = upper ? v[i + STEP_SIZE] : v[i];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, STEP_SIZE);
    }
}

static __device__ inline double scatter_sums(double (&v)[32], int lane)
{
    halve<16>(v, lane);
    halve<8>(v, lane);
    halve<4>(v, lane);
    halve<2>(v, lane);
    halve<1>(v, lane);
    return v[0];
}

static __device__ inline void set_entry(double *gram, int k, int i, int j, double sum, bool first)
{
    if (i >= k || j >= k) return;
    gram[i * k + j] = first ? sum : gram[i * k + j] + sum;
    gram[j * k + i] = gram[i * k + j];
}

/* Loads a step of a row of a token, whose rows have less than 2^31 elements.  WHOLE: rows have whole steps, and no branch
 * stands between the loads and what uses them. */
template <class T, bool WHOLE> static __device__ inline void load_step(float (&v)[STEP], const T *rows, int row, int c, int h)
{
    if (WHOLE)
        exf_load8(v, rows + (row * h + c));
    else
        exf_load_step(v, rows + row * h, c, h);
}

/* Adds a segment's products of rows [a0, a0 + 4) and [b0, b0 + 8). */
template <class T, bool WHOLE>
static __device__ void gram_block(double *gram, const T *rows, int k, int h, int a0, int b0, int from, int lane)
{
    float sum[4][8] = {};
    double wide[32];
    int end = min(from + SEGMENT, h);
    for (int c = from + lane * STEP; c < end; c += 32 * STEP) {
        float a[4][STEP], b[STEP];
#pragma unroll
        for (int i = 0; i < 4; i++) load_step<T, WHOLE>(a[i], rows, min(a0 + i, k - 1), c, h);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            load_step<T, WHOLE>(b, rows, min(b0 + j, k - 1), c, h);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < STEP; e++) sum[i][j] = fmaf(a[i][e], b[e], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 32; i++) wide[i] = (double)sum[i / 8][i % 8];
    double mine = scatter_sums(wide, lane);
    set_entry(gram, k, a0 + lane / 8, b0 + lane % 8, mine, from == 0);
}

/* Adds a segment's products of up to eight rows, each of which is read once. */
template <class T, bool WHOLE> static __device__ void gram_eight(double *gram, const T *rows, int k, int h, int from, int lane)
{
    float sum[36] = {};
    double wide[32];
    int end = min(from + SEGMENT, h);
    for (int c = from + lane * STEP; c < end; c += 32 * STEP) {
        float v[8][STEP];
#pragma unroll
        for (int i = 0; i < 8; i++) load_step<T, WHOLE>(v[i], rows, min(i, k - 1), c, h);
#pragma unroll
        for (int e = 0; e < STEP; e++)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j <= i; j++) sum[i * (i + 1) / 2 + j] = fmaf(v[i][e], v[j][e], sum[i * (i + 1) / 2 + j]);
    }
#pragma unroll
    for (int i = 0; i < 32; i++) wide[i] = (double)sum[i];
    double mine = scatter_sums(wide, lane);
    int r = triangle_row(lane);
    set_entry(gram, k, r, lane - r * (r + 1) / 2, mine, from == 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        double all = exf_warp_sum((double)sum[32 + i]);
        if (lane == i) mine = all;
    }
    if (lane < 4) set_entry(gram, k, 7, 4 + lane, mine, from == 0);
}

template <class T, bool WHOLE> static __device__ inline void gram_of_token(double *gram, const T *rows, int k, int h, int lane)
{
    for (int from = 0; from < h; from += SEGMENT) {
        if (k <= 8) gram_eight<T, WHOLE>(gram, rows, k, h, from, lane);
        for (int a = 0; k > 8 && a < k; a += 4)
            for (int b = 0; b < k; b += 8) gram_block<T, WHOLE>(gram, rows, k, h, a, b, from, lane);
        __syncwarp();
    }
}

/* ---- sums -------------------------------------------------------------------------- */

/* Tests a token's range like check_range() of layer_sums_cpu.c; every lane gets the result.  Slots with id -1 are empty. */
static __device__ inline bool in_range(const double *gram, const double *norm, const float *weight, const int32_t *id, int k,
                                       int lane)
{
    double largest = 1;
    bool fits = true;
    for (int a = lane; a < k; a += 32) {
        double sq = gram[a * k + a];
        if (id[a] < 0) continue;
        fits = fits && exf_exact_fits(sq) && exf_exact_fits(sq * norm[a]);
        largest = sq > largest ? sq : largest;
    }
    largest = exf_warp_max(largest);
    for (int a = lane; a < k; a += 32) {
        double w = (double)weight[a];
        fits = fits && (id[a] < 0 || (exf_exact_fits(w * largest) && exf_exact_fits(w * w * largest)));
    }
    return __all_sync(0xffffffffu, fits);
}

/* Notes the first expert of a token that is out of range, by the tests of in_range() one after the other. */
static __device__ __noinline__ void note_token(exf_sums_fault *fault, const double *gram, const float *weight, const int32_t *id,
                                               int k, int64_t row)
{
    double largest = 1;
    int a = 0;
    for (; a < k; a++) {
        double sq = gram[a * k + a];
        if (id[a] < 0) continue;
        if (!exf_exact_fits(sq) || !exf_exact_fits(sq * sqrt(sq))) break;
        largest = sq > largest ? sq : largest;
    }
    for (int b = 0; a == k && b < k; b++) {
        double w = (double)weight[b];
        if (id[b] >= 0 && (!exf_exact_fits(w * largest) || !exf_exact_fits(w * w * largest))) a = b;
    }
    if (a == k) a = 0;
    note_fault(fault, (unsigned long long)row, id[a], 0, gram[a * k + a], (double)weight[a]);
}

/* Adds all terms of the pairs: a lane takes a pair and one of its sums, or its count; norm[a] = ||u_a||. */
static __device__ inline void add_pairs(unsigned long long *cells, const double *gram, const double *norm, const float *weight,
                                        const int32_t *id, int k, int n_experts, exf_weighting weighting, int lane)
{
    int n_pairs = k * (k - 1);
    for (int item = lane; item < n_pairs * (PAIR_SUMS + 1); item += 32) {
        int s = item / n_pairs, p = item - s * n_pairs, a = p / (k - 1), b = p - a * (k - 1);
        b += b >= a;
        if (id[a] < 0 || id[b] < 0) continue;
        unsigned long long *cell = cells + ((size_t)id[a] * n_experts + id[b]) * WORDS;
        if (s == PAIR_SUMS) {
            atomicAdd(cell + COUNT, 1ull);
            continue;
        }
        double w = s > 2 || weighting == EXF_WEIGHT_NONE ? 1.0 : weighting == EXF_WEIGHT_SOURCE_NORM ? norm[a] : (double)weight[a];
        double x = s == 1 ? gram[b * k + b] : s == 0 || s == 3 ? gram[a * k + b] : gram[a * k + a];
        add_term(cell + s * DIGITS, w * x);
    }
}

/* Returns the term of the s-th of an expert's sums. */
static __device__ inline double expert_term(int s, double norm, double sq, double w)
{
    switch (s) {
    case 0: return norm;
    case 1: return sq;
    case 2: return w;
    case 3: return w * norm;
    default: return w * w * sq;
    }
}

static __device__ inline void add_experts(unsigned long long *cells, unsigned long long *empty_slots, const double *gram,
                                          const double *norm, const float *weight, const int32_t *id, int k, int lane)
{
    for (int item = lane; item < k * (EXPERT_SUMS + 1); item += 32) {
        int s = item / k, a = item - s * k;
        if (id[a] < 0) {
            if (s == EXPERT_SUMS) atomicAdd(empty_slots, 1ull);
            continue;
        }
        unsigned long long *cell = cells + (size_t)id[a] * WORDS;
        double w = (double)weight[a];
        if (s == EXPERT_SUMS)
            atomicAdd(cell + COUNT, 1ull);
        else
            add_term(cell + s * DIGITS, expert_term(s, norm[a], gram[a * k + a], w));
    }
}

template <class T> static __global__ void __launch_bounds__(128) add_tokens(header *top, const T *outputs, exf_layer_sums_call c)
{
    extern __shared__ double gram_matrices[];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, k = c.top_k;
    size_t t = (size_t)blockIdx.x * (blockDim.x >> 5) + warp;
    double *gram = gram_matrices + (size_t)warp * k * (k + 1), *norm = gram + k * k;
    if (t >= (size_t)c.n_tokens) return;
    const int32_t *id = c.ids + t * k;
    const float *weight = c.weights + t * k;
    unsigned long long *pairs = reinterpret_cast<unsigned long long *>(top + 1);
    if (c.d_model % STEP == 0)
        gram_of_token<T, true>(gram, outputs + t * k * c.d_model, k, c.d_model, lane);
    else
        gram_of_token<T, false>(gram, outputs + t * k * c.d_model, k, c.d_model, lane);
    for (int a = lane; a < k; a += 32) {
        norm[a] = sqrt(gram[a * k + a]);
        if (c.sq) c.sq[t * k + a] = gram[a * k + a];
    }
    __syncwarp();
    if (!in_range(gram, norm, weight, id, k, lane)) {
        if (lane == 0) note_token(&top->output, gram, weight, id, k, c.row + (int64_t)t);
        return;
    }
    if (!c.experts_only) add_pairs(pairs, gram, norm, weight, id, k, c.n_experts, c.weighting, lane);
    add_experts(pairs + (size_t)c.n_experts * c.n_experts * WORDS, &top->empty_slots, gram, norm, weight, id, k, lane);
}

void exf_layer_sums_add_cuda(exf_queue *q, void *sums, const exf_layer_sums_call *c)
{
    int warps = c->top_k <= 16 ? 4 : 1;
    size_t bytes = (size_t)warps * c->top_k * (c->top_k + 1) * sizeof(double);
    unsigned blocks = (unsigned)((c->n_tokens + warps - 1) / warps);
    if (c->n_tokens == 0) return;
    if (c->outputs.number == EXF_NUMBER_BF16)
        EXF_LAUNCH(q, "layer sums", add_tokens<uint16_t>, blocks, 32 * warps, bytes, static_cast<header *>(sums),
                   static_cast<const uint16_t *>(c->outputs.p), *c);
    else
        EXF_LAUNCH(q, "layer sums", add_tokens<float>, blocks, 32 * warps, bytes, static_cast<header *>(sums),
                   static_cast<const float *>(c->outputs.p), *c);
}
