/* correction_cuda.cu - see correction.h.  Three kernels: 16 lanes rank a token's routes and choose
 * the targets; a warp per kept output computes its products with the basis; a warp per token and
 * 256 columns adds.  The last runs over all tokens before the next columns, so that these columns
 * of all pairs' vectors stay in the cache.
 *
 * Bytes of a token with K routes of which P are kept: routed read and written, 8 H; of every omitted route its target's
 * output, 2 H or 4 H, and of its pair 4 H of d or 4 R H of C, from the cache at best; the basis R H from the cache for each
 * kept output.  K 8, P 4, H 2048, bf16, 4096 tokens: 67 + 67 MB, 0.03 ms at 4.2 TB/s, and 134 MB of d. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/fold/correction.h"
#include "kernels/fold/fold_lanes.cuh"

enum { LANES = 16, THREADS = 256, WARPS = THREADS / 32, STEP = EXF_STEP, SLAB = 32 * STEP, COLUMNS = 8 };

/* The term that one omitted route adds. */
struct addition {
    int16_t to;     /* slot of the kept route that is its target; -1: it adds nothing */
    int16_t scalar; /* 1: S v */
    int32_t row;    /* row of the pair in the layer's vectors; -1: it has none */
    float w, by;    /* the route's weight; w S */
};
static_assert(sizeof(addition) == 16, "exf_correction_workspace counts 16 bytes a route");

static __device__ inline float *products_of(const exf_correction_call &c)
{
    return reinterpret_cast<float *>(static_cast<addition *>(c.workspace) + (size_t)c.n_tokens * c.top_k);
}

/* ---- targets --------------------------------------------------------------------------- */

static __device__ inline addition addition_of(const exf_correction_tables &t, const exf_fold_lane &s, int to, int target)
{
    addition a = {-1, 0, -1, 0, 0};
    if (to < 0) return a;
    size_t cell = (size_t)s.id * t.n_experts + target;
    int32_t pair = __ldg(t.pair + cell);
    a.to = (int16_t)to;
    a.scalar = pair < 0 || t.scalar;
    a.row = pair < 0 ? -1 : pair - t.first;
    a.w = s.w;
    a.by = exf_mulf(s.w, __ldg(t.coeff + cell));
    return a;
}

static __global__ void __launch_bounds__(THREADS) plan_tokens(exf_correction_tables t, exf_correction_call c)
{
    int token = (int)(blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES), to = -1, target = -1;
    float least = 0;
    exf_fold_routes in = {const_cast<int32_t *>(c.router_ids),
                          const_cast<float *>(c.router_weights),
                          EXF_FOLD_I32,
                          EXF_FOLD_F32,
                          c.n_tokens,
                          c.top_k};
    exf_fold_lane s = exf_fold_read_lane<LANES>(in, token, t.n_experts);
    int32_t key = s.id < 0 ? EXF_FOLD_NO_RANK
                           : exf_fold_rank_key(c.by, s.w, c.by == EXF_FOLD_BY_SCORE ? 0.0f : __ldg(t.norms + s.id));
    exf_fold_permute<LANES>(&s, key);
    int n = __popc(exf_fold_vote<LANES>(s.id >= 0)), kept = min(n, c.keep);
    bool omitted = token < c.n_tokens && kept < n && (!c.prefill || c.prefill[token]) &&
                   c.topk_ids[(size_t)token * c.top_k + kept] < 0 && s.lane >= kept && s.lane < n;
#pragma unroll 1
    for (int i = 0; i < LANES; i++) {
        int other = __shfl_sync(EXF_FOLD_WARP, s.id, i, LANES);
        if (!omitted || i >= kept) continue;
        float loss = __ldg(t.loss + (size_t)s.id * t.n_experts + other);
        if (!exf_fold_may_take(loss, c.max_loss) || (to >= 0 && !(loss < least))) continue;
        to = i;
        target = other;
        least = loss;
    }
    if (token < c.n_tokens && s.lane < c.top_k)
        static_cast<addition *>(c.workspace)[(size_t)token * c.top_k + s.lane] = addition_of(t, s, to, target);
}

/* ---- products with the basis, a warp per kept output ------------------------------------- */

/* Computes z[i] = <v, q of column first + i>, for those of n columns. */
template <class T>
static __device__ inline void take_products(float *z, const T *v, const exf_correction_tables &t, int first, int n, int h)
{
    double sum[COLUMNS] = {};
    for (int column = (threadIdx.x & 31) * STEP; column < h; column += SLAB) {
        float x[STEP];
        exf_load_step(x, v, column, h);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            if (i >= n) break;
            float q[STEP], part = 0;
            exf_load_step(q, t.basis + (size_t)(first + i) * h, column, h);
#pragma unroll
            for (int k = 0; k < STEP; k++) part += x[k] * q[k];
            sum[i] += part;
        }
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        double all = exf_warp_sum(sum[i]);
        if (i < n && (threadIdx.x & 31) == 0) z[i] = (float)all;
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    multiply_by_basis(const T *outputs, exf_correction_tables t, exf_correction_call c)
{
    size_t at = blockIdx.x * (size_t)WARPS + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, token = (int)(at / c.keep), slot = (int)(at % c.keep), wanted = 0;
    if (token >= c.n_tokens) return;
    size_t first = (size_t)token * c.top_k;
    if (lane < c.top_k) {
        addition a = static_cast<const addition *>(c.workspace)[first + lane];
        wanted = a.to == slot && a.row >= 0;
    }
    if (!__ballot_sync(0xffffffffu, wanted)) return;
    float *z = products_of(c) + (first + slot) * t.rank;
    for (int k = 0; k < t.rank; k += COLUMNS)
        take_products(z + k, outputs + (first + slot) * c.d_model, t, k, min(t.rank - k, (int)COLUMNS), c.d_model);
}

/* ---- adding, a warp per token and SLAB columns ------------------------------------------ */

static __device__ inline void add_scaled(float (&y)[STEP], const float (&v)[STEP], float by)
{
#pragma unroll
    for (int i = 0; i < STEP; i++) y[i] = exf_addf(y[i], exf_mulf(by, v[i]));
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    add_omitted(float *routed, const T *outputs, exf_correction_tables t, exf_correction_call c)
{
    int token = (int)(blockIdx.x * WARPS + (threadIdx.x >> 5)), lane = threadIdx.x & 31, h = c.d_model,
        column = (int)blockIdx.y * SLAB + lane * STEP;
    addition mine = {-1, 0, -1, 0, 0};
    if (token >= c.n_tokens) return;
    size_t first = (size_t)token * c.top_k;
    if (lane < c.top_k) mine = static_cast<const addition *>(c.workspace)[first + lane];
    unsigned left = __ballot_sync(0xffffffffu, mine.to >= 0);
    if (!left) return;
    float y[STEP], v[STEP];
    exf_load_step(y, routed + (size_t)token * h, column, h);
    for (; left; left &= left - 1) { /* in order of rank */
        int j = __ffs((int)left) - 1, to = __shfl_sync(0xffffffffu, (int)mine.to, j),
            scalar = __shfl_sync(0xffffffffu, (int)mine.scalar, j);
        int row = __shfl_sync(0xffffffffu, mine.row, j);
        float w = __shfl_sync(0xffffffffu, mine.w, j), by = __shfl_sync(0xffffffffu, mine.by, j);
        if (column >= h) continue;
        exf_load_step(v, outputs + (first + to) * h, column, h);
        if (scalar) add_scaled(y, v, by);
        if (row >= 0 && t.diagonal) {
            float x[STEP];
            exf_load_step(x, t.diagonal + (size_t)row * h, column, h);
#pragma unroll
            for (int i = 0; i < STEP; i++) y[i] = exf_addf(y[i], exf_mulf(w, exf_mulf(x[i], v[i])));
        }
        if (row >= 0 && t.rank) {
            const float *m = t.c + (size_t)row * t.rank * h, *z = products_of(c) + (first + to) * t.rank;
#pragma unroll 4
            for (int k = 0; k < t.rank; k++) {
                float x[STEP];
                exf_load_step(x, m + (size_t)k * h, column, h);
                add_scaled(y, x, exf_mulf(w, z[k]));
            }
        }
    }
    if (column >= h) return;
    float *own = routed + (size_t)token * h;
    if (h % 4 == 0 && column + STEP <= h) {
        exf_store8(own + column, y);
        return;
    }
#pragma unroll
    for (int i = 0; i < STEP; i++)
        if (column + i < h) own[column + i] = y[i];
}

template <class T> static void launch(exf_queue *q, float *routed, const exf_correction_tables *t, const exf_correction_call *c)
{
    const T *outputs = static_cast<const T *>(c->outputs.p);
    dim3 blocks(exf_blocks((size_t)c->n_tokens, WARPS), exf_blocks((size_t)c->d_model, SLAB));
    EXF_LAUNCH(q, "correction: plan", plan_tokens, exf_blocks((size_t)c->n_tokens, THREADS / LANES), THREADS, 0, *t, *c);
    if (t->rank)
        EXF_LAUNCH(q, "correction: basis", multiply_by_basis<T>, exf_blocks((size_t)c->n_tokens * c->keep, WARPS), THREADS, 0,
                   outputs, *t, *c);
    EXF_LAUNCH(q, "correction", add_omitted<T>, blocks, THREADS, 0, routed, outputs, *t, *c);
}

void exf_correct_routes_cuda(exf_queue *q, float *routed, const exf_correction_tables *t, const exf_correction_call *c)
{
    if (c->n_tokens == 0) return;
    if (c->outputs.number == EXF_NUMBER_BF16)
        launch<uint16_t>(q, routed, t, c);
    else
        launch<float>(q, routed, t, c);
}
