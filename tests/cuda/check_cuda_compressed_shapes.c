/* check_cuda_compressed_shapes.c - compressed attention of the CUDA backend, and its whole heads, at the shapes below, at and
 * above every constant of its kernels: means of integers exact, reals near the CPU's, and nothing written beside the rows or
 * behind the workspace. */
#include "base/mem.h"
#include "tests/support/pairwise.h"
#include "tests/support/pair_fixtures.h" /* after it: its pair is called p */

#include <math.h>
#include <string.h>

enum { MARGIN = 8, GUARD = 64 };

/* ---- shapes: CHOOSE 0 all entries, 1 half of them, 2 none; ODD the array that begins beside a 16-byte boundary (1 queries, 2
 * tokens, 3 entries, 4 output, 5 all) ------------------------------------------------------------------------------------- */

enum { FIRST, ROWS, HEADS, D, WINDOW, RATIO, CHOOSE, ODD, DIMENSIONS };
enum { ALL_ODD = 5 };
static const dimension dimensions[] = {{"first", 0, 600}, {"rows", 1, 65}, {"heads", 1, 129}, {"d", 1, 512},
                                       {"window", 1, 200}, {"ratio", 0, 128}, {"choose", 0, 2}, {"odd", 0, ALL_ODD}};

static const boundary boundaries[] = {
    {"attention/compressed_cuda.cu", "TILE", ROWS, 64},
    {"attention/compressed_cuda.cu", "g1 = w.group(end - 1)", ROWS, 2}, /* queries of a tile */
    {"attention/compressed_cuda.cu", "TILE", HEADS, 64}, /* a query a tile */
    {"attention/compressed_cuda.cu", "TILE", HEADS, 2 * 64},
    {"attention/compressed_cuda.cu", "LIST_THREADS", FIRST, 256}, /* entries, of ratio 1 */
    {"attention/compressed_cuda.cu", "MOST_D", D, 512},
    {"attention/compressed_cuda.cu", "s->d <= 128", D, 128},
    {"attention/compressed_cuda.cu", "s->ratio ?", RATIO, 1},
    {"attention/compressed_cuda.cu", "(w + 1) * s.ratio <= t + 1", RATIO, 4},
    {"attention/compressed_cuda.cu", "keys.chosen", CHOOSE, 1},
    {"attention/compressed_cuda.cu", "exf_aligned16(w.query, s.d)", ODD, 1},
    {"attention/compressed_cuda.cu", "exf_aligned16(k->tokens, s->d)", ODD, 2},
    {"attention/compressed_cuda.cu", "exf_aligned16(k->entries, s->d)", ODD, 3},
    {"attention/compressed_cuda.cu", "exf_aligned16(w.out, s.d)", ODD, 4},
    {"attention/attention_wide.cuh", "EXF_WIDE_TILE", WINDOW, 64},
    {"attention/attention_wide.cuh", "EXF_WIDE_TILE", FIRST, 64},
    {"attention/attention_wide.cuh", "STAGES", FIRST, 2 * 64},
    {"attention/attention_wide_mma.cuh", "EXF_NARROW_TILE", WINDOW, 32},
    {"attention/attention_f32.cuh", "EXF_F32_TILE", WINDOW, 64},
    {"attention/attention_f32.cuh", "dv <= 64", D, 64},
    {"attention/attention_f32.cuh", "dv <= 256", D, 256},
    {"device/hopper.cuh", "c + 8 <= n", D, 8 + 4}, /* a vector load, and half of one */
};

static int64_t keys_of(int64_t first, int64_t rows, int64_t window, int64_t ratio)
{
    return (first < window ? first : window) + rows + (ratio ? (first + rows) / ratio : 0);
}

static int is_small(int64_t rows, int64_t heads, int64_t d, int64_t keys)
{
    return rows * heads * d * keys < 1 << 25 && rows * heads * d < 1 << 20;
}

static int is_valid(const shape *s)
{
    return (s->at[RATIO] || !s->at[CHOOSE]) && is_small(s->at[ROWS], s->at[HEADS], s->at[D],
                                                        keys_of(s->at[FIRST], s->at[ROWS], s->at[WINDOW], s->at[RATIO]));
}

static pairwise cases;

/* Heads of 128 or of 512 floats (size 0, 1), of which 4 `quads` are rotated. */
enum { WHOLE_FIRST, WHOLE_ROWS, WHOLE_HEADS, WHOLE_SIZE, WHOLE_QUADS, WHOLE_WINDOW, WHOLE_RATIO, WHOLE_DIMENSIONS };
static const dimension whole_dimensions[] = {{"first", 0, 65}, {"rows", 1, 65}, {"heads", 1, 65}, {"size", 0, 1},
                                             {"quads", 1, 128}, {"window", 1, 65}, {"ratio", 0, 2}};

static const boundary whole_boundaries[] = {
    {"attention/compressed_cuda.cu", "exf_blocks((size_t)n, 8)", WHOLE_ROWS, 8}, /* warps that round queries */
    {"attention/compressed_cuda.cu", "TILE", WHOLE_ROWS, 64},
    {"attention/compressed_cuda.cu", "TILE", WHOLE_HEADS, 64},
    {"attention/compressed_cuda.cu", "s->d == MOST_D", WHOLE_SIZE, 1},
    {"attention/compressed_cuda.cu", "whole_heads<128>", WHOLE_QUADS, 32}, /* all of a head */
    {"attention/compressed_cuda.cu", "whole_heads<MOST_D>", WHOLE_QUADS, 128},
    {"attention/attention_wide.cuh", "EXF_WIDE_TILE", WHOLE_WINDOW, 64},
    {"attention/attention_wide_mma.cuh", "EXF_NARROW_TILE", WHOLE_WINDOW, 32},
    {"attention/attention_wide.cuh", "EXF_WIDE_TILE", WHOLE_FIRST, 64},
    {"attention/compressed_cuda.cu", "s->ratio ?", WHOLE_RATIO, 1},
};

static int whole_is_valid(const shape *s)
{
    int d = s->at[WHOLE_SIZE] ? 512 : 128;
    return 4 * s->at[WHOLE_QUADS] <= d &&
           is_small(s->at[WHOLE_ROWS], s->at[WHOLE_HEADS], d,
                    keys_of(s->at[WHOLE_FIRST], s->at[WHOLE_ROWS], s->at[WHOLE_WINDOW], s->at[WHOLE_RATIO]));
}

static pairwise whole;

/* ---- the arrays of a call ------------------------------------------------------------------------------------------------ */

/* Floats that begin `at` floats into their array. */
typedef struct {
    pair_array a;
    size_t at, n;
} rows;

typedef struct {
    exf_compressed_attention_shape s;
    int n_entries;
    rows q, tokens, entries, out;
    pair_array sink, chosen, space;
    unsigned char *marks; /* as in chosen; NULL: all */
    size_t room;          /* floats of workspace on the GPU; a guard comes after them */
    const char *name;
} setting;

enum { REALS, INTEGERS };

static rows rows_of(int odd, int which, size_t n, int kind, float scale)
{
    size_t at = MARGIN + (size_t)(odd == which || odd == ALL_ODD), all = at + n + MARGIN;
    return (rows){kind == INTEGERS ? pair_integers(&p, all, (uint64_t)which) : pair_reals(&p, all, (uint64_t)which, scale), at, n};
}

/* Marks entries for every row by chance, or none. */
static void choose(setting *w, int how)
{
    size_t n = (size_t)w->s.n_rows * (size_t)w->n_entries, floats = n / 4 + 1;
    exf_err err;
    ck_ok(exf_mem_new(&w->marks, floats * 4, 1, "test", &err), err);
    for (size_t i = 0; i < n; i++) w->marks[i] = how == 1 && exf_rng_below(2, 9, i, 0);
    w->chosen = pair_of(&p, w->marks, floats);
    if (!how) exf_mem_free(w->marks);
    w->marks = how ? w->marks : NULL;
}

/* kind: of the keys; size: of the queries, 0 for equal scores. */
static setting set_up(exf_compressed_attention_shape s, int how, int odd, int kind, float size, const char *name)
{
    int t = s.first + s.n_rows;
    size_t n = (size_t)s.n_rows * (size_t)(s.n_heads * s.d);
    setting w = {.s = s, .n_entries = s.ratio ? t / s.ratio : 0, .name = name};
    w.q = rows_of(odd, 1, n, REALS, size);
    w.tokens = rows_of(odd, 2, (size_t)t * (size_t)s.d, kind, 2);
    w.entries = rows_of(odd, 3, (size_t)w.n_entries * (size_t)s.d, kind, 2);
    w.out.at = MARGIN + (size_t)(odd == 4 || odd == ALL_ODD);
    w.out.n = n;
    w.out.a = poisoned(w.out.at + n + MARGIN);
    w.sink = pair_reals(&p, (size_t)s.n_heads, 5, size > 0 ? 3 : 0);
    choose(&w, how);
    w.room = p.b[1]->compressed_attention_workspace(s.n_heads, s.n_rows, t, s.window, s.ratio);
    w.space = poisoned(larger(w.room, p.b[0]->compressed_attention_workspace(s.n_heads, s.n_rows, t, s.window, s.ratio)) + GUARD);
    return w;
}

static void tear_down(setting *w)
{
    pair_array *all[] = {&w->q.a, &w->tokens.a, &w->entries.a, &w->out.a, &w->sink, &w->chosen, &w->space};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
    exf_mem_free(w->marks);
}

static exf_compressed_keys keys_on(const setting *w, int side)
{
    return (exf_compressed_keys){w->tokens.a.f[side] + w->tokens.at, w->entries.a.f[side] + w->entries.at,
                                 w->marks ? (unsigned char *)(void *)w->chosen.f[side] : NULL, w->sink.f[side]};
}

static void workspace_sufficed(const setting *w)
{
    float *guard = fetched(w->space.f[1] + w->room, GUARD);
    ck_assert_msg(is_poison(guard, GUARD * sizeof *guard), "%s: written behind the workspace", w->name);
    exf_mem_free(guard);
}

/* Runs the GPU's side; returns the whole output array; the caller frees. */
static float *attended(const setting *w, const char *what)
{
    exf_compressed_keys k = keys_on(w, 1);
    p.b[1]->compressed_attention(p.q[1], w->out.a.f[1] + w->out.at, w->q.a.f[1] + w->q.at, &k, &w->s, w->space.f[1]);
    float *got = fetched(w->out.a.f[1], w->out.a.n);
    size_t end = w->out.at + w->out.n;
    ck_assert_msg(is_poison(got, w->out.at * sizeof *got), "%s, %s: written before the rows", w->name, what);
    ck_assert_msg(is_poison(got + end, (w->out.a.n - end) * sizeof *got), "%s, %s: written after the rows", w->name, what);
    workspace_sufficed(w);
    return got;
}

/* The output may lie over the queries; then these are gone. */
static void in_place_has_the_bits(const setting *w, const float *apart)
{
    exf_compressed_keys k = keys_on(w, 1);
    float *q = w->q.a.f[1] + w->q.at;
    p.b[1]->compressed_attention(p.q[1], q, q, &k, &w->s, w->space.f[1]);
    float *got = fetched(q, w->q.n);
    ck_assert_msg(memcmp(got, apart + w->out.at, w->q.n * sizeof *got) == 0, "%s: over the queries the bits differ", w->name);
    exf_mem_free(got);
}

/* ---- means: equal scores, so that a row is the mean of the integers that it sees and of the sink's 0 ------------------------- */

static int is_seen(const setting *w, int row, int entry)
{
    return (entry + 1) * w->s.ratio <= w->s.first + row + 1 && (!w->marks || w->marks[row * w->n_entries + entry]);
}

static double mean_at(const setting *w, int row, int column)
{
    const float *tokens = w->tokens.a.f[0] + w->tokens.at + column, *entries = w->entries.a.f[0] + w->entries.at + column;
    int t = w->s.first + row, from = t + 1 > w->s.window ? t + 1 - w->s.window : 0, n = t + 1 - from;
    double sum = 0;
    for (int j = from; j <= t; j++) sum += (double)tokens[j * w->s.d];
    for (int j = 0; j < w->n_entries; j++)
        if (is_seen(w, row, j)) sum += (double)entries[j * w->s.d], n++;
    return sum / (n + 1);
}

static exf_compressed_attention_shape shape_of(const shape *s)
{
    return (exf_compressed_attention_shape){.first = s->at[FIRST], .n_rows = s->at[ROWS], .n_heads = s->at[HEADS], .d = s->at[D],
                                            .window = s->at[WINDOW], .ratio = s->at[RATIO], .scale = (float)(1 / sqrt(s->at[D]))};
}

static void means_are_exact(const shape *s, exf_compute compute, const char *what)
{
    setting w = set_up(shape_of(s), s->at[CHOOSE], s->at[ODD], INTEGERS, 0, pairwise_name(dimensions, DIMENSIONS, s));
    pair_compute(&p, compute);
    float *got = attended(&w, what);
    for (int i = 0; i < w.s.n_rows; i++)
        for (int c = 0; c < w.s.d; c++) {
            double want = mean_at(&w, i, c);
            for (int h = 0; h < w.s.n_heads; h++) {
                double x = (double)got[w.out.at + ((size_t)i * (size_t)w.s.n_heads + (size_t)h) * (size_t)w.s.d + (size_t)c];
                ck_assert_msg(fabs(x - want) <= 4e-7 * fabs(want), "%s, %s: row %d, head %d, column %d: %.9g, the mean is %.9g",
                              w.name, what, i, h, c, x, want);
            }
        }
    exf_mem_free(got);
    tear_down(&w);
}

/* ---- reals: near the CPU's --------------------------------------------------------------------------------------------------- */

/* Every element within `each`; of 256 and more their distance within `most`. */
static void compare(const setting *w, const float *got, const float *want, double each, double most, const char *what)
{
    double apart = 0, size = 0;
    for (size_t i = 0; i < w->out.n; i++) {
        double y = (double)want[i], x = (double)got[i];
        apart += (x - y) * (x - y);
        size += y * y;
        ck_assert_msg(fabs(x - y) <= each * (1 + fabs(y)), "%s, %s: element %zu: cpu %.9g, cuda %.9g", w->name, what, i, y, x);
    }
    ck_assert_msg(w->out.n < 256 || sqrt(apart / size) <= most, "%s, %s: distance %.2e", w->name, what, sqrt(apart / size));
}

static void reals_are_near(const shape *s, exf_compute compute, double each, double most, const char *what)
{
    setting w = set_up(shape_of(s), s->at[CHOOSE], s->at[ODD], REALS, 2, pairwise_name(dimensions, DIMENSIONS, s));
    exf_compressed_keys k = keys_on(&w, 0);
    float *want = w.out.a.f[0] + w.out.at;
    pair_compute(&p, compute);
    p.b[0]->compressed_attention(p.q[0], want, w.q.a.f[0] + w.q.at, &k, &w.s, w.space.f[0]);
    float *got = attended(&w, what);
    compare(&w, got + w.out.at, want, each, most, what);
    in_place_has_the_bits(&w, got);
    exf_mem_free(got);
    tear_down(&w);
}

/* Bounds as in check_cuda_attention_shapes.c; values reach 2. */
START_TEST(compressed_shapes)
{
    const shape *s = &cases.shapes[_i];
    means_are_exact(s, EXF_COMPUTE_F32, "means in float32");
    means_are_exact(s, EXF_COMPUTE_BF16, "means, rounded");
    reals_are_near(s, EXF_COMPUTE_F32, 3e-5, 4e-6, "float32");
    reals_are_near(s, EXF_COMPUTE_BF16, 8e-3, 1e-3, "rounded");
}
END_TEST

/* ---- whole heads: normed, rotated, attended, rotated back, rounded, against the CPU's single steps --------------------------- */

static void heads_on_cpu(setting *w, exf_rope_shape r, const pair_array *cosine, const pair_array *sine)
{
    exf_compressed_keys k = keys_on(w, 0);
    float *q = w->q.a.f[0] + w->q.at, *out = w->out.a.f[0] + w->out.at;
    p.b[0]->rmsnorm(p.q[0], q, w->s.d, q, w->s.d, NULL, w->s.n_rows * w->s.n_heads, w->s.d, 1e-6);
    p.b[0]->rope(p.q[0], q, &r, cosine->f[0], sine->f[0]);
    p.b[0]->compressed_attention(p.q[0], out, q, &k, &w->s, w->space.f[0]);
    r.inverse = 1;
    p.b[0]->rope(p.q[0], out, &r, cosine->f[0], sine->f[0]);
}

/* The GPU's heads as floats; the caller frees. */
static float *heads_on_gpu(setting *w, const exf_rope_shape *r, const pair_array *cosine, const pair_array *sine)
{
    exf_compressed_keys k = keys_on(w, 1);
    uint16_t *out = (uint16_t *)(void *)w->out.a.f[1] + MARGIN;
    pair_array wide = poisoned(w->out.n);
    p.b[1]->gpu->compressed_heads(p.q[1], out, w->q.a.f[1] + w->q.at, &k, &w->s, r, cosine->f[1], sine->f[1], 1e-6, w->space.f[1]);
    p.b[1]->gpu->widen(p.q[1], wide.f[1], out, w->out.n);
    float *got = fetched(wide.f[1], w->out.n), *all = fetched(w->out.a.f[1], w->out.a.n);
    size_t end = (MARGIN + w->out.n) * sizeof *out;
    ck_assert_msg(is_poison(all, MARGIN * sizeof *out), "%s: written before the heads", w->name);
    ck_assert_msg(is_poison((char *)(void *)all + end, w->out.a.n * sizeof *all - end), "%s: written after the heads", w->name);
    workspace_sufficed(w);
    exf_mem_free(all);
    pair_free(&wide);
    return got;
}

START_TEST(whole_heads)
{
    const shape *at = &whole.shapes[_i];
    int d = at->at[WHOLE_SIZE] ? 512 : 128, turned = 4 * at->at[WHOLE_QUADS], n = at->at[WHOLE_ROWS], heads = at->at[WHOLE_HEADS];
    exf_compressed_attention_shape s = {.first = at->at[WHOLE_FIRST], .n_rows = n, .n_heads = heads, .d = d,
                                        .window = at->at[WHOLE_WINDOW], .ratio = at->at[WHOLE_RATIO],
                                        .scale = (float)(1 / sqrt(d))};
    exf_rope_shape r = {.n_tokens = n, .n_heads = heads, .head_dim = d, .ld = heads * d, .d = turned, .offset = d - turned,
                        .step = 1, .interleaved = 1};
    setting w = set_up(s, _i % 2 && s.ratio, 0, REALS, 2, pairwise_name(whole_dimensions, WHOLE_DIMENSIONS, at));
    pair_array cosine = angles((size_t)(n * turned / 2), cosf), sine = angles((size_t)(n * turned / 2), sinf);
    pair_compute(&p, EXF_COMPUTE_BF16);
    ck_assert_int_eq(p.b[1]->gpu->compressed_heads_fit(&s, &r), 1);
    float *got = heads_on_gpu(&w, &r, &cosine, &sine);
    heads_on_cpu(&w, r, &cosine, &sine);
    compare(&w, got, w.out.a.f[0] + w.out.at, 2e-2, 4e-3, "whole heads"); /* bfloat16's 2^-8, the rest is attention's */
    exf_mem_free(got);
    pair_free(&cosine);
    pair_free(&sine);
    tear_down(&w);
}
END_TEST

/* What the kernels of whole heads do not take. */
START_TEST(other_heads_do_not_fit)
{
    exf_compressed_attention_shape s = {.n_rows = 1, .n_heads = 1, .d = 128, .window = 1, .scale = 1};
    exf_rope_shape r = {.n_tokens = 1, .n_heads = 1, .head_dim = 128, .ld = 128, .d = 64, .offset = 64, .step = 1,
                        .interleaved = 1};
    ck_assert_int_eq(p.b[1]->gpu->compressed_heads_fit(&s, &r), 1);
    exf_rope_shape other[] = {r, r, r, r};
    other[0].interleaved = 0;
    other[1].step = 2;
    other[2].offset = 60; /* the last four are left */
    other[3].offset = 66, other[3].d = 62;
    for (int i = 0; i < COUNT(other); i++) ck_assert_int_eq(p.b[1]->gpu->compressed_heads_fit(&s, &other[i]), 0);
    s.d = 256, r.offset = 192;
    ck_assert_int_eq(p.b[1]->gpu->compressed_heads_fit(&s, &r), 0);
}
END_TEST

static void add_cases(Suite *s, const char *name, void (*open)(void))
{
    TCase *t = exf_case(s, name);
    tcase_add_checked_fixture(t, open, close_pair);
    tcase_add_loop_test(t, compressed_shapes, 0, cases.n_shapes);
    tcase_add_loop_test(t, whole_heads, 0, whole.n_shapes);
    tcase_add_test(t, other_heads_do_not_fit);
}

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "compressed attention", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&whole, "whole heads", whole_boundaries, COUNT(whole_boundaries), whole_dimensions, WHOLE_DIMENSIONS,
                    whole_is_valid);
    add_cases(s, "all", open_pair);
    add_cases(s, "mma", open_pair_mma);
}
