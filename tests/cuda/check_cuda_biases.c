/* check_cuda_biases.c - experts with biases and the scaled SwiGLU, which kernels on tensor cores leave to the plain ones, on the
 * CUDA backend against the CPU's. */
#include "base/mem.h"
#include "tests/support/pair_fixtures.h"

#include <math.h>

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

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, experts_with_biases_are_near, 0, COUNT(shapes));
    TCase *mma = exf_case(s, "mma");
    tcase_add_checked_fixture(mma, open_pair_mma, close_pair);
    tcase_add_loop_test(mma, experts_with_biases_are_near, 0, COUNT(shapes));
}
