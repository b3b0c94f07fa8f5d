/* check_cuda_attention_f32.c - causal attention of the CUDA backend in float32 mode against
 * plain double, and what its bits may not depend on. */
#include "tests/support/naive.h"
#include "tests/support/one_device_fixtures.h"

#include <math.h>
#include <string.h>

/* Rows have `gap` floats after them. */
static const struct {
    int t, heads, kv, d, dv, gap;
} cases[] = {
    {1, 1, 1, 64, 64, 0},      {1, 3, 1, 128, 128, 0},   {7, 4, 2, 128, 128, 0},    {63, 2, 2, 64, 64, 1},
    {64, 8, 2, 64, 64, 0},     {65, 6, 2, 64, 64, 4},    {127, 4, 1, 96, 96, 0},    {128, 8, 4, 128, 128, 3},
    {129, 3, 3, 192, 128, 0},  {200, 4, 1, 256, 256, 0}, {257, 4, 2, 256, 256, 2},  {300, 6, 3, 192, 128, 4},
    {90, 2, 1, 33, 17, 0},     {77, 2, 2, 20, 250, 1},   {321, 5, 5, 128, 64, 0},   {577, 4, 1, 128, 128, 0},
    {1000, 2, 1, 256, 256, 0}, {70, 2, 1, 512, 300, 0},  {4097, 1, 1, 128, 128, 0},
};

typedef struct {
    exf_attention_shape s;
    size_t nq, nk, nv, no;
    float *q, *k, *v;
} inputs;

static inputs inputs_of(int i, float size)
{
    int t = cases[i].t, heads = cases[i].heads, kv = cases[i].kv, dk = cases[i].d, dv = cases[i].dv, gap = cases[i].gap;
    inputs x = {
        .s = {t, heads, kv, dk, dv, heads * dk + gap, kv * dk + gap, kv * dv + gap, heads * dv + gap, (float)(1 / sqrt(dk)), 0,
              NULL}};
    x.nq = (size_t)(t * x.s.ldq);
    x.nk = (size_t)(t * x.s.ldk);
    x.nv = (size_t)(t * x.s.ldv);
    x.no = (size_t)(t * x.s.ldo);
    x.q = naive_numbers(x.nq, 1, size);
    x.k = naive_numbers(x.nk, 2, 2);
    x.v = naive_numbers(x.nv, 3, 1);
    return x;
}

static void drop(inputs *x)
{
    exf_mem_free(x->q);
    exf_mem_free(x->k);
    exf_mem_free(x->v);
}

/* On the device, where output and workspace hold NaN before; the caller frees.  What is
 * after a row stays NaN there and is 0 in the copy. */
static float *attended(const inputs *x)
{
    const exf_attention_shape *s = &x->s;
    void *q = device_put(&d, x->q, x->nq * 4), *k = device_put(&d, x->k, x->nk * 4), *v = device_put(&d, x->v, x->nv * 4);
    void *out = device_put(&d, NULL, x->no * 4), *space = device_put(&d, NULL, (d.b->attention_workspace(s) + 1) * 4);
    d.b->attention(d.q, out, q, k, v, s, space);
    float *o = device_get(&d, out, x->no * 4);
    for (int t = 0; t < s->n_tokens; t++)
        for (int i = s->n_heads * s->dv; i < s->ldo; i++) {
            ck_assert_msg(isnan(o[t * s->ldo + i]), "row %d: column %d is after it", t, i);
            o[t * s->ldo + i] = 0;
        }
    void *all[] = {q, k, v, out, space};
    for (int i = 0; i < 5; i++) d.b->free(all[i]);
    return o;
}

/* ---- against double --------------------------------------------------------------------- */

/* ||out - double|| / ||double||; also that every element is within `bound` of the values' size. */
static double distance(const inputs *x, double bound)
{
    float *o = attended(x);
    double *q = naive_widened(x->q, x->nq), *k = naive_widened(x->k, x->nk), *v = naive_widened(x->v, x->nv),
           *want = naive_doubles(x->no);
    naive_attention(want, q, k, v, &x->s);
    double apart = naive_distance(o, want, x->no);
    for (size_t i = 0; i < x->no; i++)
        ck_assert_msg(fabs((double)o[i] - want[i]) <= bound, "element %zu: %.9g, in double %.12g", i, (double)o[i], want[i]);
    void *all[] = {o, q, k, v, want};
    for (int i = 0; i < 5; i++) exf_mem_free(all[i]);
    return apart;
}

/* Scores of float32 sums; a weight is off by what its score is. */
static void near_double(int i, float size, double most)
{
    inputs x = inputs_of(i, size);
    double apart = distance(&x, 8 * most);
    ck_assert_msg(apart <= most, "case %d, queries to %g: distance %.2e", i, (double)size, apart);
    drop(&x);
}

START_TEST(scores_of_a_few_are_near_double)
{
    near_double(_i, 2, 1e-6);
}
END_TEST

START_TEST(scores_of_a_hundred_are_near_double)
{
    near_double(_i, 40, 5e-6);
}
END_TEST

/* The largest numbers are 1e10 times the smallest, within a row and between rows. */
START_TEST(mixed_magnitudes_are_near_double)
{
    static const float sizes[] = {1, 1e-6f, 1e4f, 1e-2f, 30};
    inputs x = inputs_of(_i, 2);
    for (size_t i = 0; i < x.nk; i++) x.k[i] *= sizes[i % 2]; /* a row's */
    for (size_t i = 0; i < x.nv; i++) x.v[i] *= sizes[i / (size_t)x.s.ldv % COUNT(sizes)];
    float *o = attended(&x);
    double *q = naive_widened(x.q, x.nq), *k = naive_widened(x.k, x.nk), *v = naive_widened(x.v, x.nv), *want = naive_doubles(x.no);
    naive_attention(want, q, k, v, &x.s);
    for (int t = 0, seen; t < x.s.n_tokens; t++) { /* beside the largest value that a row sees */
        float most = 0;
        for (seen = 0; seen <= t && seen < COUNT(sizes); seen++) most = fmaxf(most, sizes[seen]);
        for (int i = t * x.s.ldo; i < (t + 1) * x.s.ldo; i++)
            ck_assert_msg(fabs((double)o[i] - want[i]) <= 4e-6 * (double)most, "row %d, element %d: %.9g, in double %.12g", t, i,
                          (double)o[i], want[i]);
    }
    void *all[] = {o, q, k, v, want};
    for (int i = 0; i < 5; i++) exf_mem_free(all[i]);
    drop(&x);
}
END_TEST

/* ---- exact ---------------------------------------------------------------------------------- */

/* A query is a large multiple of one key, keys are rows of 1 and -1: every other weight is
 * exactly 0, and integers of 21 bits come out as themselves but for the last rounding. */
START_TEST(one_key_is_found)
{
    inputs x = inputs_of(_i, 1);
    const exf_attention_shape *s = &x.s;
    int group = s->n_heads / s->n_kv;
    for (size_t i = 0; i < x.nk; i++) x.k[i] = x.k[i] < 0 ? -1 : 1;
    for (size_t i = 0; i < x.nv; i++) x.v[i] = truncf(x.v[i] * 0x1p21f);
    for (int t = 0; t < s->n_tokens; t++)
        for (int h = 0; h < s->n_heads; h++)
            for (int c = 0; c < s->d; c++)
                x.q[t * s->ldq + h * s->d + c] = 4096 * x.k[(t * 37 + h) % (t + 1) * s->ldk + h / group * s->d + c];
    float *o = attended(&x);
    for (int t = 0; t < s->n_tokens; t++)
        for (int h = 0; h < s->n_heads; h++)
            for (int c = 0; c < s->dv; c++) {
                float got = o[t * s->ldo + h * s->dv + c], want = x.v[(t * 37 + h) % (t + 1) * s->ldv + h / group * s->dv + c];
                ck_assert_msg(fabsf(got - want) <= 0x1p-22f * fabsf(want), "row %d, head %d, column %d: %.9g, its value %.9g", t, h,
                              c, (double)got, (double)want);
            }
    exf_mem_free(o);
    drop(&x);
}
END_TEST

static void same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(&a[i], &b[i], 4) == 0, "case %s: element %zu: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
}

static void multiply(float *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++) x[i] *= by;
}

/* Powers of two change nothing but the exponents of the outputs. */
START_TEST(powers_of_two_change_no_bit)
{
    inputs x = inputs_of(_i, 3);
    float *was = attended(&x);
    multiply(x.q, x.nq, 0x1p40f);
    multiply(x.k, x.nk, 0x1p-60f);
    multiply(x.v, x.nv, 0x1p-50f);
    x.s.scale *= 0x1p20f;
    float *is = attended(&x);
    multiply(is, x.no, 0x1p50f);
    same_bits(is, was, x.no, "powers of two");
    exf_mem_free(was);
    exf_mem_free(is);
    drop(&x);
}
END_TEST

/* The first tokens have the same bits whatever follows them, enormous numbers too. */
START_TEST(no_later_token_changes_a_bit)
{
    inputs x = inputs_of(_i, 2);
    int all = x.s.n_tokens, first = _i % 2 ? all / 2 : all / 5;
    size_t kept = (size_t)(first * x.s.ldo);
    x.s.n_tokens = first;
    if (!first) goto out;
    float *alone = attended(&x);
    multiply(x.q + first * x.s.ldq, x.nq - (size_t)(first * x.s.ldq), 1e7f);
    multiply(x.k + first * x.s.ldk, x.nk - (size_t)(first * x.s.ldk), 1e7f);
    multiply(x.v + first * x.s.ldv, x.nv - (size_t)(first * x.s.ldv), 1e12f);
    x.s.n_tokens = all;
    float *followed = attended(&x);
    same_bits(followed, alone, kept, "first tokens");
    exf_mem_free(alone);
    exf_mem_free(followed);
out:
    drop(&x);
}
END_TEST

START_TEST(a_second_run_has_the_same_bits)
{
    inputs x = inputs_of(_i, 2);
    float *one = attended(&x), *two = attended(&x);
    same_bits(two, one, x.no, "second run");
    exf_mem_free(one);
    exf_mem_free(two);
    drop(&x);
}
END_TEST

/* ---- what is not finite ------------------------------------------------------------------------ */

/* Every head of the rows from `first` on has a number that is not finite. */
static void not_finite_from(const inputs *x, int first, const char *what)
{
    const exf_attention_shape *s = &x->s;
    float *o = attended(x);
    for (int t = first; t < s->n_tokens; t++)
        for (int h = 0; h < s->n_heads; h++) {
            int bad = 0;
            for (int c = 0; c < s->dv; c++) bad += !isfinite(o[t * s->ldo + h * s->dv + c]);
            ck_assert_msg(bad > 0, "%s: row %d, head %d is finite", what, t, h);
        }
    exf_mem_free(o);
}

START_TEST(what_is_not_finite_shows)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < COUNT(bad); b++) {
        inputs x = inputs_of(_i, 2);
        int row = x.s.n_tokens / 2;
        for (int kv = 0; kv < x.s.n_kv; kv++) x.v[row * x.s.ldv + kv * x.s.dv + x.s.dv - 1] = bad[b];
        not_finite_from(&x, row, "values");
        drop(&x);
        x = inputs_of(_i, 2);
        row = x.s.n_tokens - 1;
        for (int h = 0; h < x.s.n_heads; h++) x.q[row * x.s.ldq + h * x.s.d] = bad[b];
        for (int kv = 0; kv < x.s.n_kv; kv++) x.k[kv * x.s.d] = 0.5f;
        if (!(bad[b] < 0) || row > 0) not_finite_from(&x, row, "queries");
        drop(&x);
    }
    inputs x = inputs_of(_i, 2);
    for (int kv = 0; kv < x.s.n_kv; kv++) x.k[kv * x.s.d] = NAN;
    not_finite_from(&x, 0, "keys");
    drop(&x);
}
END_TEST

static TCase *cases_of(const char *name, void (*open)(void))
{
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, open, close_device);
    tcase_add_loop_test(t, scores_of_a_few_are_near_double, 0, COUNT(cases));
    tcase_add_loop_test(t, scores_of_a_hundred_are_near_double, 0, COUNT(cases) - 1);
    tcase_add_loop_test(t, mixed_magnitudes_are_near_double, 0, COUNT(cases) - 1);
    tcase_add_loop_test(t, one_key_is_found, 0, COUNT(cases));
    tcase_add_loop_test(t, powers_of_two_change_no_bit, 0, COUNT(cases));
    tcase_add_loop_test(t, no_later_token_changes_a_bit, 0, COUNT(cases));
    tcase_add_loop_test(t, a_second_run_has_the_same_bits, 0, COUNT(cases));
    tcase_add_loop_test(t, what_is_not_finite_shows, 0, COUNT(cases));
    return t;
}

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_attention_f32");
    suite_add_tcase(s, cases_of("all", open_device_f32));
    return s;
}
