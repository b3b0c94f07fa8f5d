/* fold_prefill_cuda.cu - see exfold/fold.h: a sub-warp of 8 or 16 lanes per token, a lane per route while they are ranked, then
 * a lane per pair of an omitted route with a kept one.  256 threads a block, 32 tokens of 8 lanes.
 *
 * Bytes of a token: K ids and weights read, P written, 8 (K + P) at int32 and float32; 8192 tokens of 8 to 4 are 0.8 MB, 0.2
 * us at 4.2 TB/s.  Losses, P for each of K - P, and a coefficient of each come from tables of 4 E E that stay in the cache:
 * 20 sectors of 32 bytes at 8 to 4.  Measured 3.37 us (E 128), an empty kernel 1.15.
 *
 * The time is that of three latencies, routes, losses and coefficients, one after the other, and of what gathers cost; each
 * lane has few instructions, and the warps of a scheduler hide each other's.  Pairs of one omitted route are neighbouring lanes, so
 * that a load finds several of its row's losses in one line; the sum of a kept route stays in the lanes of its rank. */
#include "kernels/fold/fold_lanes.cuh"

enum { THREADS = 256 };

template <exf_fold_int I> struct id_of {
    typedef int32_t type;
};
template <> struct id_of<EXF_FOLD_I64> {
    typedef int64_t type;
};

/* Sorts a token's routes by rank; those without an expert come last.  Routers often give routes by falling score: ranked by it,
 * they are exchanged only if a token of the warp needs it. */
template <int W, class Id>
static __device__ __forceinline__ void sort(exf_fold_lane *s, const exf_fold_routes &in, const float *means, exf_fold_rank rank)
{
    int32_t key;
    if (rank == EXF_FOLD_BY_SCORE) {
        key = s->id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(EXF_FOLD_BY_SCORE, s->w, 0);
        int32_t next = __shfl_down_sync(EXF_FOLD_WARP, key, 1, W); /* of the last lane: its own */
        if (__builtin_expect(!__any_sync(EXF_FOLD_WARP, key < next), 1)) return;
    } else {
        float h = exf_fold_lane_norm(in, *s, means);
        key = s->id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(rank, s->w, h);
    }
    int from = exf_fold_holder<W>(s->lane, key);
    s->id = __shfl_sync(EXF_FOLD_WARP, s->id, from, W);
    s->w = __shfl_sync(EXF_FOLD_WARP, s->w, from, W);
    s->raw = __shfl_sync(EXF_FOLD_WARP, (Id)s->raw, from, W);
}

/* Returns the weight of this lane's route, if it is kept, with what omitted ones give it; *spread: the weight that confidence
 * leaves over.  LEAST: `keep` itself up to 4; 5 for up to 8, 9 for up to 16.
 *
 * Lanes are ordered in groups of KEPT: lane g KEPT + i has the pair of kept route i with omitted route keep + g, then keep + g +
 * GROUPS and so on.  All loads of a kind are started together. */
template <int W, int LEAST>
static __device__ __forceinline__ float fold_pairs(float *spread, const exf_fold_lane &s, const exf_fold_tables &t,
                                                   const exf_fold_prefill_options &o)
{
    enum { KEPT = LEAST == 3 ? 4 : LEAST > 8 ? 16 : LEAST > 4 ? 8 : LEAST, GROUPS = W / KEPT };
    enum { ROUNDS = (W - LEAST + GROUPS - 1) / GROUPS };
    const int keep = LEAST < 5 ? LEAST : o.keep;
    int i = (int)(threadIdx.x % KEPT), first = keep + (int)(threadIdx.x % W / KEPT), id[ROUNDS], at[ROUNDS], takes[ROUNDS];
    int kept = __shfl_sync(EXF_FOLD_WARP, s.id, i, W);
    unsigned before = ((1u << i) - 1) << (threadIdx.x % 32 - i); /* the group's lanes before this one */
    float loss[ROUNDS], coeff[ROUNDS], mine[ROUNDS], w = s.w;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        id[r] = __shfl_sync(EXF_FOLD_WARP, s.id, first + r * GROUPS, W);
        if (first + r * GROUPS >= W) id[r] = -1;
        at[r] = id[r] * t.n_experts + kept;
        loss[r] = exf_fold_load_if(t.loss + at[r], id[r] >= 0 && i < keep, EXF_FOLD_NEVER);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        float own = fminf(loss[r], EXF_FOLD_NEVER); /* of NaN: NEVER */
        loss[r] = own;
#pragma unroll
        for (int step = 1; step < KEPT; step *= 2) loss[r] = fminf(loss[r], __shfl_xor_sync(EXF_FOLD_WARP, loss[r], step));
        takes[r] = own == loss[r] && exf_fold_may_take(own, o.max_loss);
        if (KEPT > 1) takes[r] = takes[r] & !(__ballot_sync(EXF_FOLD_WARP, takes[r]) & before); /* ties to the earlier */
        coeff[r] = exf_fold_load_if(t.coeff + at[r], takes[r], 0);
        mine[r] = __shfl_sync(EXF_FOLD_WARP, s.w, first + r * GROUPS, W);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        float c = !exf_fold_may_take(loss[r], o.max_loss) ? 0.0f : o.confidence ? exf_fold_confidence(loss[r]) : 1.0f;
        float part = takes[r] ? exf_mulf(exf_mulf(mine[r], coeff[r]), c) : -0.0f; /* adding -0 changes nothing */
        w = exf_addf(w, part);
#pragma unroll
        for (int g = 1; g < GROUPS; g++) w = exf_addf(w, __shfl_sync(EXF_FOLD_WARP, part, i + g * KEPT, W));
        if (o.confidence) {
            float rest = id[r] >= 0 ? exf_mulf(mine[r], exf_addf(1.0f, -c)) : 0.0f;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) *spread = exf_addf(*spread, __shfl_sync(EXF_FOLD_WARP, rest, g * KEPT, W));
        }
    }
    return w;
}

/* Gives the weight that confidence left over to the kept routes, in proportion to their original weights. */
template <int W>
static __device__ __forceinline__ float spread_over(float w, float spread, const exf_fold_lane &s, int n, int keep)
{
    float sum = exf_fold_lane_sum<W>(s.w, keep, EXF_FOLD_RESCALE_SUM);
    return n > keep && sum > 0 ? exf_addf(w, exf_mulf(s.w, exf_divf(spread, sum))) : w;
}

template <exf_fold_int I, exf_fold_real R, int W, int LEAST>
static __global__ void __launch_bounds__(THREADS)
    prefill(const exf_fold_routes routes, const exf_fold_routes folded, const exf_fold_tables t, const exf_fold_prefill_options o)
{
    const exf_fold_routes in = exf_fold_typed<I, R>(routes), out = exf_fold_typed<I, R>(folded);
    int64_t row = blockIdx.x * (THREADS / W) + threadIdx.x / W;
    exf_fold_lane s = exf_fold_read_lane<W>(in, row, t.n_experts);
    sort<W, typename id_of<I>::type>(&s, in, t.norms, o.rank);
    float spread = 0, w = fold_pairs<W, LEAST>(&spread, s, t, o);
    if (o.confidence || o.rescale != EXF_FOLD_RESCALE_NONE) {
        int n = __popc(exf_fold_vote<W>(s.id >= 0)), kept = min(n, o.keep);
        if (o.confidence) w = spread_over<W>(w, spread, s, n, o.keep);
        float before = exf_fold_lane_sum<W>(s.w, n, o.rescale), after = exf_fold_lane_sum<W>(w, kept, o.rescale);
        if (o.rescale != EXF_FOLD_RESCALE_NONE && s.lane < kept)
            w = exf_mulf(w, exf_fold_rescale_factor(o.rescale, before, after));
    }
    exf_fold_write_lane<W>(out, row, in, s, w, o);
}

exf_fold_status exf_fold_prefill_cuda(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                      const exf_fold_prefill_options *o, void *stream)
{
    typedef void (*kernel)(exf_fold_routes, exf_fold_routes, exf_fold_tables, exf_fold_prefill_options);
    static const kernel narrow[][2][3] = {EXF_FOLD_BY_TYPE(prefill, 8, 1), EXF_FOLD_BY_TYPE(prefill, 8, 2),
                                          EXF_FOLD_BY_TYPE(prefill, 8, 3), EXF_FOLD_BY_TYPE(prefill, 8, 4),
                                          EXF_FOLD_BY_TYPE(prefill, 8, 5)},
                        wide[][2][3] = {EXF_FOLD_BY_TYPE(prefill, 16, 1), EXF_FOLD_BY_TYPE(prefill, 16, 2),
                                        EXF_FOLD_BY_TYPE(prefill, 16, 3), EXF_FOLD_BY_TYPE(prefill, 16, 4),
                                        EXF_FOLD_BY_TYPE(prefill, 16, 5), EXF_FOLD_BY_TYPE(prefill, 16, 9)};
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 0);
    if (status != EXF_FOLD_OK || in->rows == 0) return status;
    int is_wide = in->width > 8, code = settled.keep <= 4 ? settled.keep - 1 : settled.keep <= 8 ? 4 : 5;
    kernel k = (is_wide ? wide : narrow)[code][in->id_type][in->weight_type];
    unsigned rows = THREADS / (is_wide ? 16 : 8); /* of a block */
    return exf_fold_launch(k, ((unsigned)in->rows + rows - 1) / rows, THREADS, 1, stream, *in, *out, *t, settled);
}
