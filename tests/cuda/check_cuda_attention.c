/* check_cuda_attention.c - both attentions of the CUDA backend against the CPU's at sizes of real models, in float32 and with
 * rounded operands, and what their bits may not depend on.  check_cuda_attention_shapes.c and check_cuda_compressed_shapes.c
 * have the other shapes. */
#include "base/hash.h"
#include "base/mem.h"
#include "tests/support/pair_fixtures.h"

#include <math.h>
#include <string.h>

/* float32: two softmaxes of scores up to about 10 from float32 sums.  Rounded: scores off
 * by 2^-11 of their terms, weights and values by 2^-12; a NaN is near nothing. */
static void compare(const pair_array *out, exf_compute compute, const char *what)
{
    double d = pair_distance(out);
    if (compute == EXF_COMPUTE_F32) pair_near(out, 2e-5, what);
    ck_assert_msg(d <= (compute == EXF_COMPUTE_F32 ? 2e-6 : 1e-3), "%s: distance %.2e", what, d);
}

/* ---- causal ------------------------------------------------------------------------ */

static const struct {
    int t, heads, kv, d, dv, gap;
} causal[] = {
    {641, 2, 1, 128, 128, 0}, {200, 16, 1, 256, 256, 0}, {257, 2, 2, 192, 128, 0}, {131, 2, 1, 576, 512, 0},
};

static void attend(int i, exf_compute compute, float size)
{
    int t = causal[i].t, heads = causal[i].heads, kv = causal[i].kv, d = causal[i].d, dv = causal[i].dv, gap = causal[i].gap;
    exf_attention_shape shape = {
        t, heads, kv, d, dv, heads * d + gap, kv * d + gap, kv * dv + gap, heads * dv + gap, (float)(1 / sqrt(d)), 0,
        NULL, NULL, 0};
    pair_array q = pair_reals(&p, (size_t)(t * shape.ldq), 1, size), k = pair_reals(&p, (size_t)(t * shape.ldk), 2, 2);
    pair_array v = pair_reals(&p, (size_t)(t * shape.ldv), 3, 1), out = pair_reals(&p, (size_t)(t * shape.ldo), 4, 1);
    pair_array space = pair_reals(&p, larger(p.b[0]->attention_workspace(&shape), p.b[1]->attention_workspace(&shape)), 5, 1e30f);
    pair_compute(&p, compute);
    ON_BOTH(p, B->attention(Q, out.f[s], q.f[s], k.f[s], v.f[s], &shape, space.f[s]));
    compare(&out, compute, "attention");
    pair_free(&q);
    pair_free(&k);
    pair_free(&v);
    pair_free(&out);
    pair_free(&space);
}

START_TEST(causal_is_near_in_float32)
{
    attend(_i, EXF_COMPUTE_F32, 2);
    attend(_i, EXF_COMPUTE_F32, 0);
}
END_TEST

START_TEST(causal_is_near_when_rounded)
{
    attend(_i, EXF_COMPUTE_BF16, 2);
}
END_TEST

/* A query is a large multiple of one key, keys are rows of 1 and -1: without the largest score taken off, its weight would not be
 * finite; every other is 0, and integers of 21 bits come out as themselves but for the last rounding. */
START_TEST(one_key_is_found)
{
    enum { T = 321, HEADS = 4, KV = 2, D = 96, DV = 80 };
    exf_attention_shape shape = {T, HEADS, KV, D, DV, HEADS * D, KV * D, KV * DV, HEADS * DV, (float)(1 / sqrt(D)), 0,
                                 NULL, NULL, 0};
    static float query[T * HEADS * D], key[T * KV * D], value[T * KV * DV];
    for (int i = 0; i < T * KV * D; i++) key[i] = exf_rng_u64(8, 7, (uint64_t)i) % 2 ? 1 : -1;
    for (int i = 0; i < T * KV * DV; i++) value[i] = (float)((int)(exf_rng_u64(9, 7, (uint64_t)i) >> 42) - (1 << 21));
    for (int i = 0; i < T * HEADS * D; i++) {
        int t = i / (HEADS * D), h = i / D % HEADS;
        query[i] = 4096 * key[(t * 37 + h) % (t + 1) * KV * D + h / (HEADS / KV) * D + i % D];
    }
    pair_array q = pair_of(&p, query, COUNT(query)), k = pair_of(&p, key, COUNT(key)), v = pair_of(&p, value, COUNT(value)),
               out = pair_reals(&p, T * HEADS * DV, 4, 1);
    size_t room = larger(p.b[0]->attention_workspace(&shape), p.b[1]->attention_workspace(&shape));
    pair_array space = pair_reals(&p, room + 1, 5, 1e30f);
    ON_BOTH(p, B->attention(Q, out.f[s], q.f[s], k.f[s], v.f[s], &shape, space.f[s]));
    pair_near(&out, 0x1p-22, "values of one key");
    pair_array *all[] = {&q, &k, &v, &out, &space};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}
END_TEST

/* A query or a value that is not finite shows in its row or in every row that sees it, and so does a NaN among the keys. */
START_TEST(what_is_not_finite_shows)
{
    enum { T = 130, ROW = 65, D = 64, QUERY = 0, KEY = 1 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    exf_attention_shape shape = {T, 1, 1, D, D, D, D, D, D, (float)(1 / sqrt(D)), 0, NULL, NULL, 0};
    for (int which = 0; which < 3; which++)
        for (int b = 0; b < (which == KEY ? 1 : COUNT(bad)); b++) {
            pair_array in[3] = {pair_reals(&p, T * D, 1, 2), pair_reals(&p, T * D, 2, 2), pair_reals(&p, T * D, 3, 1)};
            pair_array out = pair_reals(&p, T * D, 4, 1), space = pair_reals(&p, p.b[1]->attention_workspace(&shape) + 1, 5, 1e30f);
            p.b[1]->upload(p.q[1], in[which].f[1] + ROW * D + D - 1, &bad[b], sizeof bad[b]);
            p.b[1]->attention(p.q[1], out.f[1], in[0].f[1], in[1].f[1], in[2].f[1], &shape, space.f[1]);
            float *got = fetched(out.f[1], T * D);
            for (int t = ROW; t < (which == QUERY ? ROW + 1 : T); t++) {
                int shows = 0;
                for (int c = 0; c < D; c++) shows |= !isfinite(got[t * D + c]);
                ck_assert_msg(shows, "array %d, %g: row %d is finite", which, (double)bad[b], t);
            }
            exf_mem_free(got);
            pair_array *all[] = {&in[0], &in[1], &in[2], &out, &space};
            for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
        }
}
END_TEST

/* The first tokens have the same bits whatever follows them, and in a second run; _i's last bit: of rounded operands.  Of 40
 * heads the whole has rows for large blocks, the first tokens alone for small ones. */
static const struct {
    int t, heads, kv, d, dv;
} followed[] = {{1, 1, 1, 64, 64},     {130, 3, 1, 64, 64},    {1300, 40, 4, 64, 64},   {300, 4, 2, 128, 128},
                {1300, 40, 4, 128, 128}, {900, 40, 40, 192, 128}, {400, 6, 3, 256, 256}, {257, 5, 5, 96, 80}};

START_TEST(bits_do_not_depend_on_later_tokens)
{
    int row = _i / 2, all = followed[row].t, heads = followed[row].heads, kv = followed[row].kv, dk = followed[row].d,
        dv = followed[row].dv;
    exf_attention_shape shape = {all, heads, kv, dk, dv, heads * dk, kv * dk, kv * dv, heads * dv, (float)(1 / sqrt(dk)), 0,
                                 NULL, NULL, 0};
    pair_array q = pair_reals(&p, (size_t)(all * shape.ldq), 1, 4), k = pair_reals(&p, (size_t)(all * shape.ldk), 2, 2);
    pair_array v = pair_reals(&p, (size_t)(all * shape.ldv), 3, 1), out = pair_reals(&p, (size_t)(all * shape.ldo), 4, 1);
    pair_array space = pair_reals(&p, p.b[1]->attention_workspace(&shape) + 1, 5, 1e30f);
    pair_compute(&p, _i % 2 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
    exf_err err;
    size_t bytes = out.n * sizeof(float);
    char *got[3];
    for (int run = 0; run < 3; run++) {
        shape.n_tokens = run < 2 ? all : all / 3;
        p.b[1]->attention(p.q[1], out.f[1], q.f[1], k.f[1], v.f[1], &shape, space.f[1]);
        ck_ok(exf_mem_new(&got[run], bytes, 1, "test", &err), err);
        ck_ok(p.b[1]->download(p.q[1], got[run], out.f[1], bytes, &err), err);
        p.b[1]->zero(p.q[1], out.f[1], bytes);
    }
    ck_assert_msg(memcmp(got[0], got[1], bytes) == 0, "case %d: two runs differ", _i);
    ck_assert_msg(memcmp(got[0], got[2], (size_t)(all / 3 * shape.ldo) * sizeof(float)) == 0, "case %d: %d tokens alone differ", _i,
                  all / 3);
    for (int run = 0; run < 3; run++) exf_mem_free(got[run]);
    pair_array *arrays[] = {&q, &k, &v, &out, &space};
    for (int i = 0; i < 5; i++) pair_free(arrays[i]);
}
END_TEST

/* A bfloat16 output has the bits of the float32 one rounded, between the rows too; with a window and with sinks by the kernel
 * without tensor cores. */
static void attend_rounded(int t, int heads, int kv, int d, int dv, int gap)
{
    exf_attention_shape shape = {
        t, heads, kv, d, dv, heads * d + gap, kv * d + gap, kv * dv + gap, heads * dv + gap, (float)(1 / sqrt(d)), 0,
        NULL, NULL, 0};
    size_t n = (size_t)(t * shape.ldo), halves = (n + 1) / 2;
    pair_array q = pair_reals(&p, (size_t)(t * shape.ldq), 1, 2), k = pair_reals(&p, (size_t)(t * shape.ldk), 2, 2),
               v = pair_reals(&p, (size_t)(t * shape.ldv), 3, 1), sinks = pair_reals(&p, (size_t)heads, 4, 3),
               space = pair_reals(&p, p.b[1]->attention_workspace(&shape) + 1, 5, 1e30f);
    char *got[2];
    exf_err err;
    for (int s = 0; s < 2; s++) ck_ok(exf_mem_new(&got[s], halves, sizeof(float), "test", &err), err);
    pair_compute(&p, EXF_COMPUTE_BF16);
    for (int kind = 0; kind < 3; kind++) {
        pair_array out = pair_reals(&p, n, 6, 1), rounded[2] = {pair_reals(&p, halves, 7, 1), pair_reals(&p, halves, 7, 1)};
        shape.window = kind == 1 ? 20 : 0;
        shape.sinks = kind == 2 ? sinks.f[1] : NULL;
        shape.rounded_out = 0;
        p.b[1]->attention(p.q[1], out.f[1], q.f[1], k.f[1], v.f[1], &shape, space.f[1]);
        p.b[1]->gpu->round_rows(p.q[1], (uint16_t *)(void *)rounded[0].f[1], shape.ldo, out.f[1], shape.ldo, t, heads * dv);
        shape.rounded_out = 1;
        p.b[1]->attention(p.q[1], rounded[1].f[1], q.f[1], k.f[1], v.f[1], &shape, space.f[1]);
        for (int s = 0; s < 2; s++) ck_ok(p.b[1]->download(p.q[1], got[s], rounded[s].f[1], halves * sizeof(float), &err), err);
        ck_assert_msg(memcmp(got[0], got[1], halves * sizeof(float)) == 0, "%d tokens, heads of %d and %d, kind %d: bits differ", t,
                      d, dv, kind);
        ck_assert_msg(memcmp(got[1], rounded[1].f[0], (size_t)(heads * dv) * sizeof(uint16_t)) != 0, "nothing was written");
        pair_free(&out);
        for (int s = 0; s < 2; s++) pair_free(&rounded[s]);
    }
    for (int s = 0; s < 2; s++) exf_mem_free(got[s]);
    pair_array *arrays[] = {&q, &k, &v, &sinks, &space};
    for (int i = 0; i < 5; i++) pair_free(arrays[i]);
}

START_TEST(rounded_output_has_the_bits_in_large_blocks)
{
    attend_rounded(followed[_i].t, followed[_i].heads, followed[_i].kv, followed[_i].d, followed[_i].dv, 0);
}
END_TEST

/* Tokens that a byte chooses, by the kernel without tensor cores in either mode. */
START_TEST(chosen_tokens_are_attended)
{
    enum { T = 150, HEADS = 4, D = 24, DV = 20 };
    exf_attention_shape shape = {.n_tokens = T, .n_heads = HEADS, .n_kv = 2, .d = D, .dv = DV, .ldq = HEADS * D, .ldk = 2 * D,
                                 .ldv = 2 * DV, .ldo = HEADS * DV, .scale = (float)(1 / sqrt(D))};
    unsigned char *bytes;
    exf_err err;
    ck_ok(exf_mem_new(&bytes, (T * T + 3) / 4, sizeof(float), "choices", &err), err);
    for (int t = 0; t < T; t++)
        for (int j = 0; j < T; j++) bytes[t * T + j] = j == t || (t * 7 + j * 5) % 3 == 0;
    pair_array q = pair_reals(&p, T * HEADS * D, 1, 2), k = pair_reals(&p, T * 2 * D, 2, 2), v = pair_reals(&p, T * 2 * DV, 3, 1),
               out = pair_reals(&p, T * HEADS * DV, 4, 1), chosen = pair_of(&p, bytes, (T * T + 3) / 4);
    size_t host = p.b[0]->attention_workspace(&shape), device = p.b[1]->attention_workspace(&shape);
    pair_array space = pair_reals(&p, (host > device ? host : device) + 1, 5, 1e30f);
    pair_compute(&p, (exf_compute)_i);
    for (int s = 0; s < 2; s++) {
        shape.chosen = (const unsigned char *)chosen.f[s];
        p.b[s]->attention(p.q[s], out.f[s], q.f[s], k.f[s], v.f[s], &shape, space.f[s]);
    }
    pair_near(&out, 2e-6, "attention to chosen tokens");
    pair_array *arrays[] = {&q, &k, &v, &out, &chosen, &space};
    for (int i = 0; i < 6; i++) pair_free(arrays[i]);
    exf_mem_free(bytes);
}
END_TEST

START_TEST(rounded_output_is_refused_in_float32)
{
    exf_attention_shape shape = {.n_tokens = 1, .n_heads = 1, .n_kv = 1, .d = 64, .dv = 64, .ldq = 64, .ldk = 64, .ldv = 64,
                                 .ldo = 64, .scale = 1, .rounded_out = 1};
    pair_array x = pair_reals(&p, 64, 1, 1), out = pair_reals(&p, 64, 2, 1),
               space = pair_reals(&p, p.b[1]->attention_workspace(&shape) + 1, 3, 1);
    exf_err err;
    pair_compute(&p, EXF_COMPUTE_F32);
    p.b[1]->attention(p.q[1], out.f[1], x.f[1], x.f[1], x.f[1], &shape, space.f[1]);
    ck_fails(p.b[1]->finish(p.q[1], &err), EXF_INTERNAL, err, "rounded output");
    pair_free(&x);
    pair_free(&out);
    pair_free(&space);
}
END_TEST

START_TEST(nothing_is_attended_without_tokens)
{
    exf_attention_shape shape = {0, 2, 1, 64, 64, 128, 64, 64, 128, 1, 0, NULL, NULL, 0};
    pair_array x = pair_integers(&p, 8, 1), out = pair_integers(&p, 8, 2);
    pair_compute(&p, (exf_compute)_i);
    ON_BOTH(p, B->attention(Q, out.f[s], x.f[s], x.f[s], x.f[s], &shape, x.f[s]));
    pair_equal(&out, "attention of nothing");
    pair_free(&x);
    pair_free(&out);
}
END_TEST

/* ---- compressed ------------------------------------------------------------------------ */

static const struct {
    int first, rows, heads, d, window, ratio, choose;
} compressed[] = {
    {256, 2, 64, 512, 128, 4, 1}, {500, 1, 128, 512, 64, 2, 1}, {0, 520, 16, 512, 128, 4, 1},
};

static void attend_compressed(int i, exf_compute compute, int in_place)
{
    exf_compressed_attention_shape shape = {compressed[i].first,
                                            compressed[i].rows,
                                            compressed[i].heads,
                                            compressed[i].d,
                                            compressed[i].window,
                                            compressed[i].ratio,
                                            (float)(1 / sqrt(compressed[i].d))};
    int t = shape.first + shape.n_rows, n = shape.ratio ? t / shape.ratio : 0, h = shape.n_heads;
    size_t wide = (size_t)(shape.n_rows * h * shape.d);
    static unsigned char marks[1 << 20];
    memset(marks, 0, sizeof marks);
    for (int j = 0; j < shape.n_rows * n; j++) marks[j] = (unsigned char)((unsigned)j * 2654435761u >> 13 & 1);
    pair_array q = pair_reals(&p, wide, 1, 2), out = pair_reals(&p, wide, 2, 1),
               tokens = pair_reals(&p, (size_t)(t * shape.d), 3, 2);
    pair_array entries = pair_reals(&p, (size_t)((n + 1) * shape.d), 4, 2), sink = pair_reals(&p, (size_t)h, 5, 3);
    pair_array chosen = pair_of(&p, marks, (size_t)(shape.n_rows * n / 4 + 1));
    size_t room[2];
    for (int s = 0; s < 2; s++) room[s] = p.b[s]->compressed_attention_workspace(h, shape.n_rows, t, shape.window, shape.ratio);
    pair_array space = pair_reals(&p, larger(room[0], room[1]), 6, 1e30f);
    pair_compute(&p, compute);
    for (int s = 0; s < 2; s++) {
        exf_compressed_keys keys = {tokens.f[s], entries.f[s], compressed[i].choose ? (unsigned char *)chosen.f[s] : NULL,
                                    sink.f[s]};
        p.b[s]->compressed_attention(p.q[s], in_place ? q.f[s] : out.f[s], q.f[s], &keys, &shape, space.f[s]);
    }
    compare(in_place ? &q : &out, compute, "compressed attention");
    pair_free(&q);
    pair_free(&out);
    pair_free(&tokens);
    pair_free(&entries);
    pair_free(&sink);
    pair_free(&chosen);
    pair_free(&space);
}

START_TEST(compressed_is_near_in_float32)
{
    attend_compressed(_i, EXF_COMPUTE_F32, 0);
    attend_compressed(_i, EXF_COMPUTE_F32, 1);
}
END_TEST

START_TEST(compressed_is_near_when_rounded)
{
    attend_compressed(_i, EXF_COMPUTE_BF16, 0);
    attend_compressed(_i, EXF_COMPUTE_BF16, 1);
}
END_TEST

/* ---- whole heads ------------------------------------------------------------------------------ */

static const struct {
    int first, rows, heads, d, rotated, ratio;
} whole[] = {
    {0, 130, 64, 512, 64, 4}, {200, 33, 5, 512, 64, 16},
};

/* Normed, rotated, attended, rotated back, rounded: against the CPU's single steps. */
START_TEST(whole_heads_are_near)
{
    int rows = whole[_i].rows, heads = whole[_i].heads, d = whole[_i].d, rot = whole[_i].rotated, t = whole[_i].first + rows;
    exf_compressed_attention_shape shape = {whole[_i].first, rows, heads, d, 20, whole[_i].ratio, (float)(1 / sqrt(d))};
    exf_rope_shape rope = {.n_tokens = rows, .n_heads = heads, .head_dim = d, .ld = heads * d, .d = rot, .offset = d - rot,
                           .step = 1, .interleaved = 1};
    size_t n = (size_t)(rows * heads * d), entries = (size_t)(shape.ratio ? t / shape.ratio : 0), room[2];
    static float angle[2][131 * 64];
    for (int i = 0; i < rows * rot / 2; i++) angle[0][i] = cosf((float)i), angle[1][i] = sinf((float)i);
    pair_array q = pair_reals(&p, n, 1, 2), out = pair_reals(&p, n, 2, 1), tokens = pair_reals(&p, (size_t)(t * d), 3, 2);
    pair_array pooled = pair_reals(&p, (entries + 1) * (size_t)d, 4, 2), sink = pair_reals(&p, (size_t)heads, 5, 3);
    pair_array cosine = pair_of(&p, angle[0], (size_t)(rows * rot / 2)), sine = pair_of(&p, angle[1], (size_t)(rows * rot / 2));
    for (int s = 0; s < 2; s++) room[s] = p.b[s]->compressed_attention_workspace(heads, rows, t, 20, shape.ratio);
    pair_array space = pair_reals(&p, larger(room[0], room[1]), 6, 1e30f);
    pair_compute(&p, EXF_COMPUTE_BF16);
    ck_assert_int_eq(p.b[1]->gpu->compressed_heads_fit(&shape, &rope), 1);
    exf_compressed_keys keys[2] = {{tokens.f[0], pooled.f[0], NULL, sink.f[0]}, {tokens.f[1], pooled.f[1], NULL, sink.f[1]}};
    uint16_t *rounded;
    exf_err err;
    ck_ok(p.b[1]->alloc(&rounded, n, sizeof *rounded, "rounded", &err), err);
    p.b[1]->gpu->compressed_heads(p.q[1], rounded, q.f[1], &keys[1], &shape, &rope, cosine.f[1], sine.f[1], 1e-6, space.f[1]);
    p.b[1]->gpu->widen(p.q[1], out.f[1], rounded, n);
    p.b[0]->rmsnorm(p.q[0], q.f[0], d, q.f[0], d, NULL, rows * heads, d, 1e-6);
    p.b[0]->rope(p.q[0], q.f[0], &rope, cosine.f[0], sine.f[0]);
    p.b[0]->compressed_attention(p.q[0], out.f[0], q.f[0], &keys[0], &shape, space.f[0]);
    rope.inverse = 1;
    p.b[0]->rope(p.q[0], out.f[0], &rope, cosine.f[0], sine.f[0]);
    double distance = pair_distance(&out);
    ck_assert_msg(distance <= 4e-3, "case %d: distance %.2e", _i, distance); /* bfloat16's 2^-8, the rest is attention's */
    p.b[1]->free(rounded);
    pair_array *all[] = {&q, &out, &tokens, &pooled, &sink, &cosine, &sine, &space};
    for (int i = 0; i < 8; i++) pair_free(all[i]);
}
END_TEST

static void add_cases(Suite *s, const char *name, void (*open)(void))
{
    TCase *t = exf_case(s, name);
    tcase_add_checked_fixture(t, open, close_pair);
    tcase_add_loop_test(t, causal_is_near_in_float32, 0, COUNT(causal));
    tcase_add_loop_test(t, causal_is_near_when_rounded, 0, COUNT(causal));
    tcase_add_loop_test(t, nothing_is_attended_without_tokens, 0, 2);
    tcase_add_loop_test(t, compressed_is_near_in_float32, 0, COUNT(compressed));
    tcase_add_loop_test(t, compressed_is_near_when_rounded, 0, COUNT(compressed));
    tcase_add_loop_test(t, whole_heads_are_near, 0, COUNT(whole));
    tcase_add_test(t, one_key_is_found);
    tcase_add_test(t, what_is_not_finite_shows);
    tcase_add_loop_test(t, bits_do_not_depend_on_later_tokens, 0, 2 * COUNT(followed));
    tcase_add_loop_test(t, rounded_output_has_the_bits_in_large_blocks, 0, COUNT(followed));
    tcase_add_loop_test(t, chosen_tokens_are_attended, 0, 2);
    tcase_add_test(t, rounded_output_is_refused_in_float32);
}

void exf_suite(Suite *s)
{
    add_cases(s, "all", open_pair);
    add_cases(s, "mma", open_pair_mma);
}
