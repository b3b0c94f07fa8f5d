/* check_cuda_rope.c - rotation of heads on the GPU: near the CPU's; with a norm, the bits of rmsnorm and of a rotation after it. */
#include "base/mem.h"
#include "tests/support/pair_fixtures.h"

#include <math.h>
#include <string.h>

START_TEST(rotations_are_near)
{
    enum { T = 6, HEADS = 3, D = 16, ROTATED = 8 };
    float angle[2][(T * 2) * (ROTATED / 2)];
    for (int i = 0; i < T * 2 * ROTATED / 2; i++) {
        angle[0][i] = cosf((float)i);
        angle[1][i] = sinf((float)i);
    }
    pair_array cosine = pair_of(&p, angle[0], T * 2 * ROTATED / 2), sine = pair_of(&p, angle[1], T * 2 * ROTATED / 2);
    for (int kind = 0; kind < 8; kind++) {
        exf_rope_shape shape = {.n_tokens = T, .n_heads = HEADS, .head_dim = D, .ld = HEADS * D, .d = ROTATED,
                                .offset = kind & 4 ? D - ROTATED : 0,
                                .step = 1 + (kind >> 2), .interleaved = kind & 1, .inverse = kind >> 1 & 1};
        pair_array x = pair_reals(&p, T * HEADS * D, 12, 1);
        ON_BOTH(p, B->rope(Q, x.f[s], &shape, cosine.f[s], sine.f[s]));
        pair_near(&x, 3e-7, "rope");
        pair_free(&x);
    }
    pair_free(&cosine);
    pair_free(&sine);
}
END_TEST

/* ---- with a norm ------------------------------------------------------------------------------ */

/* Heads of `width` floats, of which `part` or all are rotated.  The last of them take two kernels: wider than the fused one
 * holds, not in quads, apart by no quads, halves not in quads. */
static const struct { int width, part, apart;
} heads[] = {{64, 32, 64},    {80, 40, 80},    {96, 64, 96}, {128, 64, 128}, {192, 64, 192}, {256, 64, 256}, {384, 128, 384},
             {512, 64, 512}, {8, 8, 8}, {4, 0, 4}, {640, 64, 640}, {66, 32, 66}, {128, 64, 129}, {128, 68, 128}};

static const struct { int tokens, heads;
} sizes[] = {{1, 1}, {300, 3}, {9, 33}, {31, 4}};

/* What is varied, bit by bit. */
enum { SPACED = 1, PART = 2, INTERLEAVED = 4, INVERSE = 8, PLAIN = 16, LONG_ROWS = 32, N_KINDS = 64 };

static exf_rope_shape shape_of(int at, int kind, int tokens, int n_heads)
{
    int width = heads[at].width, apart = heads[at].apart * (kind & SPACED ? 2 : 1), d = kind & PART ? heads[at].part : width;
    return (exf_rope_shape){.n_tokens = tokens, .n_heads = n_heads, .head_dim = apart,
                            .ld = n_heads * apart + (kind & LONG_ROWS ? 12 : 0), .d = d, .offset = kind & INVERSE ? width - d : 0,
                            .step = kind & LONG_ROWS ? 2 : 1, .interleaved = (kind & INTERLEAVED) != 0,
                            .inverse = (kind & INVERSE) != 0, .normed = width, .eps = 1e-6};
}

/* Cosines, or sines, of n angles. */
static pair_array angles(size_t n, float (*of)(float))
{
    float *host;
    exf_err err;
    ck_ok(exf_mem_new(&host, n + 1, sizeof *host, "test", &err), err);
    for (size_t i = 0; i < n; i++) host[i] = of(0.37f * (float)i);
    pair_array a = pair_of(&p, host, n + 1);
    exf_mem_free(host);
    return a;
}

/* The two operations one after the other, on the GPU. */
static void norm_then_rotate(float *x, exf_rope_shape s, const float *cosine, const float *sine)
{
    int together = s.ld == s.n_heads * s.head_dim, calls = together ? 1 : s.n_heads;
    int rows = together ? s.n_tokens * s.n_heads : s.n_tokens, apart = together ? s.head_dim : s.ld;
    for (int h = 0; h < calls; h++) {
        float *head = x + (size_t)h * (size_t)s.head_dim;
        p.b[1]->rmsnorm(p.q[1], head, apart, head, apart, s.norm, rows, s.normed, s.eps);
    }
    s.normed = 0;
    p.b[1]->rope(p.q[1], x, &s, cosine, sine);
}

static void check_same_bits(const pair_array *got, const pair_array *want, int at, int kind)
{
    float *a, *b;
    exf_err err;
    ck_ok(exf_mem_new(&a, got->n, sizeof *a, "test", &err), err);
    ck_ok(exf_mem_new(&b, got->n, sizeof *b, "test", &err), err);
    ck_ok(p.b[1]->download(p.q[1], a, got->f[1], got->n * 4, &err), err);
    ck_ok(p.b[1]->download(p.q[1], b, want->f[1], got->n * 4, &err), err);
    for (size_t i = 0; i < got->n; i++)
        ck_assert_msg(memcmp(&a[i], &b[i], 4) == 0, "heads of %d, kind %d: element %zu is %.9g, by two kernels %.9g",
                      heads[at].width, kind, i, (double)a[i], (double)b[i]);
    exf_mem_free(a);
    exf_mem_free(b);
}

static void check_norm(int at, int kind, int tokens, int n_heads)
{
    exf_rope_shape shape = shape_of(at, kind, tokens, n_heads);
    size_t n = (size_t)tokens * (size_t)shape.ld, table = (size_t)(tokens * shape.step) * (size_t)(shape.d / 2);
    pair_array cosine = angles(table, cosf), sine = angles(table, sinf), norm = pair_reals(&p, (size_t)shape.normed, 22, 1);
    pair_array x = pair_reals(&p, n, 21, 3), apart = pair_reals(&p, n, 21, 3);
    for (int s = 0; s < 2; s++) {
        shape.norm = kind & PLAIN ? NULL : norm.f[s];
        p.b[s]->rope(p.q[s], x.f[s], &shape, cosine.f[s], sine.f[s]);
    }
    pair_near(&x, 4e-6, "norm and rope"); /* of two numbers up to 3: the norm's 4e-7 (1 + 3), turned, the rotation's 3e-7 (1 + 3) */
    norm_then_rotate(apart.f[1], shape, cosine.f[1], sine.f[1]);
    check_same_bits(&x, &apart, at, kind);
    pair_free(&cosine);
    pair_free(&sine);
    pair_free(&x);
    pair_free(&apart);
    pair_free(&norm);
}

START_TEST(a_norm_and_a_rotation_are_those_of_two_kernels)
{
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int i = 0; i < COUNT(sizes); i++) check_norm(_i, kind, sizes[i].tokens, sizes[i].heads);
}
END_TEST

/* What is normed may end before the rotated part begins, as in a latent and its key. */
START_TEST(a_rotation_may_lie_beyond_the_norm)
{
    enum { T = 17, RANK = 64, ROTATED = 16, N = RANK + ROTATED };
    pair_array cosine = angles(T * ROTATED / 2, cosf), sine = angles(T * ROTATED / 2, sinf), x = pair_reals(&p, T * N, 23, 1),
               norm = pair_reals(&p, RANK, 24, 1);
    exf_rope_shape shape = {.n_tokens = T, .n_heads = 1, .head_dim = N, .ld = N, .d = ROTATED, .offset = RANK, .step = 1,
                            .normed = RANK, .eps = 1e-6};
    for (int s = 0; s < 2; s++) {
        shape.norm = norm.f[s];
        p.b[s]->rope(p.q[s], x.f[s], &shape, cosine.f[s], sine.f[s]);
    }
    pair_near(&x, 1e-6, "norm, and rope after it");
    pair_free(&cosine);
    pair_free(&sine);
    pair_free(&x);
    pair_free(&norm);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_rope");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_test(t, rotations_are_near);
    tcase_add_loop_test(t, a_norm_and_a_rotation_are_those_of_two_kernels, 0, COUNT(heads));
    tcase_add_test(t, a_rotation_may_lie_beyond_the_norm);
    suite_add_tcase(s, t);
    return s;
}
