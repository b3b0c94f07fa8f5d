/* fold_prefill_cuda.cu - see exfold/fold.h: a thread per token, its routes in registers.
 * Rows are read and written 16 bytes at a time where they lie so; lookups that do not
 * depend on each other are under way together.  Sums run in order of rank, as in the
 * reference. */
#include "kernels/fold_cuda.cuh"

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

/* A row of at most W in units of 16, 8 bytes, or one by one. */
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

/* A token's routes; sorted, those without an expert last.  Slots beyond K are such, too. */
template <class Id, int W> struct token {
    row_of<Id, W> raw;
    int32_t key[W];
    int id[W], n; /* id 0 where there is none: safe to look up */
    float w[W];
};

/* By falling key, equal ones as they came: rounds of neighbours until none in the warp has moved. */
template <class Id, int W> static __device__ __forceinline__ void sort(token<Id, W> *s)
{
#pragma unroll 1
    for (int moved = 1; moved;) {
        moved = 0;
#pragma unroll
        for (int odd = 0; odd < 2; odd++)
#pragma unroll
            for (int i = odd; i + 1 < W; i += 2) {
                if (s->key[i + 1] <= s->key[i]) continue;
                int32_t key = s->key[i];
                Id raw = s->raw.one[i];
                float w = s->w[i];
                s->key[i] = s->key[i + 1];
                s->raw.one[i] = s->raw.one[i + 1];
                s->w[i] = s->w[i + 1];
                s->key[i + 1] = key;
                s->raw.one[i + 1] = raw;
                s->w[i + 1] = w;
                moved = 1;
            }
        moved = __any_sync(0xffffffffu, moved);
    }
}

template <class Id, int W> static __device__ __forceinline__ float sum_of(const float (&w)[W], int n, exf_fold_rescale rescale)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < W; i++)
        if (i < n) sum = exf_addf(sum, rescale == EXF_FOLD_RESCALE_L2 ? exf_mulf(w[i], w[i]) : w[i]);
    return sum;
}

/* Where a few omitted routes go: GROUP of them from rank `first`, all lookups of a kind at once. */
template <class Id, int W, int GROUP, int FIRST>
static __device__ __forceinline__ void fold_some(float (&w)[W], float *spread, const token<Id, W> &s, const exf_fold_tables &t,
                                                 const exf_fold_prefill_options &o)
{
    float loss[GROUP][W], least[GROUP], coeff[GROUP];
    int to[GROUP], target[GROUP];
    if (FIRST + GROUP <= o.keep) return;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
#pragma unroll
        for (int i = 0; i < FIRST + g; i++)
            loss[g][i] =
                FIRST + g >= o.keep && i < o.keep ? __ldg(t.loss + s.id[FIRST + g] * t.n_experts + s.id[i]) : EXF_FOLD_NEVER;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        least[g] = EXF_FOLD_NEVER;
        to[g] = -1;
        target[g] = 0;
#pragma unroll
        for (int i = 0; i < FIRST + g; i++)
            if (loss[g][i] < least[g]) {
                least[g] = loss[g][i];
                to[g] = i;
                target[g] = s.id[i];
            }
        if (!(least[g] <= o.max_loss)) to[g] = -1; /* the least of all is not allowed */
        coeff[g] = FIRST + g >= o.keep ? __ldg(t.coeff + s.id[FIRST + g] * t.n_experts + target[g]) : 0;
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float mine = s.w[FIRST + g], c = to[g] < 0 ? 0.0f : o.confidence ? exf_fold_confidence(least[g]) : 1.0f;
        if (FIRST + g < o.keep || FIRST + g >= s.n) continue;
        float part = exf_mulf(exf_mulf(mine, c), coeff[g]);
        *spread = exf_addf(*spread, exf_mulf(mine, exf_addf(1.0f, -c)));
#pragma unroll
        for (int i = 0; i < FIRST + g; i++) w[i] = exf_addf(w[i], i == to[g] ? part : -0.0f); /* no index: w stays in registers */
    }
}

/* Every omitted route in order of rank. */
template <class Id, int W>
static __device__ __forceinline__ void fold(float (&w)[W], const token<Id, W> &s, const exf_fold_tables &t,
                                            const exf_fold_prefill_options &o)
{
    float spread = 0, sum;
    if constexpr (W == 8) {
        fold_some<Id, W, 7, 1>(w, &spread, s, t, o);
    } else {
        fold_some<Id, W, 5, 1>(w, &spread, s, t, o);
        fold_some<Id, W, 5, 6>(w, &spread, s, t, o);
        fold_some<Id, W, 5, 11>(w, &spread, s, t, o);
    }
    if (!o.confidence || s.n <= o.keep) return;
    sum = sum_of<Id, W>(s.w, o.keep, EXF_FOLD_RESCALE_SUM);
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
    int beyond = row >= in.rows; /* votes with its warp all the same */
    if (beyond) row = in.rows - 1;
    token<Id, W> s = {};
    row_of<Real, W> weights = load_row<Real, W>(in.weights, row, in.width);
    s.raw = load_row<Id, W>(in.ids, row, in.width);
#pragma unroll
    for (int i = 0; i < W; i++) {
        int id = s.raw.one[i] >= 0 && s.raw.one[i] < t.n_experts ? (int)s.raw.one[i] : -1;
        s.w[i] = widen(weights.one[i], R);
        s.key[i] = exf_fold_rank_key(o.rank, s.w[i], t.norms, id);
        s.n += id >= 0;
    }
    sort(&s);
    float w[W];
#pragma unroll
    for (int i = 0; i < W; i++) {
        s.id[i] = i < s.n ? (int)s.raw.one[i] : 0;
        w[i] = s.w[i];
    }
    fold(w, s, t, o);
    if (o.rescale != EXF_FOLD_RESCALE_NONE) {
        int kept = min(s.n, o.keep);
        float f = exf_fold_rescale_factor(o.rescale, sum_of<Id, W>(s.w, s.n, o.rescale), sum_of<Id, W>(w, kept, o.rescale));
#pragma unroll
        for (int i = 0; i < W; i++)
            if (i < kept) w[i] = exf_mulf(w[i], f);
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
    exf_fold_status status = exf_fold_check_prefill(in, out, t, o, 0);
    if (status != EXF_FOLD_OK || in->rows == 0) return status;
    kernel k = (in->width <= 8 ? narrow_rows : wide_rows)[in->id_type][in->weight_type];
    unsigned threads = in->rows <= 16384 ? 64 : MOST_THREADS; /* few tokens: to as many multiprocessors as there are */
    return exf_fold_launch(k, ((unsigned)in->rows + threads - 1) / threads, threads, 1, stream, *in, *out, *t, *o);
}
