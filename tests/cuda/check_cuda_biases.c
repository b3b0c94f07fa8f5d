/* check_cuda_biases.c - what kernels on tensor cores leave to the plain ones, on the CUDA backend against the CPU's: attention
 * over a window and with sinks, experts with biases and the scaled SwiGLU. */
#include "base/mem.h"
#include "tests/support/pair_fixtures.h"

#include <math.h>

/* ---- windows and sinks ------------------------------------------------------------------------- */

static const struct {
    int t, heads, kv, d, dv, window;
} attended[] = {
    {1, 1, 1, 16, 16, 1},     {1, 4, 2, 64, 64, 0},     {63, 8, 2, 64, 64, 8},    {64, 8, 1, 64, 64, 64},
    {65, 8, 1, 64, 64, 64},   {200, 16, 2, 64, 64, 128}, {129, 4, 1, 128, 128, 1}, {300, 4, 1, 64, 64, 65},
    {300, 4, 4, 96, 80, 1000}, {257, 2, 1, 256, 256, 31}, {641, 2, 1, 33, 17, 100}, {700, 8, 8, 64, 64, 0},
};

static void attend(int i, exf_compute compute, int with_sinks)
{
    int t = attended[i].t, heads = attended[i].heads, kv = attended[i].kv, d = attended[i].d, dv = attended[i].dv;
    exf_attention_shape shape = {.n_tokens = t, .n_heads = heads, .n_kv = kv, .d = d, .dv = dv, .ldq = heads * d, .ldk = kv * d,
                                 .ldv = kv * dv, .ldo = heads * dv, .scale = (float)(1 / sqrt(d)), .window = attended[i].window};
    pair_array q = pair_reals(&p, (size_t)(t * shape.ldq), 1, 3), k = pair_reals(&p, (size_t)(t * shape.ldk), 2, 2);
    pair_array v = pair_reals(&p, (size_t)(t * shape.ldv), 3, 1), out = pair_reals(&p, (size_t)(t * shape.ldo), 4, 1);
    pair_array sinks = pair_reals(&p, (size_t)heads, 5, 6);
    pair_array space = pair_reals(&p, larger(p.b[0]->attention_workspace(&shape), p.b[1]->attention_workspace(&shape)), 6, 1e30f);
    pair_compute(&p, compute);
    ON_BOTH(p, (shape.sinks = with_sinks ? sinks.f[s] : NULL,
                B->attention(Q, out.f[s], q.f[s], k.f[s], v.f[s], &shape, space.f[s])));
    double apart = pair_distance(&out);
    ck_assert_msg(apart <= (compute == EXF_COMPUTE_F32 || shape.window || with_sinks ? 2e-6 : 1e-3),
                  "%d tokens, window %d%s: distance %.2e", t, shape.window, with_sinks ? ", sinks" : "", apart);
    pair_free(&q);
    pair_free(&k);
    pair_free(&v);
    pair_free(&out);
    pair_free(&sinks);
    pair_free(&space);
}

START_TEST(windows_and_sinks_are_near)
{
    for (int with_sinks = 0; with_sinks < 2; with_sinks++) {
        attend(_i, EXF_COMPUTE_F32, with_sinks);
        attend(_i, EXF_COMPUTE_BF16, with_sinks);
    }
}
END_TEST

/* ---- biases and the scaled SwiGLU ------------------------------------------------------------------ */

static const struct {
    int t, e, k, h, i;
    float limit;
} shapes[] = {
    {1, 2, 1, 8, 8, 0}, {5, 4, 2, 64, 24, 0.75f}, {67, 8, 3, 72, 40, 7}, {130, 7, 2, 65, 129, 0.75f}, {300, 16, 4, 256, 192, 7},
};

/* which: bits of the biases that there are: gate, up, down.  scaled 2: gelu. */
static void run_experts(int at, int which, int scaled)
{
    exf_expert_shape shape = {.n_tokens = shapes[at].t, .n_experts = shapes[at].e, .top_k = shapes[at].k, .d_model = shapes[at].h,
                              .d_expert = shapes[at].i, .limit = shapes[at].limit};
    size_t t = (size_t)shape.n_tokens, e = (size_t)shape.n_experts, k = (size_t)shape.top_k, h = (size_t)shape.d_model,
           w = (size_t)shape.d_expert;
    shape.slope = scaled == 1 ? 1.702f : 0;
    shape.shift = scaled == 1 ? 1 : 0;
    shape.gelu = scaled == 2;
    if (shape.gelu) shape.limit = 0;
    int32_t *chosen;
    exf_err err;
    ck_ok(exf_mem_new(&chosen, t * k, sizeof *chosen, "ids", &err), err);
    for (size_t i = 0; i < t * k; i++) chosen[i] = i % 11 == 5 ? -1 : (int32_t)(i * 7 % e);
    pair_array ids = pair_of(&p, chosen, t * k), x = pair_reals(&p, t * h, 1, 2);
    pair_array gate = pair_reals(&p, e * w * h, 2, 3 / sqrtf((float)h)), up = pair_reals(&p, e * w * h, 3, 3 / sqrtf((float)h));
    pair_array down = pair_reals(&p, e * w * h, 4, 3 / sqrtf((float)w)), out = pair_reals(&p, t * k * h, 5, 1);
    pair_array gate_bias = pair_reals(&p, e * w, 6, 1), up_bias = pair_reals(&p, e * w, 7, 1),
               down_bias = pair_reals(&p, e * h, 8, 1);
    size_t bytes = larger(p.b[0]->experts_workspace(&shape, EXF_NUMBER_F32), p.b[1]->experts_workspace(&shape, EXF_NUMBER_F32));
    pair_array space = pair_reals(&p, bytes / 4 + 1, 9, 1e30f);
    for (int s = 0; s < 2; s++) {
        exf_expert_matrices m = {.gate = exf_f32(gate.f[s]), .up = exf_f32(up.f[s]), .down = exf_f32(down.f[s]),
                                 .gate_bias = which & 1 ? gate_bias.f[s] : NULL, .up_bias = which & 2 ? up_bias.f[s] : NULL,
                                 .down_bias = which & 4 ? down_bias.f[s] : NULL};
        p.b[s]->experts(p.q[s], exf_f32(out.f[s]), exf_f32(x.f[s]), ids.i[s], &m, &shape, space.f[s]);
    }
    double apart = pair_distance(&out);
    ck_assert_msg(apart <= 1e-5, "shape %d, biases %d, scaled %d: distance %.2e", at, which, scaled, apart);
    pair_array *all[] = {&ids, &x, &gate, &up, &down, &out, &gate_bias, &up_bias, &down_bias, &space};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
    exf_mem_free(chosen);
}

START_TEST(experts_with_biases_are_near)
{
    for (int scaled = 0; scaled < 3; scaled++)
        for (int which = 0; which < 8; which++) run_experts(_i, which, scaled);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_biases");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, windows_and_sinks_are_near, 0, COUNT(attended));
    tcase_add_loop_test(t, experts_with_biases_are_near, 0, COUNT(shapes));
    suite_add_tcase(s, t);
    TCase *mma = tcase_create("mma");
    tcase_set_timeout(mma, 300);
    tcase_add_checked_fixture(mma, open_pair_mma, close_pair);
    tcase_add_loop_test(mma, windows_and_sinks_are_near, 0, COUNT(attended));
    tcase_add_loop_test(mma, experts_with_biases_are_near, 0, COUNT(shapes));
    suite_add_tcase(s, mma);
    return s;
}
