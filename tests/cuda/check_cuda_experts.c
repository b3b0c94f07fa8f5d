/* check_cuda_experts.c - all experts in one launch against double arithmetic, and the
 * promise that a token's bits do not depend on its neighbours: for activations and
 * matrices of every number, shapes that tensor cores take and shapes that they do not.
 * check_cuda_experts_shapes.c crosses the constants of the kernels. */
#include "tests/support/one_device_fixtures.h"

enum { USUAL, SKIP, ONE_EXPERT }; /* ids: some are -1; all are the last expert's */

static const struct { int t, e, k, h, i; float limit; int ids;
} shapes[] = {
    {1, 2, 1, 8, 8, 0, USUAL},          {5, 4, 2, 64, 24, 0, USUAL},        {67, 8, 3, 72, 40, 0, SKIP},
    {300, 16, 4, 256, 192, 0, USUAL},   {257, 4, 4, 320, 136, 1.5f, 0},     {1024, 60, 4, 512, 200, 0, SKIP},
    {700, 3, 2, 2048, 768, 0, USUAL},   {33, 300, 6, 136, 264, 0, USUAL},   {1, 1, 1, 1, 1, 0, USUAL},
    {0, 3, 2, 8, 8, 0, USUAL},          {37, 5, 3, 33, 17, 0, SKIP},        {130, 7, 2, 65, 129, 1.5f, SKIP},
    {200, 6, 2, 64, 64, 0, ONE_EXPERT}, {150, 3, 1, 31, 70, 0, ONE_EXPERT},
};

/* Numbers of activations and of matrices. */
static const exf_number numbers[][2] = {{EXF_NUMBER_BF16, EXF_NUMBER_BF16}, {EXF_NUMBER_F32, EXF_NUMBER_BF16},
                                        {EXF_NUMBER_F32, EXF_NUMBER_F32}, {EXF_NUMBER_BF16, EXF_NUMBER_F32}};
enum { KINDS = 4, CASES = COUNT(shapes) * KINDS };

/* Values on the host, each of what its number holds, and on the device as that number. */
typedef struct {
    float *host;
    size_t n;
    exf_matrix there;
} array;

typedef struct {
    exf_expert_shape s;
    array x, gate, up, down;
    int32_t *ids, *ids_device;
    exf_expert_matrices m;
} inputs;

static array send(float *host, size_t n, exf_number number)
{
    array a = {.host = host, .n = n, .there = {.number = number}};
    uint16_t *half = test_memory(n + 1, sizeof *half);
    for (size_t i = 0; i < n && number == EXF_NUMBER_BF16; i++) {
        half[i] = to_bf16(host[i]);
        host[i] = of_bf16(half[i]);
    }
    a.there.p = device_put(&d, number == EXF_NUMBER_BF16 ? (void *)half : (void *)host, n * exf_number_bytes(number));
    exf_mem_free(half);
    return a;
}

static array reals(size_t n, uint64_t seed, float scale, exf_number number)
{
    float *p = test_memory(n + 1, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = real_at(seed, i, scale);
    return send(p, n, number);
}

static int32_t id_of(int c, size_t slot)
{
    uint64_t u = exf_rng_u64(5, 7, slot), e = (uint64_t)shapes[c].e;
    if (shapes[c].ids == SKIP && u % 13 == 0) return -1;
    if (shapes[c].ids == ONE_EXPERT) return (int32_t)e - 1;
    return u % 4 < 2 ? 0 : (int32_t)(u / 4 % e); /* half of them the first expert's; they need not be distinct */
}

static inputs make(int at)
{
    int c = at / KINDS;
    exf_number xn = numbers[at % KINDS][0], wn = numbers[at % KINDS][1];
    inputs in = {.s = {.n_tokens = shapes[c].t, .n_experts = shapes[c].e, .top_k = shapes[c].k, .d_model = shapes[c].h,
                       .d_expert = shapes[c].i, .limit = shapes[c].limit}};
    int h = in.s.d_model;
    size_t n = (size_t)in.s.n_tokens * (size_t)h, w = (size_t)in.s.n_experts * (size_t)in.s.d_expert * (size_t)h;
    size_t slots = (size_t)in.s.n_tokens * (size_t)in.s.top_k;
    float root = sqrtf((float)h);
    in.x = reals(n, 1, 2, xn);
    in.gate = reals(w, 2, 3 / root, wn);
    in.up = reals(w, 3, 3 / root, wn);
    in.down = reals(w, 4, 3 / sqrtf((float)in.s.d_expert), wn);
    in.ids = test_memory(slots + 1, sizeof *in.ids);
    for (size_t i = 0; i < slots; i++) in.ids[i] = id_of(c, i);
    in.ids_device = device_put(&d, in.ids, slots * sizeof *in.ids);
    in.m = (exf_expert_matrices){.gate = in.gate.there, .up = in.up.there, .down = in.down.there};
    return in;
}

static void drop_array(array *a)
{
    exf_mem_free(a->host);
    d.b->free((void *)(uintptr_t)a->there.p);
}

static void drop(inputs *in)
{
    drop_array(&in->x);
    drop_array(&in->gate);
    drop_array(&in->up);
    drop_array(&in->down);
    exf_mem_free(in->ids);
    d.b->free(in->ids_device);
}

/* Bytes of a slot's output. */
static size_t slot_bytes(const inputs *in)
{
    return (size_t)in->s.d_model * exf_number_bytes(in->x.there.number);
}

static float value_at(const inputs *in, const void *outputs, size_t i)
{
    return in->x.there.number == EXF_NUMBER_BF16 ? of_bf16(((const uint16_t *)outputs)[i]) : ((const float *)outputs)[i];
}

/* Outputs [n, K, H] of tokens [first, first + n), written over 0xff. */
static void *run(const inputs *in, int first, int n, int keep)
{
    exf_expert_shape s = in->s;
    size_t k = (size_t)s.top_k, bytes = (size_t)n * k * slot_bytes(in);
    s.n_tokens = n;
    s.keep = keep;
    void *out = device_put(&d, NULL, bytes), *space = device_put(&d, NULL, d.b->experts_workspace(&s, in->x.there.number));
    exf_matrix outputs = {out, in->x.there.number};
    d.b->experts(d.q, outputs, exf_matrix_at(in->x.there, (size_t)first * (size_t)s.d_model), in->ids_device + (size_t)first * k,
                 &in->m, &s, space);
    void *host = device_get(&d, out, bytes);
    d.b->free(out);
    d.b->free(space);
    return host;
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One slot in double, but for the rounding of the SwiGLU to the activations' number. */
static void expert_of(double *out, float *act, const inputs *in, const float *x, int e)
{
    int h = in->s.d_model, width = in->s.d_expert;
    double limit = (double)in->s.limit;
    for (int i = 0; i < width; i++) {
        size_t row = ((size_t)e * (size_t)width + (size_t)i) * (size_t)h;
        double g = dot(x, in->gate.host + row, h), u = dot(x, in->up.host + row, h);
        if (limit > 0) {
            g = fmin(g, limit);
            u = fmin(fmax(u, -limit), limit);
        }
        act[i] = (float)(g / (1 + exp(-g)) * u);
        if (in->x.there.number == EXF_NUMBER_BF16) act[i] = of_bf16(to_bf16(act[i]));
    }
    for (int j = 0; j < h; j++) out[j] = dot(act, in->down.host + ((size_t)e * (size_t)h + (size_t)j) * (size_t)width, width);
}

/* want of every step-th slot, and what was got of it, to `look`. */
static void compare(const inputs *in, const void *got, size_t step,
                    void (*look)(const inputs *in, size_t slot, double want, float is, void *self), void *self)
{
    size_t h = (size_t)in->s.d_model, k = (size_t)in->s.top_k;
    double *want = test_memory(h, sizeof *want);
    float *act = test_memory((size_t)in->s.d_expert, sizeof *act);
    for (size_t slot = 0; slot < (size_t)in->s.n_tokens * k; slot += step) {
        memset(want, 0, h * sizeof *want);
        if (in->ids[slot] >= 0) expert_of(want, act, in, in->x.host + slot / k * h, in->ids[slot]);
        for (size_t j = 0; j < h; j++) look(in, slot, want[j], value_at(in, got, slot * h + j), self);
    }
    exf_mem_free(want);
    exf_mem_free(act);
}

static size_t step_of(const inputs *in)
{
    double products = (double)in->s.n_tokens * in->s.top_k * in->s.d_model * in->s.d_expert;
    return products > 1e9 ? 97 : products > 1e8 ? 37 : products > 1e7 ? 5 : 1;
}

typedef struct {
    int at;
    double off, all;
} distance;

static void add_distance(const inputs *in, size_t slot, double want, float is, void *self)
{
    distance *s = self;
    (void)in;
    ck_assert_msg(isfinite(is), "case %d slot %zu was not written", s->at, slot);
    s->off += ((double)is - want) * ((double)is - want);
    s->all += want * want;
}

/* Two roundings to bfloat16; or float32 sums of up to 2048 terms, which tensor cores cut off every 16. */
START_TEST(outputs_are_near_those_in_double)
{
    inputs in = make(_i);
    distance s = {.at = _i};
    double bound = in.x.there.number == EXF_NUMBER_BF16 ? 4e-3 : 1e-5;
    void *got = run(&in, 0, in.s.n_tokens, 0);
    compare(&in, got, step_of(&in), add_distance, &s);
    ck_assert_msg(s.off <= bound * bound * s.all, "case %d: relative error %.2e", _i, sqrt(s.off / s.all));
    exf_mem_free(got);
    drop(&in);
}
END_TEST

START_TEST(a_token_does_not_feel_its_neighbours)
{
    inputs in = make(_i);
    int t = in.s.n_tokens, cuts[] = {0, t / 3, t / 3 + (t > 0), t / 2, t};
    size_t width = (size_t)in.s.top_k * slot_bytes(&in);
    char *whole = run(&in, 0, t, 0);
    for (int c = 0; c < 4; c++) {
        int n = cuts[c + 1] - cuts[c];
        if (n <= 0) continue;
        void *part = run(&in, cuts[c], n, 0);
        ck_assert_msg(memcmp(part, whole + (size_t)cuts[c] * width, (size_t)n * width) == 0,
                      "case %d: tokens %d to %d alone differ", _i, cuts[c], cuts[c + 1]);
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
    size_t each = slot_bytes(&in), slots = (size_t)in.s.n_tokens * (size_t)in.s.top_k,
           matrix = (size_t)in.s.d_expert * (size_t)in.s.d_model;
    char *whole = run(&in, 0, in.s.n_tokens, 0);
    void *space = device_put(&d, NULL, d.b->experts_workspace(&in.s, in.x.there.number));
    exf_matrix out = {device_put(&d, NULL, slots * each), in.x.there.number};
    for (int c = 0; c < 4; c++) {
        exf_expert_shape part = in.s;
        size_t skip = (size_t)cuts[c] * matrix;
        exf_expert_matrices m = {.gate = exf_matrix_at(in.m.gate, skip), .up = exf_matrix_at(in.m.up, skip),
                                 .down = exf_matrix_at(in.m.down, skip)};
        part.first = cuts[c];
        part.n_experts = cuts[c + 1] - cuts[c];
        if (part.n_experts <= 0) continue;
        d.b->experts(d.q, out, in.x.there, in.ids_device, &m, &part, space);
        char *got = device_get(&d, out.p, slots * each);
        for (size_t i = 0; i < slots; i++) {
            if (in.ids[i] >= cuts[c + 1])
                ck_assert_msg(is_poison(got + i * each, each), "case %d: slot %zu was written early", _i, i);
            else if (in.ids[i] < 0 || in.ids[i] >= cuts[c])
                ck_assert_msg(memcmp(got + i * each, whole + i * each, each) == 0, "case %d: slot %zu differs", _i, i);
        }
        exf_mem_free(got);
    }
    exf_mem_free(whole);
    d.b->free((void *)(uintptr_t)out.p);
    d.b->free(space);
    drop(&in);
}
END_TEST

START_TEST(slots_without_an_expert_are_cleared_or_kept)
{
    inputs in = make(_i);
    size_t each = slot_bytes(&in), slots = (size_t)in.s.n_tokens * (size_t)in.s.top_k;
    char *cleared = run(&in, 0, in.s.n_tokens, 0), *kept = run(&in, 0, in.s.n_tokens, 1), *zeros = test_memory(each, 1);
    for (size_t i = 0; i < slots; i++) {
        if (in.ids[i] >= 0)
            ck_assert_msg(memcmp(cleared + i * each, kept + i * each, each) == 0, "case %d: slot %zu differs", _i, i);
        else
            ck_assert_msg(memcmp(cleared + i * each, zeros, each) == 0 && is_poison(kept + i * each, each), "case %d: slot %zu", _i,
                          i);
    }
    exf_mem_free(cleared);
    exf_mem_free(kept);
    exf_mem_free(zeros);
    drop(&in);
}
END_TEST

START_TEST(mixed_numbers_are_refused)
{
    inputs in = make(4 * KINDS);
    exf_err err;
    void *space = device_put(&d, NULL, d.b->experts_workspace(&in.s, EXF_NUMBER_F32));
    exf_matrix out = {space, EXF_NUMBER_F32};
    d.b->experts(d.q, out, in.x.there, in.ids_device, &in.m, &in.s, space);
    ck_fails(d.b->finish(d.q, &err), EXF_INTERNAL, err, "");
    in.m.up.number = EXF_NUMBER_F32;
    out.number = in.x.there.number;
    d.b->experts(d.q, out, in.x.there, in.ids_device, &in.m, &in.s, space);
    ck_fails(d.b->finish(d.q, &err), EXF_INTERNAL, err, "");
    d.b->free(space);
    drop(&in);
}
END_TEST

static void add_cases(Suite *s, const char *name, void (*open)(void))
{
    TCase *t = exf_case(s, name);
    tcase_add_checked_fixture(t, open, close_device);
    tcase_add_loop_test(t, outputs_are_near_those_in_double, 0, CASES);
    tcase_add_loop_test(t, a_token_does_not_feel_its_neighbours, 0, CASES);
    tcase_add_loop_test(t, experts_in_parts_are_the_same, 0, CASES);
    tcase_add_loop_test(t, slots_without_an_expert_are_cleared_or_kept, 0, CASES);
    tcase_add_test(t, mixed_numbers_are_refused);
}

void exf_suite(Suite *s)
{
    add_cases(s, "all", open_device_bf16);
    add_cases(s, "mma", open_device_bf16_mma);
}
