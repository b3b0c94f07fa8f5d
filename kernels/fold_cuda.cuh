/* fold_cuda.cuh - what the CUDA forms of exfold/fold.h share: launching, a token's routes
 * in the lanes of a sub-warp, the small systems, a batch's pool in one block. */
#ifndef EXF_KERNELS_FOLD_CUDA_CUH
#define EXF_KERNELS_FOLD_CUDA_CUH
#include "kernels/fold_parts.h"

#include <cuda_runtime.h>

/* One kernel per pair of types: exf_fold_typed() makes them constants of the copy a
 * kernel works on, so that the accessors of fold_parts.h have no branch left. */
template <exf_fold_int I, exf_fold_real R> __device__ inline exf_fold_routes exf_fold_typed(exf_fold_routes r)
{
    r.id_type = I;
    r.weight_type = R;
    return r;
}

#define EXF_FOLD_BY_TYPE(kernel, ...)                                                                               \
    {                                                                                                               \
        {kernel<EXF_FOLD_I32, EXF_FOLD_F32, ##__VA_ARGS__>, kernel<EXF_FOLD_I32, EXF_FOLD_BF16, ##__VA_ARGS__>,     \
         kernel<EXF_FOLD_I32, EXF_FOLD_F16, ##__VA_ARGS__>},                                                        \
            {kernel<EXF_FOLD_I64, EXF_FOLD_F32, ##__VA_ARGS__>, kernel<EXF_FOLD_I64, EXF_FOLD_BF16, ##__VA_ARGS__>, \
             kernel<EXF_FOLD_I64, EXF_FOLD_F16, ##__VA_ARGS__>},                                                    \
    }

/* Launches blocks in clusters of `cluster`; a refusal is taken back from CUDA's last error. */
template <class... Parameters, class... Arguments>
static exf_fold_status exf_fold_launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, unsigned cluster,
                                       void *stream, Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute size = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = (cudaStream_t)stream;
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = cluster;
    size.val.clusterDim.y = size.val.clusterDim.z = 1;
    config.attrs = &size;
    config.numAttrs = cluster > 1;
    if (cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess) return EXF_FOLD_OK;
    cudaGetLastError();
    return EXF_FOLD_DEVICE;
}

/* ---- a token in the W lanes of a sub-warp --------------------------------------------- */

/* Slot `lane` of a token, or after exf_fold_permute() its route of rank `lane`. */
struct exf_fold_lane {
    int lane, id;  /* id -1: no expert */
    unsigned mask; /* of the warp's lanes that hold this token */
    float w;
    int64_t raw; /* the id as it came */
};

template <int W> __device__ inline exf_fold_lane exf_fold_read_lane(const exf_fold_routes &in, int64_t row, int n_experts)
{
    exf_fold_lane s = {(int)threadIdx.x % W, -1, 0, 0, -1};
    s.mask = 0xffffffffu >> (32 - W) << (threadIdx.x % 32 / W * W);
    if (s.lane >= in.width) return s;
    int64_t slot = row * in.width + s.lane;
    s.raw = exf_fold_raw_id(&in, slot);
    s.id = s.raw >= 0 && s.raw < n_experts ? (int)s.raw : -1;
    s.w = exf_fold_weight(&in, slot);
    return s;
}

/* A bit for each of the token's lanes. */
template <int W> __device__ inline unsigned exf_fold_vote(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) >> (threadIdx.x % 32 / W * W) & (0xffffffffu >> (32 - W));
}

/* By falling key, ties to the lower lane. */
template <int W> __device__ inline void exf_fold_permute(exf_fold_lane *s, int32_t key)
{
    int rank = 0, from = 0;
#pragma unroll
    for (int k = 0; k < W; k++) {
        int32_t other = __shfl_sync(s->mask, key, k, W);
        rank += other > key || (other == key && k < s->lane);
    }
#pragma unroll
    for (int k = 0; k < W; k++) from = __shfl_sync(s->mask, rank, k, W) == s->lane ? k : from;
    s->id = __shfl_sync(s->mask, s->id, from, W);
    s->w = __shfl_sync(s->mask, s->w, from, W);
    s->raw = __shfl_sync(s->mask, s->raw, from, W);
}

/* A system of up to W unknowns, row `lane` in this lane: a[j] for j <= lane, and right. */
template <int W> struct exf_fold_system {
    double a[W], right;
};

/* a to L and 1/D of L D L', and its transpose above; 0 if a pivot of the lanes in `used` is
 * not above `least`.  The reference's operations in the reference's order. */
template <int W> __device__ inline int exf_fold_factor(exf_fold_system<W> *s, unsigned used, int lane, unsigned mask, double least)
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        if (!(used >> k & 1)) continue;
        double pivot = __shfl_sync(mask, s->a[k], k, W), column = s->a[k];
        if (!(pivot > least)) return 0;
        double inverse = __ddiv_rn(1, pivot), mine = exf_muld(column, inverse);
        s->a[k] = lane == k ? inverse : mine;
#pragma unroll
        for (int j = k + 1; j < W; j++) {
            double other = __shfl_sync(mask, column, j, W); /* 0 in lanes that are not used */
            if (lane >= j) s->a[j] = exf_addd(s->a[j], -exf_muld(mine, other));
            if (lane == k) s->a[j] = exf_muld(other, inverse);
        }
    }
    return 1;
}

template <int W> __device__ inline void exf_fold_substitute(exf_fold_system<W> *s, unsigned used, int lane, unsigned mask)
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        if (!(used >> k & 1)) continue;
        double known = __shfl_sync(mask, s->right, k, W);
        if (lane > k) s->right = exf_addd(s->right, -exf_muld(s->a[k], known));
    }
#pragma unroll
    for (int k = 0; k < W; k++)
        if (lane == k) s->right = exf_muld(s->right, s->a[k]);
#pragma unroll
    for (int k = W - 1; k >= 0; k--) {
        if (!(used >> k & 1)) continue;
        double known = __shfl_sync(mask, s->right, k, W);
        if (lane < k) s->right = exf_addd(s->right, -exf_muld(s->a[k], known));
    }
}

/* right := (G + rho mean(diag G) I)^-1 right over the experts `id` of the lanes in `used`,
 * rho raised as fold.h says; 0 if there is no solution.  Lanes that are not used hold 0. */
template <int W>
__device__ inline int exf_fold_solve(exf_fold_system<W> *s, const exf_fold_tables &t, int id, unsigned used, int lane,
                                     unsigned mask, double rho)
{
    int here = used >> lane & 1;
    double mean = 0, diagonal = here ? exf_fold_gram(&t, id, id) : 0;
#pragma unroll
    for (int k = 0; k < W; k++) {
        double other = __shfl_sync(mask, diagonal, k, W);
        if (used >> k & 1) mean = exf_addd(mean, other);
    }
    mean = __ddiv_rn(mean, __popc(used));
    if (!(mean > 0)) return 0;
    for (int tries = 0; tries <= EXF_FOLD_RAISES; tries++, rho = exf_fold_raise(rho)) {
#pragma unroll
        for (int j = 0; j < W; j++) {
            int other = __shfl_sync(mask, id, j, W);
            s->a[j] = here && j < lane && (used >> j & 1) ? exf_fold_gram(&t, id, other) : 0;
            if (j == lane) s->a[j] = exf_addd(diagonal, exf_muld(rho, mean));
        }
        if (!exf_fold_factor(s, used, lane, mask, exf_muld(EXF_FOLD_PIVOT, mean))) continue;
        exf_fold_substitute(s, used, lane, mask);
        return 1;
    }
    return 0;
}

/* ---- a batch's pool, by one block ------------------------------------------------------ */

/* Smallest of the warp's. */
__device__ inline unsigned exf_fold_warp_min(unsigned v)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(0xffffffffu, v);
#else
    for (int step = 16; step > 0; step >>= 1) v = min(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
#endif
}

/* Room for every expert; a block has a thread for each. */
struct exf_fold_block_pool {
    unsigned long long key[EXF_FOLD_MAX_E]; /* exf_fold_pool_key(), 0: not routed to */
    unsigned part[3][EXF_FOLD_MAX_E];       /* sums of quanta's parts, exf_fold_add() */
    float scale[EXF_FOLD_MAX_E];            /* of importance: h or rms */
    int16_t expert[EXF_FOLD_MAX_E];         /* by falling importance, the pool first */
    int16_t position[EXF_FOLD_MAX_E];       /* of an expert in that order; EXF_FOLD_MAX_E: not routed to */
    unsigned char present[EXF_FOLD_MAX_E];
    unsigned largest;
};

/* A batch's slots.  HELD > 0: all of them, in registers, HELD a thread; 0: read as needed. */
template <int THREADS, int HELD> struct exf_fold_slots {
    int id[HELD ? HELD : 1];
    float w[HELD ? HELD : 1];

    __device__ inline void read(const exf_fold_routes &io, int n_experts)
    {
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            int slot = j * THREADS + (int)threadIdx.x, n = io.rows * io.width;
            id[j] = slot < n ? exf_fold_id(&io, slot, n_experts) : -1;
            w[j] = slot < n ? exf_fold_weight(&io, slot) : 0;
        }
    }

    /* f(slot, expert, weight) for this thread's slots that have an expert. */
    template <class F> __device__ inline void each(const exf_fold_routes &io, int n_experts, F f) const
    {
#pragma unroll
        for (int j = 0; j < HELD; j++)
            if (id[j] >= 0) f(j * THREADS + (int)threadIdx.x, id[j], w[j]);
        const int n = io.rows * io.width;
#pragma unroll 1
        for (int slot = HELD > 0 ? n : (int)threadIdx.x; slot < n; slot += THREADS) {
            int e = exf_fold_id(&io, slot, n_experts);
            if (e >= 0) f(slot, e, exf_fold_weight(&io, slot));
        }
    }
};

/* Shared memory adds 32-bit integers natively, 64-bit ones not: quanta, at most 2^36, are added
 * in parts that cannot overflow, two for as many slots as are held (2^11), else three. */
template <int HELD> __device__ inline void exf_fold_add(exf_fold_block_pool *p, int e, int64_t quantum)
{
    if (HELD > 0) {
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
    if (HELD > 0) return low + (int64_t)(int)p->part[1][e] * (1 << 20);
    return low + (int64_t)p->part[1][e] * (1 << 16) + (int64_t)(int)p->part[2][e] * (1ll << 31);
}

/* Adds up importance; returns how many experts are routed to. */
template <int THREADS, int HELD>
__device__ inline int exf_fold_add_up(exf_fold_block_pool *p, const exf_fold_slots<THREADS, HELD> &slots, const exf_fold_routes &io,
                                      int n_experts, exf_fold_importance kind)
{
    unsigned largest = 0;
    slots.each(io, n_experts, [&](int, int e, float w) {
        largest = max(largest, exf_bits_of(fabsf(exf_fold_term(kind, w, p->scale[e]))));
        p->present[e] = 1;
    });
    largest = ~exf_fold_warp_min(~largest);
    if (threadIdx.x % 32 == 0) atomicMax(&p->largest, largest);
    __syncthreads();
    double grid = exf_fold_grid(exf_float_of(p->largest));
    slots.each(io, n_experts,
               [&](int, int e, float w) { exf_fold_add<HELD>(p, e, exf_fold_quantum(exf_fold_term(kind, w, p->scale[e]), grid)); });
    return __syncthreads_count((int)threadIdx.x < n_experts && p->present[threadIdx.x]);
}

/* The warp's keys by falling value, a lane each. */
__device__ inline unsigned long long exf_fold_warp_sort(unsigned long long key)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int stride = size / 2; stride > 0; stride /= 2) {
            unsigned long long other = __shfl_xor_sync(0xffffffffu, key, stride);
            int wants_larger = ((lane & size) == 0 || size == 32) == ((lane & stride) == 0);
            key = (key > other) == wants_larger ? key : other;
        }
    return key;
}

/* How many of 32 falling keys are larger. */
__device__ inline int exf_fold_count_larger(const unsigned long long *list, unsigned long long key)
{
    int n = 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) n += list[n + step - 1] > key ? step : 0;
    return n + (list[n] > key);
}

/* expert[] and position[]: warps sort 32 keys each, then every key is looked up in every
 * list, by as many lanes as there are. */
template <int THREADS, int HELD> __device__ inline void exf_fold_order(exf_fold_block_pool *p, int n_experts)
{
    int thread = (int)threadIdx.x, lists = (n_experts + 31) / 32, share = 32, before = 0;
    if (thread < lists * 32) {
        unsigned long long key =
            thread < n_experts && p->present[thread] ? exf_fold_pool_key(exf_fold_added<HELD>(p, thread), thread) : 0;
        p->key[thread] = exf_fold_warp_sort(key);
        p->position[thread] = EXF_FOLD_MAX_E;
    }
    __syncthreads();
    while (share > 1 && lists * 32 * share > THREADS) share /= 2;
    unsigned long long mine = thread / share < lists * 32 ? p->key[thread / share] : 0;
    if (mine != 0)
        for (int list = thread % share; list < lists; list += share) before += exf_fold_count_larger(p->key + list * 32, mine);
    for (int step = share / 2; step > 0; step /= 2) before += __shfl_xor_sync(0xffffffffu, before, step);
    if (mine != 0 && thread % share == 0) {
        int e = exf_fold_pool_id(mine);
        p->position[e] = (int16_t)before;
        p->expert[before] = (int16_t)e;
    }
    __syncthreads();
}

/* Fills *p for the block and returns how many experts the batch routes to; 0 if that is
 * no more than the pool, and nothing is to be done.  Every thread calls. */
template <int THREADS, int HELD>
__device__ inline int exf_fold_block_choose(exf_fold_block_pool *p, exf_fold_slots<THREADS, HELD> *slots, const exf_fold_routes &io,
                                            const exf_fold_tables &t, const exf_fold_decode_options &o)
{
    static_assert(THREADS >= EXF_FOLD_MAX_E && (HELD == 0 || THREADS * HELD <= 2048),
                  "a thread for each expert, two parts of a sum");
    const float *scale = o.importance == EXF_FOLD_IMPORTANCE_ENERGY ? t.rms : t.norms;
    int e = (int)threadIdx.x;
    slots->read(io, t.n_experts);
    if (e < EXF_FOLD_MAX_E) {
        p->scale[e] = e < t.n_experts ? __ldg(scale + e) : 0;
        p->part[0][e] = p->part[1][e] = p->part[2][e] = 0;
        p->present[e] = 0;
    }
    if (e == 0) p->largest = 0;
    __syncthreads();
    int n_union = exf_fold_add_up(p, *slots, io, t.n_experts, o.importance);
    if (n_union <= o.pool) return 0;
    exf_fold_order<THREADS, HELD>(p, t.n_experts);
    return n_union;
}

/* For every expert outside the pool, by one thread: f(expert, target), the target being the
 * member of least cost(value in the expert's row of table [E, E]), ties to the more important;
 * NaN is no cost, and a member of cost INFINITY may be taken only where there is no other.
 * A warp looks for two at once, and has all its loads under way before it compares: they are
 * what takes time. */
template <int THREADS, class Cost, class F>
__device__ inline void exf_fold_find_targets(const exf_fold_block_pool *p, int n_union, int n_pool, const float *table,
                                             int n_experts, Cost cost, F f)
{
    enum { SOURCES = 2, LOADS = 8, WARPS = THREADS / 32, FAR = 32 * LOADS };
    int lane = (int)threadIdx.x % 32;
    for (int first = n_pool + (int)threadIdx.x / 32; first < n_union; first += WARPS * SOURCES) {
        int source[SOURCES], nearest[SOURCES];
        float least[SOURCES];
#pragma unroll
        for (int q = 0; q < SOURCES; q++) {
            source[q] = p->expert[first + q * WARPS < n_union ? first + q * WARPS : first]; /* one too many is looked at twice */
            least[q] = INFINITY;
            nearest[q] = EXF_FOLD_MAX_E;
        }
#pragma unroll 1
        for (int e0 = lane; e0 < n_experts; e0 += FAR) {
            float value[SOURCES][LOADS], least_here[SOURCES];
            int position[LOADS];
#pragma unroll
            for (int q = 0; q < SOURCES; q++)
#pragma unroll
                for (int j = 0; j < LOADS; j++)
                    value[q][j] = e0 + 32 * j < n_experts ? __ldg(table + source[q] * n_experts + e0 + 32 * j) : 0;
#pragma unroll
            for (int j = 0; j < LOADS; j++) position[j] = e0 + 32 * j < n_experts ? p->position[e0 + 32 * j] : EXF_FOLD_MAX_E;
#pragma unroll
            for (int q = 0; q < SOURCES; q++) {
                least_here[q] = INFINITY;
#pragma unroll
                for (int j = 0; j < LOADS; j++) {
                    value[q][j] = position[j] < n_pool ? cost(value[q][j]) : INFINITY;
                    least_here[q] = fminf(least_here[q], value[q][j]);
                }
                if (least_here[q] < least[q]) nearest[q] = EXF_FOLD_MAX_E;
                least[q] = fminf(least_here[q], least[q]);
#pragma unroll
                for (int j = 0; j < LOADS; j++)
                    if (value[q][j] == least[q]) nearest[q] = min(nearest[q], position[j]);
            }
        }
        int to = 0;
#pragma unroll
        for (int q = 0; q < SOURCES; q++) {
            unsigned own = (unsigned)exf_fold_ordered(least[q]) ^ 0x80000000u, all = exf_fold_warp_min(own);
            unsigned best = exf_fold_warp_min(own == all ? (unsigned)nearest[q] : EXF_FOLD_MAX_E);
            if (lane == q && best < EXF_FOLD_MAX_E) to = (int)best;
        }
        if (lane < SOURCES && first + lane * WARPS < n_union) f(lane == 0 ? source[0] : source[1], p->expert[to]);
    }
}
#endif
