/* fold_joint_cuda.cu - the joint forms and the budgets of exfold/fold.h: a sub-warp of 8 or 16 lanes per token, a lane per
 * slot and row of its system.
 *
 * Prefill: four tokens of 8 lanes a warp, 128 threads a block.  Bytes of a token: K ids and weights read, P written, and
 * K (K + 1) / 2 cosines from a table of 4 E E that stays in the cache; 8192 tokens of K 8 to 4 are 0.8 MB, 0.2 us at
 * 4.2 TB/s.  It takes 5.86 us (E 128, docs/performance.md), an empty kernel 1.15: the rest is the chain of double
 * products and exchanges of a system.
 *
 * Decode: every block of a cluster of eight reads the whole batch and chooses the same pool; targets and rows are shared out
 * among the blocks, and blocks send each other the targets.  While these are on their way a row's cosines are fetched that no
 * target changes; no block writes before it has all, and so before all have read.  256 rows of 8: 7.55 us at E 128. */
#include "kernels/fold/fold_lanes.cuh"
#include "kernels/fold/fold_pool.cuh"

/* ---- prefill, P fixed --------------------------------------------------------------------------- */

enum { PREFILL_THREADS = 128 };

template <int W>
static __global__ void __launch_bounds__(PREFILL_THREADS)
    prefill_joint(const exf_fold_routes in, const exf_fold_routes out, const exf_fold_tables t, const exf_fold_prefill_options o)
{
    int64_t row = ((int64_t)blockIdx.x * PREFILL_THREADS + threadIdx.x) / W;
    exf_fold_lane s = exf_fold_read_lane<W>(in, row, t.n_experts);
    float h = o.rank == EXF_FOLD_BY_SCORE ? 0.0f : exf_fold_lane_norm(in, s, t.norms);
    exf_fold_permute<W>(&s, s.id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(o.rank, s.w, h));
    unsigned valid = exf_fold_vote<W>(s.id >= 0), kept = exf_fold_vote<W>(s.id >= 0 && s.lane < o.keep);
    float w = s.w;
    if (__any_sync(EXF_FOLD_WARP, valid != kept)) {
        float norm = exf_fold_lane_norm(in, s, exf_fold_gram_norms(&t));
        exf_fold_system<W> y = exf_fold_begin<W>(s, s.id, norm, kept);
        int solved = exf_fold_solve(&y, t, s.id, norm, s.w, valid & ~kept, o.ridge);
        if (solved && valid != kept && s.lane < o.keep) w = (float)exf_addd(s.w, y.right);
        if (__any_sync(EXF_FOLD_WARP, !solved)) { /* tables that no solver made valid */
            float paired = exf_fold_to_likest<W>(s, s.w, __popc(kept), __popc(valid), t);
            if (!solved) w = paired;
        }
    }
    if (o.rescale != EXF_FOLD_RESCALE_NONE) {
        float before = exf_fold_lane_sum<W>(s.w, __popc(valid), o.rescale),
              after = exf_fold_lane_sum<W>(w, __popc(kept), o.rescale);
        if (kept >> s.lane & 1) w = exf_mulf(w, exf_fold_rescale_factor(o.rescale, before, after));
    }
    exf_fold_write_lane<W>(out, row, in, s, w, o);
}

exf_fold_status exf_fold_prefill_joint_cuda(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                            const exf_fold_prefill_options *o, void *stream)
{
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 1);
    if (status != EXF_FOLD_OK || in->rows == 0) return status;
    int lanes = in->width > 8 ? 16 : 8;
    unsigned blocks = (unsigned)(((int64_t)in->rows * lanes + PREFILL_THREADS - 1) / PREFILL_THREADS);
    return exf_fold_launch(lanes == 8 ? prefill_joint<8> : prefill_joint<16>, blocks, PREFILL_THREADS, 1, stream, *in, *out, *t,
                           settled);
}

/* ---- prefill by a budget ------------------------------------------------------------------
 * Lane j holds row j of L and, above the diagonal, column j: what the sums over later routes read.  The choice of P is
 * computed by every lane alike. */

/* Returns the P of least residual + penalty P, from the last to the first, so that ties go to the smaller. */
template <int W>
static __device__ __forceinline__ int choose_by_residual(const exf_fold_system<W> &y, float w, int factored, int n,
                                                         const exf_fold_budget_options &o)
{
    int low = min(o.least, n), best = min(o.most, n);
    double sum = w, residual = 0, cost = 0, term;
#pragma unroll
    for (int i = 1; i < W; i++) {
        float other = __shfl_sync(EXF_FOLD_WARP, w, i, W);
        if (i > y.lane && i < n) sum = exf_addd(sum, exf_muld(y.a[i], other));
    }
    term = factored ? exf_fold_residual_term(y.d, sum, y.ridge, w) : 0;
#pragma unroll
    for (int p = W; p >= 1; p--) {
        double part = p < W ? __shfl_sync(EXF_FOLD_WARP, term, p & (W - 1), W) : 0;
        if (p < n) residual = factored ? exf_addd(part, residual) : 0;
        double mine = exf_fold_budget_cost(residual, o.penalty, p);
        if (p == min(o.most, n)) cost = mine;
        int better = p < min(o.most, n) && p >= low && mine <= cost;
        cost = better ? mine : cost;
        best = better ? p : best;
    }
    return best;
}

/* Returns the least P whose routes have the share of all w n. */
template <int W>
static __device__ __forceinline__ int choose_by_share(const exf_fold_lane &s, double norm, int n, const exf_fold_budget_options &o)
{
    double part = exf_muld(s.w, norm), all = 0, sum = 0;
    int high = min(o.most, n), best = high;
#pragma unroll
    for (int i = 0; i < W; i++) {
        double other = __shfl_sync(EXF_FOLD_WARP, part, i, W);
        if (i < n) all = exf_addd(all, other);
    }
    double wanted = exf_muld(o.share, all);
#pragma unroll
    for (int p = 1; p <= W; p++) {
        double other = __shfl_sync(EXF_FOLD_WARP, part, p - 1, W);
        if (p <= n) sum = exf_addd(sum, other);
        if (best == high && p >= min(o.least, n) && p < high && sum >= wanted) best = p;
    }
    return best;
}

/* Returns this lane's weight beside the first p routes: w_B + L_BB'^-1 L_OB' w_O. */
template <int W> static __device__ __forceinline__ float join_omitted(const exf_fold_system<W> &y, float w, int p, int n)
{
    double x = 0;
#pragma unroll
    for (int i = 1; i < W; i++) {
        float other = __shfl_sync(EXF_FOLD_WARP, w, i, W);
        if (i >= p && i < n && i > y.lane) x = exf_addd(x, exf_muld(y.a[i], other));
    }
#pragma unroll
    for (int k = W - 1; k >= 1; k--) {
        double known = __shfl_sync(EXF_FOLD_WARP, x, k, W);
        if (k < p && y.lane < k) x = exf_addd(x, -exf_muld(y.a[k], known));
    }
    return (float)exf_addd(w, x);
}

template <int W>
static __global__ void __launch_bounds__(PREFILL_THREADS)
    prefill_budget(const exf_fold_routes in, const exf_fold_routes out, int32_t *kept, const exf_fold_tables t,
                   const exf_fold_budget_options o)
{
    int64_t row = ((int64_t)blockIdx.x * PREFILL_THREADS + threadIdx.x) / W;
    exf_fold_lane s = exf_fold_read_lane<W>(in, row, t.n_experts);
    s.norm = exf_fold_lane_norm(in, s, t.rms); /* a budget's G has rms */
    exf_fold_permute<W>(&s, s.id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(EXF_FOLD_BY_SCORE_NORM, s.w, s.norm));
    unsigned valid = exf_fold_vote<W>(s.id >= 0);
    int n = __popc(valid), p = 0;
    float w = s.w;
    if (__any_sync(EXF_FOLD_WARP, n > 0)) {
        exf_fold_system<W> y = exf_fold_begin<W>(s, s.id, s.norm, valid);
        exf_fold_cosines<W> cosines = {};
        exf_fold_fetch(&cosines, t, y.id, y.id >= 0 ? valid & ((1u << y.lane) - 1) : 0, y.id >= 0);
        int factored = exf_fold_factor_raised<W, 0>(&y, cosines, o.ridge);
        p = o.rule == EXF_FOLD_BUDGET_TOKEN ? choose_by_residual<W>(y, s.w, factored, n, o) : choose_by_share<W>(s, y.norm, n, o);
        float joined = join_omitted<W>(y, s.w, p, n);
        if (factored && p < n) w = joined;
        if (__any_sync(EXF_FOLD_WARP, !factored)) {
            float paired = exf_fold_to_likest<W>(s, s.w, p, n, t);
            if (!factored) w = paired;
        }
    }
    int64_t first = __shfl_sync(EXF_FOLD_WARP, s.raw, 0, W);
    if (row >= in.rows) return;
    if (s.lane == 0 && kept) kept[row] = p;
    if (s.lane >= out.width) return;
    int as_it_is = o.padding && !exf_fold_counts(&in, row); /* its lanes are in order: none has a rank */
    int named = o.repeat && first >= 0 && first < t.n_experts; /* with P = 0 it is padding that names one */
    exf_fold_set_id(&out, row * out.width + s.lane, s.lane < p || as_it_is ? s.raw : named ? first : -1);
    exf_fold_set_weight(&out, row * out.width + s.lane, s.lane < p || as_it_is ? w : 0.0f);
}

exf_fold_status exf_fold_prefill_budget_cuda(const exf_fold_routes *in, const exf_fold_routes *out, int32_t *kept,
                                             const exf_fold_tables *t, const exf_fold_budget_options *o, void *stream)
{
    exf_fold_budget_options settled;
    exf_fold_status status = exf_fold_check_budget(&settled, in, out, kept, t, o);
    if (status != EXF_FOLD_OK || in->rows == 0) return status;
    int lanes = in->width > 8 ? 16 : 8;
    unsigned blocks = (unsigned)(((int64_t)in->rows * lanes + PREFILL_THREADS - 1) / PREFILL_THREADS);
    return exf_fold_launch(lanes == 8 ? prefill_budget<8> : prefill_budget<16>, blocks, PREFILL_THREADS, 1, stream, *in, *out, kept,
                           *t, settled);
}

/* ---- decode ---------------------------------------------------------------------------- */

enum { CLUSTER = 8 };

/* Sends target[e] to every block of the cluster; its row of cosines is loaded.  Of an expert in the pool it is -1.  The warp has
 * one e; the vote shows the compiler that its lanes go the same way. */
template <int CLUSTERED, int LOADS>
static __device__ __forceinline__ void send_target(int *target, exf_fold_mbarrier *stored, int e, const exf_fold_block_pool *pool,
                                                   const int (&position)[LOADS], const float (&cosine)[LOADS], int n_pool)
{
    int own = pool->position[e], to = -1;
    if (__any_sync(EXF_FOLD_WARP, own >= n_pool && own != EXF_FOLD_MAX_E))
        to = pool->expert[exf_fold_nearest(cosine, position, n_pool, [](float c) { return fminf(-fabsf(c), 0); })]; /* NaN: 0 */
    exf_fold_store_async<CLUSTERED>(stored, target + e, to);
}

/* A row while targets are on their way. */
template <int W> struct begun_row {
    exf_fold_cosines<W> cosines;
    unsigned used, movers;
    int moved;
    float was; /* the norm of the slot's expert */
};

/* Starts loading the cosines of a row that no target changes. */
template <int W>
static __device__ __forceinline__ begun_row<W> begin_row(const exf_fold_routes &io, const exf_fold_lane &s,
                                                         const exf_fold_block_pool *pool, int n_pool, const exf_fold_tables &t)
{
    begun_row<W> r = {};
    r.moved = s.id >= 0 && pool->position[s.id] >= n_pool;
    r.used = exf_fold_vote<W>(s.id >= 0);
    r.movers = exf_fold_vote<W>(r.moved);
    if (!__any_sync(EXF_FOLD_WARP, r.movers)) return r;
    int stays = s.id >= 0 && !r.moved;
    r.was = exf_fold_lane_norm(io, s, exf_fold_gram_norms(&t));
    exf_fold_fetch(&r.cosines, t, s.id, stays ? r.used & ~r.movers & ((1u << s.lane) - 1) : 0, stays);
    exf_fold_fetch_away(&r.cosines, t, s.id, stays, s.id, r.movers);
    return r;
}

/* Rewrites the row's slots, one in each lane: remapped slots take their targets, and all get new weights. */
template <int W>
static __device__ __forceinline__ void join_row(const exf_fold_routes &io, const exf_fold_lane &s, begun_row<W> *r, int64_t row,
                                                const int *target, const exf_fold_tables &t, double rho)
{
    if (!__any_sync(EXF_FOLD_WARP, r->movers)) return;
    int id = r->moved ? target[s.id] : s.id;
    exf_fold_fetch(&r->cosines, t, id, s.id < 0 ? 0 : (r->moved ? r->used : r->movers) & ((1u << s.lane) - 1), r->moved);
    exf_fold_fetch_away(&r->cosines, t, id, r->moved, s.id, r->movers);
    float norm = r->moved ? exf_fold_stand_in_norm(&io, &t, id, s.id, r->was) : r->was;
    exf_fold_system<W> y = exf_fold_begin<W>(s, id, norm, r->used);
    int solved = exf_fold_solve_fetched(&y, r->cosines, r->was, s.w, r->movers, rho); /* the kept slots' own terms cancel */
    if (s.id < 0 || r->movers == 0) return;
    size_t pair = (size_t)s.id * (size_t)t.n_experts + (size_t)id;
    float w = solved ? (float)exf_addd(r->moved ? 0 : s.w, y.right) : exf_fold_by_pair(&t, s.w, pair);
    if (r->moved) exf_fold_set_id(&io, row * io.width + s.lane, id);
    if (r->moved || solved) exf_fold_set_weight(&io, row * io.width + s.lane, w);
}

/* This thread's first row of the batch: warps of rows go to the blocks in turns, so that all multiprocessors solve. */
template <int W> static __device__ __forceinline__ int first_row(void)
{
    int warp = (int)threadIdx.x / 32 * (int)gridDim.x + (int)blockIdx.x;
    return (warp * 32 + (int)threadIdx.x % 32) / W;
}

/* Returns the slots as what most engines have, so that nothing is asked at each of them; 0: they are something else. */
static __device__ __forceinline__ int are_common(exf_fold_routes *common, const exf_fold_routes &io)
{
    *common = exf_fold_typed<EXF_FOLD_I32, EXF_FOLD_F32>(io);
    common->count = nullptr;
    common->mask = nullptr;
    return io.id_type == EXF_FOLD_I32 && io.weight_type == EXF_FOLD_F32 && !io.count && !io.mask;
}

/* Chooses the pool and rewrites the batch.  ROWS of cosines a warp: the cluster loads all it needs
 * at the start; ROWS 1: one block loads row after row.  HELD: registers hold the slots while the pool is chosen. */
template <int W, int ROWS, int LOADS, int HELD>
static __global__ void __launch_bounds__(EXF_FOLD_THREADS, 1)
    decode_joint(const exf_fold_routes routes, const exf_fold_tables t, const exf_fold_decode_options o,
                 const exf_fold_batches batches)
{
    const exf_fold_routes io = exf_fold_batch(routes, batches);
    enum { CLUSTERED = ROWS > 1 };
    __shared__ exf_fold_block_pool pool;
    __shared__ exf_fold_mbarrier stored;
    __shared__ int target[EXF_FOLD_MAX_E];
    exf_fold_slots<HELD> slots;
    exf_fold_rows<ROWS, LOADS> cosine;
    exf_fold_routes common;
    exf_fold_mbarrier_init<CLUSTERED>(&stored, t.n_experts);
    exf_fold_cluster_arrive_reader(); /* this block runs, so others may write to its shared memory */
    if (are_common(&common, io))
        slots.read(common, t.n_experts);
    else
        slots.read(io, t.n_experts);
    if (ROWS > 1) cosine.load(t.cosine, t.n_experts, exf_fold_first_expert());
    int position[LOADS], row = first_row<W>();
    exf_fold_lane s = exf_fold_read_lane<W>(io, row, t.n_experts);
    int n_union = exf_fold_block_choose(&pool, slots, io, t, o);
    exf_fold_cluster_wait();
    if (n_union == 0) return; /* true in every block or none */
    exf_fold_positions(position, &pool, t.n_experts);
#pragma unroll
    for (int q = 0; q < ROWS && ROWS > 1; q++) {
        int e = exf_fold_first_expert() + q * exf_fold_expert_stride();
        if (__any_sync(EXF_FOLD_WARP, e < t.n_experts))
            send_target<CLUSTERED>(target, &stored, e, &pool, position, cosine.value[q], o.pool);
    }
    for (int e = exf_fold_first_expert(); ROWS == 1 && __any_sync(EXF_FOLD_WARP, e < t.n_experts); e += exf_fold_expert_stride()) {
        cosine.load(t.cosine, t.n_experts, e);
        send_target<CLUSTERED>(target, &stored, e, &pool, position, cosine.value[0], o.pool);
    }
    exf_fold_end_stores<CLUSTERED>();
    while (__any_sync(EXF_FOLD_WARP, row < io.rows)) {
        begun_row<W> r = begin_row<W>(io, s, &pool, o.pool, t);
        exf_fold_mbarrier_wait<CLUSTERED>(&stored); /* then every block has sent, and so has read, all */
        join_row<W>(io, s, &r, row, target, t, o.ridge);
        row += (int)gridDim.x * EXF_FOLD_THREADS / W;
        s = exf_fold_read_lane<W>(io, row, t.n_experts);
    }
    exf_fold_mbarrier_wait<CLUSTERED>(&stored); /* others may write to this block's memory until all has come */
}

exf_fold_status exf_fold_decode_joint_cuda(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o,
                                           void *stream)
{
    typedef void (*kernel)(exf_fold_routes, exf_fold_tables, exf_fold_decode_options, exf_fold_batches);
    static const kernel clustered[2][3] = {{decode_joint<8, 2, 8, 1>, decode_joint<8, 4, 16, 1>, decode_joint<8, 4, 16, 0>},
                                           {decode_joint<16, 2, 8, 1>, decode_joint<16, 4, 16, 1>, decode_joint<16, 4, 16, 0>}},
                        alone[2] = {decode_joint<8, 1, 16, 0>, decode_joint<16, 1, 16, 0>};
    exf_fold_decode_options settled;
    exf_fold_status status = exf_fold_check_decode(&settled, io, t, o, 1);
    int slots = status == EXF_FOLD_OK ? io->rows * io->width : 0;
    if (slots == 0 || exf_fold_fits(slots, &settled)) return status;
    int wide = io->width > 8;
    kernel k = clustered[wide][slots > EXF_FOLD_HELD_SLOTS ? 2 : t->n_experts > 256];
    if (!exf_fold_has_clusters((const void *)k))
        return exf_fold_launch(alone[wide], 1, EXF_FOLD_THREADS, 1, stream, *io, *t, settled, exf_fold_batches{});
    return exf_fold_launch(k, CLUSTER, EXF_FOLD_THREADS, CLUSTER, stream, *io, *t, settled, exf_fold_batches{});
}

exf_fold_status exf_fold_decode_joint_batches_cuda(const exf_fold_routes *io, const exf_fold_batches *b, int n,
                                                   const exf_fold_tables *t, const exf_fold_decode_options *o, void *stream)
{
    exf_fold_decode_options settled;
    exf_fold_status status = exf_fold_check_decode(&settled, io, t, o, 1);
    if (status != EXF_FOLD_OK || n == 0) return status;
    dim3 grid(1, (unsigned)n);
    cudaStream_t s = (cudaStream_t)stream;
    if (io->width > 8)
        decode_joint<16, 1, 16, 0><<<grid, EXF_FOLD_THREADS, 0, s>>>(*io, *t, settled, *b);
    else
        decode_joint<8, 1, 16, 0><<<grid, EXF_FOLD_THREADS, 0, s>>>(*io, *t, settled, *b);
    return cudaGetLastError() == cudaSuccess ? EXF_FOLD_OK : EXF_FOLD_DEVICE;
}
