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

/* Writes a row of prefill: the kept routes, the first of which may stand in every empty slot; a row of padding as it is, whose
 * lanes are in order since none has a rank. */
template <int W>
__device__ inline void exf_fold_write_lane(const exf_fold_routes &out, int64_t row, const exf_fold_routes &in,
                                           const exf_fold_lane &s, float w, const exf_fold_prefill_options &o)
{
    int first = o.repeat ? __shfl_sync(EXF_FOLD_WARP, s.id, 0, W) : -1;
    if (row >= in.rows || s.lane >= out.width) return;
    int empty = s.lane >= o.keep && exf_fold_counts(&in, row);
    exf_fold_set_id(&out, row * out.width + s.lane, empty ? first : s.raw);
    exf_fold_set_weight(&out, row * out.width + s.lane, empty ? 0.0f : w);
}

/* ---- systems ------------------------------------------------------------------------ */

/* A system of up to W unknowns.  A lane that is not `used` has zeros and no row. */
template <int W> struct exf_fold_system {
    int lane, id;
    unsigned used;
    double norm;        /* of id, a float: shuffling its double is cheaper than converting it in every lane */
    double a[W], right; /* row `lane`: a[j] for j <= lane */
    double d, inverse;  /* after factoring: D of this row, and 1/D */
    double ridge;       /* what was added to the diagonal */
};

/* norm: of `id` on the token. */
template <int W> __device__ inline exf_fold_system<W> exf_fold_begin(const exf_fold_lane &s, int id, float norm, unsigned used)
{
    exf_fold_system<W> y = {};
    y.lane = s.lane;
    y.used = used;
    y.id = used >> s.lane & 1 ? id : -1;
    y.norm = y.id >= 0 ? norm : 0.0f;
    return y;
}

/* What a row of a system reads of the table of cosines, 0 where nothing is loaded: of its expert with itself, with those of the
 * lanes before it, and with each omitted route's in order. */
template <int W> struct exf_fold_cosines {
    float own, before[W], away[W];
};

/* Starts loading cosines of this lane's expert `id` with that of every lane in `columns`, and if `whole` with itself. */
template <int W>
__device__ inline void exf_fold_fetch(exf_fold_cosines<W> *c, const exf_fold_tables &t, int id, unsigned columns, int whole)
{
    int row = id * t.n_experts;
    c->own = exf_fold_load_if(t.cosine + (row + id), whole, c->own);
#pragma unroll
    for (int j = 0; j + 1 < W; j++) {
        int other = __shfl_sync(EXF_FOLD_WARP, id, j, W);
        c->before[j] = exf_fold_load_if(t.cosine + (row + other), columns >> j & 1, c->before[j]);
    }
}

/* Starts loading if `whole` cosines of this lane's expert `id` with those in `from` of the lanes in `omitted`. */
template <int W>
__device__ inline void exf_fold_fetch_away(exf_fold_cosines<W> *c, const exf_fold_tables &t, int id, int whole, int from,
                                           unsigned omitted)
{
    int row = id * t.n_experts;
#pragma unroll
    for (int m = 0; m < W; m++, omitted &= omitted - 1) {
        if (!__any_sync(EXF_FOLD_WARP, omitted)) break;
        int other = __shfl_sync(EXF_FOLD_WARP, from, __ffs((int)omitted) - 1, W);
        c->away[m] = exf_fold_load_if(t.cosine + (row + other), whole && omitted, c->away[m]);
    }
}

/* Returns v, which the compiler does not compute anew at each of its uses. */
__device__ __forceinline__ double exf_fold_once(double v)
{
    asm("" : "+d"(v));
    return v;
}

/* Factors a into D and, above the diagonal, L' of L D L'; returns 0 if a pivot keeps too little of its diagonal.  Below the
 * diagonal a is spent.  Operations and order are the reference's.  SOLVES: `right` becomes L^-1 right beside it.
 *
 * The chain is that of pivots.  Every lane computes the next one from two numbers of its row, and what a step needs of other
 * lanes is exchanged while 1/D is computed, if registers allow.  The pivot of a lane that is not used is 1 and its column 0. */
template <int W, int SOLVES> __device__ inline int exf_fold_factor(exf_fold_system<W> *y, double diagonal_of_lane)
{
    enum { EARLY = W <= 8 && SOLVES };
    double pivot = __shfl_sync(EXF_FOLD_WARP, y->a[0], 0, W);
#pragma unroll
    for (int k = 0; k < W; k++) {
        const int next = k + 1 < W ? k + 1 : k;
        int has = (int)(y->used >> k & 1);
        double column = y->a[k], known = SOLVES ? __shfl_sync(EXF_FOLD_WARP, y->right, k, W) : 0, other[W];
        double diagonal = k < next ? __shfl_sync(EXF_FOLD_WARP, y->a[next], next, W) : 0;
#pragma unroll
        for (int j = next; k < next && j < (EARLY ? W : next + 1); j++) other[j] = __shfl_sync(EXF_FOLD_WARP, column, j, W);
        double own = pivot, inverse = __drcp_rn(own), mine = exf_fold_once(exf_muld(column, inverse));
        if (k < next) pivot = exf_addd(diagonal, -exf_muld(exf_muld(other[next], inverse), other[next]));
        if (has && y->lane == k) y->d = own;
        if (has && y->lane == k) y->inverse = inverse;
        if (SOLVES && has && y->lane > k) y->right = exf_addd(y->right, -exf_muld(mine, known));
#pragma unroll
        for (int j = k + 1; j < W; j++) {
            if (!EARLY && j > next) other[j] = __shfl_sync(EXF_FOLD_WARP, column, j, W);
            if (has && y->lane > k) y->a[j] = exf_addd(y->a[j], -exf_muld(mine, other[j])); /* beyond its diagonal: no matter */
            if (has && y->lane == k) y->a[j] = exf_muld(other[j], inverse);
        }
    }
    return exf_fold_vote<W>(y->id >= 0 && !(y->d > exf_muld(EXF_FOLD_PIVOT, diagonal_of_lane))) == 0;
}

/* Returns v / n.  By a power of two, which most widths are, the product is the quotient, both rounded once. */
__device__ inline double exf_fold_divide(double v, int n)
{
    if (n > 0 && (n & (n - 1)) == 0) return exf_muld(v, __hiloint2double((1024 - __ffs(n)) << 20, 0)); /* 2^-(ffs - 1) */
    return __ddiv_rn(v, n);
}

/* Factors G + rho mean(diag G) I into L and D, and L' above, rho raised as fold.h says; returns 0 if that does not help or the
 * mean diagonal is 0.  G is made of the cosines `c`.  A token that is done goes along unchanged while others of its warp are not:
 * its own rho gives the same numbers again. */
template <int W, int SOLVES>
__device__ inline int exf_fold_factor_raised(exf_fold_system<W> *y, const exf_fold_cosines<W> &c, double rho)
{
    double mean = 0, diagonal = exf_muld(exf_muld(c.own, y->norm), y->norm), right = y->right;
    int done = 0;
#pragma unroll
    for (int k = 0; k < W; k++) mean = exf_addd(mean, __shfl_sync(EXF_FOLD_WARP, diagonal, k, W)); /* not used: 0 */
    mean = exf_fold_divide(mean, __popc(y->used));
#pragma unroll 1
    for (int tries = 0; tries <= EXF_FOLD_RAISES && __any_sync(EXF_FOLD_WARP, mean > 0 && !done); tries++) {
        y->ridge = exf_muld(rho, mean);
        y->right = right;
        double raised = y->id < 0 ? 1 : exf_addd(diagonal, y->ridge);
#pragma unroll
        for (int j = 0; j < W; j++) {
            double other = j + 1 < W ? __shfl_sync(EXF_FOLD_WARP, y->norm, j, W) : 0;
            double gram = j + 1 < W ? exf_muld(exf_muld(c.before[j], y->norm), other) : 0; /* 0 from the diagonal on */
            y->a[j] = j == y->lane ? raised : gram;
        }
        done = exf_fold_factor<W, SOLVES>(y, raised) && mean > 0;
        rho = done ? rho : exf_fold_raise(rho);
    }
    return done;
}

/* right := L'^-1 D^-1 right, two rows at a time: what the second one lacks of the first is computed by every lane. */
template <int W> __device__ inline void exf_fold_substitute_back(exf_fold_system<W> *y)
{
    y->right = exf_muld(y->right, y->inverse);
#pragma unroll
    for (int k = W - 1; k >= 1; k -= 2) {
        int has = (int)(y->used >> k & 1), has_second = (int)(y->used >> (k - 1) & 1);
        double first = __shfl_sync(EXF_FOLD_WARP, y->right, k, W);
        if (k > 1) {
            double second = __shfl_sync(EXF_FOLD_WARP, y->right, k - 1, W), link = __shfl_sync(EXF_FOLD_WARP, y->a[k], k - 1, W);
            if (has) second = exf_addd(second, -exf_muld(link, first));
            if (has && y->lane < k) y->right = exf_addd(y->right, -exf_muld(y->a[k], first));
            if (has_second && y->lane < k - 1) y->right = exf_addd(y->right, -exf_muld(y->a[k - 1], second));
        } else if (has && y->lane < k) {
            y->right = exf_addd(y->right, -exf_muld(y->a[k], first));
        }
    }
}

/* Fills `right` with the terms of the routes of that norm and weight in the lanes of `omitted`, in order, and solves
 * right := (G + rho mean(diag G) I)^-1 right; returns 0 if there is no solution. */
template <int W>
__device__ inline int exf_fold_solve_fetched(exf_fold_system<W> *y, const exf_fold_cosines<W> &c, float norm, float w,
                                             unsigned omitted, double rho)
{
    double theirs = norm, weight = w;
#pragma unroll
    for (int m = 0; m < W; m++, omitted &= omitted - 1) {
        if (!__any_sync(EXF_FOLD_WARP, omitted)) break;
        int from = __ffs((int)omitted) - 1;
        double other = __shfl_sync(EXF_FOLD_WARP, theirs, from, W), moved = __shfl_sync(EXF_FOLD_WARP, weight, from, W);
        double gram = exf_muld(exf_muld(c.away[m], y->norm), other);
        if (omitted) y->right = exf_addd(y->right, exf_muld(gram, moved));
    }
    int solved = exf_fold_factor_raised<W, 1>(y, c, rho);
    exf_fold_substitute_back(y);
    return solved;
}

/* Returns the weights w of a row's first `kept` routes with what goes to them where the system has no solution: each of the other
 * n - kept routes, in order, by its pair's scalar to the one of largest |cosine|, ties to the earlier. */
template <int W>
__device__ inline float exf_fold_to_likest(const exf_fold_lane &s, float w, int kept, int n, const exf_fold_tables &t)
{
#pragma unroll 1
    for (int j = 0; j < W; j++) {
        int id = __shfl_sync(EXF_FOLD_WARP, s.id, j, W), omitted = j >= kept && j < n;
        float weight = __shfl_sync(EXF_FOLD_WARP, s.w, j, W);
        size_t pair = omitted && s.lane < kept ? (size_t)id * (size_t)t.n_experts + (size_t)s.id : 0;
        int32_t likeness = omitted && s.lane < kept ? (int32_t)exf_fold_likeness(t.cosine[pair]) : -1;
        int to = __shfl_sync(EXF_FOLD_WARP, exf_fold_holder<W>(s.lane, likeness), 0, W); /* the first of the largest */
        if (omitted && s.lane == to) w = exf_addf(w, exf_fold_by_pair(&t, weight, pair));
    }
    return w;
}

/* Fetches and solves at once; `from` are the experts of the routes.  All that a row reads of the table is on its way before the
 * first of it is used: one latency, not four. */
template <int W>
__device__ inline int exf_fold_solve(exf_fold_system<W> *y, const exf_fold_tables &t, int from, float norm, float w,
                                     unsigned omitted, double rho)
{
    exf_fold_cosines<W> c = {};
    int has = y->id >= 0;
    exf_fold_fetch(&c, t, y->id, has ? y->used & ((1u << y->lane) - 1) : 0, has);
    exf_fold_fetch_away(&c, t, y->id, has, from, omitted);
    return exf_fold_solve_fetched(y, c, norm, w, omitted, rho);
}
#endif
