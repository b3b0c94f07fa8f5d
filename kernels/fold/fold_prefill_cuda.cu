/* fold_prefill_cuda.cu - see exfold/fold.h: a thread per token, its routes in registers.
 * Rows are read and written 16 bytes at a time if their alignment allows; independent
 * lookups are started together.  Sums run in order of rank, as in the reference.
 *
 * Bytes of a token: K ids and weights read, P written, 8 (K + P) at int32 and float32; 8192 tokens of 8 to 4 are 0.8 MB, 0.2
 * us at 4.2 TB/s.  Losses and coefficients, at most P + 1 for each of K - P, come from tables of 4 E E that stay in the
 * cache. */
#include "kernels/fold/fold_cuda.cuh"

enum { MOST_THREADS = 128 };

template <exf_fold_int I> struct id_of {
    typedef int32_t type;
};
template <> struct id_of<EXF_FOLD_I64> {
    typedef int64_t type;
};
template <exf_fold_real R> struct real_of {
    typedef uint16_t type;
};
template <> struct real_of<EXF_FOLD_F32> {
    typedef float type;
};

/* A row of at most W elements, accessed in units of 16 bytes, of 8 bytes, or one by one. */
template <class T, int W> union row_of {
    T one[W];
    uint2 eight[W * sizeof(T) / 8];
    uint4 sixteen[W * sizeof(T) / 16];
};

template <class T, int W> static __device__ row_of<T, W> load_row(const void *base, int64_t row, int width)
{
    row_of<T, W> r;
    const T *from = (const T *)base + row * width;
    if (width == W && (uintptr_t)base % 16 == 0) {
#pragma unroll
        for (int i = 0; i < (int)(W * sizeof(T) / 16); i++) r.sixteen[i] = __ldg((const uint4 *)from + i);
    } else {
#pragma unroll
        for (int i = 0; i < W; i++) r.one[i] = i < width ? __ldg(from + i) : (T)-1;
    }
    return r;
}

template <class T, int W> static __device__ void store_row(void *base, int64_t row, int width, const row_of<T, W> &r)
{
    T *to = (T *)base + row * width;
    int bytes = width * (int)sizeof(T);
    if (bytes % 16 == 0 && (uintptr_t)base % 16 == 0) {
#pragma unroll
        for (int i = 0; i < (int)(W * sizeof(T) / 16); i++)
            if (i * 16 < bytes) ((uint4 *)to)[i] = r.sixteen[i];
    } else if (bytes % 8 == 0 && (uintptr_t)base % 8 == 0) {
#pragma unroll
        for (int i = 0; i < (int)(W * sizeof(T) / 8); i++)
            if (i * 8 < bytes) ((uint2 *)to)[i] = r.eight[i];
    } else {
#pragma unroll
        for (int i = 0; i < W; i++)
            if (i < width) to[i] = r.one[i];
    }
}

static __device__ float widen(float v, exf_fold_real)
{
    return v;
}
static __device__ float widen(uint16_t v, exf_fold_real type)
{
    return type == EXF_FOLD_BF16 ? exf_from_bf16(v) : exf_from_f16(v);
}
static __device__ void narrow(float *to, float v, exf_fold_real)
{
    *to = v;
}
static __device__ void narrow(uint16_t *to, float v, exf_fold_real type)
{
    *to = type == EXF_FOLD_BF16 ? exf_to_bf16(v) : exf_to_f16(v);
}

/* A token's routes, sorted; slots without an expert, and slots beyond K, come last. */
template <class Id, int W> struct token {
    row_of<Id, W> raw;
    int32_t key[W];
    int id[W], n; /* id 0 if the slot has no expert: valid for lookups */
    float w[W];
};

template <class Id, int W>
static __device__ __forceinline__ void rank(token<Id, W> *s, const exf_fold_routes &in, int64_t row, const exf_fold_tables &t,
                                            const exf_fold_prefill_options &o)
{
    float h[W];
    int counts = exf_fold_counts(&in, row);
    s->n = 0;
#pragma unroll
    for (int i = 0; i < W; i++) {
        int valid = counts && s->raw.one[i] >= 0 && s->raw.one[i] < t.n_experts;
        s->id[i] = valid ? (int)s->raw.one[i] : -1;
        s->n += valid;
        h[i] = 0;
    }
    if (o.rank != EXF_FOLD_BY_SCORE && in.norms) {
        row_of<float, W> own = load_row<float, W>(in.norms, row, in.width);
#pragma unroll
        for (int i = 0; i < W; i++) h[i] = own.one[i];
    } else if (o.rank != EXF_FOLD_BY_SCORE) {
#pragma unroll
        for (int i = 0; i < W; i++) h[i] = exf_fold_load_if(t.norms + max(s->id[i], 0), s->id[i] >= 0, 0);
    }
#pragma unroll
    for (int i = 0; i < W; i++) s->key[i] = s->id[i] < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(o.rank, s->w[i], h[i]);
}

template <class Id, int W> static __device__ __forceinline__ void swap_if_less(token<Id, W> *s, int i)
{
    int less = s->key[i] < s->key[i + 1];
    int32_t key = s->key[i];
    Id raw = s->raw.one[i];
    float w = s->w[i];
    s->key[i] = less ? s->key[i + 1] : key;
    s->raw.one[i] = less ? s->raw.one[i + 1] : raw;
    s->w[i] = less ? s->w[i + 1] : w;
    s->key[i + 1] = less ? key : s->key[i + 1];
    s->raw.one[i + 1] = less ? raw : s->raw.one[i + 1];
    s->w[i + 1] = less ? w : s->w[i + 1];
}

/* Sorts by falling key, equal keys in the order of slots.  Neighbours are exchanged in rounds until
 * the whole warp is sorted; a router's routes often are from the start. */
template <class Id, int W> static __device__ __forceinline__ void sort(token<Id, W> *s)
{
#pragma unroll 1
    for (;;) {
        int less = 0;
#pragma unroll
        for (int i = 0; i + 1 < W; i++) less |= s->key[i] < s->key[i + 1];
        if (!__any_sync(0xffffffffu, less)) break;
#pragma unroll
        for (int i = 0; i + 1 < W; i += 2) swap_if_less(s, i);
#pragma unroll
        for (int i = 1; i + 1 < W; i += 2) swap_if_less(s, i);
    }
#pragma unroll
    for (int i = 0; i < W; i++) s->id[i] = i < s->n ? (int)s->raw.one[i] : 0;
}

template <int W> static __device__ __forceinline__ float sum_of(const float (&w)[W], int n, exf_fold_rescale rescale)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < W; i++) sum = exf_addf(sum, i >= n ? 0.0f : rescale == EXF_FOLD_RESCALE_L2 ? exf_mulf(w[i], w[i]) : w[i]);
    return sum;
}

/* Finds targets of GROUP omitted routes from rank FIRST on, with all lookups of a kind at once.
 * KEEP: o.keep if it is a compile-time constant, else 0. */
template <class Id, int W, int KEEP, int GROUP, int FIRST>
static __device__ __forceinline__ void fold_some(float (&w)[W], float *spread, const token<Id, W> &s, const exf_fold_tables &t,
                                                 const exf_fold_prefill_options &o)
{
    const int keep = KEEP > 0 ? KEEP : o.keep;
    float loss[GROUP][W], least[GROUP], coeff[GROUP];
    int to[GROUP], target[GROUP];
    if (FIRST + GROUP <= keep) return;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
#pragma unroll
        for (int i = 0; i < W; i++)
            loss[g][i] = i >= FIRST + g || (KEEP > 0 && i >= KEEP)
                             ? EXF_FOLD_NEVER
                             : exf_fold_load_if(t.loss + (s.id[FIRST + g] * t.n_experts + s.id[i]), FIRST + g >= keep && i < keep,
                                                EXF_FOLD_NEVER);
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        least[g] = EXF_FOLD_NEVER;
        to[g] = -1;
        target[g] = 0;
#pragma unroll
        for (int i = 0; i < W; i++) {
            int less = loss[g][i] < least[g];
            least[g] = less ? loss[g][i] : least[g];
            to[g] = less ? i : to[g];
            target[g] = less ? s.id[i] : target[g];
        }
        coeff[g] = exf_fold_load_if(t.coeff + (s.id[FIRST + g] * t.n_experts + target[g]), FIRST + g >= keep, 0);
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        int omitted = FIRST + g >= keep && FIRST + g < s.n,
            folds = omitted && to[g] >= 0 && least[g] <= o.max_loss; /* false: no target is allowed */
        float mine = s.w[FIRST + g], c = !folds ? 0.0f : o.confidence ? exf_fold_confidence(least[g]) : 1.0f;
        float part = exf_mulf(exf_mulf(mine, coeff[g]), c);
        *spread = exf_addf(*spread, omitted ? exf_mulf(mine, exf_addf(1.0f, -c)) : 0.0f);
#pragma unroll
        for (int i = 0; i < W; i++)
            if (i < (KEEP > 0 ? KEEP : FIRST + g))
                w[i] = exf_addf(w[i], folds && i == to[g] ? part : -0.0f); /* no indexing by `to`: w stays in registers */
    }
}

/* Folds every omitted route in order of rank; narrow rows have code for each KEEP from 1 on. */
template <class Id, int W, int KEEP>
static __device__ __forceinline__ void fold(float (&w)[W], float *spread, const token<Id, W> &s, const exf_fold_tables &t,
                                            const exf_fold_prefill_options &o)
{
    if constexpr (W > 8) {
        fold_some<Id, W, 0, 5, 1>(w, spread, s, t, o);
        fold_some<Id, W, 0, 5, 6>(w, spread, s, t, o);
        fold_some<Id, W, 0, 5, 11>(w, spread, s, t, o);
    } else if constexpr (KEEP < W) {
        if (o.keep == KEEP)
            fold_some<Id, W, KEEP, W - KEEP, KEEP>(w, spread, s, t, o);
        else
            fold<Id, W, KEEP + 1>(w, spread, s, t, o);
    }
}

/* Gives the weight that confidence left over to the kept routes, in proportion to their original weights. */
template <class Id, int W>
static __device__ __forceinline__ void spread_over(float (&w)[W], float spread, const token<Id, W> &s,
                                                   const exf_fold_prefill_options &o)
{
    if (!o.confidence || s.n <= o.keep) return;
    float sum = sum_of(s.w, o.keep, EXF_FOLD_RESCALE_SUM);
    if (!(sum > 0)) return;
    spread = exf_divf(spread, sum);
#pragma unroll
    for (int i = 0; i < W; i++) w[i] = exf_addf(w[i], exf_mulf(s.w[i], spread));
}

template <exf_fold_int I, exf_fold_real R, int W>
static __global__ void __launch_bounds__(MOST_THREADS)
    prefill(const exf_fold_routes in, const exf_fold_routes out, const exf_fold_tables t, const exf_fold_prefill_options o)
{
    typedef typename id_of<I>::type Id;
    typedef typename real_of<R>::type Real;
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int beyond = row >= in.rows; /* such a thread still takes part in its warp's votes */
    if (beyond) row = in.rows - 1;
    token<Id, W> s;
    row_of<Real, W> weights = load_row<Real, W>(in.weights, row, in.width);
    s.raw = load_row<Id, W>(in.ids, row, in.width);
    float w[W], spread = 0;
#pragma unroll
    for (int i = 0; i < W; i++) s.w[i] = widen(weights.one[i], R);
    rank(&s, in, row, t, o);
    sort(&s);
#pragma unroll
    for (int i = 0; i < W; i++) w[i] = s.w[i];
    fold<Id, W, 1>(w, &spread, s, t, o);
    spread_over(w, spread, s, o);
    if (o.rescale != EXF_FOLD_RESCALE_NONE) {
        int kept = min(s.n, o.keep);
        float f = exf_fold_rescale_factor(o.rescale, sum_of(s.w, s.n, o.rescale), sum_of(w, kept, o.rescale));
#pragma unroll
        for (int i = 0; i < W; i++) w[i] = i < kept ? exf_mulf(w[i], f) : w[i];
    }
#pragma unroll
    for (int i = 0; i < W; i++) narrow(&weights.one[i], w[i], R);
    if (beyond) return;
    store_row(out.ids, row, o.keep, s.raw);
    store_row(out.weights, row, o.keep, weights);
}

exf_fold_status exf_fold_prefill_cuda(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                      const exf_fold_prefill_options *o, void *stream)
{
    typedef void (*kernel)(exf_fold_routes, exf_fold_routes, exf_fold_tables, exf_fold_prefill_options);
    static const kernel narrow_rows[2][3] = EXF_FOLD_BY_TYPE(prefill, 8), wide_rows[2][3] = EXF_FOLD_BY_TYPE(prefill, 16);
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 0);
    if (status != EXF_FOLD_OK || in->rows == 0) return status;
    kernel k = (in->width <= 8 ? narrow_rows : wide_rows)[in->id_type][in->weight_type];
    unsigned threads = in->rows <= 16384 ? 64 : MOST_THREADS; /* with few tokens, small blocks occupy more multiprocessors */
    return exf_fold_launch(k, ((unsigned)in->rows + threads - 1) / threads, threads, 1, stream, *in, *out, *t, settled);
}
