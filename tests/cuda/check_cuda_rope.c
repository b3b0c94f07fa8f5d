/* check_cuda_rope.c - rotation of heads on the GPU at the shapes below, at and above every constant of its kernels: near the
 * CPU's; with a norm, the bits of rmsnorm and of a rotation after it. */
#include "base/mem.h"
#include "tests/support/pairwise.h"
#include "tests/support/pair_fixtures.h" /* after it: its pair is called p */

#include <math.h>
#include <string.h>

/* Of every head 4 QUADS + REST floats are normed and 2 PAIRS from OFFSET on rotated; SPACE floats lie between heads.  ODD: the
 * array that begins beside a 16-byte boundary (1 heads, 2 cosines, 3 sines, 4 weights). */
enum { TOKENS, HEADS, QUADS, REST, PAIRS, OFFSET, SPACE, ODD, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 33}, {"heads", 1, 5}, {"quads", 0, 129}, {"rest", 0, 2},
                                       {"pairs", 0, 257}, {"offset", 0, 65}, {"space", 0, 5}, {"odd", 0, 4}};

static const boundary boundaries[] = {
    {"attention/attention_cuda.cu", "NORM_THREADS", TOKENS, 128 / 32}, /* heads of a block: of one head a token, */
    {"attention/attention_cuda.cu", "NORM_THREADS", TOKENS, 128 / 16},
    {"attention/attention_cuda.cu", "NORM_THREADS", TOKENS, 128 / 8},
    {"attention/attention_cuda.cu", "NORM_THREADS", HEADS, 128 / 32}, /* of one token */
    {"attention/attention_cuda.cu", "NORM_HELD", QUADS, 8 * 4},
    {"attention/attention_cuda.cu", "NORM_HELD", QUADS, 16 * 4},
    {"attention/attention_cuda.cu", "NORM_HELD", QUADS, 32 * 4},
    {"attention/attention_cuda.cu", "s->normed % 4 == 0", REST, 1},
    {"attention/attention_cuda.cu", "s->d % 8 == 0", PAIRS, 4},
    {"attention/attention_cuda.cu", "s->d == s->normed", PAIRS, 64}, /* whole heads of 128, 256 and 512 */
    {"attention/attention_cuda.cu", "s->d == s->normed", PAIRS, 128},
    {"attention/attention_cuda.cu", "s->d == s->normed", PAIRS, 256},
    {"attention/attention_cuda.cu", "exf_blocks(total, 256)", PAIRS, 256},
    {"attention/attention_cuda.cu", "s->offset % 4 == 0", OFFSET, 4},
    {"attention/attention_cuda.cu", "s->offset + s->d <= s->normed", OFFSET, 64},
    {"attention/attention_cuda.cu", "s->head_dim % 4 == 0", SPACE, 4},
    {"attention/attention_cuda.cu", "exf_aligned16(x, s->ld)", ODD, 1},
    {"attention/attention_cuda.cu", "exf_aligned16(cosine, 0)", ODD, 2},
    {"attention/attention_cuda.cu", "exf_aligned16(sine, 0)", ODD, 3},
    {"attention/attention_cuda.cu", "exf_aligned16(s->norm, 0)", ODD, 4},
};

static int larger_of(int a, int b)
{
    return a > b ? a : b;
}

/* Floats of a head that are normed, that are there. */
static int normed_of(const shape *s)
{
    return 4 * s->at[QUADS] + s->at[REST];
}

static int width_of(const shape *s)
{
    return larger_of(normed_of(s), s->at[OFFSET] + 2 * s->at[PAIRS]);
}

static int is_valid(const shape *s)
{
    return width_of(s) > 0 && s->at[TOKENS] * s->at[HEADS] * width_of(s) < 1 << 15;
}

static pairwise cases;

/* The same where everything lies in quads, for the fused kernel: EIGHTS times 8 floats are rotated, quads from FROM on. */
enum { FUSED_TOKENS, FUSED_HEADS, FUSED_QUADS, FUSED_EIGHTS, FUSED_FROM, FUSED_SPACE, FUSED_DIMENSIONS };
static const dimension fused_dimensions[] = {{"tokens", 1, 33}, {"heads", 1, 5}, {"quads", 0, 129}, {"eights", 0, 65},
                                             {"from quad", 0, 17}, {"space in quads", 0, 1}};

static const boundary fused_boundaries[] = {
    {"attention/attention_cuda.cu", "NORM_THREADS", FUSED_TOKENS, 128 / 32},
    {"attention/attention_cuda.cu", "NORM_THREADS", FUSED_TOKENS, 128 / 16},
    {"attention/attention_cuda.cu", "NORM_THREADS", FUSED_TOKENS, 128 / 8},
    {"attention/attention_cuda.cu", "NORM_THREADS", FUSED_HEADS, 128 / 32},
    {"attention/attention_cuda.cu", "s->normed <= 8 * 4 * NORM_HELD", FUSED_QUADS, 8 * 4},
    {"attention/attention_cuda.cu", "s->normed <= 16 * 4 * NORM_HELD", FUSED_QUADS, 16 * 4},
    {"attention/attention_cuda.cu", "s->normed <= 32 * 4 * NORM_HELD", FUSED_QUADS, 32 * 4},
    {"attention/attention_cuda.cu", "s->normed == 4 * NORM_HELD * GROUP", FUSED_EIGHTS, 128 / 8},
    {"attention/attention_cuda.cu", "s->normed == 4 * NORM_HELD * GROUP", FUSED_EIGHTS, 256 / 8},
    {"attention/attention_cuda.cu", "s->normed == 4 * NORM_HELD * GROUP", FUSED_EIGHTS, 512 / 8},
    {"attention/attention_cuda.cu", "exf_blocks(total / 4, 256)", FUSED_EIGHTS, 256 / 8},
    {"attention/attention_cuda.cu", "at >= 2 * half", FUSED_EIGHTS, 1},
    {"attention/attention_cuda.cu", "at < 0", FUSED_FROM, 1},
    {"attention/attention_cuda.cu", "at < 0", FUSED_FROM, 16},
};

static int fused_is_valid(const shape *s)
{
    int normed = s->at[FUSED_QUADS], end = s->at[FUSED_FROM] + 2 * s->at[FUSED_EIGHTS];
    return (normed ? end <= normed || normed > 128 : s->at[FUSED_EIGHTS]) &&
           s->at[FUSED_TOKENS] * s->at[FUSED_HEADS] * larger_of(normed, end) < 1 << 13;
}

static pairwise fused;

/* The fused shapes as such of the other table. */
static shape unfused(const shape *s)
{
    shape x = {{0}};
    x.at[TOKENS] = s->at[FUSED_TOKENS];
    x.at[HEADS] = s->at[FUSED_HEADS];
    x.at[QUADS] = s->at[FUSED_QUADS];
    x.at[PAIRS] = 4 * s->at[FUSED_EIGHTS];
    x.at[OFFSET] = 4 * s->at[FUSED_FROM];
    x.at[SPACE] = 4 * s->at[FUSED_SPACE];
    return x;
}

/* What is varied of every shape, bit by bit: PLAIN: no weights; LONG_ROWS: more after the last head, and every second position. */
enum { INTERLEAVED = 1, PLAIN_AND_INVERSE = 2, LONG_ROWS = 4, N_KINDS = 8 };

static exf_rope_shape shape_of(const shape *s, int kind)
{
    int apart = width_of(s) + s->at[SPACE];
    return (exf_rope_shape){.n_tokens = s->at[TOKENS], .n_heads = s->at[HEADS], .head_dim = apart,
                            .ld = s->at[HEADS] * apart + (kind & LONG_ROWS ? 12 : 0), .d = 2 * s->at[PAIRS],
                            .offset = s->at[OFFSET], .step = kind & LONG_ROWS ? 2 : 1, .interleaved = (kind & INTERLEAVED) != 0,
                            .inverse = (kind & PLAIN_AND_INVERSE) != 0, .normed = normed_of(s), .eps = 1e-6};
}

/* The two operations one after the other, on the GPU. */
static void norm_then_rotate(float *x, exf_rope_shape s, const float *cosine, const float *sine)
{
    int together = s.ld == s.n_heads * s.head_dim, calls = together ? 1 : s.n_heads;
    int rows = together ? s.n_tokens * s.n_heads : s.n_tokens, apart = together ? s.head_dim : s.ld;
    for (int h = 0; s.normed && h < calls; h++) {
        float *head = x + (size_t)h * (size_t)s.head_dim;
        p.b[1]->rmsnorm(p.q[1], head, apart, head, apart, s.norm, rows, s.normed, s.eps);
    }
    s.normed = 0;
    p.b[1]->rope(p.q[1], x, &s, cosine, sine);
}

static void check_same_bits(const pair_array *got, const pair_array *want, const char *what)
{
    float *a, *b;
    exf_err err;
    ck_ok(exf_mem_new(&a, got->n, sizeof *a, "test", &err), err);
    ck_ok(exf_mem_new(&b, got->n, sizeof *b, "test", &err), err);
    ck_ok(p.b[1]->download(p.q[1], a, got->f[1], got->n * 4, &err), err);
    ck_ok(p.b[1]->download(p.q[1], b, want->f[1], got->n * 4, &err), err);
    for (size_t i = 0; i < got->n; i++)
        ck_assert_msg(memcmp(&a[i], &b[i], 4) == 0, "%s: element %zu is %.9g, by two kernels %.9g", what, i, (double)a[i],
                      (double)b[i]);
    exf_mem_free(a);
    exf_mem_free(b);
}

/* Before and after the heads lie MARGIN floats that stay. */
enum { MARGIN = 8 };
typedef struct {
    pair_array cosine, sine, norm;
    size_t odd[5];
} tables;

/* Bounds: of a number up to 3 the rotation's 3e-7 (1 + 3); with a norm its 4e-7 (1 + 3) before that. */
static void check_kind(const shape *at, int kind, const tables *t)
{
    exf_rope_shape s = shape_of(at, kind);
    size_t n = (size_t)s.n_tokens * (size_t)s.ld + 2 * MARGIN + 1, first = MARGIN + t->odd[1];
    pair_array x = pair_reals(&p, n, 21, 3), apart = pair_reals(&p, n, 21, 3);
    char what[320];
    snprintf(what, sizeof what, "kind %d, %s", kind, pairwise_name(dimensions, DIMENSIONS, at));
    for (int side = 0; side < 2; side++) {
        s.norm = kind & PLAIN_AND_INVERSE ? NULL : t->norm.f[side] + t->odd[4];
        p.b[side]->rope(p.q[side], x.f[side] + first, &s, t->cosine.f[side] + t->odd[2], t->sine.f[side] + t->odd[3]);
    }
    pair_near(&x, s.normed ? 4e-6 : 3e-7, what);
    norm_then_rotate(apart.f[1] + first, s, t->cosine.f[1] + t->odd[2], t->sine.f[1] + t->odd[3]);
    check_same_bits(&x, &apart, what);
    pair_free(&x);
    pair_free(&apart);
}

static void check_kinds(const shape *s)
{
    size_t positions = (size_t)(2 * s->at[TOKENS] * s->at[PAIRS]) + 1;
    tables t = {angles(positions, cosf), angles(positions, sinf), pair_reals(&p, (size_t)normed_of(s) + 1, 22, 1), {0}};
    t.odd[s->at[ODD]] = 1;
    for (int kind = 0; kind < N_KINDS; kind++) check_kind(s, kind, &t);
    pair_free(&t.cosine);
    pair_free(&t.sine);
    pair_free(&t.norm);
}

START_TEST(a_norm_and_a_rotation_are_those_of_two_kernels)
{
    check_kinds(&cases.shapes[_i]);
}
END_TEST

START_TEST(so_are_they_in_quads)
{
    shape s = unfused(&fused.shapes[_i]);
    check_kinds(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "norm and rotation", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&fused, "norm and rotation in quads", fused_boundaries, COUNT(fused_boundaries), fused_dimensions,
                    FUSED_DIMENSIONS, fused_is_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, a_norm_and_a_rotation_are_those_of_two_kernels, 0, cases.n_shapes);
    tcase_add_loop_test(t, so_are_they_in_quads, 0, fused.n_shapes);
}
