/* fold_abi_fixtures.h - for the tests of exfold/fold.h: tables and routes, plain or awkward,
 * and folding written from the formulas in doubles, one expert at a time. */
#ifndef EXF_TESTS_FOLD_ABI_FIXTURES_H
#define EXF_TESTS_FOLD_ABI_FIXTURES_H
#include "base/hash.h"
#include "exfold/fold.h"
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include <math.h>
#include <string.h>

enum { FOLD_E = 512, FOLD_K = 16, FOLD_SLOTS = 65536 };

/* ---- tables --------------------------------------------------------------------- */

typedef enum {
    TABLES_REAL,  /* as calibrated: a fifth of the pairs unobserved, cosines of real vectors */
    TABLES_EXACT, /* small dyadic numbers: every float32 result is exact, ties everywhere */
    TABLES_EQUAL, /* all losses equal */
    TABLES_NEVER, /* no pair observed */
    N_TABLES
} fold_tables_kind;

typedef struct {
    float coeff[FOLD_E * FOLD_E], loss[FOLD_E * FOLD_E], cosine[FOLD_E * FOLD_E], norms[FOLD_E], rms[FOLD_E];
    exf_fold_tables t;
} fold_tables;

/* Uniform in [0, 1). */
static inline double fold_uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
    return (double)(exf_rng_u64(seed, stream, i) >> 11) * 0x1p-53;
}

static inline int fold_below(int n, uint64_t seed, uint64_t stream, uint64_t i)
{
    return (int)exf_rng_below((uint64_t)n, seed, stream, i);
}

/* Cosines of random vectors in eight dimensions. */
static inline void fold_fill_cosines(fold_tables *f, int e, uint64_t seed)
{
    static double v[FOLD_E][8];
    for (int a = 0; a < e; a++) {
        double sq = 0;
        for (int d = 0; d < 8; d++) {
            v[a][d] = fold_uniform(seed, 5, (uint64_t)(a * 8 + d)) - 0.4;
            sq += v[a][d] * v[a][d];
        }
        for (int d = 0; d < 8; d++) v[a][d] /= sqrt(sq);
    }
    for (int a = 0; a < e; a++)
        for (int b = 0; b < e; b++) {
            double dot = 0;
            for (int d = 0; d < 8; d++) dot += v[a][d] * v[b][d];
            f->cosine[a * e + b] = a == b ? 1 : (float)dot;
        }
}

static inline void fold_fill_tables(fold_tables *f, int e, uint64_t seed, fold_tables_kind kind)
{
    for (int i = 0; i < e * e; i++) {
        double u = fold_uniform(seed, 0, (uint64_t)i), v = fold_uniform(seed, 1, (uint64_t)i);
        f->coeff[i] = kind == TABLES_EXACT ? (float)((int)(u * 9) - 4) / 4 : (float)(2 * u - 0.7);
        f->loss[i] = kind == TABLES_EXACT ? (float)(int)(v * 5) / 4 : (float)(1.1 * v);
        if (kind == TABLES_EQUAL) f->loss[i] = 0.5f;
        if (kind == TABLES_NEVER || i / e == i % e || (kind == TABLES_REAL && fold_uniform(seed, 2, (uint64_t)i) < 0.2))
            f->loss[i] = 1e30f;
        if (f->loss[i] >= 1e30f) f->coeff[i] = i / e == i % e ? 1 : 0;
    }
    fold_fill_cosines(f, e, seed);
    for (int i = 0; i < e; i++) {
        f->norms[i] = kind == TABLES_EXACT ? (float)(1 << fold_below(3, seed, 3, (uint64_t)i))
                                           : (float)(0.5 + fold_uniform(seed, 3, (uint64_t)i));
        f->rms[i] = kind == TABLES_EXACT ? f->norms[i] : f->norms[i] * (float)(1 + 0.2 * fold_uniform(seed, 4, (uint64_t)i));
    }
    f->t = (exf_fold_tables){
        .coeff = f->coeff, .loss = f->loss, .norms = f->norms, .cosine = f->cosine, .rms = f->rms, .n_experts = e};
}

/* ---- routes ---------------------------------------------------------------------- */

typedef enum {
    ROUTES_PLAIN,   /* distinct experts, weights of a softmax */
    ROUTES_EXACT,   /* distinct experts, weights 0, 1/8 .. 7/8: ties */
    ROUTES_AWKWARD, /* slots without an expert, repeated experts, zeros */
    ROUTES_FEW,     /* as PLAIN, from the first max(K, E/4) experts */
    N_ROUTES
} fold_routes_kind;

/* Room for routes of any type. */
typedef struct {
    int64_t ids[FOLD_SLOTS], weights[FOLD_SLOTS / 2];
    exf_fold_routes r;
} fold_routes;

static inline float fold_half(const void *p, exf_fold_real type, int i)
{
    uint16_t h = ((const uint16_t *)p)[i];
    uint32_t bits = (uint32_t)h << 16;
    float v;
    memcpy(&v, &bits, 4);
    if (type == EXF_FOLD_BF16) return v;
    int exponent = h >> 10 & 31, fraction = h & 1023;
    v = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent     ? ldexpf((float)(1024 + fraction), exponent - 25)
                       : ldexpf((float)fraction, -24);
    return h & 0x8000 ? -v : v;
}

static inline float fold_weight_at(const exf_fold_routes *r, int i)
{
    return r->weight_type == EXF_FOLD_F32 ? ((const float *)r->weights)[i] : fold_half(r->weights, r->weight_type, i);
}

static inline int64_t fold_id_at(const exf_fold_routes *r, int i)
{
    return r->id_type == EXF_FOLD_I32 ? ((const int32_t *)r->ids)[i] : ((const int64_t *)r->ids)[i];
}

/* Nearest 16-bit number, ties to even, by way of its unit in the last place. */
static inline uint16_t fold_to_half(float v, exf_fold_real type)
{
    int fraction_bits = type == EXF_FOLD_BF16 ? 7 : 10, least = type == EXF_FOLD_BF16 ? -126 : -14,
        most = type == EXF_FOLD_BF16 ? 127 : 15;
    uint16_t sign = signbit(v) ? 0x8000 : 0, infinity = (uint16_t)((most + (type == EXF_FOLD_BF16 ? 128 : 16)) << fraction_bits);
    double a = fabs((double)v);
    int exponent;
    if (a == 0) return sign;
    frexp(a, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    double units = rint(ldexp(a, fraction_bits - exponent)); /* the carry into the exponent comes by itself */
    if (ldexp(units, exponent - fraction_bits) >= ldexp(1, most + 1)) return sign | infinity;
    return (uint16_t)(sign | (int)(units + ldexp(exponent - least, fraction_bits)));
}

static inline void fold_put(const exf_fold_routes *r, int i, int64_t id, float w)
{
    if (r->id_type == EXF_FOLD_I32)
        ((int32_t *)r->ids)[i] = (int32_t)id;
    else
        ((int64_t *)r->ids)[i] = id;
    if (r->weight_type == EXF_FOLD_F32)
        ((float *)r->weights)[i] = w;
    else
        ((uint16_t *)r->weights)[i] = fold_to_half(w, r->weight_type);
}

static inline exf_fold_routes fold_room(fold_routes *f, int rows, int width, exf_fold_int id_type, exf_fold_real weight_type)
{
    ck_assert_int_le(rows * width, FOLD_SLOTS);
    return f->r = (exf_fold_routes){.ids = f->ids,
                                    .weights = f->weights,
                                    .id_type = id_type,
                                    .weight_type = weight_type,
                                    .rows = rows,
                                    .width = width};
}

/* K experts of the first `of`, in random order, and their weights. */
static inline void fold_fill_row(int *id, float *w, int k, int of, uint64_t seed, uint64_t row, fold_routes_kind kind)
{
    double sum = 0;
    for (int i = 0; i < k; i++) {
        for (uint64_t draw = 0;; draw++) {
            id[i] = fold_below(of, seed, row, (uint64_t)i + 64 * draw);
            int again = 0;
            for (int j = 0; j < i; j++) again |= id[j] == id[i];
            if (!again || kind == ROUTES_AWKWARD) break;
        }
        double u = fold_uniform(seed, row, 1u << 30 | (unsigned)i);
        w[i] = kind == ROUTES_EXACT || (kind == ROUTES_AWKWARD && u < 0.3) ? (float)(int)(u * 8) / 8 : (float)exp(3 * u);
        sum += (double)w[i];
        if (kind == ROUTES_AWKWARD && fold_uniform(seed, row, 1u << 29 | (unsigned)i) < 0.15)
            id[i] = u < 0.5 ? -1 : u < 0.8 ? of : -7;
    }
    for (int i = 0; i < k && kind != ROUTES_EXACT; i++) w[i] = sum > 0 ? (float)((double)w[i] / sum) : 0;
}

static inline void fold_fill_routes(const exf_fold_routes *r, int n_experts, uint64_t seed, fold_routes_kind kind)
{
    int id[FOLD_K], of = n_experts;
    float w[FOLD_K];
    if (kind == ROUTES_FEW) of = n_experts / 4 > r->width ? n_experts / 4 : r->width;
    for (int row = 0; row < r->rows; row++) {
        fold_fill_row(id, w, r->width, of, seed, (uint64_t)row, kind);
        for (int k = 0; k < r->width; k++) fold_put(r, row * r->width + k, id[k], w[k]);
    }
}

static inline size_t fold_id_bytes(const exf_fold_routes *r)
{
    return (size_t)r->rows * (size_t)r->width * (r->id_type == EXF_FOLD_I32 ? 4 : 8);
}

static inline size_t fold_weight_bytes(const exf_fold_routes *r)
{
    return (size_t)r->rows * (size_t)r->width * (r->weight_type == EXF_FOLD_F32 ? 4 : 2);
}

/* A copy of the routes in another room. */
static inline exf_fold_routes fold_copy(fold_routes *f, const exf_fold_routes *r)
{
    fold_room(f, r->rows, r->width, r->id_type, r->weight_type);
    memcpy(f->ids, r->ids, fold_id_bytes(r));
    memcpy(f->weights, r->weights, fold_weight_bytes(r));
    return f->r;
}

static inline int fold_same(const exf_fold_routes *a, const exf_fold_routes *b)
{
    return !memcmp(a->ids, b->ids, fold_id_bytes(a)) && !memcmp(a->weights, b->weights, fold_weight_bytes(a));
}

/* ---- shapes ----------------------------------------------------------------------- */

typedef struct {
    int e, k, rows;
} fold_shape;

static const fold_shape fold_shapes[] = {{3, 1, 5},     {3, 3, 17},   {8, 2, 33},   {16, 4, 100},  {60, 6, 63},
                                         {128, 8, 300}, {256, 8, 64}, {257, 9, 40}, {512, 10, 50}, {512, 16, 90}};
/* For forms that are compared with one another, in many variants. */
static const fold_shape fold_few_shapes[] = {{3, 1, 5},    {8, 2, 33},   {16, 4, 64},  {60, 6, 63},
                                             {128, 8, 64}, {257, 9, 40}, {512, 16, 40}};
enum {
    N_FOLD_SHAPES = sizeof fold_shapes / sizeof *fold_shapes,
    N_FOLD_FEW_SHAPES = sizeof fold_few_shapes / sizeof *fold_few_shapes
};

static inline exf_fold_int fold_int_of(int i)
{
    return i % 2 ? EXF_FOLD_I64 : EXF_FOLD_I32;
}

static inline exf_fold_real fold_real_of(int i)
{
    return i % 3 == 0 ? EXF_FOLD_F32 : i % 3 == 1 ? EXF_FOLD_BF16 : EXF_FOLD_F16;
}

/* ---- the formulas ------------------------------------------------------------------ */

static inline double naive_gram(const exf_fold_tables *t, int a, int b)
{
    return (double)t->cosine[a * t->n_experts + b] * (double)t->rms[a] * (double)t->rms[b];
}

/* Fills G of the experts id [n]. */
static inline void naive_grams(naive_square g, const int *id, int n, const exf_fold_tables *t)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) g[i][j] = naive_gram(t, id[i], id[j]);
}

/* x := (G + rho mean(diag G) I)^-1 x over the experts id [n]. */
static inline void naive_joint(double *x, const int *id, int n, const exf_fold_tables *t, double rho)
{
    naive_square g;
    naive_grams(g, id, n, t);
    naive_solve_raised(x, g, n, rho);
}

static inline int naive_allowed(double loss, double max_loss)
{
    return loss < 1e30 && loss <= max_loss;
}

/* After fold_put of what is wanted, the weights agree with `got` to `tolerance` of `scale`; 16-bit ones to a unit in the last
 * place. */
static inline void ck_weight(const exf_fold_routes *got, int i, double want, double scale, double tolerance)
{
    double unit = got->weight_type == EXF_FOLD_F32 ? 0 : got->weight_type == EXF_FOLD_BF16 ? 0x1p-8 : 0x1p-11;
    double have = (double)fold_weight_at(got, i), room = tolerance * scale + unit * fabs(want) * 1.01 + (unit > 0 ? 0x1p-24 : 0);
    ck_assert_msg(fabs(have - want) <= room, "slot %d: weight %.9g, expected %.9g within %.3g", i, have, want, room);
}
#endif
