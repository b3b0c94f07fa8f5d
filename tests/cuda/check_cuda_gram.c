/* check_cuda_gram.c - the pair sums of tokens that all experts ran on, on the GPU against
 * the CPU's: the same bits where every product is exact, within the stated bound else, and
 * the same bits wherever a token's products are made. */
#include "tests/support/device_sums_fixtures.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */
#include "tests/support/pairwise.h"

static exf_err e;

enum { N, E, H, WEIGHTING, ROUNDED, DIMENSIONS };
static const dimension dimensions[] = {
    {"tokens", 1, 129}, {"experts", 2, 512}, {"hidden", 3, 7168}, {"weighting", 0, 1}, {"bfloat16", 0, 1}};

static const boundary boundaries[] = {
    {"statistics/layer_sums_common_cuda.cu", "ROWS", E, 8}, /* of pairs a block */
    {"statistics/layer_sums_common_cuda.cu", "COLUMNS", E, 32},
    {"statistics/layer_sums_common_cuda.cu", "(size_t)n * e, 256)", E, 2}, /* 128 tokens' norms */
    {"statistics/layer_sums_common_cuda.cu", "THREADS", E, 256},
    {"statistics/layer_sums_common_cuda.cu", "gemm_batched", E, 512 + 1}, /* the most */
    {"statistics/layer_sums_common_cuda.cu", "CUDA_R_16BF", H, 8}, /* of 16 bytes */
    {"statistics/layer_sums_common_cuda.cu", "gemm_batched", H, 7168},
    {"statistics/layer_sums_common_cuda.cu", "UNIT", N, 8},
    {"statistics/layer_sums.h", "most > 128", N, 128}, /* of a call */
};

/* The CPU's reference takes a tenth of a second; of the largest model's token more. */
static int is_valid(const shape *s)
{
    double products = (double)s->at[N] * s->at[E] * s->at[E] * s->at[H];
    return products < (s->at[N] > 1 ? 0x1p27 : 0x1p29) || (s->at[N] == 1 && s->at[E] == 512 && s->at[H] == 7168);
}

static pairwise cases;

/* Each token's n_experts outputs, [n, E, H]: the fixture's, whose slots are the experts. */
typedef struct {
    routed r;
    int n, n_experts, d_model;
} shown;

static shown integers(int n, int n_experts, int d_model)
{
    return (shown){routed_integers(n * n_experts, 2, 1, d_model, 21), n, n_experts, d_model};
}

static shown integers_of(const shape *s)
{
    return integers(s->at[N], s->at[E], s->at[H]);
}

/* bfloat16 numbers of different sizes, so that both types hold them. */
static shown reals_of(const shape *s)
{
    shown x = integers_of(s);
    for (size_t i = 0; i < (size_t)(x.n * x.n_experts * x.d_model); i++)
        x.r.outputs[i] = of_bf16(to_bf16(real_at(22, i, (float)(1 << (i / (size_t)x.d_model % 7)))));
    return x;
}

static exf_layer_statistics on_cpu(const shown *x, exf_weighting w)
{
    exf_layer_statistics s;
    size_t each = (size_t)(x->n_experts * x->d_model);
    double *scratch = test_memory(exf_layer_sums_common_input_scratch(x->n_experts, x->d_model), sizeof *scratch);
    ck_ok(exf_layer_statistics_new(&s, x->n_experts, &e), e);
    exf_layer_sums m = moments_of(&s);
    for (int at = 0; at < x->n; at += EXF_COMMON_INPUT_UNIT) {
        int n = x->n - at < EXF_COMMON_INPUT_UNIT ? x->n - at : EXF_COMMON_INPUT_UNIT;
        ck_ok(
            exf_layer_sums_add_common_input_cpu(&m, x->n_experts, x->d_model, n, x->r.outputs + (size_t)at * each, w, scratch, &e),
            e);
    }
    exf_mem_free(scratch);
    return s;
}

/* The device's memory of one call. */
typedef struct {
    exf_gram_call call;
    void *outputs, *sums;
    int32_t *row;
    char *host; /* poisoned, of the outputs' bytes */
    size_t bytes, each; /* of outputs; of a token's */
    int rounded;
} device_products;

static device_products device_products_new(int n_experts, int d_model, int n_products, int rounded)
{
    device_products t = {.rounded = rounded, .each = (size_t)(n_experts * d_model) * (rounded ? 2 : 4)};
    int32_t *row = test_memory((size_t)n_products, sizeof *row);
    for (int i = 0; i < n_products; i++) row[i] = i;
    t.bytes = t.each * (size_t)n_products;
    t.host = test_memory(t.bytes, 1);
    t.outputs = device_put(&d, NULL, t.bytes);
    t.row = device_put(&d, row, (size_t)n_products * 4);
    ck_ok(d.b->alloc(&t.sums, d.b->gpu->layer_sums_bytes(n_experts), 1, "sums", &e), e);
    t.call = (exf_gram_call){.n_experts = n_experts, .d_model = d_model, .n_products = n_products,
                              .outputs = {t.outputs, rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32},
                              .gram_matrices = device_put(&d, NULL, d.b->gpu->gram_matrices_bytes(n_experts, n_products))};
    exf_mem_free(row);
    return t;
}

static void device_products_free(device_products *t)
{
    d.b->free(t->outputs);
    d.b->free(t->sums);
    d.b->free(t->row);
    d.b->free(t->call.gram_matrices);
    exf_mem_free(t->host);
}

/* Tokens [at, at + n) of x at place `first` of a call, NaN in all others, and their sums. */
static void add(device_products *t, const shown *x, int at, int n, int first, exf_weighting w)
{
    size_t values = (size_t)(x->n_experts * x->d_model);
    memset(t->host, 0xff, t->bytes);
    for (size_t i = 0; i < (size_t)n * values; i++) {
        const float *v = x->r.outputs + (size_t)at * values + i;
        uint16_t half = to_bf16(*v);
        char *to = t->host + (size_t)first * t->each;
        if (t->rounded)
            memcpy(to + 2 * i, &half, 2);
        else
            memcpy(to + 4 * i, v, 4);
    }
    exf_common_input_call c = {.of = &t->call, .first = first, .n_tokens = n, .weighting = w, .row = t->row, .row_offset = at};
    d.b->upload(d.q, t->outputs, t->host, t->bytes);
    d.b->gpu->gram_matrices(d.q, &t->call);
    d.b->gpu->layer_sums_add_common_input(d.q, t->sums, &c);
    ck_ok(d.b->finish(d.q, &e), e);
}

/* Calls of `places` tokens that have as many of them as there are, or a unit each at places all over the call. */
static exf_layer_statistics on_gpu(const shown *x, exf_weighting w, int rounded, int places, int scattered)
{
    exf_layer_statistics s;
    int most = scattered ? EXF_COMMON_INPUT_UNIT : places / EXF_COMMON_INPUT_UNIT * EXF_COMMON_INPUT_UNIT;
    device_products t = device_products_new(x->n_experts, x->d_model, places, rounded);
    for (int at = 0; at < x->n; at += most) {
        int n = x->n - at < most ? x->n - at : most;
        add(&t, x, at, n, scattered ? (5 * at + 3) % (places - n + 1) : (places - n) / 2, w);
    }
    ck_ok(exf_layer_statistics_new(&s, x->n_experts, &e), e);
    exf_layer_sums m = moments_of(&s);
    exf_sums_place place;
    ck_ok(d.b->gpu->layer_sums_take(d.q, t.sums, &m, NULL, x->n_experts, &place, &e), e);
    device_products_free(&t);
    return s;
}

/* As many places as a run has in a call, or a few more than the tokens. */
static int places_of(const shape *s)
{
    int full = exf_gram_tokens(s->at[E]), few = s->at[N] + EXF_COMMON_INPUT_UNIT;
    return few < full ? few : full;
}

/* Of pairs alone: nobody added to an expert. */
static void compare(const exf_layer_statistics *a, const exf_layer_statistics *b, double bound, const char *what, const shape *s)
{
    static char about[320];
    for (int i = 0; i < b->n_experts; i++) ck_assert_uint_eq(b->norm_count[i], 0);
    if (memcmp(a->dot, b->dot, exf_layer_statistics_bytes(a->n_experts)) == 0) return;
    snprintf(about, sizeof about, "%s, %s", what, pairwise_name(dimensions, DIMENSIONS, s));
    compare_sums(a, b, bound, 0x1p-21, about); /* inverse norms are float32 */
}

START_TEST(exact_where_products_are)
{
    const shape *s = &cases.shapes[_i];
    shown x = integers_of(s);
    exf_weighting w = (exf_weighting)s->at[WEIGHTING];
    exf_layer_statistics a = on_cpu(&x, w), b = on_gpu(&x, w, s->at[ROUNDED], places_of(s), 0);
    compare(&a, &b, 0, "integers", s);
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    routed_free(&x.r);
}
END_TEST

/* What the kernels add up is the same for all numbers: models of up to 300 experts. */
static int is_small(const shape *s)
{
    return s->at[E] <= 300 && (int64_t)exf_gram_tokens(s->at[E]) * s->at[E] * s->at[H] < 1 << 25;
}

START_TEST(reals_are_within_the_bound)
{
    const shape *s = &cases.shapes[_i];
    if (!is_small(s)) return;
    shown x = reals_of(s);
    exf_weighting w = (exf_weighting)s->at[WEIGHTING];
    exf_layer_statistics a = on_cpu(&x, w), b = on_gpu(&x, w, s->at[ROUNDED], places_of(s), 0);
    compare(&a, &b, 2 * 0x1p-24 * x.d_model, "reals", s); /* a weight and what it multiplies may both be off */
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    routed_free(&x.r);
}
END_TEST

START_TEST(places_change_no_bit)
{
    const shape *s = &cases.shapes[_i];
    if (!is_small(s)) return;
    shown x = reals_of(s);
    int places = exf_gram_tokens(s->at[E]);
    exf_layer_statistics a = on_gpu(&x, EXF_WEIGHT_SOURCE_NORM, s->at[ROUNDED], places, 0),
                         b = on_gpu(&x, EXF_WEIGHT_SOURCE_NORM, s->at[ROUNDED], places, 1);
    compare(&a, &b, 0, "places", s);
    exf_layer_statistics_free(&a);
    exf_layer_statistics_free(&b);
    routed_free(&x.r);
}
END_TEST

/* A library may choose how it multiplies by the size of the batch, so this is what all
 * rests on: one token at every place of a call of real width has the same products. */
START_TEST(every_place_of_a_call_gives_the_same_products)
{
    static const struct {
        int e, h;
    } wide[] = {{3, 48}, {17, 104}, {60, 2048}, {64, 2048}, {128, 2048}, {128, 4096}, {256, 2048}, {256, 4096}, {512, 2048}};
    int n = exf_gram_tokens(wide[_i].e), rounded = 1;
    size_t cells = (size_t)(wide[_i].e * wide[_i].e), values = (size_t)(wide[_i].e * wide[_i].h);
    device_products t = device_products_new(wide[_i].e, wide[_i].h, n, rounded);
    for (size_t i = 0; i < values; i++) {
        uint16_t half = to_bf16(real_at(23, i, 2));
        for (int k = 0; k < n; k++) memcpy(t.host + (size_t)k * t.each + 2 * i, &half, 2);
    }
    d.b->upload(d.q, t.outputs, t.host, t.bytes);
    d.b->gpu->gram_matrices(d.q, &t.call);
    size_t bytes = d.b->gpu->gram_matrices_bytes(wide[_i].e, n);
    char *gram_matrices = device_get(&d, t.call.gram_matrices, bytes),
         *c = gram_matrices + bytes - (size_t)n * cells * sizeof(float);
    for (int k = 1; k < n; k++)
        ck_assert_msg(memcmp(c, c + (size_t)k * cells * sizeof(float), cells * sizeof(float)) == 0,
                      "E %d, H %d: place %d differs from place 0", wide[_i].e, wide[_i].h, k);
    exf_mem_free(gram_matrices);
    device_products_free(&t);
}
END_TEST

START_TEST(an_output_out_of_range_names_its_token)
{
    exf_layer_statistics s;
    static const float bad[] = {NAN, INFINITY, 1e8f};
    shown x = integers(70, 60, 64);
    ck_ok(exf_layer_statistics_new(&s, x.n_experts, &e), e);
    for (int i = 0; i < 6; i++) {
        device_products t = device_products_new(x.n_experts, x.d_model, 32, i % 2);
        x.r.outputs[(size_t)((13 * x.n_experts + 57) * x.d_model + 5)] = bad[i / 2];
        x.r.outputs[(size_t)((17 * x.n_experts + 2) * x.d_model + 1)] = NAN;
        add(&t, &x, 1, 30, 2, EXF_WEIGHT_NONE);
        exf_layer_sums m = moments_of(&s);
        exf_sums_place place;
        ck_fails(d.b->gpu->layer_sums_take(d.q, t.sums, &m, NULL, x.n_experts, &place, &e), EXF_NUMERIC, e,
                 "57");
        ck_assert_ptr_null(strstr(e.msg, "router weight"));
        ck_assert_int_eq(place.row, 13);
        device_products_free(&t);
    }
    exf_layer_statistics_free(&s);
    routed_free(&x.r);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "common input", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, exact_where_products_are, 0, cases.n_shapes);
    tcase_add_loop_test(t, reals_are_within_the_bound, 0, cases.n_shapes);
    tcase_add_loop_test(t, places_change_no_bit, 0, cases.n_shapes);
    tcase_add_loop_test(t, every_place_of_a_call_gives_the_same_products, 0, 9);
    tcase_add_test(t, an_output_out_of_range_names_its_token);
}
