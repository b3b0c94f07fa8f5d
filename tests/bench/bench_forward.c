/* bench_forward.c - a calibration's forward pass on the GPU, and how much of the
 * machine that is.
 * usage: bench_forward MODEL_DIR SEQUENCES TOKENS [MAX_DEVICE_BYTES [pread|direct|mmap]]
 *
 * Passes over random tokens with the accumulator behind the observer's door: to warm
 * up; as it is; and waiting after every part, so that their shares are true.  Ceilings
 * (a large bfloat16 product, a copy on the device, one from pinned memory) come from
 * the same process.  The floor of a layer and sequence is its operations at the
 * product's ceiling. */
#include "base/rng.h"
#include "kernels/backend.h"
#include "tests/statistics_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static exf_err err;

static void must(exf_code rc)
{
    if (rc == EXF_OK) return;
    fprintf(stderr, "bench_forward: %s\n", err.msg);
    exit((int)rc);
}

typedef struct {
    double product, copy, send; /* FLOP/s, bytes/s moved, bytes/s */
} ceilings;

static ceilings measure(const exf_backend *b)
{
    enum { N = 8192, RUNS = 10 };
    size_t bytes = (size_t)N * N * 2;
    exf_queue *q;
    uint16_t *x, *w, *host;
    float *y;
    ceilings c;
    must(b->open(&q, EXF_COMPUTE_BF16, &err));
    must(b->alloc(&x, bytes, 1, "bench", &err));
    must(b->alloc(&w, bytes, 1, "bench", &err));
    must(b->alloc(&y, 2 * bytes, 1, "bench", &err));
    must(b->alloc_staging(&host, bytes, "bench", &err));
    for (size_t i = 0; i < bytes / 2; i++) host[i] = (uint16_t)(0x3f00 | (exf_rng_u64(1, 1, i) & 0x80ff)); /* zeros would run faster */
    b->upload(q, x, host, bytes);
    b->upload(q, w, host, bytes);
    for (int round = 0; round < 2; round++) { /* the first warms up */
        must(b->finish(q, &err));
        double start = exf_clock();
        for (int i = 0; i < RUNS; i++) b->gemm_xwt(q, y, N, exf_bf16(x), N, exf_bf16(w), N, N, N, N, 1, 0);
        must(b->finish(q, &err));
        c.product = 2.0 * N * N * N * RUNS / (exf_clock() - start);
        start = exf_clock();
        for (int i = 0; i < RUNS; i++) b->copy(q, y, (char *)(void *)y + bytes, bytes);
        must(b->finish(q, &err));
        c.copy = 2.0 * (double)bytes * RUNS / (exf_clock() - start);
        start = exf_clock();
        for (int i = 0; i < RUNS; i++) b->upload(q, x, host, bytes);
        must(b->finish(q, &err));
        c.send = (double)bytes * RUNS / (exf_clock() - start);
    }
    b->free(x);
    b->free(w);
    b->free(y);
    b->free_staging(host);
    b->close(q);
    return c;
}

static exf_batch random_batch(const exf_model *m, size_t n, int tokens)
{
    int32_t *ids;
    exf_span *span;
    must(exf_mem_new(&ids, n * (size_t)tokens, sizeof *ids, "tokens", &err));
    must(exf_mem_new(&span, n, sizeof *span, "sequences", &err));
    for (size_t i = 0; i < n * (size_t)tokens; i++) ids[i] = (int32_t)exf_rng_below((uint64_t)m->arch.vocab, 9, 9, i);
    for (size_t i = 0; i < n; i++) span[i] = (exf_span){i * (size_t)tokens, tokens};
    return (exf_batch){ids, span, n, n * (size_t)tokens, tokens};
}

static exf_forward_report pass(const exf_model *m, const exf_batch *batch, const exf_backend *b, int timed, uint64_t most, const char *target)
{
    exf_forward_options o = {.backend = b, .compute = EXF_COMPUTE_BF16, .timed = timed, .max_device_memory = most};
    exf_forward_report report;
    must(statistics_run(m, batch, &o, target, &report, &err));
    return report;
}

static void share(const char *name, double seconds, double units)
{
    printf("  %-10s %8.3f ms per layer and sequence\n", name, 1e3 * seconds / units);
}

static void tell(const exf_model *m, const exf_batch *batch, const exf_forward_report *plain, const exf_forward_report *timed, const ceilings *c)
{
    double units = (double)batch->n_sequences * m->arch.n_layers, bytes = (double)exf_model_bytes(m);
    double flops = exf_forward_flops(&m->arch, batch, 0), floor = flops / c->product;
    double compute = timed->mixer + timed->router + timed->experts + timed->observe;
    double layers = plain->wall - plain->open - plain->embed - plain->close;
    printf("%s: %d layers, %zu sequences of %d tokens\n", m->family->name, m->arch.n_layers, batch->n_sequences, batch->max_tokens);
    share("mixer", timed->mixer, units);
    share("router", timed->router, units);
    share("experts", timed->experts, units);
    share("statistics", timed->observe, units);
    share("all parts", compute, units);
    share("floor", floor, units);
    printf("  parts run at %.0f TFLOP/s, %.0f %% of the product's ceiling; statistics are %.1f %% of them\n", flops / compute / 1e12,
           100 * floor / compute, 100 * timed->observe / compute);
    printf("  pass       %8.3f s: opening %.3f, closing %.3f, embedding %.3f, waiting for weights %.3f, compute alone %.3f, copy alone %.3f (%.2f GB at %.1f GB/s)\n",
           plain->wall, plain->open, plain->close, plain->embed, plain->read, compute, bytes / c->send, bytes / 1e9, c->send / 1e9);
    printf("  as it is   %8.3f ms per layer and sequence; %.2f of max(compute alone, copy alone)\n", 1e3 * layers / units,
           plain->wall / (compute > bytes / c->send ? compute : bytes / c->send));
    printf("  readers    %.3f s reading, %.3f s sending, summed over threads; weights at %.2f GB/s of the whole pass\n", plain->reading,
           plain->sending, (double)plain->weight_bytes / 1e9 / plain->wall);
    printf("  memory     GPU %.2f GB, host %.2f GB at their peaks\n", (double)plain->device_bytes / 1e9, (double)exf_peak_rss() / 1e9);
}

static void tell_plan(const exf_model *m, const exf_batch *batch, const exf_backend *b, uint64_t most)
{
    exf_forward_options o = {.backend = b, .compute = EXF_COMPUTE_BF16, .max_device_memory = most};
    exf_forward_footprint f;
    must(exf_forward_memory(&f, &o, m, batch, &(exf_demand){.lanes = 1}, &err));
    printf("plan: GPU %.2f GB, host %.2f GB, %zu tokens in a window (0: hidden states live on the GPU), routed experts read %d times\n",
           (double)f.device / 1e9, (double)f.host / 1e9, f.window, f.reads);
}

static exf_io way_of(const char *name)
{
    if (strcmp(name, "direct") == 0) return EXF_IO_DIRECT;
    return strcmp(name, "mmap") == 0 ? EXF_IO_MMAP : EXF_IO_PREAD;
}

int main(int argc, char **argv)
{
    const exf_backend *b = exf_backend_cuda(&err);
    exf_model *m;
    char target[64];
    if (argc < 4 || argc > 6) {
        fprintf(stderr, "usage: bench_forward MODEL_DIR SEQUENCES TOKENS [MAX_DEVICE_BYTES [pread|direct|mmap]]\n");
        return EXF_USAGE;
    }
    if (!b) {
        printf("bench_forward: %s\n", err.msg);
        return 0;
    }
    uint64_t most = argc >= 5 ? strtoull(argv[4], NULL, 10) : 0;
    exf_log_setup("bench_forward", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    must(exf_model_open(&m, argv[1], &err));
    must(exf_checkpoint_use(m->checkpoint, way_of(argc == 6 ? argv[5] : "pread"), &err));
    exf_batch batch = random_batch(m, (size_t)atoi(argv[2]), atoi(argv[3]));
    snprintf(target, sizeof target, "/dev/shm/exfold-bench.%ld.h5", (long)getpid());
    tell_plan(m, &batch, b, most);
    exf_forward_report first = pass(m, &batch, b, 0, most, target);
    exf_forward_report plain = pass(m, &batch, b, 0, most, target), timed = pass(m, &batch, b, 1, most, target);
    char digest[EXF_SHA256_HEX];
    must(exf_hash_file(target, digest, &err));
    ceilings c = measure(b);
    printf("%s: product %.0f TFLOP/s, copy %.0f GB/s, from pinned memory %.1f GB/s\n", b->device(), c.product / 1e12, c.copy / 1e9, c.send / 1e9);
    tell(m, &batch, &plain, &timed, &c);
    printf("  the first  %8.3f s, weights at %.2f GB/s; statistics sha256 %.16s\n", first.wall, (double)first.weight_bytes / 1e9 / first.wall, digest);
    remove(target);
    exf_mem_free((void *)(uintptr_t)batch.ids);
    exf_mem_free((void *)(uintptr_t)batch.span);
    exf_model_close(m);
    return 0;
}
