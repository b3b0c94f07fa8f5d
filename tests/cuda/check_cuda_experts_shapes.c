/* check_cuda_experts_shapes.c - all experts in one launch at shapes made from the constants of its kernels, those for Hopper, for
 * other tensor cores and for any GPU: every slot of small integers is exact, and nothing around the outputs is written. */
#include "tests/support/pairwise.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

/* ---- products: hidden and inner in eights where tensor cores multiply ---------------------------------- */

/* FULL: the slots of the expert that has most.  OTHERS 0: every other expert has a slot or two; 1: one in five has, some slots
 * have none, and matrices that any GPU multiplies have biases. */
enum { FULL, EXPERTS, TOP_K, HIDDEN, INNER, NUMBERS, OTHERS, DIMENSIONS };

static const dimension in_eights[] = {{"rows", 1, 257},    {"experts", 1, 265}, {"top-k", 1, 8}, {"hidden/8", 1, 33},
                                      {"inner/8", 1, 33},  {"numbers", 0, 1},   {"others", 0, 1}};
static const dimension in_ones[] = {{"rows", 1, 257},   {"experts", 1, 265}, {"top-k", 1, 8}, {"hidden", 1, 129},
                                    {"inner", 1, 129},  {"numbers", 0, 3},   {"others", 0, 1}};

static const boundary of_hopper[] = {
    {"moe/grouped_gemm_cuda.cu", "ROWS", FULL, 128},
    {"moe/grouped_gemm_cuda.cu", "ROWS", FULL, 2 * 128},
    {"moe/moe_internal.cuh", "EXF_TILE_ROWS", FULL, 128},
    {"moe/grouped_gemm_cuda.cu", "group * 64", FULL, 64}, /* rows of a warpgroup */
    {"moe/grouped_tiles.cuh", "while (at >= tile[p->e + 1] * column_tiles)", EXPERTS, 2},
    {"moe/grouped_gemm_cuda.cu", "q->multiprocessors", EXPERTS, 132}, /* a block has a second tile */
    {"moe/grouped_gemm_cuda.cu", "DEPTH", HIDDEN, 64 / 8},
    {"moe/grouped_gemm_cuda.cu", "DEPTH", INNER, 64 / 8},
    {"moe/grouped_gemm_cuda.cu", "LAG", HIDDEN, 2 * 64 / 8}, /* steps before the first is signalled */
    {"moe/grouped_gemm_cuda.cu", "PANEL", HIDDEN, 128 / 8},
    {"moe/grouped_gemm_cuda.cu", "PANEL", INNER, 128 / 8},
    {"moe/grouped_gemm_cuda.cu", "COLUMNS", HIDDEN, 256 / 8},
    {"moe/grouped_gemm_cuda.cu", "STAGES", HIDDEN, 4 * 64 / 8}, /* steps of a round of the ring */
    {"moe/grouped_gemm_cuda.cu", "STAGES", INNER, 4 * 64 / 8},
};

static const boundary of_mma[] = {
    {"moe/grouped_mma_cuda.cu", "ROWS", FULL, 128},
    {"moe/grouped_mma_cuda.cu", "ROWS", FULL, 2 * 128},
    {"moe/grouped_mma_cuda.cu", "warp / 2 * 64", FULL, 64}, /* rows of a warp */
    {"moe/grouped_mma_cuda.cu", "BLOCKS * q->multiprocessors", EXPERTS, 2 * 132},
    {"moe/grouped_mma_cuda.cu", "BLOCKS", EXPERTS, 2},
    {"moe/grouped_mma_cuda.cu", "DEPTH", HIDDEN, 32 / 8},
    {"moe/grouped_mma_cuda.cu", "DEPTH", INNER, 32 / 8},
    {"moe/grouped_mma_cuda.cu", "HALF", INNER, 64 / 8},
    {"moe/grouped_mma_cuda.cu", "COLUMNS", HIDDEN, 128 / 8},
    {"moe/grouped_mma_cuda.cu", "COLUMNS", HIDDEN, 2 * 128 / 8},
    {"moe/grouped_mma_cuda.cu", "MANY_STAGES", HIDDEN, 4 * 32 / 8},
    {"moe/grouped_mma_cuda.cu", "MANY_STAGES", INNER, 4 * 32 / 8},
    {"moe/grouped_mma_cuda.cu", "FEW_STAGES", INNER, 3 * 32 / 8}, /* a ring of four is filled but for one stage */
};

static const boundary of_any[] = {
    {"moe/grouped_any_cuda.cu", "ROWS", FULL, 128},
    {"moe/grouped_any_cuda.cu", "ROWS", FULL, 2 * 128},
    {"moe/grouped_any_cuda.cu", "r + 64", FULL, 64}, /* a thread's fifth row */
    {"moe/grouped_any_cuda.cu", "2 * q->multiprocessors", EXPERTS, 2 * 132},
    {"moe/grouped_any_cuda.cu", "high = w.n_experts - 1", EXPERTS, 2},
    {"moe/grouped_any_cuda.cu", "DEPTH", HIDDEN, 16},
    {"moe/grouped_any_cuda.cu", "DEPTH", INNER, 16},
    {"moe/grouped_any_cuda.cu", "COLUMNS", HIDDEN, 64},
    {"moe/grouped_any_cuda.cu", "2 * COLUMNS", HIDDEN, 2 * 64},
    {"moe/grouped_any_cuda.cu", "COLUMNS", INNER, 64},
    {"moe/grouped_any_cuda.cu", "COLUMNS", INNER, 2 * 64},
    {"moe/grouped_any_cuda.cu", "launch_of<true, float>", NUMBERS, 1},
    {"moe/grouped_any_cuda.cu", "launch_of<false, float>", NUMBERS, 2},
};

static pairwise hopper, mma, any;

/* Elements of a matrix of all experts, and products of all slots. */
static int is_small(const shape *s, int unit)
{
    int64_t h = s->at[HIDDEN] * unit, i = s->at[INNER] * unit, slots = s->at[FULL] + 2 * s->at[EXPERTS];
    return s->at[EXPERTS] * h * i <= 1 << 21 && slots * h * i <= 1 << 23;
}

static int is_small_in_eights(const shape *s)
{
    return is_small(s, 8);
}

static int is_small_in_ones(const shape *s)
{
    return is_small(s, 1);
}

/* ---- slots by expert -------------------------------------------------------------------------------------- */

/* IDS 0: of any expert; 1: of the last; 2: of none; 3: of any, of none, and of experts that the call does not have. */
enum { SLOTS, OF, IDS, SORTED };
static const dimension sorted[] = {{"slots", 1, 16385}, {"experts", 1, 12288}, {"ids", 0, 3}};

static const boundary of_buckets[] = {
    {"moe/moe_experts_cuda.cu", "i - lane < end; i += 32", SLOTS, 32},
    {"moe/moe_experts_cuda.cu", "exf_blocks(rows, 256)", SLOTS, 256},
    {"moe/moe_internal.cuh", "EXF_BUCKET_CHUNK", SLOTS, 1024},
    {"moe/moe_experts_cuda.cu", "AT_ONCE", SLOTS, 16 * 1024}, /* chunks of which loads are on their way */
    {"moe/moe_experts_cuda.cu", "at <= n; at += 32", OF, 32},
    {"moe/moe_experts_cuda.cu", "chunks, 256, tallies", OF, 256},
    {"moe/moe_internal.cuh", "EXF_TENSOR_CORE_EXPERTS", OF, 4096},
    {"moe/moe_experts_cuda.cu", "MOST_EXPERTS", OF, 12288},
    {"moe/moe_experts_cuda.cu", "expert_of", IDS, 1},
    {"moe/moe_experts_cuda.cu", "clear_unused", IDS, 2},
};

static pairwise buckets;

/* ---- inputs -------------------------------------------------------------------------------------------------- */

enum { GUARD = 256 }; /* bytes on both sides of the outputs */

/* Numbers of activations and of matrices. */
static const exf_number numbers[][2] = {{EXF_NUMBER_BF16, EXF_NUMBER_BF16}, {EXF_NUMBER_F32, EXF_NUMBER_BF16},
                                        {EXF_NUMBER_F32, EXF_NUMBER_F32}, {EXF_NUMBER_BF16, EXF_NUMBER_F32}};

/* Integers on the host and on the device; of gate the column 0 is `large` and of x it is 1, so that silu(g) = g. */
typedef struct {
    exf_expert_shape s;
    exf_number number[2];
    int8_t *x, *w[3], *bias[3]; /* gate, up, down; bias NULL: none */
    int large;
    int32_t *ids, *ids_there;
    exf_matrix x_there;
    exf_expert_matrices m;
} inputs;

/* n integers in [-most, most], eight of a random number. */
static int8_t *integers(size_t n, uint64_t seed, int most)
{
    int8_t *p = test_memory(n + 8, 1);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t u = exf_rng_u64(seed, 7, i);
        for (int j = 0; j < 8; j++) p[i + (size_t)j] = (int8_t)((int)((u >> 8 * j & 255) * (uint64_t)(2 * most + 1) >> 8) - most);
    }
    return p;
}

/* The same on the device as numbers; column 0 of rows of `width` is `first` where that is not 0. */
static exf_matrix send(const int8_t *host, size_t n, size_t width, int first, exf_number number)
{
    float *wide = test_memory(n, sizeof *wide);
    uint16_t *half = test_memory(n, sizeof *half);
    for (size_t i = 0; i < n; i++) {
        wide[i] = first && i % width == 0 ? (float)first : (float)host[i];
        half[i] = to_bf16(wide[i]);
    }
    void *there = number == EXF_NUMBER_BF16 ? device_put(&d, half, n * 2) : device_put(&d, wide, n * 4);
    exf_mem_free(wide);
    exf_mem_free(half);
    return (exf_matrix){there, number};
}

/* Fills all but s and ids; `biased` ones have integers as biases, too. */
static void make_numbers(inputs *in, const exf_number *number, int biased)
{
    size_t h = (size_t)in->s.d_model, n = (size_t)in->s.n_tokens * h, e = (size_t)in->s.n_experts, i = (size_t)in->s.d_expert;
    const float **bias[3] = {&in->m.gate_bias, &in->m.up_bias, &in->m.down_bias};
    exf_matrix *matrix[3] = {&in->m.gate, &in->m.up, &in->m.down};
    in->number[0] = number[0];
    in->number[1] = number[1];
    in->large = 64;
    while ((double)in->large < 64 + 12 * sqrt((double)h)) in->large *= 2;
    in->x = integers(n, 1, 2);
    for (size_t t = 0; t < n; t += h) in->x[t] = 1;
    in->x_there = send(in->x, n, h, 0, number[0]);
    for (int w = 0; w < 3; w++) {
        in->w[w] = integers(e * i * h, 2 + (uint64_t)w, 1);
        *matrix[w] = send(in->w[w], e * i * h, h, w == 0 ? in->large : 0, number[1]);
        if (!biased) continue;
        in->bias[w] = integers(e * (w == 2 ? h : i), 5 + (uint64_t)w, 3);
        *bias[w] = send(in->bias[w], e * (w == 2 ? h : i), 1, 0, EXF_NUMBER_F32).p;
    }
    in->ids_there = device_put(&d, in->ids, (size_t)in->s.n_tokens * (size_t)in->s.top_k * sizeof *in->ids);
}

/* Slots of the experts in any order: s->at[FULL] of one expert, and of the others as OTHERS says. */
static void make_ids(inputs *in, const shape *s)
{
    int e = s->at[EXPERTS], k = s->at[TOP_K], n = 0, full = s->at[OTHERS] ? e - 1 : e / 2;
    int32_t *ids = in->ids = test_memory((size_t)(s->at[FULL] + 3 * e + k), sizeof *ids);
    for (int i = 0; i < s->at[FULL]; i++) ids[n++] = full;
    for (int other = 0; other < e; other++) {
        int slots = s->at[OTHERS] ? other % 5 == 0 : 1 + other % 2;
        for (int i = 0; other != full && i < slots; i++) ids[n++] = other;
        if (s->at[OTHERS] && other % 4 == 1) ids[n++] = -1;
    }
    while (n % k) ids[n++] = -1;
    for (int i = n - 1; i > 0; i--) {
        int at = (int)exf_rng_below((uint64_t)i + 1, 9, 3, (uint64_t)i), id = ids[i];
        ids[i] = ids[at];
        ids[at] = id;
    }
    in->s.n_tokens = n / k;
}

static void drop(inputs *in)
{
    void *there[] = {(void *)(uintptr_t)in->x_there.p, (void *)(uintptr_t)in->m.gate.p, (void *)(uintptr_t)in->m.up.p,
                     (void *)(uintptr_t)in->m.down.p, (void *)(uintptr_t)in->m.gate_bias, (void *)(uintptr_t)in->m.up_bias,
                     (void *)(uintptr_t)in->m.down_bias, in->ids_there};
    void *here[] = {in->x, in->w[0], in->w[1], in->w[2], in->bias[0], in->bias[1], in->bias[2], in->ids};
    for (int i = 0; i < COUNT(there); i++)
        if (there[i]) d.b->free(there[i]);
    for (int i = 0; i < COUNT(here); i++) exf_mem_free(here[i]);
}

/* ---- both sides ------------------------------------------------------------------------------------------------ */

static int rounded(const inputs *in, int v)
{
    return in->number[0] == EXF_NUMBER_BF16 ? (int)of_bf16(to_bf16((float)v)) : v;
}

static int dot(const int8_t *a, const int8_t *b, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static int bias_at(const inputs *in, int w, size_t i)
{
    return in->bias[w] ? in->bias[w][i] : 0;
}

/* One slot: out [H]. */
static void expert_of(int *out, int *act, const inputs *in, const int8_t *x, int e)
{
    int h = in->s.d_model, width = in->s.d_expert;
    for (int i = 0; i < width; i++) {
        size_t column = (size_t)e * (size_t)width + (size_t)i, row = column * (size_t)h;
        int g = in->large + dot(x + 1, in->w[0] + row + 1, h - 1) + bias_at(in, 0, column),
            u = dot(x, in->w[1] + row, h) + bias_at(in, 1, column);
        act[i] = rounded(in, g * u);
    }
    for (int j = 0; j < h; j++) {
        size_t column = (size_t)e * (size_t)h + (size_t)j;
        const int8_t *down = in->w[2] + column * (size_t)width;
        out[j] = bias_at(in, 2, column);
        for (int i = 0; i < width; i++) out[j] += act[i] * down[i];
    }
}

static float value_at(const inputs *in, const char *outputs, size_t i)
{
    return in->number[0] == EXF_NUMBER_BF16 ? of_bf16(((const uint16_t *)(const void *)outputs)[i])
                                            : ((const float *)(const void *)outputs)[i];
}

/* Outputs written over 0xff, with the bytes around them. */
static char *run(const inputs *in, size_t bytes)
{
    char *out = device_put(&d, NULL, bytes + 2 * GUARD);
    void *space = device_put(&d, NULL, d.b->experts_workspace(&in->s, in->number[0]));
    d.b->experts(d.q, (exf_matrix){out + GUARD, in->number[0]}, in->x_there, in->ids_there, &in->m, &in->s, space);
    char *host = device_get(&d, out, bytes + 2 * GUARD);
    d.b->free(out);
    d.b->free(space);
    return host;
}

static void assert_exact(const inputs *in, const char *what)
{
    size_t h = (size_t)in->s.d_model, k = (size_t)in->s.top_k, slots = (size_t)in->s.n_tokens * k,
           each = h * exf_number_bytes(in->number[0]);
    int *want = test_memory(h, sizeof *want), *act = test_memory((size_t)in->s.d_expert, sizeof *act);
    char *got = run(in, slots * each);
    ck_assert_msg(is_poison(got, GUARD) && is_poison(got + GUARD + slots * each, GUARD), "%s: bytes around were written", what);
    for (size_t slot = 0; slot < slots; slot++) {
        int e = in->ids[slot] - in->s.first;
        const char *is = got + GUARD + slot * each;
        memset(want, 0, h * sizeof *want);
        if (in->ids[slot] >= 0 && (e < 0 || e >= in->s.n_experts)) {
            ck_assert_msg(is_poison(is, each), "%s: slot %zu of another call was written", what, slot);
            continue;
        }
        if (in->ids[slot] >= 0) expert_of(want, act, in, in->x + slot / k * h, e);
        for (size_t j = 0; j < h; j++) {
            ck_assert_msg(abs(want[j]) < 1 << 24, "%s: %d is too large to be exact", what, want[j]);
            ck_assert_msg(value_at(in, is, j) == (float)rounded(in, want[j]), "%s: slot %zu, column %zu: %.9g, expected %d", what,
                          slot, j, (double)value_at(in, is, j), rounded(in, want[j]));
        }
    }
    exf_mem_free(want);
    exf_mem_free(act);
    exf_mem_free(got);
}

/* scaled: the SwiGLU of slope 1 and shift 0, which is the plain one, and which tensor cores do not know. */
static void check_products(const shape *s, const dimension *names, int unit, int scaled)
{
    inputs in = {.s = {.n_experts = s->at[EXPERTS], .top_k = s->at[TOP_K], .d_model = s->at[HIDDEN] * unit,
                       .d_expert = s->at[INNER] * unit, .slope = scaled ? 1 : 0}};
    make_ids(&in, s);
    make_numbers(&in, numbers[s->at[NUMBERS]], scaled && s->at[OTHERS]);
    assert_exact(&in, pairwise_name(names, DIMENSIONS, s));
    drop(&in);
}

START_TEST(products_on_hopper)
{
    check_products(&hopper.shapes[_i], in_eights, 8, 0);
}
END_TEST

START_TEST(products_on_other_tensor_cores)
{
    check_products(&mma.shapes[_i], in_eights, 8, 0);
}
END_TEST

START_TEST(products_on_any_gpu)
{
    check_products(&any.shapes[_i], in_ones, 1, 1);
}
END_TEST

START_TEST(slots_are_sorted)
{
    enum { WIDTH = 8, FIRST = 5 };
    const shape *s = &buckets.shapes[_i];
    int n = s->at[SLOTS], e = s->at[OF], kind = s->at[IDS];
    inputs in = {.s = {.n_tokens = n, .n_experts = e, .top_k = 1, .d_model = WIDTH, .d_expert = WIDTH,
                       .first = kind == 3 ? FIRST : 0}};
    in.ids = test_memory((size_t)n, sizeof *in.ids);
    for (int i = 0; i < n; i++) {
        uint64_t u = exf_rng_u64(8, 7, (uint64_t)i);
        int32_t own = (int32_t)(u % (uint64_t)e), stranger = (int32_t)(u % (uint64_t)(e + 11)) - 1;
        in.ids[i] = kind == 0 ? own : kind == 1 ? e - 1 : kind == 2 ? -1 : stranger;
    }
    make_numbers(&in, numbers[_i % 2], 0);
    assert_exact(&in, pairwise_name(sorted, SORTED, s));
    drop(&in);
}
END_TEST

/* One expert and one slot more than a call may have: nothing is launched. */
START_TEST(too_many_are_refused)
{
    exf_err err;
    for (int slots = 0; slots < 2; slots++) {
        exf_expert_shape s = {.n_tokens = slots ? 1 << 29 : 1, .top_k = slots ? 2 : 1, .n_experts = slots ? 1 : 12288 + 1,
                              .d_model = 8, .d_expert = 8};
        exf_matrix nothing = {NULL, EXF_NUMBER_BF16};
        exf_expert_matrices m = {.gate = nothing, .up = nothing, .down = nothing};
        d.b->experts(d.q, nothing, nothing, NULL, &m, &s, NULL);
        ck_fails(d.b->finish(d.q, &err), EXF_INTERNAL, err, slots ? "1073741824 slots" : "12289 experts");
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *auto_cases = exf_case(s, "all"), *mma_cases = exf_case(s, "mma");
    pairwise_shapes(&hopper, "experts, wgmma", of_hopper, COUNT(of_hopper), in_eights, DIMENSIONS, is_small_in_eights);
    pairwise_shapes(&mma, "experts, mma", of_mma, COUNT(of_mma), in_eights, DIMENSIONS, is_small_in_eights);
    pairwise_shapes(&any, "experts, any GPU", of_any, COUNT(of_any), in_ones, DIMENSIONS, is_small_in_ones);
    pairwise_shapes(&buckets, "experts, buckets", of_buckets, COUNT(of_buckets), sorted, SORTED, NULL);
    tcase_add_unchecked_fixture(auto_cases, open_device_bf16, close_device);
    tcase_add_unchecked_fixture(mma_cases, open_device_bf16_mma, close_device);
    tcase_add_loop_test(auto_cases, products_on_hopper, 0, hopper.n_shapes);
    tcase_add_loop_test(auto_cases, products_on_any_gpu, 0, any.n_shapes);
    tcase_add_loop_test(auto_cases, slots_are_sorted, 0, buckets.n_shapes);
    tcase_add_test(auto_cases, too_many_are_refused);
    tcase_add_loop_test(mma_cases, products_on_other_tensor_cores, 0, mma.n_shapes);
}
