/* check_cuda_experts.c - all experts in one launch against double arithmetic, and the
 * promise that a token's bits do not depend on its neighbours. */
#include "tests/support/one_device_fixtures.h"

#include <stdio.h>

static const struct { int t, e, k, h, i; float limit; int skip; } shapes[] = {
    {1, 2, 1, 8, 8, 0, 0},      {5, 4, 2, 64, 24, 0, 0},     {67, 8, 3, 72, 40, 0, 1},      {300, 16, 4, 256, 192, 0, 0},
    {257, 4, 4, 320, 136, 1.5f, 0}, {1024, 60, 4, 512, 200, 0, 1}, {700, 3, 2, 2048, 768, 0, 0}, {33, 300, 6, 136, 264, 0, 0},
};

/* Inputs of one case, on the host and there. */
typedef struct {
    exf_expert_shape s;
    uint16_t *x, *gate, *up, *down, *x_device;
    int32_t *ids, *ids_device;
    exf_expert_matrices m;
} inputs;

static inputs make(int c)
{
    inputs in = {.s = {shapes[c].t, shapes[c].e, shapes[c].k, shapes[c].h, shapes[c].i, shapes[c].limit}};
    size_t t = (size_t)in.s.n_tokens, k = (size_t)in.s.top_k, h = (size_t)in.s.d_model, w = (size_t)in.s.n_experts * (size_t)in.s.d_expert * h;
    in.x = bf16_reals(t * h, 1, 2);
    in.gate = bf16_reals(w, 2, 3 / sqrtf((float)h));
    in.up = bf16_reals(w, 3, 3 / sqrtf((float)h));
    in.down = bf16_reals(w, 4, 3 / sqrtf((float)in.s.d_expert));
    in.ids = test_memory(t * k, sizeof *in.ids);
    for (size_t i = 0; i < t * k; i++) { /* half of them to the first expert; distinct is not asked for */
        uint64_t u = exf_rng_u64(5, 7, i);
        in.ids[i] = u % 4 < 2 ? 0 : (int32_t)(u / 4 % (uint64_t)in.s.n_experts);
        if (shapes[c].skip && u % 13 == 0) in.ids[i] = -1;
    }
    in.x_device = device_put(&d, in.x, t * h * 2);
    in.ids_device = device_put(&d, in.ids, t * k * 4);
    in.m = (exf_expert_matrices){device_put(&d, in.gate, w * 2), device_put(&d, in.up, w * 2), device_put(&d, in.down, w * 2)};
    return in;
}

static void drop(inputs *in)
{
    exf_mem_free(in->x);
    exf_mem_free(in->gate);
    exf_mem_free(in->up);
    exf_mem_free(in->down);
    exf_mem_free(in->ids);
    d.b->free(in->x_device);
    d.b->free(in->ids_device);
    d.b->free((void *)(uintptr_t)in->m.gate);
    d.b->free((void *)(uintptr_t)in->m.up);
    d.b->free((void *)(uintptr_t)in->m.down);
}

/* Outputs [n, K, H] of tokens [first, first + n). */
static uint16_t *run(const inputs *in, int first, int n)
{
    exf_expert_shape s = in->s;
    size_t h = (size_t)s.d_model, k = (size_t)s.top_k, bytes = (size_t)n * k * h * 2;
    s.n_tokens = n;
    void *out = device_put(&d, NULL, bytes), *space = device_put(&d, NULL, d.b->experts_workspace(&s));
    d.b->experts(d.q, out, in->x_device + (size_t)first * h, in->ids_device + (size_t)first * k, &in->m, &s, space);
    uint16_t *host = device_get(&d, out, bytes);
    d.b->free(out);
    d.b->free(space);
    return host;
}

static double dot(const uint16_t *a, const uint16_t *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)of_bf16(a[i]) * (double)of_bf16(b[i]);
    return sum;
}

/* One slot in double, but for the rounding of the SwiGLU. */
static void expert_of(double *out, uint16_t *act, const inputs *in, const uint16_t *x, int e)
{
    int h = in->s.d_model, width = in->s.d_expert;
    double limit = (double)in->s.limit;
    for (int i = 0; i < width; i++) {
        size_t row = ((size_t)e * (size_t)width + (size_t)i) * (size_t)h;
        double g = dot(x, in->gate + row, h), u = dot(x, in->up + row, h);
        if (limit > 0) {
            g = fmin(g, limit);
            u = fmin(fmax(u, -limit), limit);
        }
        act[i] = to_bf16((float)(g / (1 + exp(-g)) * u));
    }
    for (int j = 0; j < h; j++) out[j] = dot(act, in->down + ((size_t)e * (size_t)h + (size_t)j) * (size_t)width, width);
}

START_TEST(outputs_are_near_those_in_double)
{
    inputs in = make(_i);
    size_t h = (size_t)in.s.d_model, k = (size_t)in.s.top_k;
    if (!d.b->experts_fit(&in.s)) {
        printf("grouped experts: this device has no code for them\n");
        drop(&in);
        return;
    }
    uint16_t *got = run(&in, 0, in.s.n_tokens), *act = test_memory((size_t)in.s.d_expert, 2);
    double *want = test_memory(h, sizeof *want), off = 0, all = 0;
    size_t step = (size_t)in.s.n_tokens * k * h * (size_t)in.s.d_expert > 1u << 26 ? 37 : 1;
    for (size_t slot = 0; slot < (size_t)in.s.n_tokens * k; slot += step) {
        memset(want, 0, h * sizeof *want);
        if (in.ids[slot] >= 0) expert_of(want, act, &in, in.x + slot / k * h, in.ids[slot]);
        for (size_t j = 0; j < h; j++) {
            double is = (double)of_bf16(got[slot * h + j]);
            ck_assert_msg(isfinite(is), "case %d slot %zu column %zu was not written", _i, slot, j);
            off += (is - want[j]) * (is - want[j]);
            all += want[j] * want[j];
        }
    }
    ck_assert_msg(off <= 4e-3 * 4e-3 * all, "case %d: relative error %.2e", _i, sqrt(off / all));
    exf_mem_free(got);
    exf_mem_free(act);
    exf_mem_free(want);
    drop(&in);
}
END_TEST

START_TEST(a_token_does_not_feel_its_neighbours)
{
    inputs in = make(_i);
    int t = in.s.n_tokens, cuts[] = {0, t / 3, t / 3 + 1, t / 2, t};
    size_t width = (size_t)in.s.top_k * (size_t)in.s.d_model;
    if (!d.b->experts_fit(&in.s)) {
        drop(&in);
        return;
    }
    uint16_t *whole = run(&in, 0, t);
    for (int c = 0; c < 4; c++) {
        int n = cuts[c + 1] - cuts[c];
        if (n <= 0) continue;
        uint16_t *part = run(&in, cuts[c], n);
        ck_assert_msg(memcmp(part, whole + (size_t)cuts[c] * width, (size_t)n * width * 2) == 0, "case %d: tokens %d to %d alone differ", _i, cuts[c], cuts[c + 1]);
        exf_mem_free(part);
    }
    exf_mem_free(whole);
    drop(&in);
}
END_TEST

/* Part after part into the same outputs: what one call gives, and a slot is touched by its own part only. */
START_TEST(experts_in_parts_are_the_same)
{
    inputs in = make(_i);
    int e = in.s.n_experts, cuts[] = {0, 1, e / 3 + 1, e - 1 > e / 3 + 1 ? e - 1 : e, e};
    size_t h = (size_t)in.s.d_model, k = (size_t)in.s.top_k, slots = (size_t)in.s.n_tokens * k, matrix = (size_t)in.s.d_expert * h;
    if (!d.b->experts_fit(&in.s)) {
        drop(&in);
        return;
    }
    uint16_t *whole = run(&in, 0, in.s.n_tokens);
    void *out = device_put(&d, NULL, slots * h * 2), *space = device_put(&d, NULL, d.b->experts_workspace(&in.s));
    for (int c = 0; c < 4; c++) {
        exf_expert_shape part = in.s;
        size_t skip = (size_t)cuts[c] * matrix;
        exf_expert_matrices m = {in.m.gate + skip, in.m.up + skip, in.m.down + skip};
        part.first = cuts[c];
        part.n_experts = cuts[c + 1] - cuts[c];
        if (part.n_experts <= 0) continue;
        d.b->experts(d.q, out, in.x_device, in.ids_device, &m, &part, space);
        uint16_t *got = device_get(&d, out, slots * h * 2);
        for (size_t i = 0; i < slots; i++) {
            int touched = in.ids[i] < cuts[c + 1];
            for (size_t j = 0; !touched && j < h; j++) ck_assert_msg(got[i * h + j] == 0xffff, "case %d: slot %zu was written early", _i, i);
            if (touched) ck_assert_msg(memcmp(got + i * h, whole + i * h, h * 2) == 0, "case %d: slot %zu differs", _i, i);
        }
        exf_mem_free(got);
    }
    exf_mem_free(whole);
    d.b->free(out);
    d.b->free(space);
    drop(&in);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_experts");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, open_device_bf16, close_device);
    tcase_add_loop_test(t, outputs_are_near_those_in_double, 0, COUNT(shapes));
    tcase_add_loop_test(t, a_token_does_not_feel_its_neighbours, 0, COUNT(shapes));
    tcase_add_loop_test(t, experts_in_parts_are_the_same, 0, COUNT(shapes));
    suite_add_tcase(s, t);
    return s;
}
