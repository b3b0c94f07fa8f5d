/* fold_prefill_cuda.cu - see exfold/fold.h: a sub-warp per token, a lane per slot and,
 * once they are in order, per route.  Sums run over the lanes in order of rank, as in
 * the reference. */
#include "kernels/fold_cuda.cuh"

enum { THREADS = 128 };

/* The sum of v, or of its squares, over lanes 0 .. n-1 in order; every lane gets it. */
template <int W> static __device__ float sum_of(float v, int n, unsigned mask, exf_fold_rescale rescale)
{
    float sum = 0, mine = rescale == EXF_FOLD_RESCALE_L2 ? exf_mulf(v, v) : v;
    for (int i = 0; i < n; i++) sum = exf_addf(sum, __shfl_sync(mask, mine, i, W));
    return sum;
}

/* What the pairwise form makes of a kept lane's weight; called with n > keep. */
template <int W>
static __device__ float fold(const exf_fold_lane &s, int n, const exf_fold_tables &t, const exf_fold_prefill_options &o)
{
    const size_t row = (size_t)(s.id < 0 ? 0 : s.id) * (size_t)t.n_experts;
    int omitted = s.lane >= o.keep && s.lane < n, to = -1, expert = 0;
    float least = 0, given = 0, spread = 0, w = s.w, losses[W];
#pragma unroll
    for (int i = 0; i < W; i++) { /* all loads first: they are what takes time */
        int kept = i < o.keep ? __shfl_sync(s.mask, s.id, i, W) : 0;
        losses[i] = omitted && i < o.keep ? __ldg(t.loss + row + kept) : EXF_FOLD_NEVER;
    }
#pragma unroll
    for (int i = 0; i < W; i++)
        if (exf_fold_may_take(losses[i], o.max_loss) && (to < 0 || losses[i] < least)) {
            least = losses[i];
            to = i;
        }
    expert = __shfl_sync(s.mask, s.id, to < 0 ? 0 : to, W);
    float c = to < 0 ? 0.0f : o.confidence ? exf_fold_confidence(least) : 1.0f;
    if (to >= 0) given = exf_mulf(exf_mulf(s.w, c), __ldg(t.coeff + row + expert));
    for (int j = o.keep; j < n; j++) {
        int target = __shfl_sync(s.mask, to, j, W);
        float part = __shfl_sync(s.mask, given, j, W);
        if (target == s.lane) w = exf_addf(w, part);
    }
    if (!o.confidence) return w;
    float rest = exf_mulf(s.w, exf_addf(1.0f, -c)), sum = sum_of<W>(s.w, o.keep, s.mask, EXF_FOLD_RESCALE_SUM);
    for (int j = o.keep; j < n; j++) spread = exf_addf(spread, __shfl_sync(s.mask, rest, j, W));
    return sum > 0 ? exf_addf(w, exf_mulf(s.w, exf_divf(spread, sum))) : w;
}

/* What the joint form makes of it; called with n > keep. */
template <int W>
static __device__ float join(const exf_fold_lane &s, int n, const exf_fold_tables &t, const exf_fold_prefill_options &o)
{
    exf_fold_system<W> system = {};
    int kept = s.lane < o.keep;
#pragma unroll
    for (int j = 0; j < W; j++) {
        if (j < o.keep || j >= n) continue;
        int id = __shfl_sync(s.mask, s.id, j, W);
        float w = __shfl_sync(s.mask, s.w, j, W);
        if (kept) system.right = exf_addd(system.right, exf_muld(exf_fold_gram(&t, s.id, id), w));
    }
    if (!exf_fold_solve(&system, t, s.id, exf_fold_vote<W>(s.mask, kept), s.lane, s.mask, o.ridge)) return s.w;
    return kept ? (float)exf_addd(s.w, system.right) : s.w;
}

template <int W, int JOINT>
static __device__ void fold_token(const exf_fold_routes &in, const exf_fold_routes &out, const exf_fold_tables &t,
                                  const exf_fold_prefill_options &o)
{
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / W;
    if (row >= in.rows) return; /* all lanes of a token or none */
    exf_fold_lane s = exf_fold_read_lane<W>(in, row, t.n_experts);
    exf_fold_permute<W>(&s, exf_fold_rank_key(o.rank, s.w, t.norms, s.id));
    int n = __popc(exf_fold_vote<W>(s.mask, s.id >= 0)), kept = min(n, o.keep);
    float w = n <= o.keep ? s.w : JOINT ? join<W>(s, n, t, o) : fold<W>(s, n, t, o);
    if (o.rescale != EXF_FOLD_RESCALE_NONE) {
        float before = sum_of<W>(s.w, n, s.mask, o.rescale), after = sum_of<W>(w, kept, s.mask, o.rescale);
        if (s.lane < kept) w = exf_mulf(w, exf_fold_rescale_factor(o.rescale, before, after));
    }
    if (s.lane >= o.keep) return;
    exf_fold_set_id(&out, row * o.keep + s.lane, s.raw);
    exf_fold_set_weight(&out, row * o.keep + s.lane, w);
}

template <exf_fold_int I, exf_fold_real R, int W>
static __global__ void __launch_bounds__(THREADS)
    prefill(const exf_fold_routes in, const exf_fold_routes out, const exf_fold_tables t, const exf_fold_prefill_options o)
{
    fold_token<W, 0>(exf_fold_typed<I, R>(in), exf_fold_typed<I, R>(out), t, o);
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    prefill_joint(const exf_fold_routes in, const exf_fold_routes out, const exf_fold_tables t, const exf_fold_prefill_options o)
{
    fold_token<W, 1>(in, out, t, o);
}

typedef void (*kernel)(exf_fold_routes, exf_fold_routes, exf_fold_tables, exf_fold_prefill_options);

static exf_fold_status launch(kernel k, int lanes, const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                              const exf_fold_prefill_options *o, void *stream)
{
    unsigned blocks = (unsigned)(((int64_t)in->rows * lanes + THREADS - 1) / THREADS);
    return in->rows == 0 ? EXF_FOLD_OK : exf_fold_launch(k, blocks, THREADS, 1, stream, *in, *out, *t, *o);
}

exf_fold_status exf_fold_prefill_cuda(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                      const exf_fold_prefill_options *o, void *stream)
{
    static const kernel narrow[2][3] = EXF_FOLD_BY_TYPE(prefill, 8), wide[2][3] = EXF_FOLD_BY_TYPE(prefill, 16);
    exf_fold_status status = exf_fold_check_prefill(in, out, t, o, 0);
    if (status != EXF_FOLD_OK) return status;
    int is_wide = in->width > 8;
    return launch((is_wide ? wide : narrow)[in->id_type][in->weight_type], is_wide ? 16 : 8, in, out, t, o, stream);
}

exf_fold_status exf_fold_prefill_joint_cuda(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                            const exf_fold_prefill_options *o, void *stream)
{
    exf_fold_status status = exf_fold_check_prefill(in, out, t, o, 1);
    if (status != EXF_FOLD_OK) return status;
    return in->width > 8 ? launch(prefill_joint<16>, 16, in, out, t, o, stream)
                         : launch(prefill_joint<8>, 8, in, out, t, o, stream);
}
