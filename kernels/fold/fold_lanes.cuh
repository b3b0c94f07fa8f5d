/* fold_lanes.cuh - holds a token's routes in the W lanes of a sub-warp, which solve the small systems
 * of the joint projector with a row in each lane. */
#ifndef EXF_KERNELS_FOLD_LANES_CUH
#define EXF_KERNELS_FOLD_LANES_CUH
#include "kernels/fold/fold_cuda.cuh"

/* Slot `lane` of a token, or after exf_fold_permute() its route of rank `lane`. */
struct exf_fold_lane {
    int lane, id;  /* id -1: no expert */
    unsigned mask; /* of the warp's lanes that hold this token */
    float w;
    int64_t raw; /* the id as read */
};

template <int W> __device__ inline exf_fold_lane exf_fold_read_lane(const exf_fold_routes &in, int64_t row, int n_experts)
{
    exf_fold_lane s = {(int)threadIdx.x % W, -1, 0, 0, -1};
    s.mask = 0xffffffffu >> (32 - W) << (threadIdx.x % 32 / W * W);
    if (s.lane >= in.width) return s;
    int64_t slot = row * in.width + s.lane;
    s.raw = exf_fold_raw_id(&in, slot);
    s.id = s.raw >= 0 && s.raw < n_experts && exf_fold_counts(&in, row) ? (int)s.raw : -1;
    s.w = exf_fold_weight(&in, slot);
    return s;
}

/* Returns a bit for each of the token's lanes. */
template <int W> __device__ inline unsigned exf_fold_vote(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) >> (threadIdx.x % 32 / W * W) & (0xffffffffu >> (32 - W));
}

/* Sorts the routes by falling key, ties to the lower lane. */
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

/* ---- systems ------------------------------------------------------------------------ */

/* A system of up to W unknowns.  A lane that is not `used` has zeros and no row. */
template <int W> struct exf_fold_system {
    const float *cosine; /* [E, E] */
    int n_experts, lane, id;
    unsigned mask, used;
    float rms;          /* rms of id */
    double a[W], right; /* row `lane`: a[j] for j <= lane */
    double d, ridge;    /* after factoring: D of this row, and what was added to the diagonal */
};

template <int W>
__device__ inline exf_fold_system<W> exf_fold_begin(const exf_fold_tables &t, const exf_fold_lane &s, int id, unsigned used)
{
    exf_fold_system<W> y = {};
    y.cosine = t.cosine;
    y.n_experts = t.n_experts;
    y.lane = s.lane;
    y.mask = s.mask;
    y.used = used;
    y.id = used >> s.lane & 1 ? id : -1;
    y.rms = y.id < 0 ? 0 : __ldg(t.rms + y.id);
    return y;
}

/* Loads value[j], the cosine of this lane's expert with lane j's `id`, for the lanes in `columns`;
 * all loads are started together. */
template <int W> __device__ inline void exf_fold_cosines(float (&value)[W], const exf_fold_system<W> &y, int id, unsigned columns)
{
#pragma unroll
    for (int j = 0; j < W; j++) {
        int other = __shfl_sync(y.mask, id, j, W);
        value[j] = y.id >= 0 && (columns >> j & 1) ? __ldg(y.cosine + y.id * y.n_experts + other) : 0;
    }
}

/* Adds to `right` the terms of the routes (id, w) of the lanes in `omitted`, in order. */
template <int W>
__device__ inline void exf_fold_omit(exf_fold_system<W> *y, const exf_fold_tables &t, int id, float w, unsigned omitted)
{
    float value[W], rms = omitted >> y->lane & 1 ? __ldg(t.rms + id) : 0;
    exf_fold_cosines(value, *y, id, omitted);
#pragma unroll
    for (int j = 0; j < W; j++) {
        float other = __shfl_sync(y->mask, rms, j, W), weight = __shfl_sync(y->mask, w, j, W);
        double gram = exf_muld(exf_muld(value[j], y->rms), other);
        if (omitted >> j & 1) y->right = exf_addd(y->right, exf_muld(gram, weight));
    }
}

/* Factors a into L and 1/D of L D L', and its transpose above; returns 0 if a pivot is not above
 * `least`. Operations and order are the reference's. */
template <int W> __device__ inline int exf_fold_factor(exf_fold_system<W> *y, double least)
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        if (!(y->used >> k & 1)) continue;
        double pivot = __shfl_sync(y->mask, y->a[k], k, W), column = y->a[k];
        if (!(pivot > least)) return 0;
        if (y->lane == k) y->d = pivot;
        double inverse = __ddiv_rn(1, pivot), mine = exf_muld(column, inverse);
        if (y->lane >= k) y->a[k] = y->lane == k ? inverse : mine; /* above the diagonal the column is done */
#pragma unroll
        for (int j = k + 1; j < W; j++) {
            double other = __shfl_sync(y->mask, column, j, W); /* 0 in lanes that are not used */
            if (y->lane >= j) y->a[j] = exf_addd(y->a[j], -exf_muld(mine, other));
            if (y->lane == k) y->a[j] = exf_muld(other, inverse);
        }
    }
    return 1;
}

template <int W> __device__ inline void exf_fold_substitute(exf_fold_system<W> *y)
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        if (!(y->used >> k & 1)) continue;
        double known = __shfl_sync(y->mask, y->right, k, W);
        if (y->lane > k) y->right = exf_addd(y->right, -exf_muld(y->a[k], known));
    }
#pragma unroll
    for (int k = 0; k < W; k++)
        if (y->lane == k) y->right = exf_muld(y->right, y->a[k]);
#pragma unroll
    for (int k = W - 1; k >= 0; k--) {
        if (!(y->used >> k & 1)) continue;
        double known = __shfl_sync(y->mask, y->right, k, W);
        if (y->lane < k) y->right = exf_addd(y->right, -exf_muld(y->a[k], known));
    }
}

/* Factors G + rho mean(diag G) I, rho raised as fold.h says; returns 0 if that does not help or the mean diagonal is 0. */
template <int W> __device__ inline int exf_fold_factor_raised(exf_fold_system<W> *y, double rho)
{
    float value[W];
    double mean = 0, diagonal = y->id < 0 ? 0 : exf_muld(exf_muld(__ldg(y->cosine + y->id * (y->n_experts + 1)), y->rms), y->rms);
    exf_fold_cosines(value, *y, y->id, y->used);
#pragma unroll
    for (int k = 0; k < W; k++) {
        double other = __shfl_sync(y->mask, diagonal, k, W);
        if (y->used >> k & 1) mean = exf_addd(mean, other);
    }
    mean = __ddiv_rn(mean, __popc(y->used));
    if (!(mean > 0)) return 0;
    for (int tries = 0; tries <= EXF_FOLD_RAISES; tries++, rho = exf_fold_raise(rho)) {
        y->ridge = exf_muld(rho, mean);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float other = __shfl_sync(y->mask, y->rms, j, W);
            y->a[j] = j < y->lane ? exf_muld(exf_muld(value[j], y->rms), other) : 0;
            if (j == y->lane && y->id >= 0) y->a[j] = exf_addd(diagonal, y->ridge);
        }
        if (exf_fold_factor(y, exf_muld(EXF_FOLD_PIVOT, mean))) return 1;
    }
    return 0;
}

/* Solves right := (G + rho mean(diag G) I)^-1 right; returns 0 if there is no solution. */
template <int W> __device__ inline int exf_fold_solve(exf_fold_system<W> *y, double rho)
{
    if (!exf_fold_factor_raised(y, rho)) return 0;
    exf_fold_substitute(y);
    return 1;
}
#endif
