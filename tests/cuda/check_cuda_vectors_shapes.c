/* check_cuda_vectors_shapes.c - the sums of pairs with vectors on the GPU, diagonal and low-rank, at every boundary of their
 * kernels: the bits of plain sums of small integers, and nothing written beyond the last pair. */
#include "tests/support/layer_sums_fixtures.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */
#include "tests/support/pairwise.h"

static exf_err e;

enum { PAIRS = 4 }; /* the last one has an expert that no token chose */

/* Tokens whose elements are small integers, all of them, and whose weights are squares; apart 1: of more experts than a token's. */
static routed dense(int n, int k, int h, int apart)
{
    routed r = routed_new(n, k + 3 * apart, k, h, 41);
    for (size_t i = 0; i < (size_t)n * (size_t)k * (size_t)h; i++)
        r.outputs[i] = (float)((int)((uint32_t)i * 2654435761u >> 16) % 7 - 3);
    for (int i = 0; i < n * k; i++) r.weights[i] = (float)(1 << 2 * draw(42, i, 3));
    return r;
}

static void choose_pairs(int32_t pair[2 * PAIRS], const routed *r)
{
    const int32_t all[2 * PAIRS] = {0, 1, r->n_experts - 1, 0, 1, 0, 0, r->n_experts};
    memcpy(pair, all, sizeof all);
}

/* Returns the slot in which a token has the expert, or -1. */
static int slot_of(const routed *r, int t, int expert)
{
    for (int k = 0; k < r->top_k; k++)
        if (r->ids[t * r->top_k + k] == expert) return t * r->top_k + k;
    return -1;
}

static const float *row_at(const routed *r, int slot)
{
    return r->outputs + (size_t)slot * (size_t)r->d_model;
}

/* Exact but for the root: squares are integers. */
static double weight_of(const routed *r, int slot, exf_weighting w)
{
    const float *u = row_at(r, slot);
    double sq = 0;
    for (int i = 0; i < r->d_model; i++) sq += (double)u[i] * (double)u[i];
    return w == EXF_WEIGHT_NONE ? 1 : w == EXF_WEIGHT_ROUTER ? (double)r->weights[slot] : sqrt(sq);
}

typedef struct {
    exf_matrix outputs;
    int32_t *ids, *pair;
    float *weights;
    exf_sums_fault *bad;
} tokens_device;

static tokens_device send(const routed *r, int rounded)
{
    size_t slots = (size_t)(r->n * r->top_k), n = slots * (size_t)r->d_model;
    uint16_t *half = test_memory(n, 2);
    int32_t pair[2 * PAIRS];
    static const exf_sums_fault none;
    choose_pairs(pair, r);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(r->outputs[i]);
    void *outputs = rounded ? device_put(&d, half, n * 2) : device_put(&d, r->outputs, n * 4);
    tokens_device t = {{outputs, rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, device_put(&d, r->ids, slots * 4),
                       device_put(&d, pair, sizeof pair), device_put(&d, r->weights, slots * 4),
                       device_put(&d, &none, sizeof none)};
    exf_mem_free(half);
    return t;
}

static void tokens_free(const tokens_device *t)
{
    exf_sums_fault bad;
    ck_ok(d.b->download(d.q, &bad, t->bad, sizeof bad, &e), e);
    ck_assert_uint_eq(bad.place, 0);
    void *all[] = {(void *)(uintptr_t)t->outputs.p, t->ids, t->pair, t->weights, t->bad};
    for (int i = 0; i < COUNT(all); i++) d.b->free(all[i]);
}

/* Memory of PAIRS pairs, `bytes` each, that are 0, and of one more, poisoned. */
static void *sums_new(size_t bytes)
{
    void *p = device_put(&d, NULL, (PAIRS + 1) * bytes);
    d.b->zero(d.q, p, PAIRS * bytes);
    return p;
}

/* A host copy of memory of which everything from `used` on is still poisoned. */
static void *get_guarded(void *p, size_t used, size_t bytes, const char *what)
{
    unsigned char *host = device_get(&d, p, bytes);
    for (size_t i = used; i < bytes; i++) ck_assert_msg(host[i] == 0xff, "%s: something was written beyond the end", what);
    d.b->free(p);
    return host;
}

/* ---- diagonal sums ---------------------------------------------------------------------------- */

enum { N, K, H, APART, ROUNDED, WEIGHTING, CUT, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 513}, {"top-k", 2, 10}, {"hidden", 1, 7168}, {"apart", 0, 1},
                                       {"bfloat16", 0, 1}, {"weighting", 0, 2}, {"cut", 0, 1}};

static const boundary boundaries[] = {
    {"statistics/layer_sums_diagonal_cuda.cu", "AT_ONCE", N, 4}, /* tokens of a pair */
    {"statistics/layer_sums_diagonal_cuda.cu", "THREADS", N, 256}, /* tokens searched */
    {"statistics/layer_sums_diagonal_cuda.cu", "THREADS", N, 512},
    {"statistics/layer_sums_diagonal_cuda.cu", "STEP", H, 8},
    {"statistics/pair_tokens.cuh", "32 * EXF_STEP", H, 256}, /* of a warp's loads */
    {"statistics/layer_sums_diagonal_cuda.cu", "TILE", H, 2048},
    {"statistics/layer_sums_diagonal_cuda.cu", "c->d_model", H, 7168}, /* of the widest models */
    {"statistics/layer_sums_diagonal_cuda.cu", "c->top_k, 4)", K, 4}, /* slots of a block */
    {"statistics/layer_sums_diagonal_cuda.cu", "c->top_k, 4)", K, 10},
    {"statistics/layer_sums.h", "EXF_WEIGHT_NONE", WEIGHTING, 1},
};

static int is_valid(const shape *s)
{
    return (int64_t)s->at[N] * s->at[K] * s->at[H] < 1 << 22;
}

static pairwise cases;

/* Sums and sums of magnitudes of a pair. */
static void add_plain(double *vu, double *vv, double *size, const routed *r, exf_weighting w, const int32_t *pair)
{
    for (int t = 0; t < r->n; t++) {
        int a = slot_of(r, t, pair[0]), b = slot_of(r, t, pair[1]);
        if (a < 0 || b < 0) continue;
        const float *u = row_at(r, a), *v = row_at(r, b);
        double x = weight_of(r, a, w);
        for (int i = 0; i < r->d_model; i++) {
            double of_u = (double)u[i], of_v = (double)v[i];
            vu[i] += x * of_v * of_u;
            vv[i] += x * of_v * of_v;
            size[i] += x * fabs(of_v) * (fabs(of_u) + fabs(of_v));
        }
    }
}

static void compare_diagonal(const exf_exact *vu, const exf_exact *vv, const routed *r, exf_weighting w, const shape *s)
{
    size_t h = (size_t)r->d_model;
    int32_t pair[2 * PAIRS];
    choose_pairs(pair, r);
    for (size_t p = 0; p < PAIRS; p++) {
        double *want = test_memory(3 * h, sizeof *want), bound = w == EXF_WEIGHT_SOURCE_NORM ? 1e-12 : 0;
        add_plain(want, want + h, want + 2 * h, r, w, pair + 2 * p);
        for (size_t i = 0; i < 2 * h; i++) {
            double got = exf_exact_value(i < h ? &vu[p * h + i] : &vv[p * h + i - h]);
            if (!(fabs(got - want[i]) <= bound * want[2 * h + i % h]))
                ck_abort_msg("%s: %s[%zu, %zu]: %.17g, expected %.17g", pairwise_name(dimensions, DIMENSIONS, s),
                             i < h ? "vu" : "vv", p, i % h, got, want[i]);
        }
        exf_mem_free(want);
    }
}

START_TEST(diagonal_sums_are_the_plain_ones)
{
    const shape *s = &cases.shapes[_i];
    exf_weighting w = (exf_weighting)s->at[WEIGHTING];
    routed r = dense(s->at[N], s->at[K], s->at[H], s->at[APART]);
    tokens_device t = send(&r, s->at[ROUNDED]);
    size_t h = (size_t)r.d_model, slots = (size_t)(r.n * r.top_k);
    exf_diagonal_sums to = {.vu = sums_new(h * sizeof(exf_exact)), .vv = sums_new(h * sizeof(exf_exact)),
                            .open = device_put(&d, NULL, (PAIRS + 1) * 2 * h * sizeof(double)), .pair = t.pair, .n_pairs = PAIRS,
                            .bad = t.bad};
    double *root = device_put(&d, NULL, (slots + 1) * sizeof *root);
    int first = s->at[CUT] ? r.n / 2 : 0; /* tokens of a first call, of one unit */
    for (int part = first ? 0 : 1; part < 2; part++) {
        size_t slot = (size_t)((part ? first : 0) * r.top_k);
        exf_diagonal_call c = {.top_k = r.top_k, .d_model = r.d_model, .n_tokens = part ? r.n - first : first,
                               .outputs = exf_matrix_at(t.outputs, slot * h), .ids = t.ids + slot, .weights = t.weights + slot,
                               .weighting = w, .root = root, .begins = part == 0 || !first, .ends = part};
        d.b->gpu->diagonal_add(d.q, &to, &c);
    }
    ck_ok(d.b->finish(d.q, &e), e);
    exf_exact *vu = get_guarded(to.vu, PAIRS * h * sizeof *vu, (PAIRS + 1) * h * sizeof *vu, "vu"),
              *vv = get_guarded(to.vv, PAIRS * h * sizeof *vv, (PAIRS + 1) * h * sizeof *vv, "vv");
    exf_mem_free(get_guarded(to.open, PAIRS * 2 * h * sizeof(double), (PAIRS + 1) * 2 * h * sizeof(double), "open"));
    exf_mem_free(get_guarded(root, slots * sizeof *root, (slots + 1) * sizeof *root, "root"));
    compare_diagonal(vu, vv, &r, w, s);
    exf_mem_free(vu);
    exf_mem_free(vv);
    tokens_free(&t);
    routed_free(&r);
}
END_TEST

/* ---- low-rank sums ------------------------------------------------------------------------------ */

enum { TOKENS = 7, RANK_DIMENSIONS = 8, RANK = CUT }; /* the others as before */
static const dimension rank_dimensions[] = {{"tokens", 1, 257}, {"top-k", 2, 10}, {"hidden", 1, 7168}, {"apart", 0, 1},
                                            {"bfloat16", 0, 1}, {"weighting", 0, 2}, {"rank", 1, 32}, {"tokens at once", 64, 257}};

static const boundary rank_boundaries[] = {
    {"statistics/lowrank_sums_cuda.cu", "AT_ONCE", N, 4},
    {"statistics/lowrank_sums_cuda.cu", "BATCH", N, 16},
    {"statistics/lowrank_sums_cuda.cu", "THREADS", N, 256},
    {"statistics/lowrank_sums_cuda.cu", "Z_SLOTS", K, 4}, /* of 16 tokens */
    {"statistics/lowrank_sums_cuda.cu", "Z_EACH", K, 4},
    {"statistics/lowrank_sums_cuda.cu", "c->top_k, 4)", K, 10},
    {"statistics/lowrank_sums_cuda.cu", "Z_STEP", H, 32},
    {"statistics/lowrank_sums_cuda.cu", "THREADS", H, 256 - 8}, /* with eight columns of zz */
    {"statistics/lowrank_sums_cuda.cu", "THREADS", H, 256},
    {"statistics/pair_tokens.cuh", "EXF_STEP", H, 8},
    {"statistics/pair_tokens.cuh", "32 * EXF_STEP", H, 256},
    {"statistics/lowrank_sums_cuda.cu", "c->d_model", H, 7168},
    {"statistics/lowrank_sums_cuda.cu", "to->rank <= 8", RANK, 8},
    {"statistics/lowrank_sums_cuda.cu", "Z_COLUMNS", RANK, 8},
    {"statistics/lowrank_sums_cuda.cu", "launch_sums<T, 16>", RANK, 16},
    {"statistics/lowrank_sums_cuda.cu", "case 2", RANK, 16},
    {"statistics/lowrank_sums_cuda.cu", "case 3", RANK, 24},
    {"statistics/lowrank_sums_cuda.cu", "MOST_RANK", RANK, 32},
    {"statistics/lowrank_sums_cuda.cu", "at += to->tokens", TOKENS, 256},
    {"statistics/layer_sums.h", "EXF_WEIGHT_NONE", WEIGHTING, 1},
};

static int rank_is_valid(const shape *s)
{
    return (int64_t)s->at[N] * s->at[RANK] * s->at[H] < 1 << 22 && (int64_t)s->at[N] * s->at[K] * s->at[H] < 1 << 22;
}

static pairwise rank_cases;

/* The exponents of a pair's units: terms of integers are multiples of one unit of them. */
static const int32_t grids[2 * PAIRS] = {0, 0, -3, -1, -2, -5, 0, -1};

/* A pair's sums, plainly. */
typedef struct {
    int64_t *zz, *zu, *zv;
} plain_sums;

static void add_plain_rank(const plain_sums *o, const double *basis, int rank, const routed *r, exf_weighting w, size_t p)
{
    size_t h = (size_t)r->d_model, n = (size_t)rank;
    int32_t pair[2 * PAIRS];
    double *z = test_memory(n, sizeof *z), unit_u = ldexp(1, -grids[2 * p]), unit_v = ldexp(1, -grids[2 * p + 1]);
    choose_pairs(pair, r);
    for (int t = 0; t < r->n; t++) {
        int a = slot_of(r, t, pair[2 * p]), b = slot_of(r, t, pair[2 * p + 1]);
        if (a < 0 || b < 0) continue;
        const float *u = row_at(r, a), *v = row_at(r, b);
        double x = weight_of(r, a, w);
        memset(z, 0, n * sizeof *z);
        for (size_t i = 0; i < h; i++)
            for (size_t k = 0; k < n; k++) z[k] += (double)v[i] * basis[i * n + k];
        for (size_t k = 0; k < n; k++) {
            double in_u = x * z[k] * unit_u, in_v = x * z[k] * unit_v;
            for (size_t i = 0; i < h; i++) o->zu[k * h + i] += llrint(in_u * (double)u[i]);
            for (size_t i = 0; i < h; i++) o->zv[k * h + i] += llrint(in_v * (double)v[i]);
            for (size_t i = 0; i < n; i++) o->zz[k * n + i] += llrint(in_v * z[i]);
        }
    }
    exf_mem_free(z);
}

/* Each call's terms are added: of two of them twice the sums. */
static void compare_integers(const int64_t *got, const int64_t *want, size_t n, size_t p, const char *name, const shape *s)
{
    for (size_t i = 0; i < n; i++)
        if (got[p * n + i] != 2 * want[i])
            ck_abort_msg("%s: %s[%zu, %zu]: %lld, expected %lld", pairwise_name(rank_dimensions, RANK_DIMENSIONS, s), name, p, i,
                         (long long)got[p * n + i], (long long)(2 * want[i]));
}

START_TEST(lowrank_sums_are_the_plain_ones)
{
    const shape *s = &rank_cases.shapes[_i];
    exf_weighting w = (exf_weighting)s->at[WEIGHTING];
    routed r = dense(s->at[N], s->at[K], s->at[H], s->at[APART]);
    tokens_device t = send(&r, s->at[ROUNDED]);
    size_t h = (size_t)r.d_model, n = (size_t)s->at[RANK], most = (size_t)s->at[TOKENS], slots = most * (size_t)r.top_k;
    double *basis = test_memory(h * n, sizeof *basis);
    for (size_t i = 0; i < h * n; i++) basis[i] = (int)((uint32_t)i * 2246822519u >> 16) % 3 - 1;
    exf_lowrank_sums to = {.zz = sums_new(n * n * 8), .zu = sums_new(n * h * 8), .zv = sums_new(n * h * 8), .pair = t.pair,
                           .grid = device_put(&d, grids, sizeof grids), .basis = device_put(&d, basis, h * n * sizeof *basis),
                           .n_pairs = PAIRS, .rank = (int)n, .tokens = (int)most,
                           .slots = device_put(&d, NULL, (PAIRS * most + 1) * sizeof(exf_pair_slots)),
                           .found = device_put(&d, NULL, (PAIRS + 1) * sizeof(int32_t)),
                           .weight = device_put(&d, NULL, (slots + 1) * sizeof(double)),
                           .z = device_put(&d, NULL, (slots + 1) * n * sizeof(double)), .bad = t.bad};
    exf_lowrank_call c = {.top_k = r.top_k, .d_model = r.d_model, .n_tokens = r.n, .outputs = t.outputs, .ids = t.ids,
                          .weights = t.weights, .weighting = w};
    for (int twice = 0; twice < 2; twice++) d.b->gpu->lowrank_add(d.q, &to, &c);
    ck_ok(d.b->finish(d.q, &e), e);
    int64_t *zz = get_guarded(to.zz, PAIRS * n * n * 8, (PAIRS + 1) * n * n * 8, "zz"),
            *zu = get_guarded(to.zu, PAIRS * n * h * 8, (PAIRS + 1) * n * h * 8, "zu"),
            *zv = get_guarded(to.zv, PAIRS * n * h * 8, (PAIRS + 1) * n * h * 8, "zv");
    size_t list = sizeof(exf_pair_slots);
    exf_mem_free(get_guarded(to.slots, PAIRS * most * list, (PAIRS * most + 1) * list, "slots"));
    exf_mem_free(get_guarded(to.found, PAIRS * sizeof(int32_t), (PAIRS + 1) * sizeof(int32_t), "found"));
    exf_mem_free(get_guarded(to.weight, slots * sizeof(double), (slots + 1) * sizeof(double), "weight"));
    exf_mem_free(get_guarded(to.z, slots * n * sizeof(double), (slots + 1) * n * sizeof(double), "z"));
    for (size_t p = 0; p < PAIRS; p++) {
        int64_t *all = test_memory(n * (n + 2 * h), sizeof *all);
        plain_sums want = {all, all + n * n, all + n * n + n * h};
        add_plain_rank(&want, basis, (int)n, &r, w, p);
        compare_integers(zz, want.zz, n * n, p, "zz", s);
        compare_integers(zu, want.zu, n * h, p, "zu", s);
        compare_integers(zv, want.zv, n * h, p, "zv", s);
        exf_mem_free(all);
    }
    void *there[] = {(void *)(uintptr_t)to.grid, (void *)(uintptr_t)to.basis}, *here[] = {zz, zu, zv, basis};
    for (int i = 0; i < COUNT(there); i++) d.b->free(there[i]);
    for (int i = 0; i < COUNT(here); i++) exf_mem_free(here[i]);
    tokens_free(&t);
    routed_free(&r);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "diagonal sums", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&rank_cases, "low-rank sums", rank_boundaries, COUNT(rank_boundaries), rank_dimensions, RANK_DIMENSIONS,
                    rank_is_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, diagonal_sums_are_the_plain_ones, 0, cases.n_shapes);
    tcase_add_loop_test(t, lowrank_sums_are_the_plain_ones, 0, rank_cases.n_shapes);
}
