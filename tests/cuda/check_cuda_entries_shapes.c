/* check_cuda_entries_shapes.c - the compressor and the indexer of the CUDA backend at the shapes below, at and above every
 * constant of their kernels: the CPU's bits where sums are exact, near it else, and nothing written beside the results or
 * after the workspace. */
#include "base/mem.h"
#include "tests/support/pairwise.h"
#include "tests/support/pair_fixtures.h" /* after it: its pair is called p */

#include <string.h>

enum { MARGIN = 8, GUARD = 64 };

/* The GPU's n floats from `from` on are as they were. */
static void is_untouched(const pair_array *a, size_t from, size_t n, const char *what)
{
    unsigned char *got;
    exf_err err;
    ck_ok(exf_mem_new(&got, n, sizeof(float), "test", &err), err);
    ck_ok(p.b[1]->download(p.q[1], got, a->f[1] + from, n * sizeof(float), &err), err);
    for (size_t i = 0; i < n * sizeof(float); i++) ck_assert_msg(got[i] == 0xff, "%s: written where nothing belongs", what);
    exf_mem_free(got);
}

/* ---- compressor: ODD the array that begins beside a 16-byte boundary (1 values, 2 gates, 3 their positions' logits) ----- */

enum { ENTRIES, POOL_RATIO, POOL_D, OVERLAP, POOL_ODD, POOL_DIMENSIONS };
static const dimension pool_dimensions[] = {{"entries", 1, 17}, {"ratio", 1, 200}, {"d", 1, 300}, {"overlap", 0, 1},
                                            {"odd", 0, 3}};

static const boundary pool_boundaries[] = {
    {"attention/compressed_entries_cuda.cu", "WARPS", ENTRIES, 8}, /* of a block */
    {"attention/compressed_entries_cuda.cu", "WARPS", ENTRIES, 16},
    {"attention/compressed_entries_cuda.cu", "MANY", POOL_RATIO, 32},
    {"attention/compressed_entries_cuda.cu", "HELD", POOL_RATIO, 16 * 8}, /* slots of a block */
    {"attention/compressed_entries_cuda.cu", "HELD", POOL_RATIO, 16 * 8 / 2}, /* of two windows */
    {"attention/compressed_entries_cuda.cu", "#pragma unroll 4", POOL_RATIO, 4},
    {"attention/compressed_entries_cuda.cu", "(unsigned)(s->d + 31) / 32", POOL_D, 32},
    {"attention/compressed_entries_cuda.cu", "(columns + 3) / 4", POOL_D, 128},
    {"attention/compressed_entries_cuda.cu", "(columns + 3) / 4", POOL_D, 256},
    {"attention/compressed_entries_cuda.cu", "compress<4, false>", POOL_D, 4},
    {"attention/compressed_entries_cuda.cu", "exf_aligned16(kv, s->d)", POOL_ODD, 1},
    {"attention/compressed_entries_cuda.cu", "exf_aligned16(gate, s->d)", POOL_ODD, 2},
    {"attention/compressed_entries_cuda.cu", "exf_aligned16(ape, s->d)", POOL_ODD, 3},
};

static int pool_is_valid(const shape *s)
{
    return s->at[ENTRIES] * s->at[POOL_RATIO] * s->at[POOL_D] < 1 << 19;
}

static pairwise pool_cases;

/* What is pooled: integers with equal gates, a mean; with gates so far apart that all but the largest weigh exactly 0 (exp(-200)
 * in float32); reals. */
enum { EQUAL, APART, REALS, POOL_KINDS };
static const char *pool_kinds[] = {"equal gates", "gates far apart", "reals"};

/* n integers times `by`. */
static pair_array multiples(size_t n, uint64_t seed, float by)
{
    float *host;
    exf_err err;
    ck_ok(exf_mem_new(&host, n, sizeof *host, "test", &err), err);
    for (size_t i = 0; i < n; i++) host[i] = by * ((float)exf_rng_below(17, seed, i, 0) - 8);
    pair_array a = pair_of(&p, host, n);
    exf_mem_free(host);
    return a;
}

static pair_array logits(size_t n, uint64_t seed, int kind, float scale)
{
    return kind == REALS ? pair_reals(&p, n, seed, scale) : multiples(n, seed, kind == APART ? 200 : 0);
}

/* Every shape is run as it is and, IN_QUADS, on 16-byte boundaries with the next multiple of four channels. */
enum { AS_IT_IS, IN_QUADS, N_WAYS };

static int channels(int d, int way)
{
    return way == IN_QUADS ? (d + 3) / 4 * 4 : d;
}

static void pool(const shape *at, int kind, int way)
{
    exf_compressor_shape pooled = {at->at[ENTRIES], at->at[POOL_RATIO], channels(at->at[POOL_D], way), at->at[OVERLAP]};
    size_t width = (size_t)(pooled.overlap ? 2 * pooled.d : pooled.d), n = (size_t)(pooled.n_entries * pooled.ratio) * width,
           size = (size_t)(pooled.n_entries * pooled.d), odd[4] = {0};
    odd[at->at[POOL_ODD]] = way == AS_IT_IS;
    pair_array kv = kind == REALS ? pair_reals(&p, n + 1, 1, 1) : pair_integers(&p, n + 1, 1), gate = logits(n + 1, 2, kind, 3),
               ape = logits((size_t)pooled.ratio * width + 1, 3, kind, 1), out = poisoned(size + 2 * MARGIN);
    ON_BOTH(p, B->compressor(Q, out.f[s] + MARGIN, kv.f[s] + odd[1], gate.f[s] + odd[2], ape.f[s] + odd[3], &pooled));
    const char *what = pairwise_label(pool_kinds[kind], pool_dimensions, POOL_DIMENSIONS, at);
    is_untouched(&out, 0, MARGIN, what);
    is_untouched(&out, MARGIN + size, MARGIN, what);
    if (kind == REALS)
        pair_near(&(pair_array){&p, size, {out.f[0] + MARGIN, out.f[1] + MARGIN}, {NULL, NULL}}, 1e-6, what);
    else
        pair_equal(&out, what);
    pair_array *all[] = {&kv, &gate, &ape, &out};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}

START_TEST(pools)
{
    for (int kind = 0; kind < POOL_KINDS; kind++)
        for (int way = 0; way < N_WAYS; way++) pool(&pool_cases.shapes[_i], kind, way);
}
END_TEST

/* ---- indexer: LATER entries of the sequence that no query of the call sees, or from 1000 on the number of all; ODD the array that
 * begins beside a 16-byte boundary (1 queries, 2 keys) ------------------------------------------------------------------------- */

enum { FIRST, ROWS, HEADS, D, RATIO, TOP_K, LATER, ODD, DIMENSIONS };
static const dimension dimensions[] = {{"first", 0, 300}, {"rows", 1, 65}, {"heads", 1, 129}, {"d", 1, 129},
                                       {"ratio", 1, 4}, {"top-k", 1, 300}, {"later", 0, 20000}, {"odd", 0, 2}};

static const boundary boundaries[] = {
    {"attention/compressed_indexer_cuda.cu", "TILE", FIRST, 64}, /* keys of a tile, of ratio 1 */
    {"attention/compressed_indexer_cuda.cu", "TILE", FIRST, 128},
    {"attention/compressed_indexer_cuda.cu", "TILE", HEADS, 64},
    {"attention/compressed_indexer_cuda.cu", "TILE", HEADS, 128},
    {"attention/compressed_indexer_cuda.cu", "THREADS", FIRST, 256}, /* entries of a step of the selection */
    {"attention/compressed_indexer_cuda.cu", "n_rows > MOST_D / 2", ROWS, 64},
    {"attention/compressed_indexer_cuda.cu", "s->d <= 64", D, 64},
    {"attention/compressed_indexer_cuda.cu", "MOST_D", D, 128},
    {"device/hopper.cuh", "c + 8 <= n", D, 8 + 4}, /* a vector load, and half of one */
    {"attention/compressed_indexer_cuda.cu", "c + e < n", D, 4},
    {"attention/compressed_indexer_cuda.cu", "visible <= s.top_k", TOP_K, 64},
    {"attention/compressed_indexer_cuda.cu", "visible <= s.top_k", TOP_K, 256},
    {"attention/compressed_indexer_cuda.cu", "s.n_entries > visible", LATER, 1},
    {"attention/compressed_indexer_cuda.cu", "MOST", LATER, (96 << 10) / 8}, /* an order and scores in shared memory */
    {"attention/compressed_indexer_cuda.cu", "exf_aligned16(query, s->d)", ODD, 1},
    {"attention/compressed_indexer_cuda.cu", "exf_aligned16(keys, s->d)", ODD, 2},
};

static exf_indexer_shape indexer_of(const shape *s)
{
    int n = (s->at[FIRST] + s->at[ROWS]) / s->at[RATIO], later = s->at[LATER];
    return (exf_indexer_shape){.first = s->at[FIRST], .n_rows = s->at[ROWS], .n_heads = s->at[HEADS], .d = s->at[D],
                               .ratio = s->at[RATIO], .top_k = s->at[TOP_K], .n_entries = later < 1000 ? n + later : later};
}

static int is_valid(const shape *s)
{
    exf_indexer_shape x = indexer_of(s);
    int64_t n = (x.first + x.n_rows) / x.ratio;
    return n > 0 && x.n_rows * n * x.n_heads * x.d < 1 << 25;
}

static pairwise cases;

/* Integers, so that both add up the same scores, of which many are equal; flat: all are 0. */
static void index_entries(const shape *at, int flat, int way, exf_compute compute, const char *how)
{
    exf_indexer_shape x = indexer_of(at);
    x.d = channels(x.d, way);
    size_t n = (size_t)((x.first + x.n_rows) / x.ratio), rows = (size_t)x.n_rows, odd[3] = {0};
    odd[at->at[ODD]] = way == AS_IT_IS;
    size_t room[2] = {p.b[0]->indexer_workspace(x.n_rows, x.n_entries), p.b[1]->indexer_workspace(x.n_rows, x.n_entries)};
    pair_array q = multiples(rows * (size_t)(x.n_heads * x.d) + 1, 1, flat ? 0 : 1),
               keys = pair_integers(&p, n * (size_t)x.d + 1, 2),
               weights = pair_integers(&p, rows * (size_t)x.n_heads, 3), space = poisoned(larger(room[0], room[1]) + GUARD),
               chosen = poisoned(rows * n / 4 + MARGIN);
    const char *what = pairwise_label(how, dimensions, DIMENSIONS, at);
    pair_compute(&p, compute);
    ON_BOTH(p, B->indexer(Q, (unsigned char *)(void *)chosen.f[s], q.f[s] + odd[1], weights.f[s], keys.f[s] + odd[2], &x,
                          space.f[s]));
    pair_equal(&chosen, what); /* what lies after the last byte, too */
    is_untouched(&space, room[1], GUARD, what);
    pair_array *all[] = {&q, &keys, &weights, &space, &chosen};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}

START_TEST(choices)
{
    const shape *s = &cases.shapes[_i];
    for (int compute = 0; compute < 2; compute++) {
        const char *how = compute ? "integers, rounded" : "integers in float32";
        for (int way = 0; way < N_WAYS; way++) index_entries(s, 0, way, (exf_compute)compute, how);
        index_entries(s, 1, AS_IT_IS, (exf_compute)compute, compute ? "equal scores, rounded" : "equal scores in float32");
    }
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&pool_cases, "compressor", pool_boundaries, COUNT(pool_boundaries), pool_dimensions, POOL_DIMENSIONS,
                    pool_is_valid);
    pairwise_shapes(&cases, "indexer", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, pools, 0, pool_cases.n_shapes);
    tcase_add_loop_test(t, choices, 0, cases.n_shapes);
}
