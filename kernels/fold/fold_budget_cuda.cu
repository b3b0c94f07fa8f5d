/* fold_budget_cuda.cu - see exfold/fold.h: a sub-warp per token, a lane per route in order of w rms.
 *
 * Lane j holds row j of L and, above the diagonal, column j: what the sums over later routes read.
 * The choice of P is computed by every lane alike. */
#include "kernels/fold/fold_lanes.cuh"

enum { BUDGET_THREADS = 128 };

/* Returns the P of least residual + penalty P, from the last to the first, so that ties go to the smaller. */
template <int W>
static __device__ __forceinline__ int choose_by_residual(const exf_fold_system<W> &y, float w, int factored, int n,
                                                         const exf_fold_budget_options &o)
{
    int low = min(o.least, n), best = min(o.most, n);
    double sum = w, residual = 0, cost = 0, term;
#pragma unroll
    for (int i = 1; i < W; i++) {
        float other = __shfl_sync(y.mask, w, i, W);
        if (i > y.lane && i < n) sum = exf_addd(sum, exf_muld(y.a[i], other));
    }
    term = factored ? exf_fold_residual_term(y.d, sum, y.ridge, w) : 0;
#pragma unroll
    for (int p = W; p >= 1; p--) {
        double part = p < W ? __shfl_sync(y.mask, term, p & (W - 1), W) : 0;
        if (p < n) residual = factored ? exf_addd(part, residual) : 0;
        double mine = exf_fold_budget_cost(residual, o.penalty, p);
        if (p == min(o.most, n)) cost = mine;
        int better = p < min(o.most, n) && p >= low && mine <= cost;
        cost = better ? mine : cost;
        best = better ? p : best;
    }
    return best;
}

/* Returns the least P whose routes have the share of all w rms. */
template <int W>
static __device__ __forceinline__ int choose_by_share(const exf_fold_lane &s, float rms, int n, const exf_fold_budget_options &o)
{
    double part = exf_muld(s.w, rms), all = 0, sum = 0;
    int high = min(o.most, n), best = high;
#pragma unroll
    for (int i = 0; i < W; i++) {
        double other = __shfl_sync(s.mask, part, i, W);
        if (i < n) all = exf_addd(all, other);
    }
    double wanted = exf_muld(o.share, all);
#pragma unroll
    for (int p = 1; p <= W; p++) {
        double other = __shfl_sync(s.mask, part, p - 1, W);
        if (p <= n) sum = exf_addd(sum, other);
        if (best == high && p >= min(o.least, n) && p < high && sum >= wanted) best = p;
    }
    return best;
}

/* Returns this lane's weight beside the first p routes: w_B + L_BB'^-1 L_OB' w_O. */
template <int W> static __device__ __forceinline__ float join(const exf_fold_system<W> &y, float w, int p, int n)
{
    double x = 0;
#pragma unroll
    for (int i = 1; i < W; i++) {
        float other = __shfl_sync(y.mask, w, i, W);
        if (i >= p && i < n && i > y.lane) x = exf_addd(x, exf_muld(y.a[i], other));
    }
#pragma unroll
    for (int k = W - 1; k >= 1; k--) {
        double known = __shfl_sync(y.mask, x, k, W);
        if (k < p && y.lane < k) x = exf_addd(x, -exf_muld(y.a[k], known));
    }
    return (float)exf_addd(w, x);
}

template <int W>
static __global__ void __launch_bounds__(BUDGET_THREADS)
    prefill_budget(const exf_fold_routes in, const exf_fold_routes out, int32_t *kept, const exf_fold_tables t,
                   const exf_fold_budget_options o)
{
    int64_t row = ((int64_t)blockIdx.x * BUDGET_THREADS + threadIdx.x) / W;
    if (row >= in.rows) return; /* true for all lanes of a token or none */
    exf_fold_lane s = exf_fold_read_lane<W>(in, row, t.n_experts);
    float rms = s.id < 0 ? 0.0f : __ldg(t.rms + s.id);
    exf_fold_permute<W>(&s, s.id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(EXF_FOLD_BY_SCORE_NORM, s.w, rms));
    unsigned valid = exf_fold_vote<W>(s.mask, s.id >= 0);
    int n = __popc(valid), p = 0;
    float w = s.w;
    if (n > 0) {
        exf_fold_system<W> y = exf_fold_begin<W>(t, s, s.id, valid);
        int factored = exf_fold_factor_raised(&y, o.ridge);
        p = o.rule == EXF_FOLD_BUDGET_TOKEN ? choose_by_residual<W>(y, s.w, factored, n, o) : choose_by_share<W>(s, y.rms, n, o);
        if (factored && p < n) w = join<W>(y, s.w, p, n);
    }
    int64_t first = __shfl_sync(s.mask, s.raw, 0, W);
    if (s.lane == 0 && kept) kept[row] = p;
    if (s.lane >= out.width) return;
    exf_fold_set_id(&out, row * out.width + s.lane, s.lane < p ? s.raw : p > 0 && o.repeat ? first : -1);
    exf_fold_set_weight(&out, row * out.width + s.lane, s.lane < p ? w : 0.0f);
}

exf_fold_status exf_fold_prefill_budget_cuda(const exf_fold_routes *in, const exf_fold_routes *out, int32_t *kept,
                                             const exf_fold_tables *t, const exf_fold_budget_options *o, void *stream)
{
    exf_fold_budget_options settled;
    exf_fold_status status = exf_fold_check_budget(&settled, in, out, kept, t, o);
    if (status != EXF_FOLD_OK || in->rows == 0) return status;
    int lanes = in->width > 8 ? 16 : 8;
    unsigned blocks = (unsigned)(((int64_t)in->rows * lanes + BUDGET_THREADS - 1) / BUDGET_THREADS);
    return exf_fold_launch(lanes == 8 ? prefill_budget<8> : prefill_budget<16>, blocks, BUDGET_THREADS, 1, stream, *in, *out, kept,
                           *t, settled);
}
