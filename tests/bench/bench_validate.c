/* bench_validate.c - a validation's pass over many variants on the GPU, beside a
 * calibration's forward over the same tokens.
 * usage: bench_validate MODEL_DIR TABLES.h5 SEQUENCES TOKENS [compute=f32|bf16] VARIANT ...
 *
 * Lines: the calibration's forward; then, without and with probes (the errors of single
 * layers), the validation of the original and all variants, in seconds of the layers and
 * per lane, and per lane over the calibration's.  Medians of three after one to warm up;
 * opening, closing, the embedding and the head are left out, for a calibration has no
 * head.  Every lane's KL and PPL follow, to be compared with another backend's. */
#include "artifact/tables.h"
#include "fold/variant.h"
#include "tests/support/statistics_run.h"
#include "validate/validate.h"
#include "tests/bench/ceilings.h" /* after it: its own err is this program's */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 3, MOST_VARIANTS = 32 };

typedef struct {
    exf_model *model;
    exf_batch batch;
    exf_tables tables;
    exf_decode_schedule schedule;
    exf_variant variant[MOST_VARIANTS];
    int n;
    exf_forward_options options;
} bench;

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

/* Seconds of the layers of a pass. */
static double layers(const exf_forward_report *r)
{
    return r->wall - r->open - r->close - r->embed - r->head;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double calibrate(const bench *c)
{
    const exf_accumulate_options what = {.weighting = EXF_WEIGHT_SOURCE_NORM, .rule = {1e-3, 1, -4, 4}, .helpers = 4};
    double seconds[RUNS];
    exf_forward_report report;
    for (int i = -1; i < RUNS; i++) {
        must(statistics_run_of(c->model, &c->batch, &c->options, &what, "/dev/shm/exfold-bench-validate.h5", &report, &err));
        if (i >= 0) seconds[i] = layers(&report);
    }
    qsort(seconds, RUNS, sizeof *seconds, by_value);
    return seconds[RUNS / 2];
}

static double validate(const bench *c, int n_variants, int probes, int tell)
{
    int32_t *domain;
    double seconds[RUNS];
    exf_validate_lane lane[MOST_VARIANTS];
    for (int i = 0; i < n_variants; i++)
        lane[i] = (exf_validate_lane){.variant = c->variant[i], .role = EXF_LANE_ASKED, .tables = &c->tables};
    must(exf_mem_new(&domain, c->batch.n_sequences, sizeof *domain, "domains", &err));
    exf_validate_job job = {.model = c->model, .batch = &c->batch, .domain_of = domain, .n_domains = 1, .schedule = &c->schedule,
                            .n_schedules = 1, .lanes = lane, .n_lanes = (size_t)n_variants, .no_layer_errors = !probes,
                            .forward = c->options};
    for (int i = -1; i < RUNS; i++) {
        exf_validation v;
        must(exf_validate(&v, &job, &err));
        if (i >= 0) seconds[i] = layers(&v.report);
        for (size_t k = 0; tell && i == 0 && k < v.n_variants; k++)
            printf("    %-28s PPL %.8g  KL %.6g  output error %.6g\n", v.variant[k].name, v.variant[k].all.ppl,
                   v.variant[k].all.kl_mean, v.variant[k].output_error);
        exf_validation_free(&v);
    }
    exf_mem_free(domain);
    qsort(seconds, RUNS, sizeof *seconds, by_value);
    return seconds[RUNS / 2];
}

static void tell(const bench *c, int n, int probes, double calibration, int results)
{
    double seconds = validate(c, n, probes, results);
    printf("  %2d variants %-15s %8.3f s, %8.4f s a lane, %5.2f of a calibration's forward\n", n,
           probes ? "with probes" : "without probes", seconds, seconds / (n + 1), seconds / (n + 1) / calibration);
    fflush(stdout);
}

static void open_bench(bench *c, char **argv)
{
    size_t sequences = (size_t)atoi(argv[3]);
    int vectors = 0;
    must(exf_model_open(&c->model, argv[1], &err));
    c->batch = random_batch(c->model, sequences, atoi(argv[4]));
    must(exf_tables_read(&c->tables, argv[2], &err));
    must(exf_decode_schedule_new(&c->schedule, &c->batch, 16, 0, 8, &err));
    for (int i = 0; i < c->n; i++) vectors |= exf_variant_wants_vectors(&c->variant[i]);
    if (vectors) must(exf_tables_read_vectors(&c->tables, argv[2], &err));
}

int main(int argc, char **argv)
{
    exf_log_setup("bench_validate", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    bench c = {.options = {.backend = exf_backend_cuda(&err), .compute = EXF_COMPUTE_BF16}};
    if (argc < 6) {
        fprintf(stderr, "usage: bench_validate MODEL_DIR TABLES.h5 SEQUENCES TOKENS [compute=f32|bf16] VARIANT ...\n");
        return EXF_USAGE;
    }
    if (!c.options.backend) {
        printf("bench_validate: %s\n", err.msg);
        return 0;
    }
    for (int i = 5; i < argc && c.n < MOST_VARIANTS; i++) {
        if (strncmp(argv[i], "compute=", 8) == 0)
            c.options.compute = strcmp(argv[i] + 8, "f32") == 0 ? EXF_COMPUTE_F32 : EXF_COMPUTE_BF16;
        else
            must(exf_variant_parse(&c.variant[c.n++], argv[i], &err));
    }
    open_bench(&c, argv);
    double calibration = calibrate(&c);
    printf("%s: %d layers, %zu sequences of %d tokens, %s\n  calibration %27.3f s\n", c.model->family->name, c.model->arch.n_layers,
           c.batch.n_sequences, c.batch.max_tokens, c.options.compute == EXF_COMPUTE_F32 ? "float32" : "bfloat16", calibration);
    for (int n = 1; n < c.n; n *= 4) {
        tell(&c, n, 0, calibration, 0);
        tell(&c, n, 1, calibration, 0);
    }
    tell(&c, c.n, 0, calibration, 0);
    tell(&c, c.n, 1, calibration, 1);
    exf_model_close(c.model);
    return 0;
}
