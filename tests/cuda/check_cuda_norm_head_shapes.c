/* check_cuda_norm_head_shapes.c - norms that a head predicts on the GPU (kernels/fold/norm_head.h) beside its formula in double, at
 * shapes made from the kernel's constants, from inputs of either form. */
#include "tests/support/pairwise.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

enum { TOKENS, EXPERTS, TOP_K, WIDTH, DIRECTIONS, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 16385}, {"experts", 1, 129}, {"top-k", 1, 65}, {"width", 8, 257},
                                       {"directions", 1, 256}};

static const boundary boundaries[] = {
    {"fold/norm_head_cuda.cu", "PREDICT_TOKENS", TOKENS, 4},
    {"fold/norm_head_cuda.cu", "TOKENS_AT_ONCE", TOKENS, 16384},
    {"fold/norm_head_cuda.cu", "e < c.n_experts; e += 32", EXPERTS, 32},
    {"fold/norm_head_cuda.cu", "#pragma unroll 4", EXPERTS, 4 * 32},
    {"fold/norm_head_cuda.cu", "PREDICT_THREADS / SLOT_LANES", TOP_K, 256 / 8 / 4},
    {"fold/norm_head_cuda.cu", "k < c.top_k; k += 32", TOP_K, 32},
    {"fold/norm_head_cuda.cu", "PREDICT_THREADS", TOP_K, 256 / 4}, /* a thread finishes two slots */
    {"fold/norm_head_cuda.cu", "i < c.d_model; i += 32", WIDTH, 32},
    {"fold/norm_head_cuda.cu", "(size_t)directions, 256), (unsigned)n_layers", WIDTH, 256}, /* of one direction */
    {"fold/norm_head_cuda.cu", "SLOT_LANES", DIRECTIONS, 8},
    {"fold/norm_head_cuda.cu", "r < q; r += 32", DIRECTIONS, 32},
    {"fold/norm_head_cuda.cu", "#pragma unroll 8", DIRECTIONS, 8 * 8},
    {"fold/norm_head.h", "EXF_NORM_HEAD_MOST", DIRECTIONS, 256},
};

static int is_valid(const shape *s)
{
    int64_t n = s->at[TOKENS];
    return n * s->at[WIDTH] * s->at[DIRECTIONS] <= 1 << 22 && n * s->at[TOP_K] * s->at[DIRECTIONS] <= 1 << 22 &&
           n * s->at[EXPERTS] <= 1 << 20;
}

static pairwise cases;

enum { GUARD = 64 }; /* bytes after the norms, which no kernel may write */

/* Tokens of a layer and its head on the host. */
typedef struct {
    size_t n, experts, k, width, q;
    float *x, *squares, *basis, *theta, *logits, *weights;
    uint16_t *parts; /* x in two terms */
    int32_t *ids;
    double *projected; /* [n, q] V'x */
} head;

static float *reals(size_t n, uint64_t seed, float scale)
{
    float *x = test_memory(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = real_at(seed, i, scale);
    return x;
}

static void fill_inputs(head *h)
{
    for (size_t t = 0; t < h->n; t++) {
        double square = 0;
        for (size_t i = 0; i < h->width; i++) {
            float x = h->x[t * h->width + i];
            uint16_t *to = h->parts + t * 2 * h->width + i;
            square += (double)x * (double)x;
            to[0] = to_bf16(x);
            to[h->width] = to_bf16(x - of_bf16(to[0]));
            for (size_t r = 0; r < h->q; r++) h->projected[t * h->q + r] += (double)x * (double)h->basis[i * h->q + r];
        }
        h->squares[t] = (float)square;
    }
}

/* One slot in seven has no expert; experts come twice in a token where there are fewer than K. */
static head head_of(const shape *s)
{
    head h = {(size_t)s->at[TOKENS], (size_t)s->at[EXPERTS], (size_t)s->at[TOP_K], (size_t)s->at[WIDTH], (size_t)s->at[DIRECTIONS],
              NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    size_t slots = h.n * h.k;
    h.x = reals(h.n * h.width, 21, 1);
    h.basis = reals(h.width * h.q, 22, 0.1f);
    h.theta = reals(h.experts * (h.q + 4), 23, 0.3f);
    h.logits = reals(h.n * h.experts, 24, 2);
    h.weights = reals(slots, 25, 0.45f);
    h.squares = test_memory(h.n, sizeof *h.squares);
    h.parts = test_memory(2 * h.n * h.width, sizeof *h.parts);
    h.ids = test_memory(slots, sizeof *h.ids);
    h.projected = test_memory(h.n * h.q, sizeof *h.projected);
    for (size_t i = 0; i < slots; i++) {
        h.weights[i] += 0.5f;
        h.ids[i] = i % 7 == 3 ? -1 : (int32_t)((i * 5 + i / h.k) % h.experts);
    }
    fill_inputs(&h);
    return h;
}

static void head_free(head *h)
{
    void *all[] = {h->x, h->squares, h->basis, h->theta, h->logits, h->weights, h->parts, h->ids, h->projected};
    for (int i = 0; i < COUNT(all); i++) exf_mem_free(all[i]);
}

static double norm_of(const head *h, size_t slot)
{
    size_t t = slot / h->k, first = t * h->k, id = (size_t)h->ids[slot];
    const float *theta = h->theta + id * (h->q + 4), *logits = h->logits + t * h->experts;
    double mean = 0, square = 0, sum = (double)theta[0];
    while (h->ids[first] != h->ids[slot]) first++;
    for (size_t e = 0; e < h->experts; e++) mean += (double)logits[e] / (double)h->experts;
    for (size_t i = 0; i < h->width; i++) square += (double)h->x[t * h->width + i] * (double)h->x[t * h->width + i];
    for (size_t r = 0; r < h->q; r++) sum += (double)theta[1 + r] * h->projected[t * h->q + r];
    sum += (double)theta[h->q + 1] * ((double)logits[id] - mean) + (double)theta[h->q + 2] * log((double)h->weights[first]);
    return exp(sum + (double)theta[h->q + 3] * log(square) / 2);
}

/* Both results, guards included, and the least row of a bad norm. */
typedef struct {
    float *norms;
    int32_t *routed;
    uint64_t bad;
} predicted;

static predicted on_gpu(const head *h, int split)
{
    static const uint64_t none = UINT64_MAX;
    size_t slots = h->n * h->k, bytes = slots * 4 + GUARD;
    void *there[] = {split ? device_put(&d, h->parts, h->n * h->width * 4) : device_put(&d, h->x, h->n * h->width * 4),
                     device_put(&d, h->squares, h->n * 4), device_put(&d, h->basis, h->width * h->q * 4),
                     device_put(&d, NULL, h->width * h->q * EXF_NORM_HEAD_ROWS * 2),
                     device_put(&d, h->theta, h->experts * (h->q + 4) * 4), device_put(&d, h->logits, h->n * h->experts * 4),
                     device_put(&d, h->ids, slots * 4), device_put(&d, h->weights, slots * 4), device_put(&d, NULL, bytes),
                     device_put(&d, NULL, bytes), device_put(&d, &none, sizeof none)};
    exf_norm_head_call c = {.n_tokens = (int)h->n, .n_experts = (int)h->experts, .top_k = (int)h->k, .d_model = (int)h->width,
                            .directions = (int)h->q, .x = there[0], .split = split, .squares = split ? there[1] : NULL,
                            .basis = there[2], .rows = there[3], .theta = there[4], .logits = there[5], .ids = there[6],
                            .weights = there[7], .norms = there[8], .routed = there[9], .bad = there[10], .row = 7};
    exf_err err;
    d.b->gpu->norm_head_rows(d.q, there[3], there[2], 1, c.d_model, c.directions);
    d.b->gpu->predict_norms(d.q, &c);
    ck_ok(d.b->finish(d.q, &err), err);
    predicted p = {device_get(&d, there[8], bytes), device_get(&d, there[9], bytes), 0};
    uint64_t *bad = device_get(&d, there[10], sizeof *bad);
    p.bad = *bad;
    exf_mem_free(bad);
    for (int i = 0; i < COUNT(there); i++) d.b->free(there[i]);
    return p;
}

START_TEST(norms_are_those_of_the_head)
{
    const char *what = pairwise_name(dimensions, DIMENSIONS, &cases.shapes[_i]);
    head h = head_of(&cases.shapes[_i]);
    size_t slots = h.n * h.k;
    for (int split = 0; split < 2; split++) {
        predicted p = on_gpu(&h, split);
        ck_assert_msg(p.bad == UINT64_MAX, "%s: row %llu is bad", what, (unsigned long long)p.bad);
        ck_assert_msg(is_poison(p.norms + slots, GUARD) && is_poison(p.routed + slots, GUARD), "%s: written beyond the end", what);
        for (size_t i = 0; i < slots; i++) {
            ck_assert_msg(p.routed[i] == h.ids[i], "%s: slot %zu: expert %d", what, i, (int)p.routed[i]);
            if (h.ids[i] < 0) continue;
            double want = norm_of(&h, i);
            ck_assert_msg(fabs((double)p.norms[i] / want - 1) <= (split ? 1e-3 : 2e-5),
                          "%s, split %d, slot %zu: %.9g, expected %.9g", what, split, i, (double)p.norms[i], want);
        }
        exf_mem_free(p.norms);
        exf_mem_free(p.routed);
    }
    head_free(&h);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    pairwise_shapes(&cases, "norm head", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    tcase_add_unchecked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, norms_are_those_of_the_head, 0, cases.n_shapes);
}
