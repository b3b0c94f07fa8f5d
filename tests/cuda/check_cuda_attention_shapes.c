/* check_cuda_attention_shapes.c - causal attention of the CUDA backend at the shapes below, at and above every constant of its
 * kernels: means of integers exact, reals near the CPU's, and nothing written beside the rows or behind the workspace. */
#include "base/mem.h"
#include "tests/support/pairwise.h"
#include "tests/support/pair_fixtures.h" /* after it: its pair is called p */

#include <math.h>
#include <string.h>

/* One call: rows have `gap` elements after them; odd: the array that begins beside a 16-byte boundary (1 q, 2 k, 3 v, 4 out). */
typedef struct {
    int t, kv, group, d, dv, gap, odd, window, sinks;
    const char *name;
} call;

enum { ALL_ODD = 5, MARGIN = 8, GUARD = 64 };

/* ---- one kernel a size of heads: on tensor cores, wide ones, in float32 ------------------------------------------------ */

enum { T, KV, GROUP, D, DV, GAP, ODD, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 513}, {"key-value heads", 1, 2}, {"group", 1, 3}, {"d", 1, 576},
                                       {"dv", 1, 512}, {"gap", 0, 8}, {"odd", 0, ALL_ODD}};

static const boundary boundaries[] = {
    {"attention/attention_internal.cuh", "EXF_TILED_ROWS", T, 128},
    {"attention/attention_mma.cu", "BN", T, 64},
    {"attention/attention_mma.cu", "BN", T, 2 * 64},
    {"attention/attention_wide.cuh", "EXF_WIDE_TILE", T, 64},
    {"attention/attention_wide.cuh", "EXF_WIDE_TILE", T, 2 * 64},
    {"attention/attention_tiles.cu", "BM", T, 128},
    {"attention/attention_tiles.cu", "{64, 64, 128, launch<64, 64, 128>}", T, 2 * 128},
    {"attention/attention_tiles.cu", "STAGES", T, 2 * 2 * 128}, /* a stage's barriers begin their second turn */
    {"attention/attention_tiles.cu", "{64, 64, 128, launch<64, 64, 128>}", D, 64},
    {"attention/attention_tiles.cu", "{128, 128, 128, launch<128, 128, 128>}", D, 128},
    {"attention/attention_tiles.cu", "{192, 128, 128, launch<192, 128, 128>}", D, 192},
    {"attention/attention_tiles.cu", "{256, 256, 64, launch<256, 256, 64>}", D, 256},
    {"attention/attention_mma.cu", "{192, 128, launch<192, 128, 1>, launch<192, 128, 2>}", D, 192},
    {"attention/attention_cuda.cu", "WIDE_D", D, 576},
    {"attention/attention_tiles.cu", "{64, 64, 128, launch<64, 64, 128>}", DV, 64},
    {"attention/attention_tiles.cu", "{128, 128, 128, launch<128, 128, 128>}", DV, 128},
    {"attention/attention_tiles.cu", "{256, 256, 64, launch<256, 256, 64>}", DV, 256},
    {"attention/attention_cuda.cu", "WIDE_DV", DV, 512},
    {"device/hopper.cuh", "c + 8 <= n", D, 8 + 4}, /* a vector load, and half of one */
    {"attention/attention_internal.cuh", "s->rounded_out ? 8 : 4", GAP, 4},
    {"attention/attention_internal.cuh", "s->rounded_out ? 8 : 4", GAP, 8},
    {"attention/attention_internal.cuh", "exf_aligned16(query, s->ldq)", ODD, 1},
    {"attention/attention_internal.cuh", "exf_aligned16(k, s->ldk)", ODD, 2},
    {"attention/attention_internal.cuh", "exf_aligned16(v, s->ldv)", ODD, 3},
    {"attention/attention_internal.cuh", "(uintptr_t)out % 16 == 0", ODD, 4},
};

/* Half of the scores are computed, and the CPU computes them in hundredths of a second. */
static int is_small(int64_t t, int64_t heads, int64_t d, int64_t dv)
{
    return t * (t + 1) / 2 * heads * (d + dv) < 1 << 25 && t * heads * (d + dv) < 1 << 21;
}

static int is_valid(const shape *s)
{
    return is_small(s->at[T], s->at[KV] * s->at[GROUP], s->at[D], s->at[DV]);
}

static pairwise cases;

static call causal(int i)
{
    const shape *s = &cases.shapes[i];
    return (call){s->at[T], s->at[KV], s->at[GROUP], s->at[D], s->at[DV], s->at[GAP], s->at[ODD], 0, 0,
                  pairwise_name(dimensions, DIMENSIONS, s)};
}

/* ---- many heads: blocks of 64 and of 128 rows by mma.sync -------------------------------------------------------------- */

enum { MANY_T, MANY_KV, MANY_GROUP, MANY_SIZE, MANY_DIMENSIONS };
static const dimension many_dimensions[] = {{"tokens", 1, 129}, {"key-value heads", 1, 265}, {"group", 1, 2}, {"size", 0, 3}};

static const boundary many_boundaries[] = {
    {"attention/attention_mma.cu", "2 * (size_t)q->multiprocessors", MANY_KV, 132}, /* two blocks a head, an H100's 132 */
    {"attention/attention_mma.cu", "2 * (size_t)q->multiprocessors", MANY_KV, 264},
    {"attention/attention_mma.cu", "ROWS", MANY_T, 64}, /* of M 1 */
    {"attention/attention_mma.cu", "ROWS", MANY_T, 128}, /* of M 2 */
    {"attention/attention_mma.cu", "launch<128, 128, 2>", MANY_SIZE, 1},
    {"attention/attention_mma.cu", "launch<192, 128, 2>", MANY_SIZE, 2},
};

/* The narrowest heads of every size of kernel: 64, 128, 192 and 256. */
static const struct {
    int d, dv;
} narrowest[] = {{8, 8}, {72, 8}, {136, 8}, {8, 136}};

static int many_is_valid(const shape *s)
{
    int size = s->at[MANY_SIZE];
    return is_small(s->at[MANY_T], s->at[MANY_KV] * s->at[MANY_GROUP], narrowest[size].d, narrowest[size].dv);
}

static pairwise many;

static call of_many(int i)
{
    const shape *s = &many.shapes[i];
    int size = s->at[MANY_SIZE];
    return (call){.t = s->at[MANY_T], .kv = s->at[MANY_KV], .group = s->at[MANY_GROUP], .d = narrowest[size].d,
                  .dv = narrowest[size].dv, .name = pairwise_name(many_dimensions, MANY_DIMENSIONS, s)};
}

/* ---- windows and sinks, in float32 without tensor cores ---------------------------------------------------------------- */

enum { SEEN_T, SEEN_WINDOW, SEEN_SINKS, SEEN_GROUP, SEEN_D, SEEN_DV, SEEN_GAP, SEEN_ODD, SEEN_DIMENSIONS };
static const dimension seen_dimensions[] = {{"tokens", 1, 150}, {"window", 0, 200}, {"sinks", 0, 1}, {"group", 1, 3},
                                            {"d", 1, 576}, {"dv", 1, 512}, {"gap", 0, 4}, {"odd", 0, ALL_ODD}};

static const boundary seen_boundaries[] = {
    {"attention/attention_f32.cuh", "EXF_F32_TILE", SEEN_T, 64},
    {"attention/attention_f32.cuh", "EXF_F32_TILE", SEEN_T, 2 * 64},
    {"attention/attention_f32.cuh", "EXF_F32_VALUES", SEEN_T, 16}, /* keys of a step */
    {"attention/attention_internal.cuh", "s.window && r + 1 > s.window", SEEN_WINDOW, 1},
    {"attention/attention_f32.cuh", "EXF_F32_TILE", SEEN_WINDOW, 64},
    {"attention/attention_f32.cuh", "EXF_F32_DEPTH", SEEN_D, 32},
    {"attention/attention_f32.cuh", "EXF_F32_DEPTH", SEEN_D, 2 * 32},
    {"attention/attention_cuda.cu", "WIDE_D", SEEN_D, 576},
    {"attention/attention_f32.cuh", "c + 4 <= n", SEEN_D, 4},
    {"attention/attention_f32.cuh", "c + 4 <= n", SEEN_DV, 4},
    {"attention/attention_f32.cuh", "dv <= 64", SEEN_DV, 64},
    {"attention/attention_f32.cuh", "dv <= 128", SEEN_DV, 128},
    {"attention/attention_f32.cuh", "dv <= 256", SEEN_DV, 256},
    {"attention/attention_cuda.cu", "WIDE_DV", SEEN_DV, 512},
    {"attention/attention_cuda.cu", "exf_aligned16(k, s->ldk) && s->d % 4 == 0", SEEN_ODD, 2},
    {"attention/attention_cuda.cu", "exf_aligned16(v, s->ldv) && s->dv % 4 == 0", SEEN_ODD, 3},
};

static int seen_is_valid(const shape *s)
{
    return (s->at[SEEN_WINDOW] || s->at[SEEN_SINKS]) && is_small(s->at[SEEN_T], s->at[SEEN_GROUP], s->at[SEEN_D], s->at[SEEN_DV]);
}

static pairwise seen;

static call of_seen(int i)
{
    const shape *s = &seen.shapes[i];
    return (call){s->at[SEEN_T], 1, s->at[SEEN_GROUP], s->at[SEEN_D], s->at[SEEN_DV], s->at[SEEN_GAP], s->at[SEEN_ODD],
                  s->at[SEEN_WINDOW], s->at[SEEN_SINKS], pairwise_name(seen_dimensions, SEEN_DIMENSIONS, s)};
}

/* ---- the arrays of a call ------------------------------------------------------------------------------------------------ */

/* Floats that begin `at` floats into their array. */
typedef struct {
    pair_array a;
    size_t at, n;
} rows;

typedef struct {
    const call *c;
    exf_attention_shape s;
    rows q, k, v, out;
    pair_array sinks, space;
    size_t room; /* floats of workspace on the GPU; a guard comes after them */
} setting;

static int is_odd(const call *c, int which)
{
    return c->odd == which || c->odd == ALL_ODD;
}

enum { REALS, INTEGERS };

static rows rows_of(const call *c, int which, size_t n, int kind, float scale)
{
    size_t at = MARGIN + (size_t)is_odd(c, which), all = at + n + MARGIN;
    return (rows){kind == INTEGERS ? pair_integers(&p, all, (uint64_t)which) : pair_reals(&p, all, (uint64_t)which, scale), at, n};
}

/* kind: of the values; size: of the queries, 0 for equal scores. */
static setting set_up(const call *c, int kind, float size)
{
    int heads = c->kv * c->group;
    setting w = {.c = c};
    w.s = (exf_attention_shape){.n_tokens = c->t, .n_heads = heads, .n_kv = c->kv, .d = c->d, .dv = c->dv,
                                .ldq = heads * c->d + c->gap, .ldk = c->kv * c->d + c->gap, .ldv = c->kv * c->dv + c->gap,
                                .ldo = heads * c->dv + c->gap, .scale = (float)(1 / sqrt(c->d)), .window = c->window};
    w.q = rows_of(c, 1, (size_t)c->t * (size_t)w.s.ldq, REALS, size);
    w.k = rows_of(c, 2, (size_t)c->t * (size_t)w.s.ldk, REALS, 2);
    w.v = rows_of(c, 3, (size_t)c->t * (size_t)w.s.ldv, kind, 1);
    w.out.at = MARGIN + (size_t)is_odd(c, 4);
    w.out.n = (size_t)c->t * (size_t)w.s.ldo;
    w.out.a = poisoned(w.out.at + w.out.n + MARGIN);
    w.sinks = pair_reals(&p, (size_t)heads, 5, size > 0 ? 3 : 0);
    w.room = p.b[1]->attention_workspace(&w.s);
    w.space = poisoned(larger(w.room, p.b[0]->attention_workspace(&w.s)) + GUARD);
    return w;
}

static void tear_down(setting *w)
{
    pair_array *all[] = {&w->q.a, &w->k.a, &w->v.a, &w->out.a, &w->sinks, &w->space};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}

/* Runs the GPU's side; returns the whole output array, poisoned before; the caller frees. */
static float *attended(setting *w, int rounded)
{
    exf_err err;
    float *poison;
    ck_ok(exf_mem_new(&poison, w->out.a.n, sizeof *poison, "test", &err), err);
    memset(poison, 0xff, w->out.a.n * sizeof *poison);
    p.b[1]->upload(p.q[1], w->out.a.f[1], poison, w->out.a.n * sizeof *poison);
    ck_ok(p.b[1]->finish(p.q[1], &err), err);
    exf_mem_free(poison);
    w->s.sinks = w->c->sinks ? w->sinks.f[1] : NULL;
    w->s.rounded_out = rounded;
    void *out = rounded ? (void *)((uint16_t *)(void *)w->out.a.f[1] + w->out.at) : (void *)(w->out.a.f[1] + w->out.at);
    p.b[1]->attention(p.q[1], out, w->q.a.f[1] + w->q.at, w->k.a.f[1] + w->k.at, w->v.a.f[1] + w->v.at, &w->s, w->space.f[1]);
    w->s.rounded_out = 0;
    float *got = fetched(w->out.a.f[1], w->out.a.n), *guard = fetched(w->space.f[1] + w->room, GUARD);
    ck_assert_msg(is_poison(guard, GUARD * sizeof *guard), "%s: written behind the workspace", w->c->name);
    exf_mem_free(guard);
    return got;
}

static float *attended_on_cpu(setting *w)
{
    w->s.sinks = w->c->sinks ? w->sinks.f[0] : NULL;
    p.b[0]->attention(p.q[0], w->out.a.f[0] + w->out.at, w->q.a.f[0] + w->q.at, w->k.a.f[0] + w->k.at, w->v.a.f[0] + w->v.at, &w->s,
                      w->space.f[0]);
    return w->out.a.f[0];
}

/* What lies before, between and after the rows is as it was; elements of `size` bytes. */
static void nothing_else_is_written(const setting *w, const void *got, size_t size, const char *what)
{
    const char *at = got;
    size_t row = (size_t)(w->s.n_heads * w->s.dv), ld = (size_t)w->s.ldo, end = w->out.at + w->out.n;
    ck_assert_msg(is_poison(at, w->out.at * size), "%s, %s: written before the rows", w->c->name, what);
    ck_assert_msg(is_poison(at + end * size, w->out.a.n * sizeof(float) - end * size), "%s, %s: written after the rows", w->c->name,
                  what);
    for (int t = 0; t < w->s.n_tokens; t++)
        ck_assert_msg(is_poison(at + (w->out.at + (size_t)t * ld + row) * size, (ld - row) * size), "%s, %s: written after row %d",
                      w->c->name, what, t);
}

/* ---- means: equal scores, so that a row is the mean of the integers that it sees, and of a 0 for a sink -------------------- */

/* Checks a column of a head, whose sum over the rows that are seen goes along. */
static void column_is_exact(const setting *w, const float *got, int head, int column, const char *what)
{
    const float *v = w->v.a.f[0] + w->v.at + head / w->c->group * w->s.dv + column,
                *out = got + w->out.at + head * w->s.dv + column;
    int window = w->s.window;
    double sum = 0;
    for (int t = 0; t < w->s.n_tokens; t++) {
        int old = window && t >= window;
        sum += (double)v[(size_t)t * (size_t)w->s.ldv] - (old ? (double)v[(size_t)(t - window) * (size_t)w->s.ldv] : 0);
        double x = (double)out[(size_t)t * (size_t)w->s.ldo], want = sum / ((old ? window : t + 1) + w->c->sinks);
        ck_assert_msg(fabs(x - want) <= 4e-7 * fabs(want), "%s, %s: row %d, head %d, column %d: %.9g, the mean is %.9g",
                      w->c->name, what, t, head, column, x, want);
    }
}

static void means_are_exact(const call *c, exf_compute compute, const char *what)
{
    setting w = set_up(c, INTEGERS, 0);
    pair_compute(&p, compute);
    float *got = attended(&w, 0);
    nothing_else_is_written(&w, got, sizeof *got, what);
    for (int h = 0; h < w.s.n_heads; h++)
        for (int i = 0; i < c->dv; i++) column_is_exact(&w, got, h, i, what);
    exf_mem_free(got);
    tear_down(&w);
}

/* ---- reals: near the CPU's -------------------------------------------------------------------------------------------------- */

/* Every element within `each`; of 256 and more their distance within `most`. */
static void compare(const setting *w, const float *got, const float *want, double each, double most, const char *what)
{
    double apart = 0, size = 0;
    int n = w->s.n_heads * w->s.dv;
    for (int t = 0; t < w->s.n_tokens; t++)
        for (int i = 0; i < n; i++) {
            size_t at = w->out.at + (size_t)t * (size_t)w->s.ldo + (size_t)i;
            double y = (double)want[at], x = (double)got[at];
            apart += (x - y) * (x - y);
            size += y * y;
            ck_assert_msg(fabs(x - y) <= each * (1 + fabs(y)), "%s, %s: row %d, column %d: cpu %.9g, cuda %.9g", w->c->name,
                          what, t, i, y, x);
        }
    ck_assert_msg(n * w->s.n_tokens < 256 || sqrt(apart / size) <= most, "%s, %s: distance %.2e", w->c->name, what,
                  sqrt(apart / size));
    nothing_else_is_written(w, got, sizeof *got, what);
}

/* A bfloat16 output has the bits of the float32 one rounded. */
static void rounds_its_output(setting *w, const float *exact)
{
    float *got = attended(w, 1);
    const uint16_t *half = (const uint16_t *)(const void *)got;
    for (int t = 0; t < w->s.n_tokens; t++)
        for (int i = 0; i < w->s.n_heads * w->s.dv; i++) {
            size_t at = w->out.at + (size_t)t * (size_t)w->s.ldo + (size_t)i;
            uint32_t u;
            memcpy(&u, &exact[at], sizeof u);
            uint16_t nearest = (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
            ck_assert_msg(half[at] == nearest, "%s: row %d, column %d: rounded to %04x from %.9g", w->c->name, t, i, half[at],
                          (double)exact[at]);
        }
    nothing_else_is_written(w, half, sizeof *half, "rounded output");
    exf_mem_free(got);
}

/* float32: two softmaxes of scores up to about 10 from float32 sums.  Rounded: scores off by 2^-10 of their terms, weights and
 * values by 2^-11; with windows and sinks everything is in float32. */
static void reals_are_near(const call *c)
{
    setting w = set_up(c, REALS, 2);
    const float *want = attended_on_cpu(&w);
    int plain = !c->window && !c->sinks;
    pair_compute(&p, EXF_COMPUTE_F32);
    float *got = attended(&w, 0);
    compare(&w, got, want, 2e-5, 4e-6, "float32");
    exf_mem_free(got);
    pair_compute(&p, EXF_COMPUTE_BF16);
    got = attended(&w, 0);
    compare(&w, got, want, plain ? 5e-3 : 2e-5, plain ? 1e-3 : 4e-6, "rounded");
    rounds_its_output(&w, got);
    exf_mem_free(got);
    tear_down(&w);
}

static void check(call c)
{
    means_are_exact(&c, EXF_COMPUTE_F32, "means in float32");
    means_are_exact(&c, EXF_COMPUTE_BF16, "means, rounded");
    reals_are_near(&c);
}

START_TEST(causal_shapes)
{
    check(causal(_i));
}
END_TEST

START_TEST(many_heads)
{
    check(of_many(_i));
}
END_TEST

START_TEST(windows_and_sinks)
{
    check(of_seen(_i));
}
END_TEST

/* A workspace serves shorter sequences too. */
START_TEST(workspaces_do_not_shrink)
{
    for (int i = 0; i < many.n_shapes; i++)
        for (int64_t t = 1, before = 0; t <= 1 << 20; t += 1 + t / 16) {
            call c = of_many(i);
            exf_attention_shape s = {.n_tokens = (int)t, .n_heads = c.kv, .n_kv = c.kv, .d = c.d, .dv = c.dv};
            int64_t now = (int64_t)p.b[1]->attention_workspace(&s);
            ck_assert_msg(now >= before, "%s: %d tokens: %lld floats, of fewer tokens %lld", c.name, (int)t, (long long)now,
                          (long long)before);
            before = now;
        }
}
END_TEST

/* Of the windows one run is enough: their kernel takes no tensor cores. */
static void add_cases(Suite *s, const char *name, void (*open)(void), int n_windows)
{
    TCase *t = exf_case(s, name);
    tcase_add_checked_fixture(t, open, close_pair);
    tcase_add_loop_test(t, causal_shapes, 0, cases.n_shapes);
    tcase_add_loop_test(t, many_heads, 0, many.n_shapes);
    tcase_add_loop_test(t, windows_and_sinks, 0, n_windows);
    tcase_add_test(t, workspaces_do_not_shrink);
}

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "causal attention", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&many, "many heads", many_boundaries, COUNT(many_boundaries), many_dimensions, MANY_DIMENSIONS, many_is_valid);
    pairwise_shapes(&seen, "windows and sinks", seen_boundaries, COUNT(seen_boundaries), seen_dimensions, SEEN_DIMENSIONS,
                    seen_is_valid);
    add_cases(s, "all", open_pair, seen.n_shapes);
    add_cases(s, "mma", open_pair_mma, 0);
}
