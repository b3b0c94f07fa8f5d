/* fuzz_artifact.c - libFuzzer target: any bytes are opened as an artifact of each kind
 * and read to the end, digest and verification included, or refused with a message;
 * those of a .safetensors file are read as tables that others made.
 * Shapes that would take more memory than a fuzzer may have are opened and left.
 *   make fuzz FUZZ=artifact SECONDS=60 */
#include "artifact/artifact_capture.h"
#include "accumulate/statistics.h"
#include "artifact/tables.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "inspect/verify.h"
#include "tests/fuzz/scratch.h"

#include <math.h>

/* What libhdf5 itself loses when something it reads has a wrong checksum: see tests/cli/lsan.supp. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5\nleak:^H5\n"; /* a library of its own, or linked statically */
}

const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

enum { MOST_EXPERTS = 32, MOST_WIDE = 4096, MOST_LAYERS = 64, MOST_ROWS = 4096 };

static const char *path;

static void refused_well(exf_code rc, const exf_err *err)
{
    must(rc == EXF_OK ||
         ((rc == EXF_FORMAT || rc == EXF_VERSION || rc == EXF_NOSPACE || rc == EXF_IO) && err->code == rc && err->msg[0]));
}

static int is_small(const exf_run_shape *s, int n_layers)
{
    return s->n_experts <= MOST_EXPERTS && s->d_model <= MOST_WIDE && n_layers <= MOST_LAYERS;
}

static void read_capture_rows(exf_capture_file *f, int layer)
{
    exf_err err = {EXF_OK, ""};
    size_t n = (size_t)(f->shape.n_tokens < MOST_ROWS / f->shape.d_model ? f->shape.n_tokens : MOST_ROWS / f->shape.d_model);
    size_t routes = n * (size_t)f->shape.top_k;
    int32_t *ids = malloc(routes * sizeof *ids + 1);
    float *weights = malloc(routes * sizeof *weights + 1),
          *outputs = malloc(routes * (size_t)f->shape.d_model * sizeof *outputs + 1);
    must(ids && weights && outputs);
    exf_code rc = exf_capture_get(f, layer, 0, (int64_t)n, ids, weights, outputs, &err);
    refused_well(rc, &err);
    for (size_t i = 0; rc == EXF_OK && i < routes; i++) must(ids[i] >= 0 && ids[i] < f->shape.n_experts && isfinite(weights[i]));
    free(ids);
    free(weights);
    free(outputs);
}

static int read_capture(void)
{
    exf_err err = {EXF_OK, ""};
    exf_capture_file f;
    exf_code rc = exf_capture_open(&f, path, &err);
    refused_well(rc, &err);
    if (rc != EXF_OK) return 0;
    int small = is_small(&f.shape, f.n_layers);
    for (int l = 0; small && f.shape.d_model > 0 && l < f.n_layers; l++) read_capture_rows(&f, f.layer_number[l]);
    exf_capture_close(&f);
    return small;
}

static void read_layer(exf_statistics_reader *r, int i)
{
    exf_err err = {EXF_OK, ""};
    exf_layer_statistics s;
    exf_vector_sums v = {0};
    must(exf_layer_statistics_new(&s, (int)r->shape.n_experts, &err) == EXF_OK);
    refused_well(exf_statistics_get(r, i, &s, &err), &err);
    exf_layer_statistics_free(&s);
    refused_well(exf_statistics_get_vectors(r, i, &v, &err), &err);
    exf_vector_sums_free(&v);
}

static int read_statistics(void)
{
    exf_err err = {EXF_OK, ""};
    exf_statistics_reader r;
    exf_code rc = exf_statistics_open(&r, path, &err);
    refused_well(rc, &err);
    if (rc != EXF_OK) return 0;
    int small = is_small(&r.shape, r.n_layers);
    for (int i = 0; small && i < r.n_layers; i++) read_layer(&r, i);
    exf_statistics_close(&r);
    return small;
}

static int read_tables(void)
{
    exf_err err = {EXF_OK, ""};
    exf_tables t;
    exf_code rc = exf_tables_read(&t, path, &err);
    refused_well(rc, &err);
    if (rc != EXF_OK) return 0;
    must(exf_tables_check(&t, path, &err) == EXF_OK);
    int small = is_small(&t.shape, t.n_layers);
    if (small) {
        rc = exf_tables_read_vectors(&t, path, &err);
        refused_well(rc, &err);
        must(rc != EXF_OK || exf_vectors_check(&t, path, &err) == EXF_OK);
    }
    exf_tables_free(&t);
    return small;
}

/* The first letter of its kind; 0 where it is none of ours. */
static char sniff(void)
{
    exf_err err = {EXF_OK, ""};
    exf_h5 *h;
    const exf_artifact *kind = NULL;
    char hex[EXF_SHA256_HEX];
    exf_code rc = exf_artifact_open(&h, path, NULL, &kind, NULL, &err);
    refused_well(rc, &err);
    if (rc != EXF_OK) return 0;
    rc = exf_h5_digest(h, hex, &err);
    refused_well(rc, &err);
    must(rc != EXF_OK || strlen(hex) == EXF_SHA256_HEX - 1);
    exf_h5_close(h);
    return kind->kind[0];
}

static exf_code hear(void *self, const char *sentence, exf_err *err)
{
    (void)self, (void)err;
    must(sentence[0]);
    return EXF_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_err err = {EXF_OK, ""};
    path = put_input("a.h5", bytes, size);
    if (exf_st_is_one(path)) return read_tables(), 0;
    char kind = sniff();
    if (!kind) return 0;
    int is_whole = kind == 'c' ? read_capture() : kind == 's' ? read_statistics() : read_tables();
    if (is_whole) refused_well(exf_verify(&path, 1, hear, NULL, &err), &err);
    return 0;
}
