/* fold_lanes.cuh - holds a token's routes in the W lanes of a sub-warp, which solve the small systems
 * of the joint projector with a row in each lane.
 *
 * The tokens of a warp go in step: every lane of the warp calls each function here, and what one token has no use for it
 * computes and does not keep.  Shuffles then name all lanes by a constant; with a mask of the token's own lanes each of them is
 * four instructions and a branch. */
#ifndef EXF_KERNELS_FOLD_LANES_CUH
#define EXF_KERNELS_FOLD_LANES_CUH
#include "kernels/fold/fold_cuda.cuh"

enum : unsigned { EXF_FOLD_WARP = 0xffffffffu };

/* Slot `lane` of a token, or after exf_fold_permute() its route of rank `lane`. */
struct exf_fold_lane {
    int lane, id; /* id -1: no expert */
    float w;
    int64_t raw; /* the id as read */
    float norm;  /* what the caller gives for the route; 0: nothing is given */
};

/* Reads a row; one beyond the last has no experts.  All loads are on their way before the first of them is looked at. */
template <int W> __device__ inline exf_fold_lane exf_fold_read_lane(const exf_fold_routes &in, int64_t row, int n_experts)
{
    exf_fold_lane s = {(int)(threadIdx.x % W), -1, 0, -1, 0};
    if (s.lane >= in.width || row >= in.rows) return s;
    int64_t slot = row * in.width + s.lane;
    s.raw = exf_fold_raw_id(&in, slot);
    s.w = exf_fold_weight(&in, slot);
    if (in.norms) s.norm = __ldg(in.norms + slot);
    int counts = exf_fold_counts(&in, row);
    s.id = counts && s.raw >= 0 && s.raw < n_experts ? (int)s.raw : -1;
    return s;
}

/* Returns the norm of the lane's expert on its token: what the caller gives, or that of `means` [E]; 0 without an expert. */
__device__ inline float exf_fold_lane_norm(const exf_fold_routes &r, const exf_fold_lane &s, const float *means)
{
    return r.norms ? s.id < 0 ? 0.0f : s.norm : exf_fold_load_if(means + max(s.id, 0), s.id >= 0, 0);
}

/* Returns a bit for each of the token's lanes. */
template <int W> __device__ inline unsigned exf_fold_vote(int yes)
{
    return __ballot_sync(EXF_FOLD_WARP, yes) >> (threadIdx.x % 32 / W * W) & (0xffffffffu >> (32 - W));
}

/* Returns the lane that holds the route of rank `lane`: by falling key, ties to the lower lane.  Ranks are counted; three or four
 * votes on their bits then say whose is this lane's own. */
template <int W> __device__ inline int exf_fold_holder(int lane, int32_t key)
{
    int rank = 0;
    unsigned holders = EXF_FOLD_WARP;
#pragma unroll
    for (int k = 0; k < W; k++) rank += __shfl_sync(EXF_FOLD_WARP, key, k, W) + (k < lane) > key; /* no key is INT32_MAX */
#pragma unroll
    for (int bit = 1; bit < W; bit *= 2) holders &= __ballot_sync(EXF_FOLD_WARP, rank & bit) ^ (lane & bit ? 0 : EXF_FOLD_WARP);
    return __ffs((int)(holders >> (threadIdx.x % 32 / W * W) & (0xffffffffu >> (32 - W)))) - 1;
}

/* Sorts the routes by falling key, ties to the lower lane. */
template <int W> __device__ inline void exf_fold_permute(exf_fold_lane *s, int32_t key)
{
    int from = exf_fold_holder<W>(s->lane, key);
    s->id = __shfl_sync(EXF_FOLD_WARP, s->id, from, W);
    s->w = __shfl_sync(EXF_FOLD_WARP, s->w, from, W);
    s->raw = __shfl_sync(EXF_FOLD_WARP, s->raw, from, W);
    s->norm = __shfl_sync(EXF_FOLD_WARP, s->norm, from, W);
}

/* Sums v, or its squares, over lanes 0 .. n-1 in order; every lane gets the sum. */
template <int W> __device__ inline float exf_fold_lane_sum(float v, int n, exf_fold_rescale rescale)
{
    float sum = 0, mine = rescale == EXF_FOLD_RESCALE_L2 ? exf_mulf(v, v) : v;
#pragma unroll
    for (int i = 0; i < W; i++) {
        float other = __shfl_sync(EXF_FOLD_WARP, mine, i, W);
        if (i < n) sum = exf_addf(sum, other);
    }
    return sum;
}

/* ---- systems ------------------------------------------------------------------------ */

/* A system of up to W unknowns.  A lane that is not `used` has zeros and no row. */
template <int W> struct exf_fold_system {
    const float *cosine; /* [E, E] */
    int n_experts, lane, id;
    unsigned used;
    double norm;        /* of id, a float: shuffling its double is cheaper than converting it in every lane */
    double a[W], right; /* row `lane`: a[j] for j <= lane */
    double d, inverse;  /* after factoring: D of this row, and 1/D */
    double ridge;       /* what was added to the diagonal */
};

/* norm: of `id` on the token. */
template <int W>
__device__ inline exf_fold_system<W> exf_fold_begin(const exf_fold_tables &t, const exf_fold_lane &s, int id, float norm,
                                                    unsigned used)
{
    exf_fold_system<W> y = {};
    y.cosine = t.cosine;
    y.n_experts = t.n_experts;
    y.lane = s.lane;
    y.used = used;
    y.id = used >> s.lane & 1 ? id : -1;
    y.norm = y.id >= 0 ? norm : 0.0f;
    return y;
}

/* Starts loading value[j], the cosine of this lane's expert with lane j's `id`, for the lanes in `columns`. */
template <int W> __device__ inline void exf_fold_cosines(float (&value)[W], const exf_fold_system<W> &y, int id, unsigned columns)
{
    const float *row = y.cosine + (y.id < 0 ? 0 : y.id) * y.n_experts;
    int other[W];
#pragma unroll
    for (int j = 0; j < W; j++) other[j] = __shfl_sync(EXF_FOLD_WARP, id, j, W);
    columns = y.id < 0 ? 0 : columns;
#pragma unroll
    for (int j = 0; j < W; j++) value[j] = exf_fold_load_if(row + max(other[j], 0), columns >> j & 1, 0);
}

/* Starts loading the cosines of a system's lower triangle; returns that of this lane's expert with itself. */
template <int W> __device__ inline float exf_fold_triangle(float (&value)[W], const exf_fold_system<W> &y)
{
    exf_fold_cosines(value, y, y.id, y.used & ((1u << y.lane) - 1));
    return exf_fold_load_if(y.cosine + (y.id < 0 ? 0 : y.id) * (y.n_experts + 1), y.id >= 0, 0);
}

/* Factors a into L and D of L D L', and L' above, where `wanted`; returns 0 if it is not or a pivot is not above
 * `least`.  Operations and order are the reference's.  SOLVES: `right` becomes L^-1 right beside it. */
template <int W, int SOLVES> __device__ inline int exf_fold_factor(exf_fold_system<W> *y, double least, int wanted)
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        double pivot = __shfl_sync(EXF_FOLD_WARP, y->a[k], k, W), column = y->a[k];
        double known = SOLVES ? __shfl_sync(EXF_FOLD_WARP, y->right, k, W) : 0;
        int has = (int)(y->used >> k & 1);
        wanted = wanted && (!has || pivot > least);
        has = has && wanted;
        double inverse = __drcp_rn(pivot), mine = exf_muld(column, inverse); /* of a lane that is not used the pivot is 1 */
        if (has && y->lane == k) y->d = pivot;
        if (has && y->lane == k) y->inverse = inverse;
        if (has && y->lane > k) y->a[k] = mine; /* above the diagonal the column is done */
        if (SOLVES && has && y->lane > k) y->right = exf_addd(y->right, -exf_muld(mine, known));
#pragma unroll
        for (int j = k + 1; j < W; j++) {
            double other = __shfl_sync(EXF_FOLD_WARP, column, j, W); /* 0 in lanes that are not used */
            if (has && y->lane >= j) y->a[j] = exf_addd(y->a[j], -exf_muld(mine, other));
            if (has && y->lane == k) y->a[j] = exf_muld(other, inverse);
        }
    }
    return wanted;
}

/* Returns v / n.  By a power of two, which most widths are, the product is the quotient, both rounded once. */
__device__ inline double exf_fold_divide(double v, int n)
{
    if (n > 0 && (n & (n - 1)) == 0) return exf_muld(v, __hiloint2double((1024 - __ffs(n)) << 20, 0)); /* 2^-(ffs - 1) */
    return __ddiv_rn(v, n);
}

/* Factors G + rho mean(diag G) I, rho raised as fold.h says; returns 0 if that does not help or the mean diagonal is 0.  G's
 * lower triangle is made of the cosines in `value`, its diagonal of `own`. */
template <int W, int SOLVES>
__device__ inline int exf_fold_factor_raised(exf_fold_system<W> *y, const float (&value)[W], float own, double rho)
{
    double mean = 0, diagonal = exf_muld(exf_muld(own, y->norm), y->norm), right = y->right;
    int done = 0;
#pragma unroll
    for (int k = 0; k < W; k++) {
        double other = __shfl_sync(EXF_FOLD_WARP, diagonal, k, W);
        if (y->used >> k & 1) mean = exf_addd(mean, other);
    }
    mean = exf_fold_divide(mean, __popc(y->used));
    int wanted = mean > 0;
#pragma unroll 1
    for (int tries = 0; tries <= EXF_FOLD_RAISES && __any_sync(EXF_FOLD_WARP, wanted); tries++, rho = exf_fold_raise(rho)) {
        if (wanted) y->ridge = exf_muld(rho, mean);
        if (wanted) y->right = right;
        double raised = y->id < 0 ? 1 : exf_addd(diagonal, y->ridge);
#pragma unroll
        for (int j = 0; j < W; j++) {
            double other = __shfl_sync(EXF_FOLD_WARP, y->norm, j, W);
            double gram = exf_muld(exf_muld(value[j], y->norm), other);
            y->a[j] = !wanted ? y->a[j] : j < y->lane ? gram : j == y->lane ? raised : 0;
        }
        int factored = exf_fold_factor<W, SOLVES>(y, exf_muld(EXF_FOLD_PIVOT, mean), wanted);
        done |= factored;
        wanted = wanted && !factored;
    }
    return done;
}

/* Fills `right` with the terms of the routes (id, norm, w) of the lanes in `omitted`, in order, and solves
 * right := (G + rho mean(diag G) I)^-1 right; returns 0 if there is no solution.  All that a row reads of
 * the tables is on its way before the first of it is used: one latency, not four. */
template <int W>
__device__ inline int exf_fold_solve(exf_fold_system<W> *y, int id, float norm, float w, unsigned omitted, double rho)
{
    float value[W], away[W], own = exf_fold_triangle(value, *y);
    exf_fold_cosines(away, *y, id, omitted);
    double theirs = norm, weight = w;
#pragma unroll
    for (int j = 0; j < W; j++) {
        double other = __shfl_sync(EXF_FOLD_WARP, theirs, j, W), moved = __shfl_sync(EXF_FOLD_WARP, weight, j, W);
        double gram = exf_muld(exf_muld(away[j], y->norm), other);
        if (omitted >> j & 1) y->right = exf_addd(y->right, exf_muld(gram, moved));
    }
    int solved = exf_fold_factor_raised<W, 1>(y, value, own, rho);
    y->right = exf_muld(y->right, y->inverse);
#pragma unroll
    for (int k = W - 1; k >= 0; k--) {
        double known = __shfl_sync(EXF_FOLD_WARP, y->right, k, W);
        if ((y->used >> k & 1) && y->lane < k) y->right = exf_addd(y->right, -exf_muld(y->a[k], known));
    }
    return solved;
}
#endif
