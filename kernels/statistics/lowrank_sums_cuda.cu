/* lowrank_sums_cuda.cu - sums of pairs in a basis; see lowrank_sums.h.
 *
 * Of up to `tokens` tokens at a time, four kernels: weights of slots (a warp each); z = v Q (64 slots and all columns of Q a
 * block, a product in double); the list of each pair's tokens, in order (a block a pair); and the sums, a block for a pair and 256
 * columns, which go on as integers in registers over the whole list.  A thread has one column of u and v, or of z, and 16 or 8 rows
 * of zu and zv: of every token two products in double, two conversions to integers and two additions a row.
 *
 * Floor: the conversions, 2 R H of a token and pair at 16 a clock and multiprocessor; R 16 and H 2048 on 132 of them at 1.7 GHz,
 * 18 ns a token and pair.  Bytes: the two rows of every token and pair, mostly from the cache, and 2 R H 8 bytes a pair read and
 * written each time. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/statistics/lowrank_sums.h"
#include "kernels/statistics/pair_tokens.cuh"

enum { MOST_RANK = 32 };

/* Weights of slots: a warp each. */
template <class T> static __global__ void take_weights(exf_lowrank_sums to, const T *outputs, exf_lowrank_call c)
{
    size_t slot = blockIdx.x * (size_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    if (slot >= (size_t)c.n_tokens * c.top_k || c.ids[slot] < 0) return;
    double w = weight_of_slot(outputs, c, slot);
    if ((threadIdx.x & 31) != 0) return;
    to.weight[slot] = w;
    if (!(w >= 0)) note_fault(to.bad, (unsigned long long)c.row + slot / c.top_k, c.ids[slot], (int)(slot % c.top_k), w, 0);
}

/* ---- coordinates in the basis -------------------------------------------------------------------
 * Thread t of 128 computes slots 4 (t / 8) .. + 3 of the block's 64 and columns t % 8 + 8 k.  Steps of 32 elements of the rows
 * go through shared memory as doubles, transposed; a row of 65 of them keeps the writes of a warp to different banks. */

enum { Z_THREADS = 128, Z_SLOTS = 64, Z_STEP = 32, Z_EACH = 4, Z_COLUMNS = 8 };

template <class T, int COLUMNS>
static __global__ void __launch_bounds__(Z_THREADS) project(exf_lowrank_sums to, const T *outputs, exf_lowrank_call c)
{
    __shared__ double v[Z_STEP][Z_SLOTS + 1], basis[Z_STEP][Z_COLUMNS * COLUMNS];
    size_t first = blockIdx.x * (size_t)Z_SLOTS, slots = (size_t)c.n_tokens * c.top_k;
    int group = threadIdx.x / Z_COLUMNS, column = threadIdx.x % Z_COLUMNS;
    double sum[Z_EACH][COLUMNS] = {};
    for (int at = 0; at < c.d_model; at += Z_STEP) {
        __syncthreads(); /* the step before has been read */
        for (int i = threadIdx.x; i < Z_SLOTS * Z_STEP; i += Z_THREADS) {
            int s = i / Z_STEP, j = i % Z_STEP;
            bool there = first + s < slots && at + j < c.d_model;
            v[j][s] = there ? (double)exf_element(outputs[(first + s) * c.d_model + at + j]) : 0;
        }
        for (int i = threadIdx.x; i < Z_STEP * Z_COLUMNS * COLUMNS; i += Z_THREADS) {
            int j = i / (Z_COLUMNS * COLUMNS), r = i % (Z_COLUMNS * COLUMNS);
            basis[j][r] = at + j < c.d_model && r < to.rank ? to.basis[(size_t)(at + j) * to.rank + r] : 0;
        }
        __syncthreads();
#pragma unroll 4
        for (int j = 0; j < Z_STEP; j++)
#pragma unroll
            for (int k = 0; k < COLUMNS; k++)
#pragma unroll
                for (int i = 0; i < Z_EACH; i++)
                    sum[i][k] = fma(v[j][group * Z_EACH + i], basis[j][column + Z_COLUMNS * k], sum[i][k]);
    }
#pragma unroll
    for (int i = 0; i < Z_EACH; i++)
#pragma unroll
        for (int k = 0; k < COLUMNS; k++) {
            size_t slot = first + group * Z_EACH + i;
            int r = column + Z_COLUMNS * k;
            if (slot < slots && r < to.rank) to.z[slot * to.rank + r] = sum[i][k];
        }
}

/* ---- sums -------------------------------------------------------------------------------------- */

enum { THREADS = 256, BATCH = 16, AT_ONCE = 4 };

static __global__ void __launch_bounds__(THREADS) list_tokens(exf_lowrank_sums to, exf_lowrank_call c)
{
    int p = blockIdx.x, source = to.pair[2 * p], target = to.pair[2 * p + 1], n = 0;
    exf_pair_slots *list = to.slots + (size_t)p * to.tokens;
    for (int at = 0; at < c.n_tokens; at += THREADS) n += find_tokens<THREADS>(list + n, c, at, source, target);
    if (threadIdx.x == 0) to.found[p] = n;
}

/* What a token and row of a pair multiply with: w z in units of zu, and of zv and zz. */
template <int ROWS> struct batch {
    double in_u[BATCH][ROWS], in_v[BATCH][ROWS];
    exf_pair_slots slot[BATCH];
};

/* Loads tokens [at, at + n) of a pair's list; the others, up to BATCH, are the last one times 0. */
template <int ROWS>
static __device__ inline void load_batch(batch<ROWS> *b, const exf_lowrank_sums &to, const exf_pair_slots *list, int n,
                                         int first_row, double unit_u, double unit_v)
{
    __syncthreads(); /* the batch before has been read */
    for (int i = threadIdx.x; i < BATCH * ROWS; i += THREADS) {
        int k = i / ROWS, r = i % ROWS;
        exf_pair_slots s = list[min(k, n - 1)];
        bool there = k < n && first_row + r < to.rank;
        double x = there ? to.weight[s.source] * to.z[(size_t)s.target * to.rank + first_row + r] : 0;
        b->in_u[k][r] = x * unit_u;
        b->in_v[k][r] = x * unit_v;
        if (r == 0) b->slot[k] = s;
    }
    __syncthreads();
}

/* A thread's column is one of u and v, below H, or of z, from H on: zz is to z what zv is to v. */
template <class T, int ROWS>
static __global__ void __launch_bounds__(THREADS) add_pairs(exf_lowrank_sums to, const T *outputs, exf_lowrank_call c)
{
    __shared__ batch<ROWS> b;
    int p = blockIdx.x, n = to.found[p], column = blockIdx.y * THREADS + threadIdx.x, first_row = blockIdx.z * ROWS;
    int h = c.d_model, rank = to.rank;
    if (n == 0) return; /* the whole block */
    const exf_pair_slots *list = to.slots + (size_t)p * to.tokens;
    double unit_u = ldexp(1.0, -to.grid[2 * p]), unit_v = ldexp(1.0, -to.grid[2 * p + 1]);
    long long sum_u[ROWS] = {}, sum_v[ROWS] = {};
    for (int at = 0; at < n; at += BATCH) {
        int count = min(n - at, (int)BATCH);
        load_batch(&b, to, list + at, count, first_row, unit_u, unit_v);
        for (int k = 0; k < count && column < h + rank; k += AT_ONCE) {
            double u[AT_ONCE], v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                exf_pair_slots s = b.slot[k + i];
                u[i] = column < h ? (double)exf_element(outputs[(size_t)s.source * h + column]) : 0;
                v[i] = column < h ? (double)exf_element(outputs[(size_t)s.target * h + column])
                                  : to.z[(size_t)s.target * rank + column - h];
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    sum_u[r] += __double2ll_rn(b.in_u[k + i][r] * u[i]);
                    sum_v[r] += __double2ll_rn(b.in_v[k + i][r] * v[i]);
                }
        }
    }
    if (column >= h + rank) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        size_t row = (size_t)p * rank + first_row + r;
        if (first_row + r >= rank) continue;
        if (column >= h) {
            to.zz[row * rank + column - h] += sum_v[r];
            continue;
        }
        to.zu[row * h + column] += sum_u[r];
        to.zv[row * h + column] += sum_v[r];
    }
}

/* ---- launches ----------------------------------------------------------------------------------- */

template <class T> static void launch_project(exf_queue *q, const exf_lowrank_sums *to, const T *outputs, const exf_lowrank_call *c)
{
    unsigned blocks = exf_blocks((size_t)c->n_tokens * c->top_k, Z_SLOTS);
    switch ((to->rank + Z_COLUMNS - 1) / Z_COLUMNS) {
    case 1: EXF_LAUNCH(q, "low rank: coordinates", (project<T, 1>), blocks, Z_THREADS, 0, *to, outputs, *c); break;
    case 2: EXF_LAUNCH(q, "low rank: coordinates", (project<T, 2>), blocks, Z_THREADS, 0, *to, outputs, *c); break;
    case 3: EXF_LAUNCH(q, "low rank: coordinates", (project<T, 3>), blocks, Z_THREADS, 0, *to, outputs, *c); break;
    default: EXF_LAUNCH(q, "low rank: coordinates", (project<T, 4>), blocks, Z_THREADS, 0, *to, outputs, *c);
    }
}

template <class T, int ROWS>
static void launch_sums(exf_queue *q, const exf_lowrank_sums *to, const T *outputs, const exf_lowrank_call *c)
{
    dim3 blocks((unsigned)to->n_pairs, exf_blocks((size_t)c->d_model + to->rank, THREADS), exf_blocks((size_t)to->rank, ROWS));
    EXF_LAUNCH(q, "low rank: sums", (add_pairs<T, ROWS>), blocks, THREADS, 0, *to, outputs, *c);
}

template <class T> static void launch(exf_queue *q, const exf_lowrank_sums *to, const exf_lowrank_call *c)
{
    const T *outputs = static_cast<const T *>(c->outputs.p);
    EXF_LAUNCH(q, "low rank: weights", take_weights<T>, exf_blocks((size_t)c->n_tokens * c->top_k, 4), 128, 0, *to, outputs, *c);
    launch_project(q, to, outputs, c);
    EXF_LAUNCH(q, "low rank: tokens", list_tokens, (unsigned)to->n_pairs, THREADS, 0, *to, *c);
    if (to->rank <= 8)
        launch_sums<T, 8>(q, to, outputs, c);
    else
        launch_sums<T, 16>(q, to, outputs, c);
}

void exf_lowrank_add_cuda(exf_queue *q, const exf_lowrank_sums *to, const exf_lowrank_call *c)
{
    if (to->n_pairs == 0 || to->rank == 0) return;
    for (int at = 0; at < c->n_tokens; at += to->tokens) {
        size_t slot = (size_t)at * c->top_k;
        exf_lowrank_call part = *c;
        part.n_tokens = c->n_tokens - at < to->tokens ? c->n_tokens - at : to->tokens;
        part.outputs = exf_matrix_at(c->outputs, slot * c->d_model);
        part.ids = c->ids + slot;
        part.weights = c->weights + slot;
        part.row = c->row + at;
        if (c->outputs.number == EXF_NUMBER_BF16)
            launch<uint16_t>(q, to, &part);
        else
            launch<float>(q, to, &part);
    }
}
