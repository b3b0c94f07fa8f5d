/* inspection_read.c - an inspection from files of each kind; see inspection.h. */
#include "artifact/artifact_capture.h"
#include "artifact/artifact_basis.h"
#include "artifact/shards.h"
#include "artifact/statistics.h"
#include "base/mem.h"
#include "base/stop.h"
#include "format/safetensors.h"
#include "inspect/geometry.h"
#include "inspect/inspection_internal.h"

#include <string.h>

/* Sets which part of its data a file is of. */
static exf_code name_part(exf_inspection *s, const char *path, const exf_provenance *origin, exf_err *err)
{
    exf_facts_part file = {.path = path, .provenance = &s->provenance, .origin = origin};
    exf_text words = {0};
    exf_code rc = exf_part_words(&words, &file, err);
    if (rc == EXF_OK) s->part = words.s;
    if (rc != EXF_OK) exf_text_free(&words);
    return rc;
}

/* ---- capture ------------------------------------------------------------------------ */

/* Rows of one read: about 16 MB of outputs. */
static int64_t rows_at_once(const exf_run_shape *s)
{
    int64_t n = (4 << 20) / (s->top_k * (s->d_model ? s->d_model : 1));
    if (n > s->n_tokens) n = s->n_tokens;
    return n > 1 ? n : 1;
}

typedef struct {
    int32_t *ids;     /* [n, K] */
    float *weights;   /* [n, K] */
    float *outputs;   /* [n, K, H] */
    double *norm_sum; /* [E] */
} capture_rows;

static void count_rows(exf_inspection *s, size_t layer, const capture_rows *r, int64_t n)
{
    size_t e = (size_t)s->shape.n_experts, k = (size_t)s->shape.top_k, h = (size_t)s->shape.d_model;
    for (size_t row = 0; row < (size_t)n; row++)
        for (size_t a = 0; a < k; a++) {
            if (r->ids[row * k + a] < 0) {
                s->empty_slots[layer]++;
                continue;
            }
            size_t source = (size_t)r->ids[row * k + a];
            const float *u = r->outputs + (row * k + a) * h;
            double sq = 0;
            for (size_t i = 0; i < h; i++) sq += (double)u[i] * (double)u[i];
            r->norm_sum[source] += sqrt(sq);
            s->expert_count[layer * e + source]++;
            for (size_t b = 0; b < k; b++)
                if (b != a && r->ids[row * k + b] >= 0) s->count[(layer * e + source) * e + (size_t)r->ids[row * k + b]]++;
        }
}

static exf_code read_capture_layer(exf_inspection *s, exf_capture_file *f, int i, const capture_rows *r, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, base = (size_t)i * e;
    memset(r->norm_sum, 0, e * sizeof *r->norm_sum);
    for (int64_t row = 0, n = rows_at_once(&s->shape); row < s->shape.n_tokens; row += n) {
        if (n > s->shape.n_tokens - row) n = s->shape.n_tokens - row;
        exf_code rc = exf_stop_check(err);
        if (rc == EXF_OK) rc = exf_capture_get(f, f->layer_number[i], row, n, r->ids, r->weights, r->outputs, err);
        if (rc != EXF_OK) return rc;
        count_rows(s, (size_t)i, r, n);
    }
    for (size_t x = 0; x < e; x++)
        s->norms[base + x] = s->expert_count[base + x] ? (float)(r->norm_sum[x] / (double)s->expert_count[base + x]) : EXF_NO_VALUE;
    return EXF_OK;
}

static exf_code read_capture(exf_inspection *s, const char *path, exf_err *err)
{
    exf_capture_file f = {0};
    capture_rows r = {0};
    exf_code rc;
    EXF_TRY(exf_capture_open(&f, path, err));
    EXF_TRY(exf_inspection_new(s, &exf_artifact_capture, &f.shape, f.layer_number, f.n_layers, err));
    size_t n = (size_t)rows_at_once(&f.shape) * (size_t)f.shape.top_k;
    EXF_TRY(exf_mem_new(&r.ids, n, sizeof *r.ids, "captured rows", err));
    EXF_TRY(exf_mem_new(&r.weights, n, sizeof *r.weights, "captured rows", err));
    EXF_TRY(exf_mem_new(&r.outputs, n * (size_t)f.shape.d_model, sizeof *r.outputs, "captured rows", err));
    EXF_TRY(exf_mem_new(&r.norm_sum, (size_t)f.shape.n_experts, sizeof *r.norm_sum, "sums of norms", err));
    for (int i = 0; i < f.n_layers; i++) EXF_TRY(read_capture_layer(s, &f, i, &r, err));
    EXF_TRY(exf_provenance_copy(&s->provenance, &f.provenance, err));
    EXF_TRY(name_part(s, path, NULL, err));
    s->sequences = f.sequences;
    memset(&f.sequences, 0, sizeof f.sequences);
out:
    exf_mem_free(r.ids);
    exf_mem_free(r.weights);
    exf_mem_free(r.outputs);
    exf_mem_free(r.norm_sum);
    exf_capture_close(&f);
    return rc;
}

/* ---- statistics ---------------------------------------------------------------------- */

static exf_code new_geometry(exf_inspection *s, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, n = (size_t)s->n_layers * e * e;
    exf_code rc;
    exf_mem_free(s->similarity); /* that of the statistics is not rounded twice */
    s->similarity = NULL;
    EXF_TRY(exf_mem_new(&s->similarity, n, sizeof *s->similarity, "similarities", err));
    EXF_TRY(exf_mem_new(&s->aligned, n, sizeof *s->aligned, "similarities", err));
out:
    return rc;
}

static void take_statistics_layer(exf_inspection *s, size_t i, const exf_layer_statistics *x)
{
    size_t e = (size_t)s->shape.n_experts;
    memcpy(s->count + i * e * e, x->count, e * e * sizeof *s->count);
    memcpy(s->expert_count + i * e, x->norm_count, e * sizeof *s->expert_count);
    s->empty_slots[i] = *x->empty_slots;
    for (size_t k = 0; k < e; k++)
        s->norms[i * e + k] =
            x->norm_count[k] ? (float)(exf_exact_value(&x->norm_sum[k]) / (double)x->norm_count[k]) : EXF_NO_VALUE;
}

static exf_code read_statistics(exf_inspection *s, const char *path, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics x = {0};
    exf_code rc;
    EXF_TRY(exf_statistics_open(&r, path, err));
    EXF_TRY(exf_inspection_new(s, &exf_artifact_statistics, &r.shape, r.layer_number, r.n_layers, err));
    EXF_TRY(new_geometry(s, err));
    EXF_TRY(exf_layer_statistics_new(&x, (int)r.shape.n_experts, err));
    size_t cells = (size_t)r.shape.n_experts * (size_t)r.shape.n_experts;
    for (int i = 0; i < r.n_layers; i++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get(&r, i, &x, err));
        take_statistics_layer(s, (size_t)i, &x);
        exf_geometry(&x, s->loss ? s->loss + (size_t)i * cells : NULL, s->similarity + (size_t)i * cells,
                     s->aligned + (size_t)i * cells);
    }
    EXF_TRY(exf_provenance_copy(&s->provenance, &r.provenance, err));
    EXF_TRY(name_part(s, path, &r.origin, err));
    s->sequences = r.sequences;
    memset(&r.sequences, 0, sizeof r.sequences);
out:
    exf_layer_statistics_free(&x);
    exf_statistics_close(&r);
    return rc;
}

/* ---- tables ----------------------------------------------------------------------------- */

static exf_code read_tables(exf_inspection *s, const char *path, exf_err *err)
{
    exf_tables t;
    exf_code rc = exf_tables_read(&t, path, err);
    if (rc == EXF_OK) exf_inspection_take_tables(s, &t);
    return rc == EXF_OK ? name_part(s, path, NULL, err) : rc;
}

static exf_code check_layer_beside(const exf_inspection *s, const char *path, const exf_layer_statistics *x, size_t i,
                                   const char *beside, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts;
    for (size_t k = 0; k < e * e; k++)
        if (s->count[i * e * e + k] != x->count[k])
            return exf_fail(err, EXF_MODEL,
                            "%s: layer %d, pair %zu -> %zu: %llu tokens, in %s %llu: the tables are of other statistics", path,
                            (int)s->layer_number[i], k / e, k % e, (unsigned long long)s->count[i * e * e + k], beside,
                            (unsigned long long)x->count[k]);
    return EXF_OK;
}

/* Fits the statistics beside the tables and takes their geometry. */
static exf_code add_statistics(exf_inspection *s, const char *path, const char *beside, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics x = {0};
    exf_code rc;
    size_t cells = (size_t)s->shape.n_experts * (size_t)s->shape.n_experts;
    EXF_TRY(exf_statistics_open(&r, beside, err));
    if (r.shape.n_experts != s->shape.n_experts || r.n_layers != s->n_layers ||
        memcmp(r.layer_number, s->layer_number, (size_t)s->n_layers * sizeof *s->layer_number) != 0) {
        rc = exf_fail(err, EXF_MODEL, "%s: %d layers of %lld experts, %s has %d of %lld or other layers", path, s->n_layers,
                      (long long)s->shape.n_experts, beside, r.n_layers, (long long)r.shape.n_experts);
        goto out;
    }
    EXF_TRY(new_geometry(s, err));
    EXF_TRY(exf_layer_statistics_new(&x, (int)r.shape.n_experts, err));
    for (int i = 0; i < r.n_layers; i++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get(&r, i, &x, err));
        EXF_TRY(check_layer_beside(s, path, &x, (size_t)i, beside, err));
        exf_geometry(&x, s->loss ? s->loss + (size_t)i * cells : NULL, s->similarity + (size_t)i * cells,
                     s->aligned + (size_t)i * cells);
    }
out:
    exf_layer_statistics_free(&x);
    exf_statistics_close(&r);
    return rc;
}

/* ---- basis -------------------------------------------------------------------------------- */

static exf_code read_basis(exf_inspection *s, const char *path, exf_err *err)
{
    exf_basis b = {.h = NULL};
    exf_vector_sums v = {.n_pairs = 0};
    exf_code rc;
    EXF_TRY(exf_basis_open(&b, path, err));
    EXF_TRY(exf_inspection_new(s, &exf_artifact_basis, &b.shape, b.layer_number, b.n_layers, err));
    EXF_TRY(exf_mem_new(&s->vectors, (size_t)b.n_layers, sizeof *s->vectors, "pairs with vectors", err));
    for (int i = 0; i < b.n_layers; i++) {
        EXF_TRY(exf_basis_get(&b, b.layer_number[i], &v, err));
        s->vectors[i] = (uint64_t)v.n_pairs;
        exf_vector_sums_free(&v);
    }
    EXF_TRY(exf_provenance_copy(&s->provenance, &b.provenance, err));
    s->sequences = b.sequences;
    memset(&b.sequences, 0, sizeof b.sequences);
out:
    exf_vector_sums_free(&v);
    exf_basis_close(&b);
    return rc;
}

/* Tables that others made have scalars, losses and norms alone. */
static exf_code read_others(exf_inspection *s, const char *path, const char *beside, exf_err *err)
{
    if (beside) return exf_fail(err, EXF_USAGE, "%s: is of other statistics than %s, whichever they were", path, beside);
    exf_code rc = read_tables(s, path, err);
    s->version = exf_artifact_tables.version;
    return rc;
}

exf_code exf_inspection_read(exf_inspection *s, const char *path, const char *beside, exf_err *err)
{
    exf_code rc = exf_inspection_read_any(s, path, beside, err);
    if (rc != EXF_OK || s->kind != &exf_artifact_basis) return rc;
    return exf_fail(err, EXF_FORMAT, "%s: holds a basis, which has no numbers of pairs: exfold-inspect summary and verify read it",
                    path);
}

exf_code exf_inspection_read_any(exf_inspection *s, const char *path, const char *beside, exf_err *err)
{
    static const struct {
        const exf_artifact *kind;
        exf_code (*read)(exf_inspection *, const char *, exf_err *);
    } readers[] = {
        {&exf_artifact_basis, read_basis},
        {&exf_artifact_capture, read_capture},
        {&exf_artifact_statistics, read_statistics},
        {&exf_artifact_tables, read_tables},
    };
    exf_h5 *h = NULL;
    const exf_artifact *kind;
    int64_t version;
    exf_code rc;
    memset(s, 0, sizeof *s);
    if (exf_st_is_one(path)) return read_others(s, path, beside, err);
    EXF_TRY(exf_artifact_open(&h, path, beside ? &exf_artifact_tables : NULL, &kind, NULL, err));
    EXF_TRY(exf_h5_get_i64(h, "/", "exfold_version", &version, err));
    exf_h5_close(h);
    h = NULL;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (readers[i].kind == kind) EXF_TRY(readers[i].read(s, path, err));
    s->version = version;
    if (beside) EXF_TRY(add_statistics(s, path, beside, err));
out:
    exf_h5_close(h);
    return rc;
}
