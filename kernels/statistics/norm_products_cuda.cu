/* norm_products_cuda.cu - the sums of a norm head; see norm_products.h.
 *
 * Of a call's tokens, four kernels: V'x and log ||x|| (64 tokens and 64 columns a block, mma.sync in double, steps of 32 elements
 * through shared memory while the next ones are on their way); the rest of z and each expert's list of slots (a thread a slot);
 * the products, of 512 slots of an expert a block, again mma.sync in double, 16 by 16 a tile, 16 tiles a block, steps of 16 slots
 * through two buffers of shared memory; and the products of the slots in which a number is 2^9 or more, of which there are hardly
 * ever any.
 *
 * Floor, at 149 products in double a clock and multiprocessor: T H q, and T K (q + 5)^2 / 2.  T 4096, H 2048, q 64 and K 8 on 132
 * of them at 1.7 GHz: 16 us and 2.5 us.  Bytes: x once, 16.8 MB in bfloat16 (5 us); V for every 64 tokens, 67 MB from the cache. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/tensor_cores.cuh"
#include "kernels/statistics/norm_products.h"
#include "kernels/statistics/pair_tokens.cuh"

static __device__ inline double on_grid(double v)
{
    return rint(v * 4096.0) * (1 / 4096.0);
}

/* A magnitude for comparisons: of what is no number the largest. */
static __device__ inline double size_of(double v)
{
    return isnan(v) ? INFINITY : fabs(v);
}

/* ---- copies to shared memory beside products ---------------------------------------------------- */

/* Begins to copy BYTES, 8 or 16. */
template <int BYTES> static __device__ inline void begin_copy(void *to, const void *from)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "n"(BYTES)
                 : "memory");
#else
    for (int i = 0; i < BYTES / 8; i++) static_cast<double *>(to)[i] = static_cast<const double *>(from)[i];
#endif
}

static __device__ inline void end_group()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits for all copies but those of the last LEFT groups. */
template <int LEFT> static __device__ inline void wait_for_groups()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

/* ---- V'x and log ||x|| ----------------------------------------------------------------------------
 * Warp w of 8 computes rows 16 (w % 4) .. + 15 and all columns of the block's, over one half of each step; the halves are added
 * up at the end.  A lane's four neighbours of a row of x are columns 4 k + its
 * own place of the products' operand, k from 0 to 3; V lies in that order (norm_products.h).  Rows in shared memory are longer than
 * they need be, which puts what is read at a time into different banks. */

enum { ROWS = 64, COLUMNS = EXF_NORM_BASIS_COLUMNS, STEP = EXF_NORM_BASIS_ROWS, PAD = 4, THREADS = 256, HALVES = 2 };

/* A step of x and V. */
template <class T> struct project_step {
    double v[STEP][COLUMNS + PAD];
    T x[ROWS][STEP + STEP / 2];
};

/* Begins to load the step at columns [at, at + STEP) of x; x is 0 after its last row and column. */
template <class T>
static __device__ inline void load(project_step<T> *to, const exf_norm_products_sums &sums, const T *x,
                                   const exf_norm_products_call &c, int row, int at, bool aligned)
{
    enum { EACH = 16 / (int)sizeof(T), PIECES = STEP / EACH };
    int width = exf_norm_basis_columns(sums.directions);
    const double *v = sums.basis + (size_t)at * width + blockIdx.y * COLUMNS;
    for (int i = threadIdx.x; i < STEP * COLUMNS / 2; i += THREADS) {
        int r = i / (COLUMNS / 2), k = i % (COLUMNS / 2) * 2;
        begin_copy<16>(&to->v[r][k], v + (size_t)r * width + k);
    }
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        int r = i / PIECES, k = i % PIECES * EACH, t = row + r, column = at + k;
        const T *from = x + (size_t)t * c.d_model + column;
        if (aligned && t < c.n_tokens && column + EACH <= c.d_model)
            begin_copy<16>(&to->x[r][k], from);
        else
            for (int j = 0; j < EACH; j++) to->x[r][k + j] = t < c.n_tokens && column + j < c.d_model ? from[j] : T(0);
    }
    end_group();
}

/* Returns four neighbours of a row. */
static __device__ inline float4 four(const float *x)
{
    return *reinterpret_cast<const float4 *>(x);
}

static __device__ inline float4 four(const uint16_t *x)
{
    uint2 v = *reinterpret_cast<const uint2 *>(x);
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                       __uint_as_float(v.y & 0xffff0000u));
}

/* Adds the products of the warp's half of a step, and its rows' squares. */
template <class T>
static __device__ inline void multiply_step(double (&sum)[COLUMNS / 8][4], double (&sq)[2], const project_step<T> &s)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first = 16 * (warp % 4) + lane / 4, k = warp / 4 * (STEP / HALVES);
    double a[8];
    static_assert(STEP / HALVES == 16, "a half of a step is one product's");
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 v = four(&s.x[first + 8 * i][k + 4 * (lane & 3)]);
        a[i] = (double)v.x;
        a[2 + i] = (double)v.y;
        a[4 + i] = (double)v.z;
        a[6 + i] = (double)v.w;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sq[i % 2] = fma(a[i], a[i], sq[i % 2]);
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = s.v[k + 4 * i + (lane & 3)][8 * j + lane / 4];
        exf_multiply_doubles(sum[j], a, b);
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS, 2)
    project(exf_norm_products_sums to, const T *x, exf_norm_products_call c, bool aligned)
{
    extern __shared__ double memory[];
    project_step<T> *step = reinterpret_cast<project_step<T> *>(memory); /* two */
    int row = blockIdx.x * ROWS, column = blockIdx.y * COLUMNS, lane = threadIdx.x & 31;
    int first = row + 16 * (threadIdx.x / 32 % 4) + lane / 4;
    double sum[COLUMNS / 8][4] = {}, sq[2] = {}, most[2] = {};
    load(&step[0], to, x, c, row, 0, aligned);
    for (int at = 0, i = 0; at < c.d_model; at += STEP, i ^= 1) {
        if (at + STEP < c.d_model) {
            load(&step[i ^ 1], to, x, c, row, at + STEP, aligned);
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        multiply_step(sum, sq, step[i]);
        __syncthreads(); /* the step has been read */
    }
    /* The second half's sums are added to the first's, through shared memory that has been read. */
    double *own = memory + (threadIdx.x % (THREADS / HALVES));
    bool is_first = threadIdx.x < THREADS / HALVES;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2 && !is_first; i++) own[i * (THREADS / HALVES)] = sum[i / 4][i % 4];
#pragma unroll
    for (int i = 0; i < 2 && !is_first; i++) own[(COLUMNS / 2 + i) * (THREADS / HALVES)] = sq[i];
    __syncthreads();
    if (!is_first) return;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) sum[i / 4][i % 4] += own[i * (THREADS / HALVES)];
#pragma unroll
    for (int i = 0; i < 2; i++) sq[i] += own[(COLUMNS / 2 + i) * (THREADS / HALVES)];
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        int t = first + 8 * (i % 4 / 2), r = column + 8 * (i / 4) + 2 * (lane & 3) + i % 2;
        double v = on_grid(sum[i / 4][i % 4]);
        most[i % 4 / 2] = fmax(most[i % 4 / 2], size_of(v));
        if (t < c.n_tokens && r < to.directions) to.projected[(size_t)t * to.directions + r] = v;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = first + 8 * i;
        double all = sq[i] + __shfl_xor_sync(0xffffffffu, sq[i], 1);
        double norm = sqrt(all + __shfl_xor_sync(0xffffffffu, all, 2));
        most[i] = fmax(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
        most[i] = fmax(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
        if ((lane & 3) || t >= c.n_tokens) continue;
        to.most[(size_t)blockIdx.y * to.tokens + t] = most[i];
        if (blockIdx.y == 0) to.norm[t] = on_grid(log(norm > 1e-10 ? norm : 1e-10));
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

/* A thread a slot. */
static __global__ void __launch_bounds__(128) list_slots(exf_norm_products_sums to, exf_norm_products_call c)
{
    int slot = blockIdx.x * blockDim.x + threadIdx.x, t = slot / c.top_k, e = slot < c.n_tokens * c.top_k ? c.ids[slot] : -1;
    if (e < 0) return;
    double *after = to.after + (size_t)slot * EXF_NORM_AFTER, w = (double)c.weights[slot], sq = c.sq[slot];
    after[0] = (double)c.logits[slot];
    after[1] = on_grid(log(w > 1e-6 ? w : 1e-6));
    after[2] = to.norm[t];
    after[3] = on_grid(0.5 * log(sq > 1e-20 ? sq : 1e-20));
    double most = 0;
    for (int i = 0; i < EXF_NORM_AFTER; i++) most = fmax(most, size_of(after[i]));
    for (int i = 0; i < to.directions; i += COLUMNS) most = fmax(most, to.most[(size_t)(i / COLUMNS) * to.tokens + t]);
    if (!(most < 0x1p31))
        note_slot(to, c, slot);
    else if (most < 0x1p9)
        to.list[(size_t)e * to.tokens + atomicAdd(&to.found[e * EXF_NORM_APART], 1)] = slot;
    else
        to.large[atomicAdd(&to.found[to.n_experts * EXF_NORM_APART], 1)] = slot;
}

/* ---- products ------------------------------------------------------------------------------------- */

/* Slots of a part, so few that sums in double are exact; slots of a step; tiles of a warp, and their width. */
enum { SLOTS = 512, SLOT_STEP = 16, TILES = 2, TILE = 16, WARPS = 8 };

static __host__ __device__ inline int tile_rows(int q)
{
    return (q + 1 + EXF_NORM_AFTER + TILE - 1) / TILE;
}

static __device__ inline size_t triangle(int n)
{
    return (size_t)n * (n + 1) / 2;
}

/* Begins to load a step's slots, with n left to load: a warp a slot.  In shared memory V'x comes first, so that 16 bytes of it are
 * copied at a time, then 1 and what comes after.  Places after the last number are 0, and the place of the 1
 * has it, before the first step; of slots after the last all places are 0. */
static __device__ inline void load_slots(double *z, const exf_norm_products_sums &to, int top_k, const int *slot, int n, int width)
{
    int lane = threadIdx.x & 31, q = to.directions;
#pragma unroll
    for (int s = threadIdx.x >> 5; s < SLOT_STEP; s += WARPS) {
        double *row = z + s * width;
        if (s >= n) {
            for (int i = lane; i < width; i += 32) row[i] = 0;
            continue;
        }
        int own = slot[s];
        const double *from = to.projected + (size_t)(own / top_k) * q;
        if (q % 2 == 0)
            for (int i = 2 * lane; i < q; i += 64) begin_copy<16>(row + i, from + i);
        else
            for (int i = lane; i < q; i += 32) begin_copy<8>(row + i, from + i);
        if (lane < EXF_NORM_AFTER) begin_copy<8>(row + q + 1 + lane, to.after + (size_t)own * EXF_NORM_AFTER + lane);
    }
    end_group();
}

/* Adds the products of a step in shared memory to the warp's tiles. */
static __device__ inline void multiply_slots(double (&sum)[TILES][2][4], const double *z, int width, const int (&high)[TILES],
                                             const int (&low)[TILES])
{
    int lane = threadIdx.x & 31;
    double a[8];
#pragma unroll
    for (int k = 0; k < TILES; k++) {
        double b[4];
        if (k == 0 || high[k] != high[k - 1]) { /* else the tile before has them */
#pragma unroll
            for (int i = 0; i < 8; i++) a[i] = z[(i / 2 * 4 + (lane & 3)) * width + high[k] + 8 * (i % 2)];
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) b[i] = z[(4 * i + (lane & 3)) * width + low[k] + 8 * j];
            exf_multiply_doubles(sum[k][j], a, b);
        }
    }
}

/* Adds the products of one part's slots, n from `from` on, to the expert's cells.  z: `buffers` of SLOT_STEP rows. */
static __device__ inline void add_part(const exf_norm_products_sums &to, int top_k, const int *from, int n, double *z, int buffers,
                                       int *slot, unsigned long long *cells)
{
    int q = to.directions, rows = tile_rows(q), width = rows * TILE + PAD, numbers = q + 1 + EXF_NORM_AFTER;
    int lane = threadIdx.x & 31, first = (blockIdx.z * WARPS + (threadIdx.x >> 5)) * TILES, tiles = rows * (rows + 1) / 2;
    int high[TILES], low[TILES];
    double sum[TILES][2][4] = {};
#pragma unroll
    for (int k = 0; k < TILES; k++) { /* tile (r, c) is number r (r + 1) / 2 + c; past the last one, the last again */
        int number = min(first + k, tiles - 1), r = 0;
        while ((r + 1) * (r + 2) / 2 <= number) r++;
        high[k] = r * TILE + lane / 4;
        low[k] = (number - r * (r + 1) / 2) * TILE + lane / 4;
    }
    for (int i = threadIdx.x; i < n; i += 32 * WARPS) slot[i] = from[i];
    __syncthreads();
    if (buffers == 2) load_slots(z, to, top_k, slot, n, width);
    for (int at = 0, step = 0; at < n; at += SLOT_STEP, step++) {
        double *now = z + (buffers == 2 ? step & 1 : 0) * SLOT_STEP * width, *after = z + (~step & 1) * SLOT_STEP * width;
        if (buffers == 2 && at + SLOT_STEP < n) {
            load_slots(after, to, top_k, slot + at + SLOT_STEP, n - at - SLOT_STEP, width);
            wait_for_groups<1>();
        } else {
            if (buffers == 1) load_slots(now, to, top_k, slot + at, n - at, width);
            wait_for_groups<0>();
        }
        __syncthreads();
        multiply_slots(sum, now, width, high, low);
        __syncthreads(); /* the step has been read */
    }
#pragma unroll
    for (int k = 0; k < TILES; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int row = high[k] + 8 * (i % 4 / 2), column = low[k] - lane / 4 + 8 * (i / 4) + 2 * (lane & 3) + i % 2;
            int a = row < q ? row + 1 : row == q ? 0 : row, b = column < q ? column + 1 : column == q ? 0 : column;
            if (first + k >= tiles || row >= numbers || column > row) continue;
            unsigned long long *cell = cells + (triangle(max(a, b)) + min(a, b)) * EXF_NORM_WORDS;
            /* A multiple of 2^-24 of magnitude below 2^38; of a small one the first digit is all. */
            long long v = __double2ll_rn(sum[k][i / 4][i % 4] * 0x1p24), low = (int)v, high = (v - low) >> 32;
            if (low) atomicAdd(cell, (unsigned long long)low);
            if (high) atomicAdd(cell + 1, (unsigned long long)high);
        }
}

/* Blocks (x, e, z) take parts x, x + gridDim.x, ... of expert e's slots. */
static __global__ void __launch_bounds__(32 * WARPS, 3) add_products(exf_norm_products_sums to, int top_k, int buffers)
{
    extern __shared__ double z[];
    __shared__ int slot[SLOTS];
    int e = blockIdx.y, found = to.found[e * EXF_NORM_APART], numbers = to.directions + 1 + EXF_NORM_AFTER;
    int width = tile_rows(to.directions) * TILE + PAD;
    for (int i = threadIdx.x; (int)blockIdx.x * SLOTS < found && i < buffers * SLOT_STEP * width; i += 32 * WARPS)
        z[i] = i % width == to.directions; /* what every slot has of z: the 1 and, after the last number, 0 */
    unsigned long long *cells = reinterpret_cast<unsigned long long *>(to.cells) + (size_t)e * triangle(numbers) * EXF_NORM_WORDS;
    for (int at = blockIdx.x * SLOTS; at < found; at += gridDim.x * SLOTS) {
        __syncthreads(); /* the part before has been read */
        add_part(to, top_k, to.list + (size_t)e * to.tokens + at, min(found - at, (int)SLOTS), z, buffers, slot, cells);
    }
}

static __global__ void __launch_bounds__(128) add_large(exf_norm_products_sums to, exf_norm_products_call c)
{
    int numbers = to.directions + 1 + EXF_NORM_AFTER;
    for (int i = blockIdx.x; i < to.found[to.n_experts * EXF_NORM_APART]; i += gridDim.x) {
        int slot = to.large[i];
        unsigned long long *cells =
            reinterpret_cast<unsigned long long *>(to.cells) + (size_t)c.ids[slot] * triangle(numbers) * EXF_NORM_WORDS;
        for (int a = 0; a < numbers; a++)
            for (int b = threadIdx.x; b <= a; b += blockDim.x) {
                double x = __dmul_rn(number_of(to, c.top_k, slot, a), number_of(to, c.top_k, slot, b));
                double left = fabs(x) * 0x1p24, unit = 0x1p64; /* a multiple of 2^-24 of magnitude below 2^64 */
                for (int i = 2; i >= 0; i--, unit *= 0x1p-32) {
                    double digit = floor(left / unit);
                    left -= digit * unit;
                    long long v = (long long)digit;
                    if (v) atomicAdd(cells + (triangle(a) + b) * EXF_NORM_WORDS + i, (unsigned long long)(x < 0 ? -v : v));
                }
            }
    }
}

/* ---- launches --------------------------------------------------------------------------------------- */

template <class T>
static void project_tokens(exf_queue *q, const exf_norm_products_sums *to, const exf_norm_products_call *c)
{
    dim3 grid(exf_blocks((size_t)c->n_tokens, ROWS), exf_norm_basis_columns(to->directions) / COLUMNS);
    int bytes = 2 * (int)sizeof(project_step<T>);
    const T *x = static_cast<const T *>(c->x.p);
    bool aligned = (uintptr_t)x % 16 == 0 && c->d_model * sizeof(T) % 16 == 0;
    if (q->err.code == EXF_OK)
        exf_cuda_note(q, cudaFuncSetAttribute(project<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "norm head");
    EXF_LAUNCH(q, "norm head: directions", project<T>, grid, THREADS, bytes, *to, x, *c, aligned);
}

void exf_norm_products_add_cuda(exf_queue *q, const exf_norm_products_sums *to, const exf_norm_products_call *c)
{
    int rows = tile_rows(to->directions), tiles = rows * (rows + 1) / 2;
    size_t each = (size_t)c->n_tokens * c->top_k / to->n_experts + 1; /* slots of an expert on average: most blocks have a part */
    dim3 products(2 * exf_blocks(each, SLOTS), (unsigned)to->n_experts, exf_blocks((size_t)tiles, WARPS * TILES));
    size_t bytes = (size_t)SLOT_STEP * (rows * TILE + PAD) * sizeof(double);
    int buffers = 2 * bytes <= 44 << 10 ? 2 : 1; /* with the list of slots what every GPU gives a block unasked */
    if (c->n_tokens == 0) return;
    if (q->err.code == EXF_OK)
        exf_cuda_note(q,
                      cudaMemsetAsync(to->found, 0, ((size_t)to->n_experts + 1) * EXF_NORM_APART * sizeof *to->found, q->stream),
                      "norm head");
    if (c->x.number == EXF_NUMBER_BF16)
        project_tokens<uint16_t>(q, to, c);
    else
        project_tokens<float>(q, to, c);
    EXF_LAUNCH(q, "norm head: slots", list_slots, exf_blocks((size_t)c->n_tokens * (size_t)c->top_k, 128), 128, 0, *to, *c);
    EXF_LAUNCH(q, "norm head: products", add_products, products, 32 * WARPS, buffers * bytes, *to, c->top_k, buffers);
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
