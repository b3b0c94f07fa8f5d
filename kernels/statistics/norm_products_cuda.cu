/* norm_products_cuda.cu - the sums of a norm head; see norm_products.h.
 *
 * Of a call's tokens, four kernels: V'x and log ||x|| (32 tokens and 64 columns a block, mma.sync in double, steps of 32 elements
 * through shared memory while the next ones are on their way); the rest of z and each expert's list of slots (a warp a token);
 * the products, of 128 slots of an expert a block, again mma.sync in double, 16 by 16 a tile, 16 tiles a block; and
 * the products of the slots in which a number is 2^9 or more, of which there are hardly ever any.
 *
 * Floor, at 149 products in double a clock and multiprocessor: T H q, and T K (q + 5)^2 / 2.  T 4096, H 2048, q 64 and K 8 on 132
 * of them at 1.7 GHz: 16 us and 2.5 us.  Bytes: x once, 16.8 MB in bfloat16 (5 us); V for every 32 tokens, 67 MB from the cache. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/statistics/norm_products.h"
#include "kernels/statistics/pair_tokens.cuh"

static __device__ inline double on_grid(double v)
{
    return rint(v * 4096.0) * (1 / 4096.0);
}

/* c += a b of 8 x 4 and 4 x 8 in double: a lane has a[lane / 4][lane % 4], b[lane % 4][lane / 4] and two neighbours of row
 * lane / 4 of c, from column 2 (lane % 4) on. */
static __device__ inline void multiply(double (&c)[2], double a, double b)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c[0]), "+d"(c[1]) : "d"(a), "d"(b));
#else
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        double row = __shfl_sync(0xffffffffu, a, (lane & 28) + k);
#pragma unroll
        for (int j = 0; j < 2; j++) c[j] = fma(row, __shfl_sync(0xffffffffu, b, (2 * (lane & 3) + j) * 4 + k), c[j]);
    }
#endif
}

/* ---- V'x and log ||x|| ----------------------------------------------------------------------------
 * Warp w of 8 computes rows 16 (w / 4) .. + 15 and columns 16 (w % 4) .. + 15 of the block's.  Rows in shared memory are 4 doubles
 * longer than they need be, which puts the 16 that half a warp reads into different banks. */

enum { ROWS = 32, COLUMNS = 64, STEP = 32, PAD = 4, THREADS = 256 };
enum { X_EACH = ROWS * STEP / THREADS, V_EACH = STEP * COLUMNS / THREADS };

/* A thread's elements of a step. */
struct loaded {
    float x[X_EACH], v[V_EACH];
};

template <class T>
static __device__ inline void load(loaded *l, const exf_norm_products_sums &to, const T *x, const exf_norm_products_call &c,
                                   int row, int column, int at)
{
    int k = at + (int)threadIdx.x % STEP;
#pragma unroll
    for (int i = 0; i < X_EACH; i++) {
        int t = row + (int)threadIdx.x / STEP + i * (THREADS / STEP);
        l->x[i] = t < c.n_tokens && k < c.d_model ? exf_element(x[(size_t)t * c.d_model + k]) : 0;
    }
#pragma unroll
    for (int i = 0; i < V_EACH; i++) {
        int j = at + (int)threadIdx.x / COLUMNS + i * (THREADS / COLUMNS), r = column + (int)threadIdx.x % COLUMNS;
        l->v[i] = j < c.d_model && r < to.directions ? to.basis[(size_t)j * to.directions + r] : 0;
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS) project(exf_norm_products_sums to, const T *x, exf_norm_products_call c)
{
    __shared__ double xs[ROWS][STEP + PAD], vs[STEP][COLUMNS + PAD];
    int row = blockIdx.x * ROWS, column = blockIdx.y * COLUMNS, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int first = 16 * (warp / 4) + lane / 4, right = 16 * (warp % 4) + lane / 4, own = threadIdx.x / 8;
    double sum[2][2][2] = {}, sq = 0;
    loaded next;
    load(&next, to, x, c, row, column, 0);
    for (int at = 0; at < c.d_model; at += STEP) {
        __syncthreads(); /* the step before has been read */
#pragma unroll
        for (int i = 0; i < X_EACH; i++) xs[threadIdx.x / STEP + i * (THREADS / STEP)][threadIdx.x % STEP] = (double)next.x[i];
#pragma unroll
        for (int i = 0; i < V_EACH; i++)
            vs[threadIdx.x / COLUMNS + i * (THREADS / COLUMNS)][threadIdx.x % COLUMNS] = (double)next.v[i];
        __syncthreads();
        load(&next, to, x, c, row, column, at + STEP);
#pragma unroll
        for (int i = 0; i < STEP / 8; i++) sq = fma(xs[own][threadIdx.x % 8 + 8 * i], xs[own][threadIdx.x % 8 + 8 * i], sq);
#pragma unroll
        for (int k = lane & 3; k < STEP; k += 4) {
            double a[2] = {xs[first][k], xs[first + 8][k]}, b[2] = {vs[k][right], vs[k][right + 8]};
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) multiply(sum[i][j], a[i], b[j]);
        }
    }
    for (int step = 4; step > 0; step >>= 1) sq += __shfl_xor_sync(0xffffffffu, sq, step);
    if (blockIdx.y == 0 && threadIdx.x % 8 == 0 && row + own < c.n_tokens) {
        double norm = sqrt(sq);
        to.norm[row + own] = on_grid(log(norm > 1e-10 ? norm : 1e-10));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int t = row + first + 8 * (i / 4), r = column + 16 * (warp % 4) + 8 * (i / 2 % 2) + 2 * (lane & 3) + i % 2;
        if (t < c.n_tokens && r < to.directions)
            to.projected[(size_t)t * to.directions + r] = on_grid(sum[i / 4][i / 2 % 2][i % 2]);
    }
}

/* ---- the rest of z, and lists of slots ---------------------------------------------------------------- */

/* Returns number i of a slot's z. */
static __device__ inline double number_of(const exf_norm_products_sums &to, int top_k, int slot, int i)
{
    if (i == 0) return 1;
    if (i <= to.directions) return to.projected[(size_t)(slot / top_k) * to.directions + i - 1];
    return to.after[(size_t)slot * EXF_NORM_AFTER + i - to.directions - 1];
}

/* Notes the number of largest magnitude, or the first that is none. */
static __device__ __noinline__ void note_slot(const exf_norm_products_sums &to, const exf_norm_products_call &c, int slot)
{
    int at = 0;
    double most = 0, x = 0;
    for (int i = 0; i <= to.directions + EXF_NORM_AFTER && !isnan(most); i++) {
        double v = number_of(to, c.top_k, slot, i);
        if (fabs(v) <= most) continue;
        most = fabs(v);
        x = v;
        at = i;
    }
    note_fault(to.bad, (unsigned long long)c.row + slot / c.top_k, c.ids[slot], at, x, 0);
}

/* A magnitude for comparisons: of what is no number the largest. */
static __device__ inline double size_of(double v)
{
    return isnan(v) ? INFINITY : fabs(v);
}

static __global__ void __launch_bounds__(128) list_slots(exf_norm_products_sums to, exf_norm_products_call c)
{
    int t = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31, q = to.directions;
    double most = 0;
    if (t >= c.n_tokens) return;
    for (int i = lane; i < q; i += 32) most = fmax(most, size_of(to.projected[(size_t)t * q + i]));
    most = exf_warp_max(fmax(most, size_of(to.norm[t])));
    for (int k = lane; k < c.top_k; k += 32) {
        int slot = t * c.top_k + k, e = c.ids[slot];
        if (e < 0) continue;
        double *after = to.after + (size_t)slot * EXF_NORM_AFTER, w = (double)c.weights[slot], sq = c.sq[slot];
        after[0] = (double)c.logits[slot];
        after[1] = on_grid(log(w > 1e-6 ? w : 1e-6));
        after[2] = to.norm[t];
        after[3] = on_grid(0.5 * log(sq > 1e-20 ? sq : 1e-20));
        double own = fmax(fmax(most, size_of(after[0])), fmax(size_of(after[1]), size_of(after[3])));
        if (!(own < 0x1p31))
            note_slot(to, c, slot);
        else if (own < 0x1p9)
            to.list[(size_t)e * to.tokens + atomicAdd(&to.found[e], 1)] = slot;
        else
            to.large[atomicAdd(&to.found[to.n_experts], 1)] = slot;
    }
}

/* ---- products ------------------------------------------------------------------------------------- */

/* Slots of a block, which sums in double hold exactly; slots of a step; tiles of a warp, and their width. */
enum { SLOTS = 128, SLOT_STEP = 16, TILES = 4, TILE = 16, WARPS = 4 };

static __host__ __device__ inline int tile_rows(int q)
{
    return (q + 1 + EXF_NORM_AFTER + TILE - 1) / TILE;
}

static __device__ inline size_t triangle(int n)
{
    return (size_t)n * (n + 1) / 2;
}

/* Adds x, a multiple of 2^-24 of magnitude below 2^38, to a sum. */
static __device__ inline void add_units(unsigned long long *cell, double x)
{
    long long v = __double2ll_rn(x * 0x1p24), high = v >> 32;
    if (v & 0xffffffff) atomicAdd(cell, (unsigned long long)(v & 0xffffffff));
    if (high) atomicAdd(cell + 1, (unsigned long long)high);
}

/* Loads z of slots [at, at + SLOT_STEP) of the block's, 0 after its last; width: of a row. */
static __device__ inline void load_slots(double *z, const exf_norm_products_sums &to, int top_k, const int *slot, int at, int n,
                                         int width)
{
    int lane = threadIdx.x & 31, numbers = to.directions + 1 + EXF_NORM_AFTER;
    for (int s = threadIdx.x >> 5; s < SLOT_STEP; s += WARPS)
        for (int i = lane; i < width; i += 32)
            z[s * width + i] = at + s < n && i < numbers ? number_of(to, top_k, slot[at + s], i) : 0;
}

static __global__ void __launch_bounds__(32 * WARPS) add_products(exf_norm_products_sums to, int top_k)
{
    extern __shared__ double z[];
    __shared__ int slot[SLOTS];
    int e = blockIdx.y, n = min(to.found[e] - (int)blockIdx.x * SLOTS, (int)SLOTS), lane = threadIdx.x & 31;
    int rows = tile_rows(to.directions), width = rows * TILE + PAD, numbers = to.directions + 1 + EXF_NORM_AFTER;
    int first = (blockIdx.z * WARPS + (threadIdx.x >> 5)) * TILES, tiles = rows * (rows + 1) / 2;
    int high[TILES], low[TILES];
    double sum[TILES][2][2][2] = {};
    if (n <= 0) return; /* the whole block */
#pragma unroll
    for (int k = 0; k < TILES; k++) { /* tile (r, c) is number r (r + 1) / 2 + c; past the last one, the last again */
        int number = min(first + k, tiles - 1), r = 0;
        while ((r + 1) * (r + 2) / 2 <= number) r++;
        high[k] = r * TILE + lane / 4;
        low[k] = (number - r * (r + 1) / 2) * TILE + lane / 4;
    }
    for (int i = threadIdx.x; i < n; i += 32 * WARPS) slot[i] = to.list[(size_t)e * to.tokens + blockIdx.x * SLOTS + i];
    for (int at = 0; at < n; at += SLOT_STEP) {
        __syncthreads(); /* the step before has been read */
        load_slots(z, to, top_k, slot, at, n, width);
        __syncthreads();
        for (int s = lane & 3; s < SLOT_STEP; s += 4)
#pragma unroll
            for (int k = 0; k < TILES; k++) {
                const double *a = z + s * width + high[k], *b = z + s * width + low[k];
#pragma unroll
                for (int i = 0; i < 4; i++) multiply(sum[k][i / 2][i % 2], a[8 * (i / 2)], b[8 * (i % 2)]);
            }
    }
    unsigned long long *cells = reinterpret_cast<unsigned long long *>(to.cells) + (size_t)e * triangle(numbers) * EXF_NORM_WORDS;
#pragma unroll
    for (int k = 0; k < TILES; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int a = high[k] + 8 * (i / 4), b = low[k] - lane / 4 + 8 * (i / 2 % 2) + 2 * (lane & 3) + i % 2;
            if (first + k < tiles && a < numbers && b <= a)
                add_units(cells + (triangle(a) + b) * EXF_NORM_WORDS, sum[k][i / 4][i / 2 % 2][i % 2]);
        }
}

/* Adds x, a multiple of 2^-24 of magnitude below 2^64. */
static __device__ inline void add_far_units(unsigned long long *cell, double x)
{
    double left = fabs(x) * 0x1p24, unit = 0x1p64;
    for (int i = 2; i >= 0; i--, unit *= 0x1p-32) {
        double digit = floor(left / unit);
        left -= digit * unit;
        long long v = (long long)digit;
        if (v) atomicAdd(cell + i, (unsigned long long)(x < 0 ? -v : v));
    }
}

static __global__ void __launch_bounds__(128) add_large(exf_norm_products_sums to, exf_norm_products_call c)
{
    int numbers = to.directions + 1 + EXF_NORM_AFTER;
    for (int i = blockIdx.x; i < to.found[to.n_experts]; i += gridDim.x) {
        int slot = to.large[i];
        unsigned long long *cells =
            reinterpret_cast<unsigned long long *>(to.cells) + (size_t)c.ids[slot] * triangle(numbers) * EXF_NORM_WORDS;
        for (int a = 0; a < numbers; a++)
            for (int b = threadIdx.x; b <= a; b += blockDim.x)
                add_far_units(cells + (triangle(a) + b) * EXF_NORM_WORDS,
                              __dmul_rn(number_of(to, c.top_k, slot, a), number_of(to, c.top_k, slot, b)));
    }
}

/* ---- launches --------------------------------------------------------------------------------------- */

void exf_norm_products_add_cuda(exf_queue *q, const exf_norm_products_sums *to, const exf_norm_products_call *c)
{
    int rows = tile_rows(to->directions), tiles = rows * (rows + 1) / 2;
    dim3 projected(exf_blocks((size_t)c->n_tokens, ROWS), exf_blocks((size_t)to->directions, COLUMNS));
    dim3 products(exf_blocks((size_t)c->n_tokens, SLOTS), (unsigned)to->n_experts, exf_blocks((size_t)tiles, WARPS * TILES));
    size_t bytes = (size_t)SLOT_STEP * (rows * TILE + PAD) * sizeof(double);
    if (c->n_tokens == 0) return;
    if (q->err.code == EXF_OK)
        exf_cuda_note(q, cudaMemsetAsync(to->found, 0, ((size_t)to->n_experts + 1) * sizeof *to->found, q->stream), "norm head");
    if (c->x.number == EXF_NUMBER_BF16)
        EXF_LAUNCH(q, "norm head: directions", project<uint16_t>, projected, THREADS, 0, *to,
                   static_cast<const uint16_t *>(c->x.p), *c);
    else
        EXF_LAUNCH(q, "norm head: directions", project<float>, projected, THREADS, 0, *to, static_cast<const float *>(c->x.p), *c);
    EXF_LAUNCH(q, "norm head: slots", list_slots, exf_blocks((size_t)c->n_tokens, 4), 128, 0, *to, *c);
    EXF_LAUNCH(q, "norm head: products", add_products, products, 32 * WARPS, bytes, *to, c->top_k);
    EXF_LAUNCH(q, "norm head: large", add_large, 64, 128, 0, *to, *c);
}

/* ---- logits ----------------------------------------------------------------------------------------- */

/* A warp a token. */
static __global__ void __launch_bounds__(128)
    slot_logits(float *out, const float *logits, const int32_t *ids, int n_tokens, int n_experts, int top_k)
{
    int t = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    double mean = 0;
    if (t >= n_tokens) return;
    for (int e = lane; e < n_experts; e += 32) mean += (double)logits[(size_t)t * n_experts + e];
    mean = exf_warp_sum(mean) / n_experts;
    for (int k = lane; k < top_k; k += 32) {
        int id = ids[(size_t)t * top_k + k];
        out[(size_t)t * top_k + k] = id < 0 ? 0 : (float)on_grid((double)logits[(size_t)t * n_experts + id] - mean);
    }
}

void exf_slot_logits_cuda(exf_queue *q, float *out, const float *logits, const int32_t *ids, int n_tokens, int n_experts, int top_k)
{
    if (n_tokens)
        EXF_LAUNCH(q, "slot logits", slot_logits, exf_blocks((size_t)n_tokens, 4), 128, 0, out, logits, ids, n_tokens, n_experts,
                   top_k);
}
