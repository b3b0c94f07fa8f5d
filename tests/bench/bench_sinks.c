/* bench_sinks.c - how long a pass on a GPU waits for its statistics: 48 layers of 128 experts go through the queue that such a pass
 * has, at the pace of a pass, and the file is completed.  No GPU is needed.
 * usage: bench_sinks FILE [PASS_MS [SOLVE_MS]]     a layer's time without its statistics (default 0), and its consumer's (0)
 *
 * Prints the time of all layers, how much of it the pass waited, and the time of what is left after it. */
#include "accumulate/accumulate_internal.h"
#include "base/log.h"
#include "base/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LAYERS = 48, E = 128, K = 8, H = 2048, SEQUENCES = 8, LENGTH = 2048, SAMPLE = 4096 };

/* Computes for so many seconds. */
static exf_code consume(void *seconds, int i, const exf_layer_statistics *s, exf_err *err)
{
    double end = exf_clock() + *(const double *)seconds;
    (void)i, (void)s, (void)err;
    while (exf_clock() < end) continue;
    return EXF_OK;
}

/* Fills sums with random numbers; of each pair and expert there is one token. */
static void fill(exf_layer_statistics *s)
{
    uint64_t n = 0;
    for (int i = 0; i < EXF_N_LAYER_ARRAYS; i++) {
        const exf_layer_array *row = &exf_layer_arrays[i];
        exf_exact *sum = exf_layer_array_at(row, s);
        uint64_t *count = exf_layer_array_at(row, s);
        if (row->part == EXF_PART_BARE || row->part == EXF_PART_OBSERVED) continue;
        for (size_t k = 0; k < exf_layer_array_count(row, E); k++) {
            if (row->element == EXF_ELEMENT_EXACT) exf_exact_add(&sum[k], (double)(exf_rng_u64(1, 1, n++) >> 40));
            else count[k] = 1;
        }
    }
    *s->stream_count = SEQUENCES * LENGTH;
}

/* Gives a layer those sums, as a GPU does, and a sample of routes. */
static exf_code end_layer(exf_layer_statistics *s, const exf_layer_statistics *sums, exf_err *err)
{
    exf_code rc = exf_layer_statistics_merge(s, sums, err);
    s->routes.n = s->routes.cap;
    for (size_t i = 0; i < s->routes.n * K; i++) s->routes.ids[i] = (int32_t)(i % E);
    for (size_t i = 0; i < s->routes.n; i++) s->routes.key[i] = i;
    return rc;
}

static exf_code open_accumulator(exf_accumulator **a, const char *path, exf_layer_consumer consumer, exf_err *err)
{
    int32_t number[LAYERS];
    exf_provenance p = {0};
    exf_sequence_list sequences = {.n = 0};
    exf_run_shape shape = {E, K, H, SEQUENCES, SEQUENCES * LENGTH};
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = SAMPLE};
    exf_facts_part part = {.path = "run", .provenance = &p, .sequences = &sequences};
    exf_accumulator_plan plan = {.target = path, .force = 1, .shape = &shape, .layer_number = number, .n_layers = LAYERS,
                                 .parts = &part, .n_parts = 1, .options = &o, .consumer = consumer};
    exf_code rc;
    for (int i = 0; i < LAYERS; i++) number[i] = i;
    EXF_TRY(exf_sequence_list_new(&sequences, SEQUENCES, err));
    for (int i = 0; i < SEQUENCES; i++) {
        sequences.length[i] = LENGTH;
        EXF_TRY(exf_sequence_sha256(sequences.sha256[i], (int32_t[]){i, 1}, 2, err));
    }
    EXF_TRY(exf_accumulator_new(a, &plan, err));
    EXF_TRY((*a)->observer.begin(*a, 1, NULL, err));
    rc = exf_accumulator_open_queue(*a, 1, err);
out:
    exf_sequence_list_free(&sequences);
    exf_provenance_free(&p);
    return rc;
}

static exf_code run(const char *path, double pass, double solve, exf_err *err)
{
    exf_accumulator *a = NULL;
    exf_layer_statistics sums;
    char digest[EXF_SHA256_HEX];
    double waited = 0, most = 0, start, all;
    exf_code rc = exf_layer_statistics_new(&sums, E, err);
    if (rc != EXF_OK) return rc;
    fill(&sums);
    EXF_TRY(open_accumulator(&a, path, (exf_layer_consumer){&solve, consume}, err));
    start = exf_clock();
    for (int l = 0; l < LAYERS; l++) {
        EXF_TRY(end_layer(&a->sums[0], &sums, err));
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * pass)}, NULL);
        double ready = exf_clock();
        EXF_TRY(exf_accumulator_put(a, l, err));
        double wait = exf_clock() - ready;
        waited += wait;
        most = wait > most ? wait : most;
    }
    all = exf_clock() - start;
    start = exf_clock();
    EXF_TRY(exf_accumulator_commit(a, digest, err));
    printf("%d layers in %.3f s, waited %.3f s, at most %.1f ms; completed in %.3f s; %.1f s of processors\n", LAYERS, all, waited,
           1e3 * most, exf_clock() - start, (double)clock() / CLOCKS_PER_SEC);
out:
    exf_accumulator_free(a);
    exf_layer_statistics_free(&sums);
    return rc;
}

int main(int argc, char **argv)
{
    exf_err err;
    if (argc < 2 || argc > 4) return fprintf(stderr, "usage: bench_sinks FILE [PASS_MS [SOLVE_MS]]\n"), 2;
    if (run(argv[1], argc > 2 ? 1e-3 * atof(argv[2]) : 0, argc > 3 ? 1e-3 * atof(argv[3]) : 0, &err) == EXF_OK) return 0;
    fprintf(stderr, "bench_sinks: %s\n", err.msg);
    return 1;
}
