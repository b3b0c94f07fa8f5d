/* bench_replay.c - recorded hidden states through routers and experts on the GPU.
 * usage: bench_replay MODEL_DIR SEQUENCES TOKENS [compute=f32|bf16]
 *
 * The recording is a block of random numbers in memory, so that no file is timed; the
 * observer looks at nothing.  Five passes as they are and five that wait after every part;
 * medians, per layer and sequence.  bench_forward at the same shape tells what the experts
 * of a whole pass take. */
#include "base/hash.h"
#include "base/mem.h"
#include "pass/forward.h"
#include "tests/bench/bench_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 5, BLOCK = 1 << 22 };

static exf_code read_rows(void *self, int layer, size_t row, size_t n, float *dst, exf_err *error)
{
    const float *block = self;
    size_t width = 2048, all = n * width, at = row * width % BLOCK;
    (void)layer;
    (void)error;
    for (size_t done = 0; done < all;) {
        size_t part = BLOCK - at < all - done ? BLOCK - at : all - done;
        memcpy(dst + done, block + at, part * sizeof *dst);
        done += part;
        at = 0;
    }
    return EXF_OK;
}

static exf_code see_nothing(void *self, const exf_moe_block *b, exf_err *error)
{
    (void)self;
    (void)b;
    (void)error;
    return EXF_OK;
}

static int by_wall(const void *a, const void *b)
{
    double x = ((const exf_forward_report *)a)->wall, y = ((const exf_forward_report *)b)->wall;
    return (x > y) - (x < y);
}

static exf_forward_report median(const exf_model *m, const exf_batch *batch, const exf_recorded *recorded, exf_forward_options o,
                                 int timed)
{
    const exf_observer observer = {.reads_device = 1, .block = see_nothing};
    exf_forward_report r[RUNS];
    o.timed = timed;
    for (int i = -1; i < RUNS; i++) must(exf_replay(m, batch, recorded, &observer, &o, &r[i < 0 ? 0 : i], &err));
    qsort(r, RUNS, sizeof *r, by_wall);
    return r[RUNS / 2];
}

int main(int argc, char **argv)
{
    exf_forward_options o = {.backend = exf_backend_cuda(&err), .compute = EXF_COMPUTE_BF16};
    exf_recorded recorded = {.input = read_rows};
    exf_model *m;
    float *block;
    if (argc < 4) {
        fprintf(stderr, "usage: bench_replay MODEL_DIR SEQUENCES TOKENS [compute=f32|bf16]\n");
        return EXF_USAGE;
    }
    if (!o.backend) {
        printf("bench_replay: %s\n", err.msg);
        return 0;
    }
    if (argc > 4 && strcmp(argv[4], "compute=f32") == 0) o.compute = EXF_COMPUTE_F32;
    exf_log_setup("bench_replay", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    must(exf_model_open_part(&m, argv[1], EXF_MODEL_EXPERTS, &err));
    size_t n = (size_t)atoi(argv[2]);
    int tokens = atoi(argv[3]);
    exf_span *span;
    must(exf_mem_new(&span, n, sizeof *span, "sequences", &err));
    for (size_t i = 0; i < n; i++) span[i] = (exf_span){i * (size_t)tokens, tokens};
    exf_batch batch = {NULL, span, n, n * (size_t)tokens, tokens};
    must(exf_mem_new(&block, BLOCK, sizeof *block, "recording", &err));
    for (size_t i = 0; i < BLOCK; i++) block[i] = (float)exf_rng_u64(3, 3, i) * 0x1p-63f - 1;
    recorded.self = block;
    for (int l = 0; l < m->arch.n_layers; l++) recorded.has_input[l] = m->arch.is_moe[l];
    exf_forward_report plain = median(m, &batch, &recorded, o, 0), timed = median(m, &batch, &recorded, o, 1);
    double units = (double)n * m->arch.n_moe_layers / 1e3;
    printf("%s: %d layers, %zu sequences of %d tokens, %s\n", m->family->name, m->arch.n_moe_layers, n, tokens,
           o.compute == EXF_COMPUTE_F32 ? "float32" : "bfloat16");
    printf("  experts    %8.3f ms per layer and sequence; reading, sending and routing the recorded states %.3f\n",
           timed.experts / units, timed.router / units);
    printf("  as it is   %8.3f ms per layer and sequence\n", (plain.wall - plain.open - plain.close) / units);
    exf_model_close(m);
    return 0;
}
