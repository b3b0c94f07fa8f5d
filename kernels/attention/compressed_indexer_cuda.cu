/* compressed_indexer_cuda.cu - the indexer's scores and its selection on the device; see compressed.h.
 *
 * Scores: a block has one query; 64 heads at a time are multiplied with 64 keys at a time
 * on tensor cores (tensor_cores.cuh, EXACT in float32 mode, operands rounded to float16 else), cut
 * off at 0, weighted and added up over the heads in a fixed order.  For other shapes and
 * GPUs the general matrix product runs head after head.
 *
 * Selection: the top_k-th largest score is found digit by digit.  If all entries with that
 * score fit in, they and the better ones are the choice; only a tie at the cut is settled
 * by one thread as indexer_order.h says.
 *
 * Cost: 2 d FLOP a head, query and visible entry; 64 heads of 128, 1 entry of 4, T 4096: 34 GFLOP of 4096 * 1024 / 2 pairs,
 * 0.04 ms at 794 TFLOP/s; measured 0.218 with its selection (0.684 in float32).  Bytes: queries, 134 MB, 0.03 ms at 4.2
 * TB/s; keys from the cache; scores written and read, 8 bytes a pair. */
#include "kernels/attention/attention_wide.cuh"
#include "kernels/attention/compressed.h"
#include "kernels/attention/indexer_order.h"
#include "kernels/device/tensor_cores.cuh"
#include "kernels/linear/linear.h"

enum { TILE = 64, THREADS = 256 };

enum { MOST_D = 128 };

/* Workspace: scores, then one head's products or an order, or keys as float16. */
size_t exf_indexer_workspace_cuda(int n_rows, int n_entries)
{
    size_t rest = (size_t)(n_rows > MOST_D / 2 ? n_rows : MOST_D / 2);
    return ((size_t)n_rows + rest) * n_entries + 16;
}

/* ---- scores -------------------------------------------------------------------------- */

static __global__ void add_head(float *score, const float *product, const float *weight, int n_heads, size_t total, int n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < total) score[i] += weight[i / n * n_heads] * fmaxf(product[i], 0.0f);
}

static void score_by_heads(exf_queue *q, float *score, float *product, const float *query, const float *weights, const float *keys,
                           const exf_indexer_shape *s, int n)
{
    size_t total = (size_t)s->n_rows * n;
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaMemsetAsync(score, 0, total * sizeof *score, q->stream), "indexer");
    for (int h = 0; h < s->n_heads; h++) {
        exf_gemm_xwt_cuda(q, product, n, exf_f32(query + (size_t)h * s->d), s->n_heads * s->d, exf_f32(keys), s->d, s->n_rows, n,
                          s->d, 1, 0);
        EXF_LAUNCH(q, "indexer", add_head, exf_blocks(total, 256), 256, 0, score, product, weights + h, s->n_heads, total, n);
    }
}

#ifdef EXF_MMA
/* Loads TILE rows of n floats, 0 for rows that do not exist, to rows of D + 4. */
template <int D> static __device__ void load_tile(float *to, const float *x, int valid, int n, bool wide)
{
    uint32_t at = exf_shared(to);
    for (int i = threadIdx.x; i < TILE * D / 4; i += THREADS) {
        int r = i / (D / 4), c = i % (D / 4) * 4;
        bool inside = r < valid && c < n;
        if (wide)
            exf_load16(at + (r * (D + 4) + c) * 4, inside ? x + (size_t)r * n + c : x, inside);
        else
            for (int e = 0; e < 4; e++) to[r * (D + 4) + c + e] = inside && c + e < n ? x[(size_t)r * n + c + e] : 0;
    }
    exf_loads_commit();
}
#endif

/* A warp's part of a tile of products: 16 heads, 32 keys; adds the weighted products over its heads
 * into `sums` of its keys. */
#ifdef EXF_MMA
static __device__ __forceinline__ void weigh(float *sums, const float (&d)[4][4], const float (&weight)[2])
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = weight[0] * fmaxf(d[j][e], 0.0f) + weight[1] * fmaxf(d[j][2 + e], 0.0f);
            for (int step = 4; step < 32; step <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (lane < 4) sums[8 * j + 2 * lane + e] = sum;
        }
}

/* Writes the tile's scores with its first threads; h: the first of these heads. */
static __device__ __forceinline__ void add_strips(float *row, const float (*part)[TILE], int at, int visible, int h)
{
    if (threadIdx.x < TILE && at + (int)threadIdx.x < visible) {
        float *to = row + at + threadIdx.x, sum = 0;
        for (int i = 0; i < 4; i++) sum += part[i][threadIdx.x];
        *to = h ? *to + sum : sum;
    }
}

static __device__ __forceinline__ void take_weights(float (&weight)[2], const float *w, int h, int n_heads)
{
    for (int r = 0; r < 2; r++) {
        int head = h + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * r;
        weight[r] = head < n_heads ? w[(size_t)blockIdx.x * n_heads + head] : 0;
    }
}

/* Loads 64 keys of D float16 from key `at` on to rows of D + 8. */
template <int D> static __device__ __forceinline__ void load_halves(uint32_t to, const char *keys, int at, int visible)
{
    for (int i = threadIdx.x; i < TILE * D / 8; i += THREADS) {
        int r = i / (D / 8), c = i % (D / 8);
        bool valid = at + r < visible;
        exf_load16(to + (r * (D + 8) + c * 8) * 2, keys + ((size_t)(valid ? at + r : 0) * D + c * 8) * 2, valid);
    }
    exf_loads_commit();
}

/* Computes d = A B^T, A in registers, B 32 rows of D float16. */
template <int D> static __device__ __forceinline__ void products(float (&d)[4][4], const uint32_t (&a)[D / 16][4], uint32_t b)
{
    int lane = threadIdx.x % 32;
    b += ((lane % 8 + lane / 16 * 8) * (D + 8) + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            uint32_t y[4];
            exf_ldmatrix(y, b + (n * 8 * (D + 8) + k * 16) * 2);
            exf_mma_half(d[n], a[k], y[0], y[1]);
            exf_mma_half(d[n + 1], a[k], y[2], y[3]);
        }
}
#endif

/* Computes scores with rounded operands; keys: rows of D float16.  Grid: queries. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    score_halves(float *score, const float *query, const float *weights, const char *keys, exf_indexer_shape s, int n, bool wide)
{
#ifdef EXF_MMA
    enum { BYTES = TILE * (D + 8) * 2 };
    extern __shared__ float4 raw[]; /* queries, two tiles of keys */
    __shared__ float part[4][TILE];
    char *base = reinterpret_cast<char *>(raw);
    uint32_t m = exf_shared(base);
    int visible = (s.first + (int)blockIdx.x + 1) / s.ratio, lane = threadIdx.x % 32, strip = threadIdx.x / 32 % 4,
        half = threadIdx.x / 128 * 32;
    if (visible <= s.top_k) return; /* all are chosen, whatever their scores */
    for (int h = 0; h < s.n_heads; h += TILE) {
        float weight[2];
        uint32_t a[D / 16][4];
        take_weights(weight, weights, h, s.n_heads);
        load_halves<D>(m + BYTES, keys, 0, visible);
        for (int i = threadIdx.x; i < TILE * D / 8; i += THREADS) {
            int r = i / (D / 8), c = i % (D / 8) * 8;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (h + r < s.n_heads) x = exf_half8(query + ((size_t)blockIdx.x * s.n_heads + h + r) * s.d, c, s.d, wide);
            *reinterpret_cast<uint4 *>(base + (r * (D + 8) + c) * 2) = x;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            exf_ldmatrix(a[k], m + ((strip * 16 + lane % 16) * (D + 8) + k * 16 + lane / 16 * 8) * 2);
        for (int at = 0, stage = 0; at < visible; at += TILE, stage ^= 1) {
            float d[4][4] = {};
            if (at + TILE < visible) {
                load_halves<D>(m + (2 - stage) * BYTES, keys, at + TILE, visible);
                exf_loads_wait<1>();
            } else {
                exf_loads_wait<0>();
            }
            __syncthreads();
            products<D>(d, a, m + (1 + stage) * BYTES + half * (D + 8) * 2);
            weigh(part[strip] + half, d, weight);
            __syncthreads();
            add_strips(score + (size_t)blockIdx.x * n, part, at, visible, h);
        }
        __syncthreads();
    }
#endif
}

/* Computes scores in float32.  Grid: queries. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    score_rows(float *score, const float *query, const float *weights, const float *keys, exf_indexer_shape s, int n, bool wide)
{
#ifdef EXF_MMA
    extern __shared__ float4 raw[];
    __shared__ float part[4][TILE];
    float *queries = reinterpret_cast<float *>(raw), *tiles = queries + TILE * (D + 4);
    int visible = (s.first + (int)blockIdx.x + 1) / s.ratio, strip = threadIdx.x / 32 % 4, half = threadIdx.x / 128 * 32;
    if (visible <= s.top_k) return;
    for (int h = 0; h < s.n_heads; h += TILE) {
        float weight[2];
        take_weights(weight, weights, h, s.n_heads);
        load_tile<D>(queries, query + ((size_t)blockIdx.x * s.n_heads + h) * s.d, s.n_heads - h, s.d, wide);
        load_tile<D>(tiles, keys, visible, s.d, wide);
        for (int at = 0, stage = 0; at < visible; at += TILE, stage ^= 1) {
            float d[4][4] = {};
            if (at + TILE < visible)
                load_tile<D>(tiles + (stage ^ 1) * TILE * (D + 4), keys + (size_t)(at + TILE) * s.d, visible - at - TILE, s.d,
                             wide);
            if (at + TILE < visible)
                exf_loads_wait<1>();
            else
                exf_loads_wait<0>();
            __syncthreads();
            exf_strip<true, 4, D + 4, 1, 1, D + 4>(d, queries + strip * 16 * (D + 4), tiles + (stage * TILE + half) * (D + 4),
                                                   D / 8);
            weigh(part[strip] + half, d, weight);
            __syncthreads();
            add_strips(score + (size_t)blockIdx.x * n, part, at, visible, h);
        }
        __syncthreads();
    }
#endif
}

/* Bytes of shared memory of score_rows<d>, and what it has beside them. */
static int exact_bytes(int d)
{
    return 3 * TILE * (d + 4) * (int)sizeof(float);
}
enum { EXACT_REST = 4 * TILE * sizeof(float) };

/* Computes scores in the mode of the queue.  rest: memory for n keys of D float16, on a 16-byte boundary. */
template <int D>
static void run_scores(exf_queue *q, float *score, float *rest, const float *query, const float *weights, const float *keys,
                       const exf_indexer_shape *s, int n)
{
    int halves = 3 * TILE * (D + 8) * 2, exact = exact_bytes(D);
    char *rounded = reinterpret_cast<char *>(((uintptr_t)rest + 15) & ~(uintptr_t)15);
    if (q->err.code != EXF_OK) return;
    if (exf_rounds(q)) {
        exf_cuda_note(q, cudaFuncSetAttribute(score_halves<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, halves), "indexer");
        exf_round(q, rounded, keys, s->d, n, s->d, D, 1, 0);
        EXF_LAUNCH(q, "indexer", score_halves<D>, s->n_rows, THREADS, halves, score, query, weights, rounded, *s, n,
                   exf_aligned16(query, s->d));
    } else {
        exf_cuda_note(q, cudaFuncSetAttribute(score_rows<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, exact), "indexer");
        EXF_LAUNCH(q, "indexer", score_rows<D>, s->n_rows, THREADS, exact, score, query, weights, keys, *s, n,
                   exf_aligned16(query, s->d) && exf_aligned16(keys, s->d));
    }
}

/* ---- selection ------------------------------------------------------------------------- */

/* Returns an integer that is larger for better scores and the same for equal ones: 0 and -0, any two NaN. */
static __device__ uint32_t rank_of(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f);
    return isnan(x) ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct cut {
    uint32_t rank;   /* rank of the k-th best score */
    int left, equal; /* entries of that rank to be chosen, entries of that rank */
};

/* Finds the k-th best of n scores, by digits of eight bits. */
static __device__ cut find_cut(const float *score, int n, int k)
{
    __shared__ int count[256], total[THREADS / 32];
    __shared__ cut found;
    uint32_t known = 0;
    int digit = 255 - (int)threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) found = {0, k, 0};
    for (int shift = 24; shift >= 0; shift -= 8) {
        count[threadIdx.x] = 0;
        __syncthreads();
        for (int j = threadIdx.x; j < n; j += THREADS) {
            uint32_t rank = rank_of(score[j]);
            if (((rank ^ found.rank) & known) == 0) atomicAdd(&count[rank >> shift & 255], 1);
        }
        __syncthreads();
        int mine = count[digit], better = mine, left = found.left; /* better: those of this digit or a larger one */
        for (int step = 1; step < 32; step <<= 1) {
            int before = __shfl_up_sync(0xffffffffu, better, step);
            if (lane >= step) better += before;
        }
        if (lane == 31) total[warp] = better;
        __syncthreads();
        for (int i = 0; i < warp; i++) better += total[i];
        if (better >= left && better - mine < left) found = {found.rank | (uint32_t)digit << shift, left - (better - mine), mine};
        known |= 255u << shift;
        __syncthreads();
    }
    return found;
}

/* Chooses entries.  Grid: queries. order: n_entries int32 a row, in shared memory if it fits. */
static __global__ void __launch_bounds__(THREADS)
    select_row(unsigned char *chosen, const float *score, int *orders, exf_indexer_shape s, int n, bool shared)
{
    extern __shared__ int space[]; /* an order, a copy of the scores */
    int visible = (s.first + (int)blockIdx.x + 1) / s.ratio;
    const float *row = score + (size_t)blockIdx.x * n;
    unsigned char *mine = chosen + (size_t)blockIdx.x * (s.ld ? s.ld : n);
    if (visible <= s.top_k) {
        for (int j = threadIdx.x; j < n; j += THREADS) mine[j] = j < visible;
        return;
    }
    if (shared) {
        float *copy = reinterpret_cast<float *>(space + s.n_entries);
        for (int j = threadIdx.x; j < visible; j += THREADS) copy[j] = row[j];
        row = copy;
        __syncthreads();
    }
    cut c = find_cut(row, visible, s.top_k);
    bool tie = c.left != c.equal || (c.rank == rank_of(-INFINITY) && s.n_entries > visible);
    for (int j = threadIdx.x; j < n; j += THREADS) mine[j] = !tie && j < visible && rank_of(row[j]) >= c.rank;
    if (!tie) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        exf_row_order r = {row, visible, shared ? space : orders + (size_t)blockIdx.x * s.n_entries};
        exf_order_best(&r, s.n_entries, s.top_k);
        for (int j = 0; j < s.top_k; j++)
            if (r.order[j] < visible) mine[r.order[j]] = 1;
    }
}

void exf_indexer_cuda(exf_queue *q, unsigned char *chosen, const float *query, const float *weights, const float *keys,
                      const exf_indexer_shape *s, float *workspace)
{
    enum { MOST = 96 << 10 };
    int n = (s->first + s->n_rows) / s->ratio, bytes = s->n_entries <= MOST / 8 ? s->n_entries * 8 : 0;
    float *score = workspace, *rest = workspace + (size_t)s->n_rows * n;
    if (q->err.code != EXF_OK || s->n_rows == 0) return;
    size_t shared = exf_rounds(q) ? 0 : exact_bytes(s->d <= 64 ? 64 : MOST_D) + EXACT_REST;
    if (!exf_uses_tensor_cores(shared) || s->d > MOST_D)
        score_by_heads(q, score, rest, query, weights, keys, s, n);
    else if (s->d <= 64)
        run_scores<64>(q, score, rest, query, weights, keys, s, n);
    else
        run_scores<MOST_D>(q, score, rest, query, weights, keys, s, n);
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(select_row, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST), "indexer");
    EXF_LAUNCH(q, "indexer", select_row, s->n_rows, THREADS, bytes, chosen, score, reinterpret_cast<int *>(rest), *s, n, bytes > 0);
}
