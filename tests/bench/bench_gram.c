/* bench_gram.c - common input on the GPU: all experts on T tokens, their products, the
 * sums of all pairs, beside what a large product reaches in the same run.
 * usage: bench_gram [E H I T]     (default: DeepSeek-V4-Flash's experts, 4096 tokens) */
#include "tests/bench/ceilings.h"

typedef struct {
    const exf_backend *b;
    exf_queue *q;
    int n_experts, d_model, d_expert, n_tokens, places; /* places: tokens of one call */
    uint16_t *outputs; /* [T, E, H] */
    void *gram_matrices, *sums;
    int32_t *row;
} bench;

/* All tokens, as one sequence's. */
static void run_all(const bench *c, int products, int sums)
{
    for (int at = 0; at < c->n_tokens; at += c->places) {
        exf_gram_call g = {.n_experts = c->n_experts, .d_model = c->d_model, .n_products = c->places,
                            .outputs = exf_bf16(c->outputs + (size_t)at * (size_t)c->n_experts * (size_t)c->d_model),
                            .gram_matrices = c->gram_matrices};
        exf_common_input_call s = {.of = &g, .n_tokens = c->n_tokens - at < c->places ? c->n_tokens - at : c->places,
                             .weighting = EXF_WEIGHT_SOURCE_NORM, .row = c->row, .row_offset = at};
        if (products) c->b->gpu->gram_matrices(c->q, &g);
        if (sums) c->b->gpu->layer_sums_add_common_input(c->q, c->sums, &s);
    }
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds. */
static double seconds(const bench *c, int products, int sums)
{
    enum { RUNS = 9 };
    double t[RUNS];
    run_all(c, products, sums);
    for (int i = 0; i < RUNS; i++) {
        must(c->b->finish(c->q, &err));
        double start = exf_clock();
        run_all(c, products, sums);
        must(c->b->finish(c->q, &err));
        t[i] = exf_clock() - start;
    }
    qsort(t, RUNS, sizeof *t, rising);
    return t[RUNS / 2];
}

/* All experts on as many tokens as fit the outputs of `places` tokens four times. */
static void run_experts(const bench *c, double ceiling)
{
    int n = 4 * c->places < c->n_tokens ? 4 * c->places : c->n_tokens;
    exf_expert_shape s = {
        .n_tokens = n, .n_experts = c->n_experts, .top_k = c->n_experts, .d_model = c->d_model, .d_expert = c->d_expert};
    size_t each = (size_t)c->n_experts * (size_t)c->d_model * (size_t)c->d_expert, slots = (size_t)n * (size_t)c->n_experts;
    int32_t *ids = malloc(slots * sizeof *ids);
    if (!ids) exit(EXF_NOSPACE);
    uint16_t *w[3] = {random_bf16(c->b, c->q, each, 0.03f), random_bf16(c->b, c->q, each, 0.03f),
                      random_bf16(c->b, c->q, each, 0.03f)};
    uint16_t *x = random_bf16(c->b, c->q, (size_t)n * (size_t)c->d_model, 2);
    exf_expert_matrices m = {.gate = exf_bf16(w[0]), .up = exf_bf16(w[1]), .down = exf_bf16(w[2])};
    exf_matrix out = exf_bf16(c->outputs);
    void *space = device_room(c->b, c->b->experts_workspace(&s, EXF_NUMBER_BF16)),
         *on_device = device_room(c->b, slots * sizeof *ids);
    for (size_t i = 0; i < slots; i++) ids[i] = (int32_t)(i % (size_t)c->n_experts);
    c->b->upload(c->q, on_device, ids, slots * sizeof *ids);
    c->b->experts(c->q, out, exf_bf16(x), on_device, &m, &s, space);
    must(c->b->finish(c->q, &err));
    double start = exf_clock();
    for (int i = 0; i < 5; i++) c->b->experts(c->q, out, exf_bf16(x), on_device, &m, &s, space);
    must(c->b->finish(c->q, &err));
    double took = (exf_clock() - start) / 5, rate = 6.0 * (double)slots * c->d_model * c->d_expert / took;
    printf("  all experts on %d tokens   %8.3f ms  %6.0f TFLOP/s  %5.1f %% of the ceiling\n", n, took * 1e3, rate / 1e12,
           100 * rate / ceiling);
    void *all[] = {w[0], w[1], w[2], x, space, on_device};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) c->b->free(all[i]);
    free(ids);
}

static void report(const char *name, double s, double flop, double ceiling)
{
    printf("  %-24s %8.3f ms  %6.0f TFLOP/s  %5.1f %% of the ceiling\n", name, s * 1e3, flop / s / 1e12, 100 * flop / s / ceiling);
}

int main(int argc, char **argv)
{
    int n[4] = {256, 4096, 2048, 4096};
    bench c = {.b = exf_backend_cuda(&err)};
    if (!c.b) {
        printf("bench_gram: %s\n", err.msg);
        return 0;
    }
    for (int i = 1; i < argc && i <= 4; i++) n[i - 1] = atoi(argv[i]);
    c.n_experts = n[0], c.d_model = n[1], c.d_expert = n[2], c.n_tokens = n[3], c.places = exf_gram_tokens(n[0]);
    double ceiling = measure(c.b).product, pairs = (double)n[0] * n[0];
    size_t tokens = (size_t)(n[3] + c.places - 1) / (size_t)c.places * (size_t)c.places;
    must(c.b->open(&c.q, EXF_COMPUTE_BF16, &err));
    c.outputs = random_bf16(c.b, c.q, tokens * (size_t)n[0] * (size_t)n[1], 2);
    c.gram_matrices = device_room(c.b, c.b->gpu->gram_matrices_bytes(n[0], c.places));
    c.sums = device_room(c.b, c.b->gpu->layer_sums_bytes(n[0]));
    c.row = device_room(c.b, (size_t)c.places * sizeof *c.row);
    printf("%s: common input, E %d, H %d, I %d, %d tokens, %d a call; product %.0f TFLOP/s\n", c.b->device(), n[0], n[1], n[2],
           n[3], c.places, ceiling / 1e12);
    double flop = 2 * pairs * n[1] * n[3];
    report("products", seconds(&c, 1, 0), flop, ceiling);
    report("products and sums", seconds(&c, 1, 1), flop, ceiling);
    double s = seconds(&c, 0, 1);
    printf("  %-24s %8.3f ms  %6.0f GB/s of products\n", "sums", s * 1e3, pairs * n[3] * sizeof(float) / s / 1e9);
    run_experts(&c, ceiling);
    void *all[] = {c.outputs, c.gram_matrices, c.sums, c.row};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) c.b->free(all[i]);
    c.b->close(c.q);
    return 0;
}
