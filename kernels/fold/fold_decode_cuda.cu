/* fold_decode_cuda.cu - see exfold/fold.h: every block of a cluster reads the whole batch and
 * chooses the same pool; the experts outside are shared out among the blocks, and with
 * them the slots to rewrite.  No block writes before all have read.
 *
 * The kernel is bound by the latency of loading the slots and then the losses.  So each
 * warp loads its experts' rows while the pool is being chosen.  512 threads a block, 2 or 4 rows of losses a warp; 256 rows
 * of 8 slots and E 128 are 16 KB of slots and 128 KB of tables: 0.03 us at 4.2 TB/s. */
#include "kernels/fold/fold_pool.cuh"

/* Finds target[e] and scale[e] if e is outside the pool.  Its losses are loaded; its coefficients are if COEFF_ROW. */
template <int COEFF_ROW, int LOADS>
static __device__ __forceinline__ void
find_target(int16_t *target, float *scale, int e, const exf_fold_block_pool *pool, const int (&position)[LOADS],
            const float (&loss)[LOADS], const float (&coeff)[LOADS], const exf_fold_tables &t, const exf_fold_decode_options &o)
{
    int lane = (int)threadIdx.x % 32, own = pool->position[e], to = -1;
    if (own < o.pool || own == EXF_FOLD_MAX_E) return; /* kept, or no candidate */
    float l = EXF_FOLD_NEVER, s = 0;
    int nearest = exf_fold_nearest(loss, position, o.pool, [](float x) { return x; });
#pragma unroll
    for (int j = 0; j < LOADS; j++)
        if (position[j] == nearest && nearest < o.pool) { /* true in one lane, once */
            to = lane + 32 * j;
            l = loss[j];
            s = coeff[j];
        }
    if (to < 0 && !(lane == 0 && nearest >= o.pool)) return;
    int none = !exf_fold_may_take(l, o.max_loss); /* the least loss is not allowed, or there is no loss */
    if (none) to = pool->expert[0];
    if (none || !COEFF_ROW) s = none && !o.fallback ? 0.0f : __ldg(t.coeff + e * t.n_experts + to);
    target[e] = (int16_t)to;
    scale[e] = o.drop ? 0.0f : s;
}

/* Rewrites slots outside the pool to (target, w scale), in the block that found the target. */
template <int HELD>
static __device__ __forceinline__ void rewrite(const exf_fold_routes &io, const exf_fold_slots<HELD> &slots,
                                               const exf_fold_block_pool *pool, const int16_t *target, const float *scale,
                                               const exf_fold_tables &t, const exf_fold_decode_options &o)
{
    int others = (int)gridDim.x - 1; /* 2^n blocks */
    slots.each(io, t.n_experts, [&](int slot, int e, float w) {
        if (pool->position[e] < o.pool || pool->position[e] == EXF_FOLD_MAX_E || (e & others) != (int)blockIdx.x) return;
        exf_fold_set_id(&io, slot, target[e]);
        exf_fold_set_weight(&io, slot, scale[e] == 0 ? 0.0f : exf_mulf(w, scale[e]));
    });
}

/* Loads all rows at the start: ROWS of losses a warp, and of coefficients if registers allow. */
template <exf_fold_int I, exf_fold_real R, int ROWS, int LOADS>
static __global__ void __launch_bounds__(EXF_FOLD_THREADS, 1)
    decode(const exf_fold_routes routes, const exf_fold_tables t, const exf_fold_decode_options o)
{
    enum { COEFF_ROW = ROWS * LOADS <= 16 };
    __shared__ exf_fold_block_pool pool;
    __shared__ int16_t target[EXF_FOLD_MAX_E];
    __shared__ float scale[EXF_FOLD_MAX_E];
    const exf_fold_routes io = exf_fold_typed<I, R>(routes);
    exf_fold_slots<1> slots;
    exf_fold_rows<ROWS, LOADS> loss, coeff = {};
    slots.read(io, t.n_experts);
    loss.load(t.loss, t.n_experts, exf_fold_first_expert());
    if (COEFF_ROW) coeff.load(t.coeff, t.n_experts, exf_fold_first_expert());
    int n_union = exf_fold_block_choose(&pool, slots, io, t, o), position[LOADS];
    exf_fold_cluster_arrive_reader();
    if (n_union > 0) {
        exf_fold_positions(position, &pool, t.n_experts);
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            int e = exf_fold_first_expert() + q * exf_fold_expert_stride();
            if (e < t.n_experts) find_target<COEFF_ROW>(target, scale, e, &pool, position, loss.value[q], coeff.value[q], t, o);
        }
    }
    __syncthreads();
    exf_fold_cluster_wait();
    if (n_union > 0) rewrite(io, slots, &pool, target, scale, t, o); /* true in every block or none */
}

/* Folds any batch, or each of several, in one block: slots are not kept in registers, rows are loaded one after another. */
static __global__ void __launch_bounds__(EXF_FOLD_THREADS, 1)
    decode_any(const exf_fold_routes routes, const exf_fold_tables t, const exf_fold_decode_options o,
               const exf_fold_batches batches)
{
    const exf_fold_routes io = exf_fold_batch(routes, batches);
    enum { LOADS = EXF_FOLD_MAX_E / 32 };
    __shared__ exf_fold_block_pool pool;
    __shared__ int16_t target[EXF_FOLD_MAX_E];
    __shared__ float scale[EXF_FOLD_MAX_E];
    exf_fold_slots<0> slots;
    exf_fold_rows<1, LOADS> loss;
    int position[LOADS];
    if (exf_fold_block_choose(&pool, slots, io, t, o) == 0) return;
    exf_fold_positions(position, &pool, t.n_experts);
    for (int e = exf_fold_first_expert(); e < t.n_experts; e += exf_fold_expert_stride()) {
        loss.load(t.loss, t.n_experts, e);
        find_target<0>(target, scale, e, &pool, position, loss.value[0], loss.value[0], t, o);
    }
    __syncthreads();
    rewrite(io, slots, &pool, target, scale, t, o);
}

exf_fold_status exf_fold_decode_cuda(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o,
                                     void *stream)
{
    typedef void (*kernel)(exf_fold_routes, exf_fold_tables, exf_fold_decode_options);
    static const kernel narrow[2][3] = EXF_FOLD_BY_TYPE(decode, 2, 8), wide[2][3] = EXF_FOLD_BY_TYPE(decode, 4, 16);
    exf_fold_decode_options settled;
    exf_fold_status status = exf_fold_check_decode(&settled, io, t, o, 0);
    int slots = status == EXF_FOLD_OK ? io->rows * io->width : 0, is_wide = t && t->n_experts > 256;
    if (slots == 0 || exf_fold_fits(slots, &settled)) return status;
    kernel k = (is_wide ? wide : narrow)[io->id_type][io->weight_type];
    unsigned blocks = exf_fold_blocks_for(t->n_experts, is_wide ? 4 : 2);
    if (slots > EXF_FOLD_HELD_SLOTS || (blocks > 1 && !exf_fold_has_clusters((const void *)k)))
        return exf_fold_launch(decode_any, 1, EXF_FOLD_THREADS, 1, stream, *io, *t, settled, exf_fold_batches{});
    return exf_fold_launch(k, blocks, EXF_FOLD_THREADS, blocks, stream, *io, *t, settled);
}

exf_fold_status exf_fold_decode_batches_cuda(const exf_fold_routes *io, const exf_fold_batches *b, int n, const exf_fold_tables *t,
                                             const exf_fold_decode_options *o, void *stream)
{
    exf_fold_decode_options settled;
    exf_fold_status status = exf_fold_check_decode(&settled, io, t, o, 0);
    if (status != EXF_FOLD_OK || n == 0) return status;
    decode_any<<<dim3(1, (unsigned)n), EXF_FOLD_THREADS, 0, (cudaStream_t)stream>>>(*io, *t, settled, *b);
    return cudaGetLastError() == cudaSuccess ? EXF_FOLD_OK : EXF_FOLD_DEVICE;
}

/* ---- a pool fixed beforehand ----------------------------------------------------------- */

enum { STATIC_THREADS = 256 };

template <exf_fold_int I, exf_fold_real R>
static __global__ void __launch_bounds__(STATIC_THREADS)
    remap(const exf_fold_routes routes, const int32_t *target_ids, const float *target_scale, int n_experts)
{
    const exf_fold_routes io = exf_fold_typed<I, R>(routes);
    int64_t slot = (int64_t)blockIdx.x * STATIC_THREADS + threadIdx.x;
    if (slot >= (int64_t)io.rows * io.width) return;
    int id = exf_fold_expert(&io, slot, n_experts);
    float w = exf_fold_weight(&io, slot);
    if (id < 0) return;
    int to = __ldg(target_ids + id);
    float scale = __ldg(target_scale + id);
    if (to == id && scale == 1) return;
    exf_fold_set_id(&io, slot, to);
    exf_fold_set_weight(&io, slot, exf_mulf(w, scale));
}

exf_fold_status exf_fold_decode_static_cuda(const exf_fold_routes *io, const int32_t *target_ids, const float *target_scale,
                                            int n_experts, void *stream)
{
    static void (*const kernels[2][3])(exf_fold_routes, const int32_t *, const float *, int) = EXF_FOLD_BY_TYPE(remap);
    exf_fold_status status = exf_fold_check_static(io, target_ids, target_scale, n_experts);
    if (status != EXF_FOLD_OK) return status;
    int64_t slots = (int64_t)io->rows * io->width;
    if (slots == 0) return EXF_FOLD_OK;
    unsigned blocks = (unsigned)((slots + STATIC_THREADS - 1) / STATIC_THREADS);
    return exf_fold_launch(kernels[io->id_type][io->weight_type], blocks, STATIC_THREADS, 1, stream, *io, target_ids, target_scale,
                           n_experts);
}
