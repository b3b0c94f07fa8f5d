/* check_cuda_rows_shapes.c - operations along rows on the GPU against the CPU's, at every length, gap and alignment that their
 * kernels choose by: copies and sums exact, norms and gates within bounds, nothing written outside. */
#include "tests/support/pairwise.h"

#include "tests/support/device_fixtures.h"
#include "tests/support/pair_fixtures.h" /* after pairwise.h: its pair is called p */

static device gpu; /* the pair's */

static void open_both(void)
{
    open_pair();
    gpu = (device){p.b[1], p.q[1]};
}

/* ---- rows ---------------------------------------------------------------------------------- */

enum { ROWS, N, X_GAP, Y_GAP, X_AT, Y_AT, COPIES, DIMENSIONS }; /* gaps after rows and places of the first, in floats */
static const dimension dimensions[] = {{"rows", 1, 300}, {"n", 1, 8197},  {"gap of x", 0, 5}, {"gap of y", 0, 5},
                                       {"x at", 0, 4},   {"y at", 0, 4}, {"copies", 1, 3}};

static const boundary boundaries[] = {
    {"rows/rows_norm_cuda.cu", "THREADS / 32", ROWS, 8},
    {"rows/rows_cuda.cu", "THREADS", ROWS, 256}, /* with rows of one */
    {"rows/rows_cuda.cu", "n % 4", N, 4},
    {"device/cuda_rows.cuh", "step = 16", N, 32}, /* lanes of a warp's sum */
    {"rows/rows_norm_cuda.cu", "n <= 128", N, 128},
    {"rows/rows_norm_cuda.cu", "n <= 128", N, 132}, /* the next of whole quads */
    {"rows/rows_norm_cuda.cu", "THREADS", N, 256},
    {"rows/rows_norm_cuda.cu", "n <= 256", N, 260},
    {"rows/rows_norm_cuda.cu", "HELD", N, 512}, /* of a warp */
    {"rows/rows_norm_cuda.cu", "n <= 512", N, 516},
    {"rows/rows_cuda.cu", "THREADS", N, 1024}, /* quads of a block */
    {"rows/rows_norm_cuda.cu", "n <= 2048", N, 2048},
    {"rows/rows_norm_cuda.cu", "n <= 2048", N, 2052},
    {"rows/rows_norm_cuda.cu", "HELD", N, 4096}, /* of a block */
    {"rows/rows_norm_cuda.cu", "n <= 4096", N, 4100},
    {"rows/rows_norm_cuda.cu", "n > 8192", N, 8192},
    {"rows/rows_norm_cuda.cu", "n > 8192", N, 8196},
    {"device/cuda_queue.cuh", "ld % 4", X_GAP, 4},
    {"device/cuda_queue.cuh", "ld % 4", Y_GAP, 4},
    {"device/cuda_queue.cuh", "% 16", X_AT, 4},
    {"device/cuda_queue.cuh", "% 16", Y_AT, 4},
    {"rows/rows_cuda.cu", "k < count", COPIES, 2},
};

static int is_valid(const shape *s)
{
    return s->at[ROWS] * (s->at[N] + 5) < 1 << 17;
}

static pairwise cases;
static const char *at_shape(const char *what, const shape *s)
{
    return pairwise_label(what, dimensions, DIMENSIONS, s);
}

enum { TAIL = 8 }; /* floats after an array, which must stay */

/* x and y of a shape, and dense rows of the same length. */
typedef struct {
    int rows, n, ldx, ldy, x_at, y_at;
    size_t flat;
    pair_array x, y, w, dense;
} matrices;

static pair_array numbers(size_t n, uint64_t seed, int integers)
{
    return integers ? pair_integers(&p, n + TAIL, seed) : pair_reals(&p, n + TAIL, seed, 3);
}

static matrices matrices_of(const shape *s, int integers)
{
    matrices m = {.rows = s->at[ROWS], .n = s->at[N], .ldx = s->at[N] + s->at[X_GAP], .ldy = s->at[N] + s->at[Y_GAP],
                  .x_at = s->at[X_AT], .y_at = s->at[Y_AT]};
    m.flat = (size_t)(m.rows * m.n);
    m.x = numbers((size_t)(m.rows * m.ldx + m.x_at), 1, integers);
    m.y = numbers((size_t)(m.rows * m.ldy + m.y_at), 2, integers);
    m.w = numbers((size_t)(m.n + m.x_at), 3, integers);
    m.dense = numbers(m.flat + (size_t)m.y_at, 4, integers);
    return m;
}

static void free_matrices(matrices *m)
{
    pair_free(&m->x);
    pair_free(&m->y);
    pair_free(&m->w);
    pair_free(&m->dense);
}

START_TEST(rows_are_moved_and_added_exactly)
{
    const shape *s0 = &cases.shapes[_i];
    matrices m = matrices_of(s0, 1);
    int copies = s0->at[COPIES], step = m.ldy, ldo = (copies - 1) * step + m.n + s0->at[X_GAP];
    int32_t *order = test_memory((size_t)m.rows, 4);
    for (int i = 0; i < m.rows; i++) order[i] = (m.rows - 1 - i) / 2;
    pair_array rows = pair_of(&p, order, (size_t)m.rows), many = numbers((size_t)(m.rows * ldo + m.y_at), 5, 1);
    ON_BOTH(p, B->copy_columns(Q, m.y.f[s] + m.y_at, m.ldy, m.x.f[s] + m.x_at, m.ldx, m.rows, m.n));
    pair_equal(&m.y, at_shape("copy_columns", s0));
    ON_BOTH(p, B->repeat_columns(Q, many.f[s] + m.y_at, ldo, copies, step, m.x.f[s] + m.x_at, m.ldx, m.rows, m.n));
    pair_equal(&many, at_shape("repeat_columns", s0));
    ON_BOTH(p, B->add_bias(Q, m.dense.f[s] + m.y_at, m.w.f[s] + m.x_at, m.rows, m.n));
    pair_equal(&m.dense, at_shape("add_bias", s0));
    ON_BOTH(p, B->add(Q, m.dense.f[s] + m.y_at, m.x.f[s] + m.x_at, m.flat));
    pair_equal(&m.dense, at_shape("add", s0));
    ON_BOTH(p, B->gather_rows(Q, m.dense.f[s] + m.y_at, m.x.f[s] + m.x_at, rows.i[s], m.rows, m.n));
    pair_equal(&m.dense, at_shape("gather_rows", s0));
    ON_BOTH(p, B->clamp(Q, m.dense.f[s] + m.y_at, m.flat, 2.5f));
    pair_equal(&m.dense, at_shape("clamp", s0));
    pair_array factors = numbers((size_t)m.rows, 6, 1);
    ON_BOTH(p, B->scale_rows(Q, m.dense.f[s] + m.y_at, factors.f[s], m.rows, m.n));
    pair_equal(&m.dense, at_shape("scale_rows", s0));
    pair_free(&factors);
    ON_BOTH(p, B->scale(Q, m.dense.f[s] + m.y_at, m.flat, 1.5f, NULL));
    ON_BOTH(p, B->scale(Q, m.dense.f[s] + m.y_at, m.flat, 0.3f, m.w.f[s] + m.x_at));
    pair_equal(&m.dense, at_shape("scale", s0));
    ON_BOTH(p, B->soft_cap(Q, m.dense.f[s] + m.y_at, m.flat, 2));
    pair_near(&m.dense, 1e-6, at_shape("soft_cap", s0));
    pair_free(&rows);
    pair_free(&many);
    exf_mem_free(order);
    free_matrices(&m);
}
END_TEST

START_TEST(norms_and_gates_are_near)
{
    const shape *s0 = &cases.shapes[_i];
    matrices m = matrices_of(s0, 0);
    pair_array out = numbers((size_t)m.rows, 6, 0);
    int weighed = s0->at[COPIES] != 2;
    ON_BOTH(p, B->rmsnorm(Q, m.y.f[s] + m.y_at, m.ldy, m.x.f[s] + m.x_at, m.ldx, weighed ? m.w.f[s] + m.x_at : NULL, m.rows, m.n,
                          1e-6));
    pair_near(&m.y, 4e-7, at_shape("rmsnorm", s0));
    ON_BOTH(p, B->rmsnorm(Q, m.x.f[s] + m.x_at, m.ldx, m.x.f[s] + m.x_at, m.ldx, m.w.f[s] + m.x_at, m.rows, m.n, 1e-6));
    pair_near(&m.x, 4e-7, at_shape("rmsnorm in place", s0));
    ON_BOTH(p, B->layernorm(Q, m.dense.f[s] + m.y_at, m.w.f[s] + m.x_at, m.w.f[s] + m.x_at, m.rows, m.n, 1e-6));
    pair_near(&m.dense, 2e-6, at_shape("layernorm", s0));
    free_matrices(&m);
    m = matrices_of(s0, 0);
    ON_BOTH(p, B->sigmoid_gate(Q, m.dense.f[s] + m.y_at, m.x.f[s] + m.x_at, m.rows, m.n, m.ldx));
    pair_near(&m.dense, 1e-6, at_shape("sigmoid_gate", s0));
    ON_BOTH(p, B->switch_weights(Q, out.f[s], m.x.f[s] + m.x_at, m.w.f[s] + m.x_at, m.rows, m.n));
    pair_near(&out, 1e-6, at_shape("switch_weights", s0));
    free_matrices(&m);
    for (int limited = 0; limited < 2; limited++) {
        m = matrices_of(s0, 0);
        ON_BOTH(p, B->swiglu(Q, m.dense.f[s] + m.y_at, m.x.f[s] + m.x_at, m.flat, limited ? 1.5f : 0));
        pair_near(&m.dense, 4e-6, at_shape("swiglu", s0));
        free_matrices(&m);
    }
    pair_free(&out);
}
END_TEST

/* ---- what only a GPU has: rows rounded to bfloat16 --------------------------------------------- */

/* n bfloat16 that are NaN, the array that a kernel writes to; and what became of it. */
static uint16_t *room_for(size_t n)
{
    return device_put(&gpu, NULL, n * 2);
}

static uint16_t *taken(uint16_t *there, size_t n)
{
    uint16_t *host = device_get(&gpu, there, n * 2);
    gpu.b->free(there);
    return host;
}

START_TEST(rows_are_rounded_and_widened_exactly)
{
    const shape *s0 = &cases.shapes[_i];
    matrices m = matrices_of(s0, 0);
    size_t n = (size_t)(m.rows * m.ldy + m.y_at) + TAIL;
    uint16_t *there = room_for(n);
    float *wide = device_put(&gpu, NULL, (n + (size_t)m.x_at) * 4);
    gpu.b->gpu->round_rows(gpu.q, there + m.y_at, m.ldy, m.x.f[1] + m.x_at, m.ldx, m.rows, m.n);
    gpu.b->gpu->widen(gpu.q, wide + m.x_at, there, n);
    float *back = device_get(&gpu, wide, (n + (size_t)m.x_at) * 4);
    uint16_t *got = taken(there, n);
    for (size_t i = 0; i < n; i++) {
        size_t at = i - (size_t)m.y_at, row = at / (size_t)m.ldy, col = at % (size_t)m.ldy;
        int inside = i >= (size_t)m.y_at && row < (size_t)m.rows && col < (size_t)m.n;
        uint16_t want = inside ? to_bf16(m.x.f[0][(size_t)m.x_at + row * (size_t)m.ldx + col]) : 0xffff;
        uint32_t bits;
        memcpy(&bits, back + m.x_at + i, sizeof bits);
        if (got[i] == want && bits == (uint32_t)want << 16) continue;
        ck_abort_msg("%s: element %zu: %04x, widened %08x, not %04x", at_shape("round_rows", s0), i, (unsigned)got[i],
                     (unsigned)bits, (unsigned)want);
    }
    for (int i = 0; i < m.x_at; i++) ck_assert(isnan(back[i]));
    gpu.b->free(wide);
    exf_mem_free(back);
    exf_mem_free(got);
    free_matrices(&m);
}
END_TEST

/* Norms in double, of a row of dense x. */
static double scale_of(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum / n + 1e-6);
}

/* Of y and y32 one may be missing. */
START_TEST(rounded_norms_are_near)
{
    const shape *s0 = &cases.shapes[_i];
    matrices m = matrices_of(s0, 0);
    size_t n = m.flat + (size_t)m.y_at + TAIL, wrong = n;
    int only = s0->at[COPIES]; /* 1: both, 2: no y32, 3: no y */
    double scale = 0;
    uint16_t *there = room_for(n);
    float *full = device_put(&gpu, NULL, n * 4);
    gpu.b->gpu->rmsnorm_rounded(gpu.q, only == 3 ? NULL : there + m.y_at, only == 2 ? NULL : full + m.y_at, m.x.f[1] + m.x_at,
                                m.w.f[1] + m.x_at, m.rows, m.n, 1e-6);
    float *got32 = device_get(&gpu, full, n * 4);
    uint16_t *got = taken(there, n);
    for (size_t i = 0; i < n && wrong == n; i++) {
        size_t at = i - (size_t)m.y_at;
        int inside = i >= (size_t)m.y_at && at < m.flat;
        const float *row = m.x.f[0] + m.x_at + (inside ? at / (size_t)m.n * (size_t)m.n : 0);
        if (inside && at % (size_t)m.n == 0) scale = scale_of(row, m.n);
        double want = inside ? (double)m.w.f[0][(size_t)m.x_at + at % (size_t)m.n] * (double)row[at % (size_t)m.n] * scale : NAN;
        int fine32 = inside && only != 2 ? fabs((double)got32[i] - want) <= 4e-7 * (1 + fabs(want)) : isnan(got32[i]) != 0;
        int fine = inside && only != 3 ? fabs((double)of_bf16(got[i]) - want) <= 0x1.01p-8 * fabs(want) + 1e-6 : got[i] == 0xffff;
        if (inside && only == 1) fine = fine && got[i] == to_bf16(got32[i]);
        if (!fine32 || !fine) wrong = i;
    }
    ck_assert_msg(wrong == n, "%s: element %zu", at_shape("rmsnorm_rounded", s0), wrong);
    gpu.b->free(full);
    exf_mem_free(got32);
    exf_mem_free(got);
    free_matrices(&m);
}
END_TEST

/* x is at `x_at` floats, y at y_at elements. */
static void split_norms(const shape *s0, int x_at, int y_at)
{
    matrices m = matrices_of(s0, 0);
    size_t n = 2 * m.flat + (size_t)y_at + TAIL;
    int summed = s0->at[COPIES] != 3;
    uint16_t *there = room_for(n);
    float *squares = device_put(&gpu, NULL, (size_t)(m.rows + 1) * 4);
    gpu.b->gpu->rmsnorm_split(gpu.q, there + y_at, summed ? squares : NULL, m.x.f[1] + x_at, m.w.f[1] + x_at, m.rows, m.n, 1e-6);
    float *sums = device_get(&gpu, squares, (size_t)(m.rows + 1) * 4);
    uint16_t *got = taken(there, n);
    for (int r = 0; r < m.rows; r++) {
        const float *row = m.x.f[0] + x_at + r * m.n;
        const uint16_t *high = got + y_at + 2 * r * m.n, *low = high + m.n;
        double scale = scale_of(row, m.n), square = 0;
        int wrong = -1;
        for (int i = 0; i < m.n; i++) {
            double want = (double)m.w.f[0][x_at + i] * (double)row[i] * scale;
            if (!(fabs((double)of_bf16(high[i]) + (double)of_bf16(low[i]) - want) <= 0x1p-16 * fabs(want) + 1e-30)) wrong = i;
            square += want * want;
        }
        ck_assert_msg(wrong < 0, "%s: row %d, element %d", at_shape("rmsnorm_split", s0), r, wrong);
        ck_assert_msg(summed ? fabs((double)sums[r] - square) <= 1e-6 * square : isnan(sums[r]), "%s: squares of row %d",
                      at_shape("rmsnorm_split", s0), r);
    }
    ck_assert(isnan(sums[m.rows]));
    for (size_t i = 0; i < n; i++)
        if (i < (size_t)y_at || i >= 2 * m.flat + (size_t)y_at) ck_assert_int_eq(got[i], 0xffff);
    gpu.b->free(squares);
    exf_mem_free(sums);
    exf_mem_free(got);
    free_matrices(&m);
}

START_TEST(split_norms_are_near)
{
    split_norms(&cases.shapes[_i], 0, 0);
}
END_TEST

/* The last of all: a load off its boundary would end the device's context. */
START_TEST(split_norms_are_near_off_boundaries)
{
    const shape *s0 = &cases.shapes[_i];
    if (s0->at[X_AT] || s0->at[Y_AT]) split_norms(s0, s0->at[X_AT], s0->at[Y_AT]);
}
END_TEST

START_TEST(gated_heads_are_near)
{
    const shape *s0 = &cases.shapes[_i];
    matrices m = matrices_of(s0, 0);
    size_t n = m.flat + (size_t)m.y_at + TAIL, wrong = n;
    const float *gate = m.dense.f[0] + m.y_at;
    uint16_t *there = room_for(n);
    gpu.b->gpu->gate_heads_rounded(gpu.q, there + m.y_at, m.x.f[1] + m.x_at, m.dense.f[1] + m.y_at, m.w.f[1] + m.x_at, m.rows, m.n,
                                   1e-6);
    uint16_t *got = taken(there, n);
    for (int r = 0; r < m.rows; r++) {
        const float *row = m.x.f[0] + m.x_at + r * m.n;
        double scale = scale_of(row, m.n);
        for (int i = 0; i < m.n; i++) {
            double g = (double)gate[r * m.n + i], want = g / (1 + exp(-g)) * (double)m.w.f[0][m.x_at + i] * (double)row[i] * scale;
            size_t at = (size_t)(m.y_at + r * m.n + i);
            if (!(fabs((double)of_bf16(got[at]) - want) <= 0x1.02p-8 * fabs(want) + 1e-30)) wrong = at;
        }
    }
    for (size_t i = 0; i < n; i++)
        if ((i < (size_t)m.y_at || i >= m.flat + (size_t)m.y_at) && got[i] != 0xffff) wrong = i;
    ck_assert_msg(wrong == n, "%s: element %zu", at_shape("gate_heads", s0), wrong);
    exf_mem_free(got);
    free_matrices(&m);
}
END_TEST

/* ---- the embedding ---------------------------------------------------------------------------- */

enum { TOKENS, WIDTH, STREAMS, ROUNDED, EMBED_DIMENSIONS };
static const dimension embed_dimensions[] = {{"tokens", 1, 300}, {"width", 1, 513}, {"streams", 1, 5}, {"bfloat16", 0, 1}};

static const boundary embed_boundaries[] = {
    {"rows/rows_cuda.cu", "THREADS", WIDTH, 256},
    {"rows/rows_cuda.cu", "THREADS", WIDTH, 512},
    {"rows/rows_cuda.cu", "s < streams", STREAMS, 4},
};

static pairwise embeddings;

START_TEST(embeddings_are_exact)
{
    enum { VOCAB = 11 };
    const int *at = embeddings.shapes[_i].at;
    int n = at[TOKENS], width = at[WIDTH], streams = at[STREAMS];
    size_t wrong = 0, all = (size_t)(n * width * streams);
    int32_t *tokens = test_memory((size_t)n, 4);
    uint16_t *half = bf16_reals((size_t)(VOCAB * width), 3, 2);
    float *full = test_memory((size_t)(VOCAB * width), 4);
    for (int i = 0; i < n; i++) tokens[i] = i * 7 % VOCAB;
    for (int i = 0; i < VOCAB * width; i++) full[i] = of_bf16(half[i]);
    exf_number number = at[ROUNDED] ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
    void *table = device_put(&gpu, at[ROUNDED] ? (void *)half : full, (size_t)(VOCAB * width) * exf_number_bytes(number));
    int32_t *there = device_put(&gpu, tokens, (size_t)n * 4);
    float *out = device_put(&gpu, NULL, (all + TAIL) * 4);
    gpu.b->gpu->embed(gpu.q, out, (exf_matrix){table, number}, there, (size_t)n, width, streams);
    float *got = device_get(&gpu, out, (all + TAIL) * 4);
    while (wrong < all && got[wrong] == full[tokens[(int)wrong / width / streams] * width + (int)wrong % width]) wrong++;
    ck_assert_msg(wrong == all, "%s: element %zu", pairwise_name(embed_dimensions, EMBED_DIMENSIONS, &embeddings.shapes[_i]),
                  wrong);
    for (size_t i = all; i < all + TAIL; i++) ck_assert(isnan(got[i]));
    gpu.b->free(table);
    gpu.b->free(there);
    gpu.b->free(out);
    void *made[] = {tokens, half, full, got};
    for (int k = 0; k < COUNT(made); k++) exf_mem_free(made[k]);
}
END_TEST

/* ---- what is not finite ------------------------------------------------------------------------ */

enum { LENGTH, PLACE, WATCH_DIMENSIONS };
static const dimension watch_dimensions[] = {{"elements", 1, 1100000}, {"at", 0, 4}};

static const boundary watch_boundaries[] = {
    {"rows/rows_cuda.cu", "n % 4", LENGTH, 4},
    {"rows/rows_cuda.cu", "THREADS", LENGTH, 256},
    {"rows/rows_cuda.cu", "n / 4, THREADS", LENGTH, 1024},
    {"rows/rows_cuda.cu", "multiprocessors * 8", LENGTH, 132 * 8 * 256}, /* of an H100: a loop's step */
    {"rows/rows_cuda.cu", "blocks < most", LENGTH, 4 * 132 * 8 * 256},
    {"rows/rows_cuda.cu", "blocks < most", LENGTH, 4 * 132 * 8 * 256 + 4},
    {"rows/rows_cuda.cu", "(uintptr_t)x & 15", PLACE, 4},
};

static pairwise watches;

/* The elements [least, n) at every seventh place are not finite; n: none. */
static void watch_from(const float *x, size_t n, size_t least, const char *what)
{
    uint64_t none = ~(uint64_t)0, *there = device_put(&gpu, &none, sizeof none);
    int64_t at;
    exf_err err;
    gpu.b->gpu->watch_finite(gpu.q, there, x, n, 5);
    uint64_t *got = device_get(&gpu, there, sizeof none);
    ck_assert_msg(*got == (least < n ? least + 5 : none), "%s: watched %llu, not at %zu", what, (unsigned long long)*got, least);
    ck_ok(gpu.b->first_not_finite(gpu.q, x, n, &at, &err), err);
    ck_assert_msg(at == (least < n ? (int64_t)least : -1), "%s: found %lld, not at %zu", what, (long long)at, least);
    exf_mem_free(got);
    gpu.b->free(there);
}

START_TEST(the_first_that_is_not_finite_is_found)
{
    size_t n = (size_t)watches.shapes[_i].at[LENGTH], at = (size_t)watches.shapes[_i].at[PLACE], places[] = {n, n - 1, n / 2, 0};
    const char *what = pairwise_name(watch_dimensions, WATCH_DIMENSIONS, &watches.shapes[_i]);
    float *x = test_memory(n + at + TAIL, 4);
    for (size_t i = 0; i < n + at + TAIL; i++) x[i] = i < at || i >= n + at ? NAN : 3e38f;
    for (int k = 0; k < COUNT(places); k++) {
        for (size_t i = places[k]; i < n; i += 7) x[at + i] = i % 2 ? NAN : -INFINITY;
        float *there = device_put(&gpu, x, (n + at + TAIL) * 4);
        watch_from(there + at, n, places[k], what);
        gpu.b->free(there);
    }
    exf_mem_free(x);
}
END_TEST

/* Cut or not, a number that is none stays none: cut at a limit it would look like the limit. */
START_TEST(swiglu_keeps_what_is_no_number)
{
    float g[6] = {NAN, 1, 0.5f, NAN, -3, INFINITY}, u[6] = {1, NAN, 2, NAN, 4, -INFINITY};
    for (int limited = 0; limited < 2; limited++) {
        float *there = device_put(&gpu, g, sizeof g), *of = device_put(&gpu, u, sizeof u);
        gpu.b->swiglu(gpu.q, there, of, 6, limited ? 1.5f : 0);
        float *got = device_get(&gpu, there, sizeof g);
        for (int i = 0; i < 6; i++)
            ck_assert_msg(isnan(g[i]) || isnan(u[i]) ? isnan(got[i]) : !isnan(got[i]), "limited %d: element %d is %g", limited, i,
                          (double)got[i]);
        exf_mem_free(got);
        gpu.b->free(there);
        gpu.b->free(of);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "rows", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&embeddings, "embed", embed_boundaries, COUNT(embed_boundaries), embed_dimensions, EMBED_DIMENSIONS, NULL);
    pairwise_shapes(&watches, "watch", watch_boundaries, COUNT(watch_boundaries), watch_dimensions, WATCH_DIMENSIONS, NULL);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_both, close_pair);
    tcase_add_loop_test(t, rows_are_moved_and_added_exactly, 0, cases.n_shapes);
    tcase_add_loop_test(t, norms_and_gates_are_near, 0, cases.n_shapes);
    tcase_add_loop_test(t, rows_are_rounded_and_widened_exactly, 0, cases.n_shapes);
    tcase_add_loop_test(t, rounded_norms_are_near, 0, cases.n_shapes);
    tcase_add_loop_test(t, split_norms_are_near, 0, cases.n_shapes);
    tcase_add_loop_test(t, gated_heads_are_near, 0, cases.n_shapes);
    tcase_add_loop_test(t, embeddings_are_exact, 0, embeddings.n_shapes);
    tcase_add_loop_test(t, the_first_that_is_not_finite_is_found, 0, watches.n_shapes);
    tcase_add_test(t, swiglu_keeps_what_is_no_number);
    tcase_add_loop_test(t, split_norms_are_near_off_boundaries, 0, cases.n_shapes);
}
