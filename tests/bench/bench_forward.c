/* bench_forward.c - a calibration's forward pass on the GPU, and how much of the
 * machine that is.
 * usage: bench_forward MODEL_DIR SEQUENCES TOKENS [compute=bf16|f32] [limit=BYTES] [streams=N] [io=pread|direct]
 *        [cores=mma] [what=WHAT] [check=0]
 *        WHAT: corouted, common (64 tokens of a sequence), diagonal, lowrank (rank 16) or vectors (both) of 1024 pairs a layer
 *
 * Passes over random tokens whose observer is the accumulator: one to warm
 * up; five as it is; five waiting after every part, so that their shares are true.  Of
 * each five the one of median time is told, with the fastest and slowest; and a digest
 * of the statistics, which no setting but WHAT, compute and cores changes.  Ceilings
 * (a large bfloat16 product, a copy on the device, one from pinned memory) come from
 * the same process.  The floor of a layer and sequence is its operations at the
 * product's ceiling. */
#include "base/hash.h"
#include "tests/support/statistics_run.h"
#include "tests/bench/ceilings.h" /* after it: its own err is this program's */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 5 };

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

/* What a run is of. */
typedef struct {
    exf_compute compute;
    uint64_t limit;
    int mixer_queues;
    exf_io io;
    exf_tensor_cores cores;
    exf_accumulate_options what;
} settings;

static exf_forward_report pass(const exf_model *m, const exf_batch *batch, const exf_backend *b, int timed, const settings *is,
                               const char *target)
{
    exf_forward_options o = {
        .backend = b, .compute = is->compute, .timed = timed, .mixer_queues = is->mixer_queues, .max_device_memory = is->limit};
    exf_forward_report report;
    must(statistics_run_of(m, batch, &o, &is->what, target, &report, &err));
    return report;
}

static int by_wall(const void *a, const void *b)
{
    double x = ((const exf_forward_report *)a)->wall, y = ((const exf_forward_report *)b)->wall;
    return (x > y) - (x < y);
}

/* In order of their time. */
static void passes(exf_forward_report *r, const exf_model *m, const exf_batch *batch, const exf_backend *b, int timed,
                   const settings *is, const char *target)
{
    for (int i = 0; i < RUNS; i++) r[i] = pass(m, batch, b, timed, is, target);
    qsort(r, RUNS, sizeof *r, by_wall);
}

static exf_accumulate_options what_of(const char *name)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .vector_pairs = 1024, .samples = 65536, .seed = 42,
                                .rule = {1e-3, 1, -4, 4}, .cross_check = 1,
                                .helpers = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    o.common_input_tokens = strcmp(name, "common") ? 0 : 64;
    o.lowrank = !strcmp(name, "lowrank") || !strcmp(name, "vectors");
    o.rank = 16;
    o.norm_head = strcmp(name, "norms") ? 0 : 64;
    o.diagonal = !strcmp(name, "vectors") || !strcmp(name, "diagonal");
    return o;
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: bench_forward MODEL_DIR SEQUENCES TOKENS [compute=bf16|f32] [limit=BYTES] [streams=N] "
        "[io=pread|direct] [what=corouted|common|diagonal|lowrank|vectors|norms] [check=0]\n");
    return EXF_USAGE;
}

/* 0: not a setting. */
static int set(settings *is, const char *text)
{
    if (strncmp(text, "compute=", 8) == 0)
        is->compute = strcmp(text + 8, "f32") == 0 ? EXF_COMPUTE_F32 : EXF_COMPUTE_BF16;
    else if (strncmp(text, "limit=", 6) == 0)
        is->limit = strtoull(text + 6, NULL, 10);
    else if (strncmp(text, "streams=", 8) == 0)
        is->mixer_queues = atoi(text + 8);
    else if (strncmp(text, "io=", 3) == 0)
        is->io = strcmp(text + 3, "direct") == 0 ? EXF_IO_DIRECT : EXF_IO_PREAD;
    else if (strcmp(text, "cores=mma") == 0)
        is->cores = EXF_TENSOR_CORES_MMA;
    else if (strncmp(text, "what=", 5) == 0)
        is->what = what_of(text + 5);
    else if (strcmp(text, "check=0") == 0) /* no cross-check; after `what` */
        is->what.cross_check = 0;
    else
        return 0;
    return 1;
}

static void share(const char *name, double seconds, double units)
{
    printf("  %-10s %8.3f ms per layer and sequence\n", name, 1e3 * seconds / units);
}

static void tell(const exf_model *m, const exf_batch *batch, const exf_demand *demand, const exf_forward_report *plains,
                 const exf_forward_report *timed, const ceilings *c)
{
    const exf_forward_report *plain = &plains[RUNS / 2];
    double units = (double)batch->n_sequences * m->arch.n_layers, bytes = (double)exf_model_bytes(m);
    double flops = exf_forward_demand_flops(&m->arch, batch, demand), floor = flops / c->product;
    double compute = timed->mixer + timed->router + timed->experts + timed->observe;
    double layers = plain->wall - plain->open - plain->embed - plain->close;
    printf("%s: %d layers, %zu sequences of %d tokens\n", m->family->name, m->arch.n_layers, batch->n_sequences, batch->max_tokens);
    share("mixer", timed->mixer, units);
    share("router", timed->router, units);
    share("experts", timed->experts, units);
    share("statistics", timed->observe, units);
    share("all parts", compute, units);
    share("floor", floor, units);
    printf("  parts run at %.0f TFLOP/s, %.0f %% of the product's ceiling; statistics are %.1f %% of them\n",
           flops / compute / 1e12, 100 * floor / compute, 100 * timed->observe / compute);
    printf("  pass       %8.3f s (of %d: %.3f to %.3f): opening %.3f, closing %.3f, embedding %.3f, waiting for weights %.3f, "
           "compute alone %.3f, copy alone %.3f (%.2f GB at %.1f GB/s)\n",
           plain->wall, RUNS, plains[0].wall, plains[RUNS - 1].wall, plain->open, plain->close, plain->embed, plain->read, compute,
           bytes / c->send, bytes / 1e9, c->send / 1e9);
    printf("  as it is   %8.3f ms per layer and sequence; %.2f of max(compute alone, copy alone)\n", 1e3 * layers / units,
           plain->wall / (compute > bytes / c->send ? compute : bytes / c->send));
    printf("  readers    %.3f s reading, %.3f s sending, summed over threads; weights at %.2f GB/s of the whole pass\n",
           plain->reading, plain->sending, (double)plain->weight_bytes / 1e9 / plain->wall);
    printf("  memory     GPU %.2f GB, host %.2f GB at their peaks\n", (double)plain->device_bytes / 1e9,
           (double)exf_peak_rss() / 1e9);
}

static void tell_plan(const exf_model *m, const exf_batch *batch, const exf_backend *b, const exf_demand *demand,
                      const settings *is)
{
    exf_forward_options o = {
        .backend = b, .compute = is->compute, .mixer_queues = is->mixer_queues, .max_device_memory = is->limit};
    exf_forward_footprint f;
    must(exf_forward_memory(&f, &o, m, batch, demand, &err));
    printf(
        "plan: GPU %.2f GB, host %.2f GB, %zu tokens in a window (0: hidden states live on the GPU), "
        "routed experts read %d times\n",
        (double)f.device / 1e9, (double)f.host / 1e9, f.window, f.reads);
}

int main(int argc, char **argv)
{
    const exf_backend *b = exf_backend_cuda(&err);
    exf_model *m;
    char target[64], digest[EXF_SHA256_HEX];
    settings is = {.compute = EXF_COMPUTE_BF16, .io = EXF_IO_PREAD, .what = what_of("corouted")};
    if (argc < 4) return usage();
    for (int i = 4; i < argc; i++)
        if (!set(&is, argv[i])) return usage();
    if (!b) {
        printf("bench_forward: %s\n", err.msg);
        return 0;
    }
    must(b->gpu->choose_tensor_cores(is.cores, &err));
    exf_demand demand = {.lanes = 1, .common_input = is.what.common_input_tokens, .slot_logits = is.what.norm_head > 0,
                         .sweeps = is.what.diagonal || is.what.lowrank ? 2 : 1};
    exf_log_setup("bench_forward", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    must(exf_model_open(&m, argv[1], &err));
    must(exf_checkpoint_use(m->checkpoint, is.io, &err));
    exf_batch batch = random_batch(m, (size_t)atoi(argv[2]), atoi(argv[3]));
    snprintf(target, sizeof target, "/dev/shm/exfold-bench.%ld.h5", (long)getpid());
    exf_run_shape shape = {m->arch.n_experts, m->arch.top_k, m->arch.d_model, (int64_t)batch.n_sequences, (int64_t)batch.n_tokens};
    demand.observers = exf_accumulate_device_memory(b, &shape, &is.what);
    tell_plan(m, &batch, b, &demand, &is);
    pass(m, &batch, b, 0, &is, target);
    exf_forward_report plain[RUNS], timed[RUNS];
    passes(plain, m, &batch, b, 0, &is, target);
    passes(timed, m, &batch, b, 1, &is, target);
    must(exf_hash_file(target, digest, &err));
    ceilings c = measure(b);
    printf("%s: product %.0f TFLOP/s, copy %.0f GB/s, from pinned memory %.1f GB/s\n", b->device(), c.product / 1e12, c.copy / 1e9,
           c.send / 1e9);
    tell(m, &batch, &demand, plain, &timed[RUNS / 2], &c);
    printf("  statistics sha256 %.16s\n", digest);
    remove(target);
    exf_mem_free((void *)(uintptr_t)batch.ids);
    exf_mem_free((void *)(uintptr_t)batch.span);
    exf_model_close(m);
    return 0;
}
