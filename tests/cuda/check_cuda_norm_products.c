/* check_cuda_norm_products.c - the sums of a norm head on the GPU at every boundary of their kernels: the bits of the sums made
 * plainly from the numbers of the slots, some of which are large; and router logits of slots. */
#include "tests/support/layer_sums_fixtures.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */
#include "tests/support/pairwise.h"

static exf_err e;

enum { N, E, K, H, Q, ROUNDED, LARGE, SHIFT, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 1025},  {"experts", 10, 512}, {"top-k", 1, 10}, {"hidden", 1, 7168},
                                       {"directions", 1, 256}, {"bfloat16", 0, 1},   {"large", 0, 2},  {"shift", 0, 1}};

static const boundary boundaries[] = {
    {"statistics/norm_products_cuda.cu", "ROWS", N, 64},
    {"statistics/norm_products_cuda.cu", "SLOT_STEP", N, 16}, /* slots of an expert that every token chose */
    {"statistics/norm_products_cuda.cu", "SLOTS", N, 512},
    {"statistics/norm_products_cuda.cu", "gridDim.x * SLOTS", N, 1026}, /* a block has two parts from 1025 on */
    {"statistics/norm_products_cuda.cu", "add_large, 64", N, 64},
    {"statistics/norm_products_cuda.cu", "STEP", H, 32},
    {"statistics/norm_products_cuda.cu", "EACH", H, 8}, /* of 16 bytes */
    {"statistics/norm_products_cuda.cu", "c.d_model", H, 7168},
    {"statistics/norm_products_cuda.cu", "COLUMNS", Q, 64},
    {"statistics/norm_products_cuda.cu", "TILE", Q, 16 - 5}, /* numbers beside the directions */
    {"statistics/norm_products_cuda.cu", "TILES", Q, 80 - 5}, /* 15 tiles, and 21 */
    {"statistics/norm_products_cuda.cu", "WARPS", Q, 80 - 5},
    {"statistics/norm_products_cuda.cu", "44 << 10", Q, 160 - 5}, /* one buffer from 156 on */
    {"artifact/tables.h", "EXF_NORM_MOST", Q, 256},
    {"statistics/norm_products_cuda.cu", "to->n_experts", E, 512 + 1}, /* the most */
    {"statistics/norm_products_cuda.cu", "0x1p9", LARGE, 1}, /* no number is, those of some tokens are, of all */
    {"statistics/norm_products_cuda.cu", "c->top_k, 128)", K, 2}, /* 128 slots of 64 tokens */
    {"statistics/norm_products_cuda.cu", "c->top_k, 128)", K, 10},
};

static size_t sums_each(int q)
{
    return (size_t)(q + 5) * (size_t)(q + 6) / 2;
}

static int is_valid(const shape *s)
{
    double numbers = s->at[Q] + 5, tokens = s->at[N];
    double products = tokens * s->at[K] * numbers * numbers;
    return s->at[K] <= s->at[E] && tokens * s->at[H] * s->at[Q] < 0x1p24 && s->at[E] * numbers * numbers < 1.25 * 0x1p21 &&
           products < (s->at[LARGE] == 2 ? 0x1p22 : 0x1p27);
}

static pairwise cases;

/* ---- what the tokens are ------------------------------------------------------------------------- */

typedef struct {
    routed r;       /* ids and weights */
    int h, q;
    float *x;       /* [T, H] integers, of some tokens large */
    double *basis;  /* [H, q] multiples of 1/64 */
    double *sq;     /* [T, K] */
    float *logits;  /* [T, K] on the grid */
} head_tokens;

/* Every token has expert 0; some slots are empty. */
static void choose_experts(routed *r)
{
    for (int t = 0; t < r->n; t++) {
        int32_t *ids = r->ids + t * r->top_k;
        int k = 0;
        while (k < r->top_k && ids[k] != 0) k++;
        if (k == r->top_k) ids[k = t % r->top_k] = 0;
        for (int i = 0; i < r->top_k; i++)
            if (i != k && draw(71, t * r->top_k + i, 5) == 0) ids[i] = -1;
    }
}

static head_tokens tokens_new(int n, int n_experts, int top_k, int h, int q, int large)
{
    head_tokens m = {.r = routed_new(n, n_experts, top_k, 1, 70), .h = h, .q = q};
    size_t slots = (size_t)(n * top_k), elements = (size_t)n * (size_t)h, of_basis = (size_t)h * (size_t)q;
    choose_experts(&m.r);
    m.x = test_memory(elements, sizeof *m.x);
    m.basis = test_memory(of_basis, sizeof *m.basis);
    m.sq = test_memory(slots, sizeof *m.sq);
    m.logits = test_memory(slots, sizeof *m.logits);
    for (size_t i = 0; i < elements; i++) {
        int times = large == 2 || (large == 1 && i / (size_t)h % 61 == 1) ? 1 << 12 : 1;
        m.x[i] = (float)(((int)((uint32_t)i * 2654435761u >> 16) % 7 - 3) * times);
    }
    for (size_t i = 0; i < of_basis; i++) m.basis[i] = ((int)((uint32_t)i * 2246822519u >> 16) % 3 - 1) / 64.0;
    for (size_t i = 0; i < slots; i++) {
        m.sq[i] = m.r.ids[i] < 0 ? NAN : (double)draw(72, (int)i, 50);
        m.logits[i] = (float)(draw(73, (int)i, 1 << 16) - (1 << 15)) / 4096;
    }
    return m;
}

static void tokens_free(head_tokens *m)
{
    exf_mem_free(m->x);
    exf_mem_free(m->basis);
    exf_mem_free(m->sq);
    exf_mem_free(m->logits);
    routed_free(&m->r);
}

/* ---- plain sums ------------------------------------------------------------------------------------ */

static double on_grid(double v)
{
    return rint(v * 4096) / 4096;
}

/* V'x and log ||x|| of all tokens: [T, q + 1]. */
static double *project(const head_tokens *m)
{
    size_t h = (size_t)m->h, q = (size_t)m->q;
    double *all = test_memory((size_t)m->r.n * (q + 1), sizeof *all);
    for (size_t t = 0; t < (size_t)m->r.n; t++) {
        double *to = all + t * (q + 1), sq = 0;
        for (size_t i = 0; i < h; i++) {
            double x = (double)m->x[t * h + i];
            sq += x * x;
            for (size_t k = 0; k < q; k++) to[k] += x * m->basis[i * q + k];
        }
        for (size_t k = 0; k < q; k++) to[k] = on_grid(to[k]);
        to[q] = on_grid(log(fmax(sqrt(sq), 1e-10)));
    }
    return all;
}

/* Fills a slot's numbers, and returns the largest magnitude. */
static double read_slot(double *z, const head_tokens *m, const double *projected, int slot)
{
    size_t q = (size_t)m->q;
    const double *own = projected + (size_t)(slot / m->r.top_k) * (q + 1);
    double most = 1;
    z[0] = 1;
    memcpy(z + 1, own, q * sizeof *z);
    z[q + 1] = (double)m->logits[slot];
    z[q + 2] = on_grid(log(fmax((double)m->r.weights[slot], 1e-6)));
    z[q + 3] = own[q];
    z[q + 4] = on_grid(0.5 * log(fmax(m->sq[slot], 1e-20)));
    for (size_t i = 1; i < q + 5; i++) most = fmax(most, fabs(z[i]));
    return most;
}

static int has_slots(const head_tokens *m, int expert)
{
    for (int slot = 0; slot < m->r.n * m->r.top_k; slot++)
        if (m->r.ids[slot] == expert) return 1;
    return 0;
}

/* Sums of an expert after `times` equal calls: products below 2^18 in double, others one by one. */
static void sum_expert(exf_exact *out, const head_tokens *m, const double *projected, int expert, int times)
{
    size_t n = (size_t)m->q + 5, all = sums_each(m->q);
    double *sum = test_memory(all, sizeof *sum), *z = test_memory(n, sizeof *z);
    memset(out, 0, all * sizeof *out);
    for (int slot = 0; slot < m->r.n * m->r.top_k; slot++) {
        if (m->r.ids[slot] != expert) continue;
        int is_small = read_slot(z, m, projected, slot) < 0x1p9;
        double *row = sum;
        for (size_t a = 0; is_small && a < n; row += ++a)
            for (size_t b = 0; b <= a; b++) row[b] += z[a] * z[b];
        exf_exact *exact = out;
        for (size_t a = 0; !is_small && a < n; exact += ++a)
            for (size_t b = 0; b <= a; b++) exf_exact_add(&exact[b], z[a] * z[b]);
    }
    for (size_t i = 0; i < all; i++) {
        exf_exact_add(&out[i], sum[i]);
        exf_exact once = out[i];
        for (int k = 1; k < times; k++) exf_exact_merge(&out[i], &once);
    }
    exf_mem_free(sum);
    exf_mem_free(z);
}

/* ---- on the device ---------------------------------------------------------------------------------- */

typedef struct {
    exf_norm_products_sums to;
    exf_norm_products_call c;
    void *memory; /* of x */
} head_device;

static size_t cells_bytes(const head_tokens *m)
{
    return (size_t)m->r.n_experts * sums_each(m->q) * EXF_NORM_WORDS * sizeof(uint64_t);
}

/* V as it lies in device memory. */
static double *put_basis(const head_tokens *m)
{
    size_t width = (size_t)exf_norm_basis_columns(m->q), h = (size_t)m->h, q = (size_t)m->q;
    size_t rows = (h + EXF_NORM_BASIS_ROWS - 1) / EXF_NORM_BASIS_ROWS * EXF_NORM_BASIS_ROWS;
    double *laid = test_memory(rows * width, sizeof *laid);
    for (size_t i = 0; i < h; i++) memcpy(laid + exf_norm_basis_row(i) * width, m->basis + i * q, q * sizeof *laid);
    double *on_device = device_put(&d, laid, rows * width * sizeof *laid);
    exf_mem_free(laid);
    return on_device;
}

/* x begins `shift` elements after a multiple of 16 bytes. */
static exf_matrix put_x(const head_tokens *m, int rounded, int shift, void **memory)
{
    size_t n = (size_t)m->r.n * (size_t)m->h, size = rounded ? 2 : 4;
    char *host = test_memory(n + 1, size);
    for (size_t i = 0; i < n; i++) {
        uint16_t half = to_bf16(m->x[i]);
        memcpy(host + ((size_t)shift + i) * size, rounded ? (void *)&half : (void *)&m->x[i], size);
    }
    *memory = device_put(&d, host, (n + 1) * size);
    exf_mem_free(host);
    return exf_matrix_at((exf_matrix){*memory, rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, (size_t)shift);
}

/* Scratch arrays are poisoned, and have one more of everything than is theirs. */
static head_device send(const head_tokens *m, int rounded, int shift)
{
    size_t t = (size_t)m->r.n, k = (size_t)m->r.top_k, n_experts = (size_t)m->r.n_experts, q = (size_t)m->q;
    size_t columns = (size_t)exf_norm_basis_columns(m->q) / EXF_NORM_BASIS_COLUMNS;
    head_device o = {.to = {.n_experts = m->r.n_experts, .directions = m->q, .tokens = m->r.n}};
    static const exf_sums_fault none;
    ck_ok(d.b->alloc(&o.to.cells, cells_bytes(m) + 8, 1, "test", &e), e);
    d.b->zero(d.q, o.to.cells, cells_bytes(m));
    d.b->upload(d.q, (char *)o.to.cells + cells_bytes(m), (uint64_t[]){UINT64_MAX}, 8);
    o.to.basis = put_basis(m);
    o.to.projected = device_put(&d, NULL, (t * q + 1) * sizeof(double));
    o.to.norm = device_put(&d, NULL, (t + 1) * sizeof(double));
    o.to.most = device_put(&d, NULL, (columns * t + 1) * sizeof(double));
    o.to.after = device_put(&d, NULL, (t * k * EXF_NORM_AFTER + 1) * sizeof(double));
    o.to.list = device_put(&d, NULL, (n_experts * t + 1) * sizeof(int32_t));
    o.to.large = device_put(&d, NULL, (t * k + 1) * sizeof(int32_t));
    o.to.found = device_put(&d, NULL, ((n_experts + 1) * EXF_NORM_APART + 1) * sizeof(int32_t));
    o.to.bad = device_put(&d, &none, sizeof none);
    o.c = (exf_norm_products_call){.top_k = m->r.top_k, .d_model = m->h, .n_tokens = m->r.n,
                                   .x = put_x(m, rounded, shift, &o.memory), .sq = device_put(&d, m->sq, t * k * sizeof *m->sq),
                                   .ids = device_put(&d, m->r.ids, t * k * 4), .weights = device_put(&d, m->r.weights, t * k * 4),
                                   .logits = device_put(&d, m->logits, t * k * 4), .row = 1000};
    return o;
}

/* Frees memory whose last `bytes` nobody has written. */
static void free_guarded(void *p, size_t used, size_t bytes, const char *what)
{
    unsigned char left[8];
    ck_ok(d.b->download(d.q, left, (char *)p + used, bytes, &e), e);
    for (size_t i = 0; i < bytes; i++) ck_assert_msg(left[i] == 0xff, "%s: something was written beyond the end", what);
    d.b->free(p);
}

static void device_free(head_device *o, const head_tokens *m)
{
    size_t t = (size_t)m->r.n, k = (size_t)m->r.top_k, n_experts = (size_t)m->r.n_experts, q = (size_t)m->q;
    size_t columns = (size_t)exf_norm_basis_columns(m->q) / EXF_NORM_BASIS_COLUMNS;
    free_guarded(o->to.cells, cells_bytes(m), 8, "cells");
    free_guarded(o->to.projected, t * q * sizeof(double), 8, "projected");
    free_guarded(o->to.norm, t * sizeof(double), 8, "norm");
    free_guarded(o->to.most, columns * t * sizeof(double), 8, "most");
    free_guarded(o->to.after, t * k * EXF_NORM_AFTER * sizeof(double), 8, "after");
    free_guarded(o->to.list, n_experts * t * sizeof(int32_t), 4, "list");
    free_guarded(o->to.large, t * k * sizeof(int32_t), 4, "large");
    free_guarded(o->to.found, (n_experts + 1) * EXF_NORM_APART * sizeof(int32_t), 4, "found");
    const void *rest[] = {o->to.basis, o->to.bad, o->memory, o->c.sq, o->c.ids, o->c.weights, o->c.logits};
    for (int i = 0; i < COUNT(rest); i++) d.b->free((void *)(uintptr_t)rest[i]);
}

/* Returns the sum whose signed digits in units of 2^-24, 2^8 and 2^40 these are. */
static exf_exact carried(const uint64_t digit[EXF_NORM_WORDS])
{
    exf_exact sum = {{0, 0, 0}};
    for (int i = 0; i < EXF_NORM_WORDS; i++) {
        int negative = digit[i] >> 63 != 0;
        exf_exact t = exf_exact_place(negative ? 0 - digit[i] : digit[i], 96 - 24 + 32 * i);
        if (negative) exf_exact_negate(&t);
        exf_exact_merge(&sum, &t);
    }
    return sum;
}

static void compare(const uint64_t *cells, const head_tokens *m, int times, const shape *s)
{
    size_t all = sums_each(m->q);
    double *projected = project(m);
    exf_exact *want = test_memory(all, sizeof *want);
    for (int expert = 0; expert < m->r.n_experts; expert++) {
        const uint64_t *own = cells + (size_t)expert * all * EXF_NORM_WORDS;
        if (!has_slots(m, expert) && own[0] == 0 && memcmp(own, own + 1, (all * EXF_NORM_WORDS - 1) * sizeof *own) == 0) continue;
        sum_expert(want, m, projected, expert, times);
        for (size_t i = 0; i < all; i++) {
            exf_exact got = carried(own + i * EXF_NORM_WORDS);
            ck_assert_msg(memcmp(&got, &want[i], sizeof got) == 0, "%s: expert %d, product %zu: %.17g, expected %.17g",
                          pairwise_name(dimensions, DIMENSIONS, s), expert, i, exf_exact_value(&got), exf_exact_value(&want[i]));
        }
    }
    exf_mem_free(want);
    exf_mem_free(projected);
}

START_TEST(sums_are_the_plain_ones)
{
    const shape *s = &cases.shapes[_i];
    head_tokens m = tokens_new(s->at[N], s->at[E], s->at[K], s->at[H], s->at[Q], s->at[LARGE]);
    head_device o = send(&m, s->at[ROUNDED], s->at[SHIFT]);
    exf_sums_fault bad;
    for (int twice = 0; twice < 2; twice++) d.b->gpu->norm_products_add(d.q, &o.to, &o.c);
    ck_ok(d.b->download(d.q, &bad, o.to.bad, sizeof bad, &e), e);
    ck_assert_uint_eq(bad.place, 0);
    uint64_t *cells = device_get(&d, o.to.cells, cells_bytes(&m));
    compare(cells, &m, 2, s);
    exf_mem_free(cells);
    device_free(&o, &m);
    tokens_free(&m);
}
END_TEST

/* The first token with a number that is none, or outside of 2^31. */
START_TEST(a_number_out_of_range_names_its_token)
{
    enum { TOKENS = 70, DIRECTIONS = 70 };
    head_tokens m = tokens_new(TOKENS, 6, 2, 40, DIRECTIONS, 0);
    exf_sums_fault bad;
    int slot = 2 * 66;
    if (m.r.ids[slot] < 0) slot++;
    if (_i == 0) m.x[66 * 40 + 7] = NAN;
    if (_i == 1) m.logits[slot] = 0x1p31f;
    if (_i == 2) m.logits[slot] = -0x1p32f;
    m.logits[2 * 68] = m.logits[2 * 68 + 1] = INFINITY; /* of a later one */
    head_device o = send(&m, 0, 0);
    d.b->gpu->norm_products_add(d.q, &o.to, &o.c);
    ck_ok(d.b->download(d.q, &bad, o.to.bad, sizeof bad, &e), e);
    ck_assert_uint_eq(~bad.place, 1066);
    ck_assert_int_eq(bad.b, _i == 0 ? 1 : DIRECTIONS + 1);
    if (_i > 0) ck_assert_int_eq(bad.a, m.r.ids[slot]);
    if (_i > 0) ck_assert_double_eq(bad.x, _i == 1 ? 0x1p31 : -0x1p32);
    if (_i == 0) ck_assert(isnan(bad.x));
    device_free(&o, &m);
    tokens_free(&m);
}
END_TEST

/* ---- logits of slots ----------------------------------------------------------------------------------- */

enum { LOGIT_DIMENSIONS = 3 };
static const dimension logit_dimensions[] = {{"tokens", 1, 600}, {"experts", 2, 512}, {"top-k", 1, 64}};

static const boundary logit_boundaries[] = {
    {"statistics/norm_products_cuda.cu", "blockIdx.x * 4", N, 4},
    {"statistics/norm_products_cuda.cu", "e += 32", E, 32},
    {"statistics/norm_products_cuda.cu", "e += 32", E, 512},
    {"statistics/norm_products_cuda.cu", "k += 32", K, 32},
    {"model/architecture.h", "EXF_MAX_TOP_K", K, 64},
};

static int logits_are_valid(const shape *s)
{
    return s->at[K] <= s->at[E];
}

static pairwise logit_cases;

START_TEST(logits_of_slots_are_less_their_mean)
{
    const shape *s = &logit_cases.shapes[_i];
    routed r = routed_new(s->at[N], s->at[E], s->at[K], 1, 74);
    size_t slots = (size_t)(r.n * r.top_k), n = (size_t)(r.n * r.n_experts);
    float *logits = test_memory(n, sizeof *logits);
    choose_experts(&r);
    for (size_t i = 0; i < n; i++) logits[i] = (float)(draw(75, (int)i, 1 << 14) - (1 << 13)) / 1024;
    float *on_device = device_put(&d, logits, n * 4), *out = device_put(&d, NULL, (slots + 1) * 4);
    int32_t *ids = device_put(&d, r.ids, slots * 4);
    d.b->gpu->slot_logits(d.q, out, on_device, ids, r.n, r.n_experts, r.top_k);
    float *got = device_get(&d, out, slots * 4);
    for (size_t i = 0; i < slots; i++) {
        const float *own = logits + i / (size_t)r.top_k * (size_t)r.n_experts;
        double mean = 0;
        for (int k = 0; k < r.n_experts; k++) mean += (double)own[k];
        float want = r.ids[i] < 0 ? 0 : (float)on_grid((double)own[r.ids[i]] - mean / r.n_experts);
        ck_assert_msg(got[i] == want, "%s: slot %zu: %.9g, expected %.9g", pairwise_name(logit_dimensions, LOGIT_DIMENSIONS, s), i,
                      (double)got[i], (double)want);
    }
    free_guarded(out, slots * 4, 4, "logits of slots");
    d.b->free(on_device);
    d.b->free(ids);
    exf_mem_free(got);
    exf_mem_free(logits);
    routed_free(&r);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "norm head sums", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&logit_cases, "slot logits", logit_boundaries, COUNT(logit_boundaries), logit_dimensions, LOGIT_DIMENSIONS,
                    logits_are_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, sums_are_the_plain_ones, 0, cases.n_shapes);
    tcase_add_loop_test(t, a_number_out_of_range_names_its_token, 0, 3);
    tcase_add_loop_test(t, logits_of_slots_are_less_their_mean, 0, logit_cases.n_shapes);
}
