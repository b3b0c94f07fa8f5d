/* fold_internal.h - inline functions shared by the C and CUDA implementations of
 * exfold/fold.h: number formats, the order of routes, the integer of an importance, a small positive
 * definite system, what an option's number means.
 *
 * Both compilers see one arithmetic: on the device products and sums are written with
 * the intrinsics that are never contracted, so that ids and weights agree bit for bit. */
#ifndef EXF_KERNELS_FOLD_INTERNAL_H
#define EXF_KERNELS_FOLD_INTERNAL_H
#include "exfold/fold.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#ifdef __CUDACC__
#define EXF_FOLD_INLINE static __host__ __device__ __forceinline__
#else
#define EXF_FOLD_INLINE static inline
#endif

enum { EXF_FOLD_MAX_K = 16, EXF_FOLD_MIN_E = 3, EXF_FOLD_MAX_E = 512, EXF_FOLD_MAX_SLOTS = 65536 };

/* ---- arithmetic, rounded once per operation ------------------------------------- */

#ifdef __CUDA_ARCH__
EXF_FOLD_INLINE float exf_mulf(float a, float b) { return __fmul_rn(a, b); }
EXF_FOLD_INLINE float exf_addf(float a, float b) { return __fadd_rn(a, b); }
EXF_FOLD_INLINE float exf_divf(float a, float b) { return __fdiv_rn(a, b); }
EXF_FOLD_INLINE float exf_sqrtf(float a) { return __fsqrt_rn(a); }
EXF_FOLD_INLINE double exf_muld(double a, double b) { return __dmul_rn(a, b); }
EXF_FOLD_INLINE double exf_addd(double a, double b) { return __dadd_rn(a, b); }
#else
EXF_FOLD_INLINE float exf_mulf(float a, float b) { return a * b; }
EXF_FOLD_INLINE float exf_addf(float a, float b) { return a + b; }
EXF_FOLD_INLINE float exf_divf(float a, float b) { return a / b; }
EXF_FOLD_INLINE float exf_sqrtf(float a) { return sqrtf(a); }
EXF_FOLD_INLINE double exf_muld(double a, double b) { return a * b; }
EXF_FOLD_INLINE double exf_addd(double a, double b) { return a + b; }
#endif

EXF_FOLD_INLINE uint32_t exf_bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

EXF_FOLD_INLINE float exf_float_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* ---- 16-bit weights --------------------------------------------------------------- */

EXF_FOLD_INLINE float exf_from_bf16(uint16_t h)
{
    return exf_float_of((uint32_t)h << 16);
}

EXF_FOLD_INLINE uint16_t exf_to_bf16(float v)
{
    uint32_t bits = exf_bits_of(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u); /* stays a NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

EXF_FOLD_INLINE float exf_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    if (rest >= 0x0f800000u) return exf_float_of(sign | rest | 0x7f800000u);
    return exf_float_of(sign | exf_bits_of(exf_mulf(exf_float_of(rest), 0x1p112f))); /* subnormals become normal */
}

EXF_FOLD_INLINE uint16_t exf_to_f16(float v)
{
    uint32_t sign = exf_bits_of(v) >> 16 & 0x8000u, bits = exf_bits_of(v) & 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* from 2^16 on: infinity */
    if (bits < 0x38800000u)                                     /* below 2^-14: adding 0.5 rounds to multiples of 2^-24 */
        return (uint16_t)(sign | (exf_bits_of(exf_addf(exf_float_of(bits), 0.5f)) - 0x3f000000u));
    bits += 0xc8000fffu + (bits >> 13 & 1u); /* exponent from bias 127 to 15, and round */
    return (uint16_t)(sign | bits >> 13);
}

/* ---- slots ------------------------------------------------------------------------ */

EXF_FOLD_INLINE int64_t exf_fold_raw_id(const exf_fold_routes *r, int64_t slot)
{
    return r->id_type == EXF_FOLD_I32 ? ((const int32_t *)r->ids)[slot] : ((const int64_t *)r->ids)[slot];
}

/* Returns 1 if a row is no padding. */
EXF_FOLD_INLINE int exf_fold_counts(const exf_fold_routes *r, int64_t row)
{
    return (!r->count || row < *r->count) && (!r->mask || r->mask[row]);
}

/* The expert of a slot, or -1; padding is not looked at. */
EXF_FOLD_INLINE int exf_fold_id(const exf_fold_routes *r, int64_t slot, int n_experts)
{
    int64_t id = exf_fold_raw_id(r, slot);
    return id >= 0 && id < n_experts ? (int)id : -1;
}

/* The expert of a slot, or -1, as in every row of padding. */
EXF_FOLD_INLINE int exf_fold_expert(const exf_fold_routes *r, int64_t slot, int n_experts)
{
    if (r->count || r->mask) { /* the quotient of 32-bit numbers is the cheaper one */
        int64_t row = slot <= UINT32_MAX ? (int64_t)((uint32_t)slot / (uint32_t)r->width) : slot / r->width;
        if (!exf_fold_counts(r, row)) return -1;
    }
    return exf_fold_id(r, slot, n_experts);
}

EXF_FOLD_INLINE void exf_fold_set_id(const exf_fold_routes *r, int64_t slot, int64_t id)
{
    if (r->id_type == EXF_FOLD_I32)
        ((int32_t *)r->ids)[slot] = (int32_t)id;
    else
        ((int64_t *)r->ids)[slot] = id;
}

EXF_FOLD_INLINE float exf_fold_real_at(const void *array, exf_fold_real type, int64_t i)
{
    if (type == EXF_FOLD_F32) return ((const float *)array)[i];
    uint16_t half = ((const uint16_t *)array)[i];
    return type == EXF_FOLD_BF16 ? exf_from_bf16(half) : exf_from_f16(half);
}

EXF_FOLD_INLINE float exf_fold_weight(const exf_fold_routes *r, int64_t slot)
{
    return exf_fold_real_at(r->weights, r->weight_type, slot);
}

/* The norm of a slot's expert on its token: the caller's, or of `means` [E], which may be NULL where nothing reads it. */
EXF_FOLD_INLINE float exf_fold_norm(const exf_fold_routes *r, int64_t slot, int id, const float *means)
{
    return r->norms ? r->norms[slot] : means ? means[id] : 0.0f;
}

EXF_FOLD_INLINE void exf_fold_set_weight(const exf_fold_routes *r, int64_t slot, float v)
{
    if (r->weight_type == EXF_FOLD_F32)
        ((float *)r->weights)[slot] = v;
    else
        ((uint16_t *)r->weights)[slot] = r->weight_type == EXF_FOLD_BF16 ? exf_to_bf16(v) : exf_to_f16(v);
}

/* ---- order and targets ------------------------------------------------------------ */

#define EXF_FOLD_NO_RANK INT32_MIN /* of a slot without an expert: below every number */

/* The order-preserving bits of a number; both zeros have the same, NaN is below all. */
EXF_FOLD_INLINE int32_t exf_fold_ordered(float v)
{
    uint32_t bits = exf_bits_of(exf_addf(v, 0.0f)); /* of -0: 0 */
    bits ^= bits >> 31 ? 0x7fffffffu : 0;
    return v != v ? INT32_MIN + 1 : (int32_t)bits;
}

/* The key by which a route of weight w to an expert of norm h is ranked; BY_SCORE ignores h. */
EXF_FOLD_INLINE int32_t exf_fold_rank_key(exf_fold_rank rank, float w, float h)
{
    return exf_fold_ordered(rank == EXF_FOLD_BY_SCORE ? w : rank == EXF_FOLD_BY_NORM ? h : exf_mulf(w, h));
}

/* The order-preserving bits of |cosine|, NaN as 0. */
EXF_FOLD_INLINE uint32_t exf_fold_likeness(float cosine)
{
    uint32_t bits = exf_bits_of(cosine) & 0x7fffffffu;
    return bits <= 0x7f800000u ? bits : 0;
}

EXF_FOLD_INLINE int exf_fold_may_take(float loss, float max_loss)
{
    return loss <= max_loss && loss < EXF_FOLD_NEVER;
}

/* The confidence c of exfold/fold.h, of a pair that may be folded. */
EXF_FOLD_INLINE float exf_fold_confidence(float loss)
{
    float c = exf_addf(1.0f, -loss);
    return c < 0 ? 0.0f : c > 1 ? 1.0f : c;
}

/* Returns the factor of the kept weights; 1 if they are to be left alone. */
EXF_FOLD_INLINE float exf_fold_rescale_factor(exf_fold_rescale rescale, float before, float after)
{
    if (!(before > 0) || !(after > 0)) return 1.0f;
    float f = exf_divf(before, after);
    if (rescale == EXF_FOLD_RESCALE_L2) f = exf_sqrtf(f);
    return f <= 3.402823466e38f ? f : 1.0f;
}

/* ---- thresholds ------------------------------------------------------------------- */

/* Returns 1 if a layer's factor times a route's share of its token's weights, w of all, is at least tau. */
EXF_FOLD_INLINE int exf_fold_reaches(double factor, double w, double tau, double all)
{
    return exf_muld(factor, w) >= exf_muld(tau, all);
}

/* ---- importance ------------------------------------------------------------------- */

/* One slot's term.  Clamps infinities, and NaN to 0, so that the sum stays finite. */
EXF_FOLD_INLINE float exf_fold_term(exf_fold_importance kind, float w, float scale)
{
    float v = exf_mulf(w, scale);
    if (kind == EXF_FOLD_IMPORTANCE_ENERGY) v = exf_mulf(v, v);
    if (v != v) return 0.0f;
    return v > 3.402823466e38f ? 3.402823466e38f : v < -3.402823466e38f ? -3.402823466e38f : v;
}

/* Returns the factors of w in a term, [E]; NULL: 1. */
EXF_FOLD_INLINE const float *exf_fold_scales(const exf_fold_tables *t, exf_fold_importance kind)
{
    return kind == EXF_FOLD_IMPORTANCE_SCORE ? NULL : kind == EXF_FOLD_IMPORTANCE_ENERGY ? t->rms : t->norms;
}

/* 1 if a slot with that term makes its expert a candidate for the pool. */
EXF_FOLD_INLINE int exf_fold_competes(exf_fold_candidates candidates, float term)
{
    return candidates != EXF_FOLD_POOL_OF_POSITIVE || term > 0;
}

/* 2^36 over the smallest power of two that is no less than `largest` >= 0. */
EXF_FOLD_INLINE double exf_fold_grid(float largest)
{
    double v = largest;
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (bits == 0) return 1;
    int exponent = (int)(bits >> 52) - 1023 + ((bits & 0xfffffffffffffull) != 0);
    bits = (uint64_t)(1023 + 36 - exponent) << 52;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The term as an integer of that grid, nearest, ties to even; at most 2^36 in magnitude. */
EXF_FOLD_INLINE int64_t exf_fold_quantum(float term, double grid)
{
    double magic = 0x1.8p52; /* adding it rounds to an integer */
    return (int64_t)exf_addd(exf_addd(exf_muld(term, grid), magic), -magic);
}

/* Larger key: more important, then lower id.  Sums are below 2^53 in magnitude, ids below 2^9. */
EXF_FOLD_INLINE uint64_t exf_fold_pool_key(int64_t sum, int id)
{
    return (uint64_t)(sum + (1ll << 53)) << 9 | (uint64_t)(511 - id);
}
EXF_FOLD_INLINE int exf_fold_pool_id(uint64_t key)
{
    return 511 - (int)(key & 511u);
}

/* ---- the joint forms' system -------------------------------------------------------- */

/* The inner product of the outputs of a and b, of norms n and m.  Rounded once, since a product of two floats is exact: equal for
 * (a, b) and (b, a). */
EXF_FOLD_INLINE double exf_fold_gram(const exf_fold_tables *t, int a, float n, int b, float m)
{
    return exf_muld(exf_muld(t->cosine[(size_t)a * (size_t)t->n_experts + (size_t)b], n), m);
}

/* Returns the mean norms of G, [E]; NULL where the tables have none. */
EXF_FOLD_INLINE const float *exf_fold_gram_norms(const exf_fold_tables *t)
{
    return t->relative_norms ? t->relative_norms : t->rms;
}

/* The norm of expert `to` in the place of `from`, whose norm on the token is n. */
EXF_FOLD_INLINE float exf_fold_stand_in_norm(const exf_fold_routes *r, const exf_fold_tables *t, int to, int from, float n)
{
    const float *mean = exf_fold_gram_norms(t);
    return r->norms && mean[from] > 0 ? exf_mulf(mean[to], exf_divf(n, mean[from])) : mean[to];
}

/* The part of its own diagonal that a pivot must keep, else rho is raised.  It bounds the weights that come of cosines which fit no
 * set of vectors (docs/method.md, section 14).  Where no eigenvalue of the whole matrix is below this part, systems of distinct
 * experts pass with any norms and any rho, in any order; exfold-solve raises eigenvalues to 0.02 before it scales the diagonal. */
#define EXF_FOLD_PIVOT 0x1p-7
/* The most times that rho is raised: the default is 164 then, where the diagonal outweighs any 16 cosines. */
enum { EXF_FOLD_RAISES = 14 };
EXF_FOLD_INLINE double exf_fold_raise(double rho)
{
    return rho < 1e-3 ? 1e-3 : exf_muld(2, rho);
}

/* Returns the part of an omitted route of weight w that goes to the slot that stands in for it, where the system has no solution;
 * at: the pair's place in coeff. */
EXF_FOLD_INLINE float exf_fold_by_pair(const exf_fold_tables *t, float w, size_t at)
{
    return t->coeff ? exf_mulf(w, t->coeff[at]) : 0.0f;
}

/* ---- stand-ins ---------------------------------------------------------------------- */

/* The order-preserving bits of a score; 0: never a stand-in (-infinity, NaN). */
EXF_FOLD_INLINE uint32_t exf_fold_score_key(float score)
{
    return score >= -3.402823466e38f ? (uint32_t)exf_fold_ordered(score) ^ 0x80000000u : 0;
}

/* Returns whether a route to expert a takes its stand-in before one to b, given the keys of their scores. */
EXF_FOLD_INLINE int exf_fold_stands_before(uint32_t key_a, int a, uint32_t key_b, int b)
{
    return key_a > key_b || (key_a == key_b && a < b);
}

/* Returns the factor that makes a weight of a gate score: sum w over sum g of the original slots. */
EXF_FOLD_INLINE float exf_fold_gate_factor(float weights, float gates)
{
    return gates > 0 ? exf_divf(weights, gates) : 0.0f;
}

/* ---- budgets ------------------------------------------------------------------------ */

/* Returns the amount by which omitting a route raises the predicted residual: D y^2 - ridge w^2 with y = (L'w)_j. */
EXF_FOLD_INLINE double exf_fold_residual_term(double d, double y, double ridge, float w)
{
    return exf_addd(exf_muld(exf_muld(d, y), y), -exf_muld(exf_muld(ridge, w), w));
}

/* Returns the cost of keeping P routes. */
EXF_FOLD_INLINE double exf_fold_budget_cost(double residual, float penalty, int p)
{
    return exf_addd(residual, exf_muld(penalty, p));
}

/* ---- options ------------------------------------------------------------------------ */

/* The limit and rho that a number means in a struct without `size` (fold.h): 0 the default, EXF_FOLD_ZERO 0. */
EXF_FOLD_INLINE float exf_fold_max_loss(float given)
{
    return given == 0 ? EXF_FOLD_NEVER : given == EXF_FOLD_ZERO ? 0.0f : given;
}

EXF_FOLD_INLINE float exf_fold_ridge(float given)
{
    return given == 0 ? EXF_FOLD_RIDGE : given == EXF_FOLD_ZERO ? 0.0f : given;
}
/* 1 if a batch of so few slots cannot route to an expert outside the pool. */
static inline int exf_fold_fits(int64_t slots, const exf_fold_decode_options *o)
{
    return slots == 0 || (!o->members && slots <= o->pool && o->candidates != EXF_FOLD_POOL_OF_ALL);
}
#endif
