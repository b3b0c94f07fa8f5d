/* bench_kernels.c - how fast the parts of an MoE layer are on the GPU, beside the
 * ceilings of the same run.
 * usage: bench_kernels [H I E K T] ...     (default: Qwen3-30B-A3B, 4096 tokens) */
#include "tests/bench/bench_device.h"

typedef struct {
    const exf_backend *b;
    exf_queue *q, *full; /* full: computes in float32 */
    exf_expert_shape s;
    uint16_t *x, *w[3];
    void *outputs;       /* [T, K, H], room for float32 */
    float *w32[3];
    float *hidden, *normed, *norm, *weights, *logits;
    int32_t *ids;
    void *space, *sums;
    double *scratch;
} bench;

typedef void (*part)(const bench *c);

static void finish(const bench *c)
{
    must(c->b->finish(c->q, &err));
    must(c->b->finish(c->full, &err));
}

static double seconds(const bench *c, part run)
{
    enum { WARM = 3, RUNS = 20 };
    for (int i = 0; i < WARM; i++) run(c);
    finish(c);
    double start = exf_clock();
    for (int i = 0; i < RUNS; i++) run(c);
    finish(c);
    return (exf_clock() - start) / RUNS;
}

static void experts(const bench *c)
{
    exf_expert_matrices m = {.gate = exf_bf16(c->w[0]), .up = exf_bf16(c->w[1]), .down = exf_bf16(c->w[2])};
    c->b->experts(c->q, exf_bf16(c->outputs), exf_bf16(c->x), c->ids, &m, &c->s, c->space);
}

static void experts_in_terms(const bench *c)
{
    exf_expert_matrices m = {.gate = exf_bf16(c->w[0]), .up = exf_bf16(c->w[1]), .down = exf_bf16(c->w[2])};
    c->b->experts(c->full, exf_f32(c->outputs), exf_f32(c->hidden), c->ids, &m, &c->s, c->space);
}

static void experts_in_full(const bench *c)
{
    exf_expert_matrices m = {.gate = exf_f32(c->w32[0]), .up = exf_f32(c->w32[1]), .down = exf_f32(c->w32[2])};
    c->b->experts(c->full, exf_f32(c->outputs), exf_f32(c->hidden), c->ids, &m, &c->s, c->space);
}

static void moments(const bench *c)
{
    exf_layer_sums_call call = {.n_experts = c->s.n_experts, .top_k = c->s.top_k, .d_model = c->s.d_model,
                                .n_tokens = c->s.n_tokens,
                             .outputs = exf_bf16(c->outputs), .ids = c->ids, .weights = c->weights};
    c->b->gpu->layer_sums_add(c->q, c->sums, &call);
}

static void sum_of(const bench *c, exf_matrix outputs)
{
    exf_moe_sum_call call = {.n_tokens = c->s.n_tokens, .top_k = c->s.top_k, .d_model = c->s.d_model, .outputs = outputs,
                             .weights = c->weights,
                             .hidden = c->hidden};
    c->b->moe_sum(c->q, &call);
}

static void routed_sum(const bench *c)
{
    sum_of(c, exf_bf16(c->outputs));
}

static void routed_sum_in_full(const bench *c)
{
    sum_of(c, exf_f32(c->outputs));
}

static void norm(const bench *c)
{
    c->b->gpu->rmsnorm_rounded(c->q, c->x, c->normed, c->hidden, c->norm, c->s.n_tokens, c->s.d_model, 1e-6);
}

static void router(const bench *c)
{
    exf_router_rules r = {.score = EXF_ROUTER_SOFTMAX, .n_experts = c->s.n_experts, .top_k = c->s.top_k, .n_groups = 1,
                          .top_groups = 1, .renormalise = 1, .scaling = 1};
    c->b->router(c->q, c->ids, c->weights, c->logits, NULL, c->s.n_tokens, &r, c->scratch);
}

static void router_product(const bench *c)
{
    int h = c->s.d_model;
    c->b->gemm_xwt(c->q, c->logits, c->s.n_experts, exf_f32(c->normed), h, exf_f32(c->hidden), h, c->s.n_tokens, c->s.n_experts, h,
                   1, 0);
}

static void projection(const bench *c)
{
    int h = c->s.d_model;
    c->b->gemm_xwt(c->q, c->normed, h, exf_bf16(c->x), h, exf_bf16(c->w[0]), h, c->s.n_tokens, h, h, 1, 0);
}

static void projection_in_terms(const bench *c)
{
    int h = c->s.d_model;
    c->b->gemm_xwt(c->full, c->outputs, h, exf_f32(c->hidden), h, exf_bf16(c->w[0]), h, c->s.n_tokens, h, h, 1, 0);
}

static void projection_in_full(const bench *c)
{
    int h = c->s.d_model;
    c->b->gemm_xwt(c->full, c->outputs, h, exf_f32(c->hidden), h, exf_f32(c->w32[0]), h, c->s.n_tokens, h, h, 1, 0);
}

static void rounding(const bench *c)
{
    c->b->gpu->round_rows(c->q, c->x, c->s.d_model, c->hidden, c->s.d_model, c->s.n_tokens, c->s.d_model);
}

static void watch(const bench *c)
{
    c->b->gpu->watch_finite(c->q, c->sums, c->hidden, (size_t)c->s.n_tokens * (size_t)c->s.d_model, 0);
}

static void copy(const bench *c)
{
    size_t half = (size_t)c->s.n_experts * (size_t)c->s.d_model * (size_t)c->s.d_expert; /* bytes */
    c->b->copy(c->q, c->w[0], (const char *)c->w[0] + half, half);
}

static void open_bench(bench *c, const int *n)
{
    c->s = (exf_expert_shape){.d_model = n[0], .d_expert = n[1], .n_experts = n[2], .top_k = n[3], .n_tokens = n[4]};
    size_t t = (size_t)n[4], h = (size_t)n[0], k = (size_t)n[3], e = (size_t)n[2], w = e * h * (size_t)n[1];
    must(c->b->open(&c->q, EXF_COMPUTE_BF16, &err));
    must(c->b->open(&c->full, EXF_COMPUTE_F32, &err));
    for (int i = 0; i < 3; i++) {
        c->w[i] = random_bf16(c->b, c->q, w, 0.03f);
        c->w32[i] = device_room(c->b, w * sizeof(float));
        c->b->gpu->widen(c->q, c->w32[i], c->w[i], w);
    }
    c->x = random_bf16(c->b, c->q, t * h, 2);
    c->outputs = device_room(c->b, t * k * h * 4);
    c->hidden = device_room(c->b, t * h * 4);
    c->normed = device_room(c->b, t * h * 4);
    c->norm = device_room(c->b, h * 4);
    c->weights = device_room(c->b, t * k * 4);
    c->logits = device_room(c->b, t * e * 4);
    c->ids = device_room(c->b, t * k * 4);
    c->scratch = device_room(c->b, (size_t)exf_router_scratch(n[2]) * 8);
    size_t half = c->b->experts_workspace(&c->s, EXF_NUMBER_BF16), full = c->b->experts_workspace(&c->s, EXF_NUMBER_F32);
    c->space = device_room(c->b, half > full ? half : full);
    c->sums = device_room(c->b, c->b->gpu->layer_sums_bytes(n[2]));
    float *host = malloc(t * (e > h ? e : h) * 4);
    if (!host) exit(EXF_NOSPACE);
    for (size_t i = 0; i < t * e; i++) host[i] = (float)((double)(int64_t)exf_rng_u64(3, 4, i) * 0x1p-62);
    c->b->upload(c->q, c->logits, host, t * e * 4);
    must(c->b->finish(c->q, &err));
    for (size_t i = 0; i < t * h; i++) host[i] = (float)((double)(int64_t)exf_rng_u64(5, 6, i) * 0x1p-62);
    c->b->upload(c->q, c->hidden, host, t * h * 4);
    must(c->b->finish(c->q, &err));
    free(host);
    router(c);
    must(c->b->finish(c->q, &err));
}

static void close_bench(bench *c)
{
    void *all[] = {c->w[0], c->w[1], c->w[2], c->w32[0], c->w32[1], c->w32[2], c->x, c->outputs, c->hidden,
                   c->normed, c->norm, c->weights, c->logits, c->ids, c->scratch, c->space, c->sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) c->b->free(all[i]);
    c->b->close(c->q);
    c->b->close(c->full);
}

static double report(const bench *c, const char *name, part run, double flop, double bytes)
{
    double s = seconds(c, run);
    printf("  %-14s %8.1f us", name, s * 1e6);
    if (flop > 0) printf("  %6.0f TFLOP/s", flop / s / 1e12);
    if (bytes > 0) printf("  %6.0f GB/s", bytes / s / 1e9);
    printf("\n");
    return s;
}

/* The same on mma.sync, and its share of the rate above. */
static void report_mma(const bench *c, part run, double flop, double above)
{
    must(c->b->gpu->choose_tensor_cores(EXF_TENSOR_CORES_MMA, &err));
    double s = report(c, "  mma.sync", run, flop, 0);
    printf("  %-14s %8.0f %%\n", "  of the above", 100 * above / s);
    must(c->b->gpu->choose_tensor_cores(EXF_TENSOR_CORES_AUTO, &err));
}

static void run_all(const exf_backend *b, const int *n)
{
    bench c = {.b = b};
    double t = n[4], h = n[0], k = n[3], e = n[2], i = n[1];
    printf("H %d, I %d, %d experts, top-%d, %d tokens\n", n[0], n[1], n[2], n[3], n[4]);
    open_bench(&c, n);
    report_mma(&c, experts, 6 * t * k * h * i, report(&c, "experts", experts, 6 * t * k * h * i, 0));
    report(&c, "moments", moments, 0, t * k * h * 2);
    report(&c, "routed sum", routed_sum, 0, t * k * h * 2 + t * h * 8);
    report(&c, "  float32", routed_sum_in_full, 0, t * k * h * 4 + t * h * 8);
    report(&c, "rmsnorm", norm, 0, t * h * 10);
    report(&c, "rounding", rounding, 0, t * h * 6);
    report(&c, "watch finite", watch, 0, t * h * 4);
    report(&c, "router product", router_product, 2 * t * h * e, 0);
    report(&c, "router", router, 0, 0);
    report(&c, "H x H product", projection, 2 * t * h * h, 0);
    report(&c, "  three terms", projection_in_terms, 2 * t * h * h, 0);
    report(&c, "  float32", projection_in_full, 2 * t * h * h, 0);
    report_mma(&c, experts_in_terms, 6 * t * k * h * i, report(&c, "experts: terms", experts_in_terms, 6 * t * k * h * i, 0));
    report(&c, "  float32", experts_in_full, 6 * t * k * h * i, 0);
    report(&c, "copy", copy, 0, 2 * e * h * i);
    close_bench(&c);
}

int main(int argc, char **argv)
{
    int n[5] = {2048, 768, 128, 8, 4096};
    const exf_backend *b = exf_backend_cuda(&err);
    if (!b) {
        printf("bench_kernels: %s\n", err.msg);
        return 0;
    }
    printf("%s\n", b->device());
    if (argc < 6) run_all(b, n);
    for (int i = 1; i + 5 <= argc; i += 5) {
        for (int k = 0; k < 5; k++) n[k] = atoi(argv[i + k]);
        run_all(b, n);
    }
    return 0;
}
