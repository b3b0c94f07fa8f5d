/* fold_pool.cuh - chooses a decode batch's pool in one block, and finds the targets of the
 * experts outside of it. */
#ifndef EXF_KERNELS_FOLD_POOL_CUH
#define EXF_KERNELS_FOLD_POOL_CUH
#include "kernels/fold/fold_cuda.cuh"

/* A block has a thread for every expert; a thread's registers hold up to EXF_FOLD_HELD slots. */
enum { EXF_FOLD_THREADS = 512, EXF_FOLD_WARPS = 16, EXF_FOLD_HELD = 4, EXF_FOLD_HELD_SLOTS = 2048 };

/* The position of an expert that no given pool of at most EXF_FOLD_MAX_E members has. */
enum { EXF_FOLD_OUTSIDE = EXF_FOLD_MAX_E + 1 };

struct __align__(16) exf_fold_block_pool
{
    double key[EXF_FOLD_MAX_E];       /* exf_fold_pool_key() as the bits of a double, which has the same order; 0: not routed to */
    unsigned part[3][EXF_FOLD_MAX_E]; /* parts of the sums of quanta, see exf_fold_add() */
    float scale[EXF_FOLD_MAX_E];      /* scale of importance where the caller gives no norms: h or rms */
    int16_t position[EXF_FOLD_MAX_E]; /* position of an expert by falling importance; EXF_FOLD_MAX_E: not routed to;
                                       * EXF_FOLD_OUTSIDE: no member of a given pool */
    int16_t expert[EXF_FOLD_MAX_E];   /* the expert at each position */
    unsigned char present[EXF_FOLD_MAX_E];
    unsigned largest;
};

/* Returns the smallest value of the warp. */
__device__ inline unsigned exf_fold_warp_min(unsigned v)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(0xffffffffu, v);
#else
    for (int step = 16; step > 0; step >>= 1) v = min(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
#endif
}

/* A batch's slots.  HELD: registers hold all of them; else they are read when needed. */
template <int HELD> struct exf_fold_slots {
    int id[EXF_FOLD_HELD];
    float w[EXF_FOLD_HELD];

    __device__ inline void read(const exf_fold_routes &io, int n_experts)
    {
#pragma unroll
        for (int j = 0; j < EXF_FOLD_HELD && HELD; j++) {
            int slot = j * EXF_FOLD_THREADS + (int)threadIdx.x, n = io.rows * io.width;
            id[j] = slot < n ? exf_fold_expert(&io, slot, n_experts) : -1;
            w[j] = slot < n ? exf_fold_weight(&io, slot) : 0;
        }
    }

    /* Calls f(slot, expert, weight) for this thread's slots that have an expert. */
    template <class F> __device__ inline void each(const exf_fold_routes &io, int n_experts, F f) const
    {
#pragma unroll
        for (int j = 0; j < EXF_FOLD_HELD && HELD; j++)
            if (id[j] >= 0) f(j * EXF_FOLD_THREADS + (int)threadIdx.x, id[j], w[j]);
        const int n = io.rows * io.width;
#pragma unroll 1
        for (int slot = HELD ? n : (int)threadIdx.x; slot < n; slot += EXF_FOLD_THREADS) {
            int e = exf_fold_expert(&io, slot, n_experts);
            if (e >= 0) f(slot, e, exf_fold_weight(&io, slot));
        }
    }
};

/* Adds a quantum of at most 2^36.  Shared memory has native atomics for 32-bit integers only, so
 * quanta are added in parts that cannot overflow: two if the slots are held (2^11), else three
 * (2^16). */
template <int HELD> __device__ inline void exf_fold_add(exf_fold_block_pool *p, int e, int64_t quantum)
{
    if (HELD) {
        atomicAdd(&p->part[0][e], (unsigned)quantum & 0xfffffu);
        atomicAdd(&p->part[1][e], (unsigned)(quantum >> 20));
    } else {
        atomicAdd(&p->part[0][e], (unsigned)quantum & 0xffffu);
        atomicAdd(&p->part[1][e], (unsigned)(quantum >> 16) & 0x7fffu);
        atomicAdd(&p->part[2][e], (unsigned)(quantum >> 31));
    }
}

template <int HELD> __device__ inline int64_t exf_fold_added(const exf_fold_block_pool *p, int e)
{
    int64_t low = p->part[0][e];
    if (HELD) return low + (int64_t)(int)p->part[1][e] * (1 << 20);
    return low + (int64_t)p->part[1][e] * (1 << 16) + (int64_t)(int)p->part[2][e] * (1ll << 31);
}

/* Adds up importance; returns how many experts are routed to. */
template <int HELD>
__device__ inline int exf_fold_add_up(exf_fold_block_pool *p, const exf_fold_slots<HELD> &slots, const exf_fold_routes &io,
                                      int n_experts, const exf_fold_decode_options &o)
{
    const exf_fold_importance kind = o.importance;
    const float *norms = kind == EXF_FOLD_IMPORTANCE_SCORE ? nullptr : io.norms;
    unsigned largest = 0;
    slots.each(io, n_experts, [&](int slot, int e, float w) {
        float term = exf_fold_term(kind, w, norms ? __ldg(norms + slot) : p->scale[e]);
        largest = max(largest, exf_bits_of(fabsf(term)));
        if (exf_fold_competes(o.candidates, term)) p->present[e] = 1;
    });
    largest = ~exf_fold_warp_min(~largest);
    if (threadIdx.x % 32 == 0) atomicMax(&p->largest, largest);
    __syncthreads();
    double grid = exf_fold_grid(exf_float_of(p->largest));
    slots.each(io, n_experts,
               [&](int slot, int e, float w) {
                   float scale = norms ? __ldg(norms + slot) : p->scale[e];
                   exf_fold_add<HELD>(p, e, exf_fold_quantum(exf_fold_term(kind, w, scale), grid));
               });
    return __syncthreads_count((int)threadIdx.x < n_experts && p->present[threadIdx.x]);
}

/* Fills expert[] and position[]: counts the larger keys of each expert.  A few lanes work on four
 * experts, so that a loaded key is compared four times. */
template <int HELD> __device__ inline void exf_fold_order(exf_fold_block_pool *p, int n_experts)
{
    int thread = (int)threadIdx.x, share = 32, groups = (n_experts + 3) / 4;
    if (thread < n_experts && p->present[thread])
        p->key[thread] = __longlong_as_double((long long)exf_fold_pool_key(exf_fold_added<HELD>(p, thread), thread));
    __syncthreads();
    while (groups * share > EXF_FOLD_THREADS) share /= 2; /* at least 4 */
    int group = min(thread / share, groups - 1), lane = thread % share, larger[4] = {0, 0, 0, 0};
    double mine[4] = {p->key[group * 4], p->key[group * 4 + 1], p->key[group * 4 + 2], p->key[group * 4 + 3]};
#pragma unroll 4
    for (int i = lane * 2; i < n_experts; i += share * 2) {
        double2 two = *(const double2 *)(p->key + i);
#pragma unroll
        for (int m = 0; m < 4; m++) larger[m] += (two.x > mine[m]) + (two.y > mine[m]);
    }
    unsigned low = (unsigned)larger[0] | (unsigned)larger[1] << 16, high = (unsigned)larger[2] | (unsigned)larger[3] << 16;
    for (int step = share / 2; step > 0; step /= 2) {
        low += __shfl_xor_sync(0xffffffffu, low, step);
        high += __shfl_xor_sync(0xffffffffu, high, step);
    }
    int e = group * 4 + lane, at = (int)((lane < 2 ? low : high) >> lane % 2 * 16 & 0xffffu);
    if (thread / share < groups && lane < 4 && e < n_experts && p->present[e]) {
        p->position[e] = (int16_t)at;
        p->expert[at] = (int16_t)e;
    }
    __syncthreads();
}

/* Fills *p with a given pool; returns 0 if no member is an expert.  An expert's position is the first of its places among the
 * members, and expert[0] the first member that is one.  Thread i has member i, then expert i: D <= E <= the block's threads. */
__device__ inline int exf_fold_take_members(exf_fold_block_pool *p, int n_experts, const exf_fold_decode_options &o)
{
    const unsigned none = EXF_FOLD_MAX_E;
    int i = (int)threadIdx.x, e = i < o.pool ? __ldg(o.members + i) : -1, known = e >= 0 && e < n_experts;
    p->part[0][i] = none;
    if (i == 0) p->largest = none;
    __syncthreads();
    if (known) {
        atomicMin(&p->part[0][e], (unsigned)i);
        atomicMin(&p->largest, (unsigned)i);
    }
    __syncthreads();
    if (i < n_experts) p->position[i] = (int16_t)(p->part[0][i] < none ? (int)p->part[0][i] : (int)EXF_FOLD_OUTSIDE);
    if (i >= n_experts) p->position[i] = EXF_FOLD_MAX_E;
    if (known && p->part[0][e] == (unsigned)i) p->expert[i] = (int16_t)e;
    if (known && p->largest == (unsigned)i) p->expert[0] = (int16_t)e; /* place 0 is its own, or has no expert */
    __syncthreads();
    return p->largest < none ? n_experts : 0;
}

/* Fills *p for the block and returns how many experts the batch routes to, or all of them where the pool is given; returns 0
 * where nothing is to be done: they are no more than the pool, or no member is an expert.  Every thread calls it, after
 * slots.read(). */
template <int HELD>
__device__ inline int exf_fold_block_choose(exf_fold_block_pool *p, const exf_fold_slots<HELD> &slots, const exf_fold_routes &io,
                                            const exf_fold_tables &t, const exf_fold_decode_options &o)
{
    int e = (int)threadIdx.x;
    if (o.members) return exf_fold_take_members(p, t.n_experts, o);
    const float *scale = io.norms ? nullptr : exf_fold_scales(&t, o.importance);
    p->scale[e] = e >= t.n_experts ? 0.0f : scale ? __ldg(scale + e) : 1.0f;
    p->key[e] = 0;
    p->part[0][e] = p->part[1][e] = p->part[2][e] = 0;
    p->position[e] = EXF_FOLD_MAX_E;
    p->present[e] = o.candidates == EXF_FOLD_POOL_OF_ALL && e < t.n_experts;
    if (e == 0) p->largest = 0;
    __syncthreads();
    int n_union = exf_fold_add_up(p, slots, io, t.n_experts, o);
    if (n_union <= o.pool) return 0;
    exf_fold_order<HELD>(p, t.n_experts);
    return n_union;
}

/* ---- targets ----------------------------------------------------------------------- */

/* Share the experts out among the warps of a grid: this warp has `first`, first + stride and so on. */
__device__ inline int exf_fold_first_expert(void)
{
    return (int)blockIdx.x + (int)gridDim.x * ((int)threadIdx.x / 32);
}

__device__ inline int exf_fold_expert_stride(void)
{
    return (int)gridDim.x * EXF_FOLD_WARPS;
}

/* Returns how many blocks, 2^n, give every warp at most `rows` experts. */
static inline unsigned exf_fold_blocks_for(int n_experts, int rows)
{
    unsigned blocks = 1;
    while (blocks * EXF_FOLD_WARPS * (unsigned)rows < (unsigned)n_experts) blocks *= 2;
    return blocks;
}

/* Rows of a table [E, E] in a warp's registers: those of `expert`, one stride on, ...; beyond the last, the last again. */
template <int ROWS, int LOADS> struct exf_fold_rows {
    float value[ROWS][LOADS]; /* column lane + 32 j */

    __device__ __forceinline__ void load(const float *table, int n_experts, int expert)
    {
        int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            const float *row = table + min(expert + q * exf_fold_expert_stride(), n_experts - 1) * n_experts + lane;
#pragma unroll
            for (int j = 0; j < LOADS; j++) value[q][j] = exf_fold_load_if(row + 32 * j, lane + 32 * j < n_experts, 0);
        }
    }
};

/* Reads position[j], that of expert lane + 32 j, from p. */
template <int LOADS> __device__ inline void exf_fold_positions(int (&position)[LOADS], const exf_fold_block_pool *p, int n_experts)
{
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        int e = (int)threadIdx.x % 32 + 32 * j;
        position[j] = e < n_experts ? p->position[e] : EXF_FOLD_MAX_E;
    }
}

/* Returns the position of the pool's member of least cost(value), ties to the more important.  NaN
 * is no cost; INFINITY is taken only if there is no other; n_pool or more: none. */
template <int LOADS, class Cost>
__device__ inline int exf_fold_nearest(const float (&value)[LOADS], const int (&position)[LOADS], int n_pool, Cost cost)
{
    unsigned nearest = EXF_FOLD_MAX_E;
    float least = INFINITY, costs[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        float own = cost(value[j]);
        costs[j] = position[j] < n_pool ? own : INFINITY;
        least = fminf(least, costs[j]);
    }
#pragma unroll
    for (int j = 0; j < LOADS; j++) nearest = min(nearest, costs[j] == least ? (unsigned)position[j] : (unsigned)EXF_FOLD_MAX_E);
    unsigned own = (unsigned)exf_fold_ordered(least) ^ 0x80000000u, all = exf_fold_warp_min(own);
    return (int)exf_fold_warp_min(own == all ? nearest : (unsigned)EXF_FOLD_MAX_E);
}
#endif
