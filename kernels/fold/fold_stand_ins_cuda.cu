/* fold_stand_ins_cuda.cu - see exfold/fold.h: a warp per token, whose lanes share the experts' scores
 * out; then the slots in W lanes, as in fold_joint_cuda.cu, computed alike by the warp's sub-warps.
 *
 * A pool by batch is chosen by every block of a cluster; no block writes before all have read.  With
 * given members every block has some of the rows.
 *
 * Bytes of a row: its E scores, 2 or 4 each; 256 rows of E 128 are 131 KB in float32.  Measured 22.5 us of [256, 8] with half
 * of the experts, 2.58 times the joint form, by the build of which docs/performance.md ("Budgets per token and stand-ins") tells;
 * since then slots are put in order by score, which is not in it. */
#include "kernels/fold/fold_lanes.cuh"
#include "kernels/fold/fold_pool.cuh"

enum { CLUSTER = 8, LOADS = EXF_FOLD_MAX_E / 32, MOST_BLOCKS = 1024 };

/* The experts that may run, in shared memory. */
struct pool_set {
    unsigned char inside[EXF_FOLD_MAX_E];
    int first;
};

/* Fills key[j] of expert lane + 32 j: 0 where it cannot stand in. */
template <int W>
static __device__ __forceinline__ void find_keys(uint32_t (&key)[LOADS], const exf_fold_lane &s, const pool_set *set,
                                                 const exf_fold_scores &scores, int64_t row, int n_experts)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        int e = lane + 32 * j;
        key[j] = e < n_experts && set->inside[e]
                     ? exf_fold_score_key(exf_fold_real_at(scores.choice, scores.type, row * n_experts + e))
                     : 0;
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        int held = __shfl_sync(EXF_FOLD_WARP, s.id, k, W);
#pragma unroll
        for (int j = 0; j < LOADS; j++) key[j] = held == lane + 32 * j ? 0 : key[j];
    }
}

/* Takes the expert of the warp's largest key out of the keys, ties to the lower id; -1: none is left. */
static __device__ __forceinline__ int take_best(uint32_t (&key)[LOADS])
{
    uint32_t most = 0;
    int e = EXF_FOLD_MAX_E, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < LOADS; j++)
        if (key[j] > most) {
            most = key[j];
            e = lane + 32 * j;
        }
    uint32_t all = ~exf_fold_warp_min(~most);
    e = (int)exf_fold_warp_min(all > 0 && most == all ? (unsigned)e : (unsigned)EXF_FOLD_MAX_E);
    if (all == 0) return -1;
#pragma unroll
    for (int j = 0; j < LOADS; j++) key[j] = e == lane + 32 * j ? 0 : key[j];
    return e;
}

/* Returns how many of the movers take their stand-ins before this lane's slot; see exf_fold_stands_before(). */
template <int W>
static __device__ __forceinline__ int place_of(const exf_fold_lane &s, unsigned movers, const exf_fold_scores &scores, int64_t row,
                                               int n_experts)
{
    int place = 0, moved = movers >> s.lane & 1;
    uint32_t key = moved ? exf_fold_score_key(exf_fold_real_at(scores.choice, scores.type, row * n_experts + s.id)) : 0;
#pragma unroll
    for (int k = 0; k < W; k++) {
        uint32_t other_key = __shfl_sync(EXF_FOLD_WARP, key, k, W);
        int other = __shfl_sync(EXF_FOLD_WARP, s.id, k, W);
        int before = exf_fold_stands_before(other_key, other, key, s.id) || (other_key == key && other == s.id && k < s.lane);
        place += (movers >> k & 1) && before;
    }
    return place;
}

/* Sums v over the lanes in `used`, in order; every lane gets the sum. */
template <int W> static __device__ __forceinline__ float sum_of(float v, unsigned used)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < W; i++) {
        float other = __shfl_sync(EXF_FOLD_WARP, v, i, W);
        if (used >> i & 1) sum = exf_addf(sum, other);
    }
    return sum;
}

/* Returns the slot's weight; *all 1: kept slots have a new one too. */
template <int W>
static __device__ __forceinline__ float weigh_jointly(int *all, const exf_fold_routes &io, const exf_fold_lane &s, int id,
                                                      int moved, unsigned movers, const exf_fold_tables &t, double rho)
{
    unsigned exist = exf_fold_vote<W>(id >= 0);
    float was = exf_fold_lane_norm(io, s, exf_fold_gram_norms(&t)),
          norm = moved && id >= 0 ? exf_fold_stand_in_norm(&io, &t, id, s.id, was) : was;
    exf_fold_system<W> y = exf_fold_begin<W>(s, id, norm, exist);
    *all = exf_fold_solve(&y, t, s.id, was, s.w, movers, rho);
    float k = moved ? 0.0f : s.w;
    if (id < 0) return k;
    if (*all) return (float)exf_addd(k, y.right);
    return moved ? exf_fold_by_pair(&t, s.w, (size_t)s.id * (size_t)t.n_experts + (size_t)id) : k;
}

template <int W>
static __device__ __forceinline__ float weigh_by_gate(int *all, const exf_fold_lane &s, int id, int moved, int64_t row,
                                                      const exf_fold_scores &scores, int n_experts, int renormalises)
{
    const void *gate = scores.gate ? scores.gate : scores.choice;
    unsigned used = exf_fold_vote<W>(s.id >= 0);
    float w = s.w, old = s.id < 0 ? 0 : exf_fold_real_at(gate, scores.type, row * n_experts + s.id),
          own = id < 0 ? 0 : exf_fold_real_at(gate, scores.type, row * n_experts + id);
    float before = sum_of<W>(s.w, used), factor = exf_fold_gate_factor(before, sum_of<W>(old, used));
    if (moved) w = id < 0 ? 0.0f : exf_mulf(factor, own);
    float after = sum_of<W>(w, used);
    *all = renormalises;
    return renormalises ? exf_mulf(w, exf_fold_rescale_factor(EXF_FOLD_RESCALE_SUM, before, after)) : w;
}

/* Rewrites a row; every lane of the warp has the same row. */
template <int W>
static __device__ __forceinline__ void stand_in_row(const exf_fold_routes &io, int64_t row, const pool_set *set,
                                                    const exf_fold_scores &scores, const exf_fold_tables &t,
                                                    const exf_fold_stand_in_options &o)
{
    exf_fold_lane s = exf_fold_read_lane<W>(io, row, t.n_experts);
    int moved = s.id >= 0 && !set->inside[s.id], id = moved ? -1 : s.id, all;
    unsigned movers = exf_fold_vote<W>(moved);
    if (movers == 0) return;
    uint32_t key[LOADS];
    find_keys<W>(key, s, set, scores, row, t.n_experts);
    int place = place_of<W>(s, movers, scores, row, t.n_experts);
#pragma unroll 1
    for (int k = 0, n = __popc(movers); k < n; k++) {
        int best = take_best(key);
        if (moved && place == k) id = best;
    }
    float w = o.weights == EXF_FOLD_STAND_INS_JOINT
                  ? weigh_jointly<W>(&all, io, s, id, moved, movers, t, o.ridge)
                  : weigh_by_gate<W>(&all, s, id, moved, row, scores, t.n_experts, o.weights == EXF_FOLD_STAND_INS_ROUTE);
    if (s.id < 0 || threadIdx.x % 32 >= W) return;
    if (moved) exf_fold_set_id(&io, row * io.width + s.lane, id < 0 ? set->first : id);
    if (moved || all) exf_fold_set_weight(&io, row * io.width + s.lane, w);
}

/* Returns the scores of this grid row's batch. */
static __device__ __forceinline__ exf_fold_scores scores_of_batch(exf_fold_scores s, const exf_fold_batches &b, int n_experts)
{
    if (!b.first) return s;
    size_t bytes = (b.first[blockIdx.y] - b.base) * (size_t)n_experts * (s.type == EXF_FOLD_F32 ? 4 : 2);
    s.choice = (const char *)s.choice + bytes;
    if (s.gate) s.gate = (const char *)s.gate + bytes;
    return s;
}

/* Rewrites the grid's rows, one in each warp at a time. */
template <int W>
static __device__ __forceinline__ void stand_in_rows(const exf_fold_routes &io, const pool_set *set, const exf_fold_scores &scores,
                                                     const exf_fold_tables &t, const exf_fold_stand_in_options &o)
{
    for (int64_t row = blockIdx.x * EXF_FOLD_WARPS + threadIdx.x / 32; row < io.rows; row += gridDim.x * EXF_FOLD_WARPS)
        stand_in_row<W>(io, row, set, scores, t, o);
}

template <int W>
static __global__ void __launch_bounds__(EXF_FOLD_THREADS, 1)
    stand_ins_by_batch(const exf_fold_routes routes, const exf_fold_scores all, const exf_fold_tables t,
                       const exf_fold_stand_in_options o, const exf_fold_batches batches)
{
    const exf_fold_routes io = exf_fold_batch(routes, batches);
    const exf_fold_scores scores = scores_of_batch(all, batches, t.n_experts);
    __shared__ exf_fold_block_pool pool;
    __shared__ pool_set set;
    exf_fold_slots<0> slots;
    exf_fold_decode_options by_batch = {};
    by_batch.pool = o.pool;
    by_batch.importance = o.importance;
    if (exf_fold_block_choose(&pool, slots, io, t, by_batch) == 0) return; /* true in every block or none */
    set.inside[threadIdx.x] = pool.position[threadIdx.x] < o.pool;
    if (threadIdx.x == 0) set.first = pool.expert[0];
    __syncthreads();
    exf_fold_cluster_arrive_reader(); /* the slots are read */
    exf_fold_cluster_wait();
    stand_in_rows<W>(io, &set, scores, t, o);
}

template <int W>
static __global__ void __launch_bounds__(EXF_FOLD_THREADS, 1)
    stand_ins_given(const exf_fold_routes io, const exf_fold_scores scores, const int32_t *members, const exf_fold_tables t,
                    const exf_fold_stand_in_options o)
{
    __shared__ pool_set set;
    set.inside[threadIdx.x] = 0;
    __syncthreads();
    int e = (int)threadIdx.x < o.pool ? __ldg(members + threadIdx.x) : -1; /* D <= E <= the block's threads */
    int known = e >= 0 && e < t.n_experts;
    if (known) set.inside[e] = 1;
    if (threadIdx.x == 0) set.first = known ? e : -1;
    __syncthreads();
    stand_in_rows<W>(io, &set, scores, t, o);
}

exf_fold_status exf_fold_decode_stand_ins_cuda(const exf_fold_routes *io, const exf_fold_scores *s, const int32_t *members,
                                               const exf_fold_tables *t, const exf_fold_stand_in_options *o, void *stream)
{
    exf_fold_stand_in_options settled;
    exf_fold_status status = exf_fold_check_stand_ins(&settled, io, s, members, t, o);
    if (status != EXF_FOLD_OK || io->rows == 0) return status;
    int wide = io->width > 8;
    if (members) {
        int64_t blocks = ((int64_t)io->rows + EXF_FOLD_WARPS - 1) / EXF_FOLD_WARPS;
        return exf_fold_launch(wide ? stand_ins_given<16> : stand_ins_given<8>,
                               (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), EXF_FOLD_THREADS, 1, stream, *io, *s,
                               members, *t, settled);
    }
    if (io->rows * io->width <= settled.pool) return EXF_FOLD_OK;
    unsigned cluster = exf_fold_has_clusters(wide ? (const void *)stand_ins_by_batch<16> : (const void *)stand_ins_by_batch<8>)
                           ? CLUSTER
                           : 1;
    return exf_fold_launch(wide ? stand_ins_by_batch<16> : stand_ins_by_batch<8>, cluster, EXF_FOLD_THREADS, cluster, stream, *io,
                           *s, *t, settled, exf_fold_batches{});
}

exf_fold_status exf_fold_decode_stand_ins_batches_cuda(const exf_fold_routes *io, const exf_fold_scores *s,
                                                       const exf_fold_batches *b, int n, const exf_fold_tables *t,
                                                       const exf_fold_stand_in_options *o, void *stream)
{
    exf_fold_stand_in_options settled;
    exf_fold_status status = exf_fold_check_stand_ins(&settled, io, s, NULL, t, o);
    if (status != EXF_FOLD_OK || n == 0) return status;
    dim3 grid(1, (unsigned)n);
    if (io->width > 8)
        stand_ins_by_batch<16><<<grid, EXF_FOLD_THREADS, 0, (cudaStream_t)stream>>>(*io, *s, *t, settled, *b);
    else
        stand_ins_by_batch<8><<<grid, EXF_FOLD_THREADS, 0, (cudaStream_t)stream>>>(*io, *s, *t, settled, *b);
    return cudaGetLastError() == cudaSuccess ? EXF_FOLD_OK : EXF_FOLD_DEVICE;
}
