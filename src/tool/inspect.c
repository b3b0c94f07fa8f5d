/* inspect.c - see inspect.h. */
#include "tool/inspect.h"

#include "artifact/capture_file.h"
#include "artifact/statistics.h"
#include "artifact/tables.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show_provenance(const exf_provenance *p)
{
    printf("\nprovenance\n");
    for (size_t i = 0; i < p->n; i++) printf("  %-26s %s\n", p->key[i], p->value[i]);
}

static void show_shape(const exf_run_shape *s, int n_layers)
{
    printf("%" PRId64 " experts, top-%" PRId64 ", hidden %" PRId64 "; %d MoE layers; %" PRId64 " sequences, %" PRId64 " tokens\n", s->n_experts,
           s->top_k, s->d_model, n_layers, s->n_sequences, s->n_tokens);
}

/* ---- numbers of one layer ------------------------------------------------------ */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Value at the fraction q of n sorted numbers (lower one between two). */
static double quantile(const double *sorted, size_t n, double q)
{
    return n ? sorted[(size_t)(q * (double)(n - 1))] : 0;
}

/* "0/16" or "2/16: 3 7": cold experts are named, up to a handful. */
static void show_cold(const uint64_t *expert_count, size_t e)
{
    size_t cold = 0, named = 0;
    for (size_t i = 0; i < e; i++) cold += expert_count[i] == 0;
    printf("%zu/%zu", cold, e);
    for (size_t i = 0; i < e && cold; i++)
        if (expert_count[i] == 0 && named++ < 8) printf("%s%zu", named == 1 ? ": " : " ", i);
    if (cold > 8) printf(" ...");
}

static void show_coverage(int layer, const uint64_t *count, size_t e, double *scratch)
{
    size_t seen = 0;
    for (size_t i = 0; i < e * e; i++)
        if (count[i]) scratch[seen++] = (double)count[i];
    qsort(scratch, seen, sizeof *scratch, ascending);
    printf("%5d  %zu/%zu (%.1f %%)  %8.0f  ", layer, seen, e * (e - 1), e > 1 ? 100.0 * (double)seen / (double)(e * (e - 1)) : 0.0,
           quantile(scratch, seen, 0.5));
}

/* ---- tables ------------------------------------------------------------------------ */

static void show_losses(const float *loss, const uint64_t *count, size_t e, double *scratch)
{
    size_t n = 0;
    for (size_t i = 0; i < e * e; i++)
        if (count[i]) scratch[n++] = (double)loss[i];
    qsort(scratch, n, sizeof *scratch, ascending);
    printf("  %6.3f", quantile(scratch, n, 0.5));
    n = 0;
    for (size_t s = 0; s < e; s++) {
        float best = EXF_LOSS_NEVER;
        for (size_t t = 0; t < e; t++) best = loss[s * e + t] < best ? loss[s * e + t] : best;
        if (best < EXF_LOSS_NEVER) scratch[n++] = (double)best;
    }
    qsort(scratch, n, sizeof *scratch, ascending);
    printf("  %6.3f %6.3f %6.3f", quantile(scratch, n, 0.25), quantile(scratch, n, 0.5), quantile(scratch, n, 0.75));
}

static void show_norms(const float *norms, size_t e)
{
    size_t low = 0, high = 0;
    for (size_t i = 1; i < e; i++) {
        if (norms[i] < norms[low]) low = i;
        if (norms[i] > norms[high]) high = i;
    }
    printf("  %8.4g (%3zu) .. %8.4g (%3zu)  ", (double)norms[low], low, (double)norms[high], high);
}

static exf_code show_tables(const char *path, exf_err *err)
{
    exf_tables t = {0};
    double *scratch = NULL;
    exf_code rc;
    EXF_TRY(exf_tables_read(&t, path, err));
    size_t e = (size_t)t.shape.n_experts;
    EXF_TRY(exf_mem_new(&scratch, e * e, sizeof *scratch, "summary", err));
    show_shape(&t.shape, t.n_layers);
    for (int i = 0; i < t.n_pools; i++) printf("static pool of %d experts\n", t.pool[i].size);
    printf("\nlayer  pairs observed     tokens    loss    best target's loss    expert norm                      cold\n"
           "                         median  median    25 %%   50 %%   75 %%    min (expert) .. max (expert)     experts\n");
    for (size_t l = 0; l < (size_t)t.n_layers; l++) {
        show_coverage(t.layer_number[l], t.count + l * e * e, e, scratch);
        show_losses(t.loss + l * e * e, t.count + l * e * e, e, scratch);
        show_norms(t.expert_norms + l * e, e);
        show_cold(t.expert_count + l * e, e);
        printf("\n");
    }
    show_provenance(&t.provenance);
out:
    exf_mem_free(scratch);
    exf_tables_free(&t);
    return rc;
}

/* ---- statistics and capture ---------------------------------------------------------- */

static exf_code show_statistics(const char *path, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics s = {0};
    double *scratch = NULL;
    exf_code rc;
    EXF_TRY(exf_statistics_open(&r, path, err));
    size_t e = (size_t)r.shape.n_experts;
    EXF_TRY(exf_mem_new(&scratch, e * e, sizeof *scratch, "summary", err));
    EXF_TRY(exf_layer_statistics_new(&s, (int)e, err));
    show_shape(&r.shape, r.n_layers);
    printf("\nlayer  pairs observed     tokens  cold\n"
           "                         median  experts\n");
    for (int l = 0; l < r.n_layers; l++) {
        EXF_TRY(exf_statistics_get(&r, l, &s, err));
        show_coverage(r.layer_number[l], s.count, e, scratch);
        show_cold(s.norm_count, e);
        printf("\n");
    }
    show_provenance(&r.provenance);
out:
    exf_layer_statistics_free(&s);
    exf_mem_free(scratch);
    exf_statistics_close(&r);
    return rc;
}

static exf_code show_capture(const char *path, exf_err *err)
{
    exf_capture_file f;
    exf_code rc = exf_capture_open(&f, path, err);
    if (rc != EXF_OK) return rc;
    show_shape(&f.shape, f.n_layers);
    printf("layers");
    for (int i = 0; i < f.n_layers; i++) printf(" %d", (int)f.layer_number[i]);
    printf("\n");
    show_provenance(&f.provenance);
    exf_capture_close(&f);
    return EXF_OK;
}

exf_code exf_inspect_file(const char *path, exf_err *err)
{
    exf_h5 *h = NULL;
    const exf_artifact *kind;
    int64_t version;
    exf_code rc;
    EXF_TRY(exf_artifact_open(&h, path, NULL, &kind, NULL, err));
    EXF_TRY(exf_h5_get_i64(h, "/", "exfold_version", &version, err));
    exf_h5_close(h);
    h = NULL;
    printf("%s: %s, version %" PRId64 "\n", path, kind->kind, version);
    if (kind == &exf_artifact_tables)
        rc = show_tables(path, err);
    else if (kind == &exf_artifact_statistics)
        rc = show_statistics(path, err);
    else
        rc = show_capture(path, err);
out:
    exf_h5_close(h);
    return rc;
}

exf_code exf_inspect_digest(const char *path, exf_err *err)
{
    exf_h5 *h = NULL;
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_artifact_open(&h, path, NULL, NULL, NULL, err));
    EXF_TRY(exf_h5_digest(h, digest, err));
    printf("%s\n", digest);
out:
    exf_h5_close(h);
    return rc;
}
