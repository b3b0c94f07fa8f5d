/* inspection_read.c - reads an inspection from files of each kind, and computes the geometry of statistics; see inspection.h. */
#include "inspect/inspection.h"

#include "artifact/artifact_capture.h"
#include "artifact/data.h"
#include "accumulate/statistics.h"
#include "base/err.h"
#include "base/mem.h"
#include "format/safetensors.h"

#include <math.h>
#include <string.h>

#define NO_VALUE ((float)NAN) /* of a pair that was never observed */

/* Allocates layer numbers (copied), counts and norms. */
static exf_code new_inspection(exf_inspection *s, const exf_artifact *kind, const exf_run_shape *shape,
                               const int32_t *layer_number, int n_layers, exf_err *err)
{
    exf_code rc;
    size_t e = (size_t)shape->n_experts, cells = 0;
    s->kind = kind;
    s->shape = *shape;
    s->n_layers = n_layers;
    EXF_TRY(exf_mem_mul(&cells, (size_t)n_layers, e * e, "pairs of all layers", err));
    EXF_TRY(exf_mem_new(&s->layer_number, (size_t)n_layers, sizeof *s->layer_number, "layer numbers", err));
    memcpy(s->layer_number, layer_number, (size_t)n_layers * sizeof *layer_number);
    EXF_TRY(exf_mem_new(&s->count, cells, sizeof *s->count, "pair counts", err));
    EXF_TRY(exf_mem_new(&s->expert_count, (size_t)n_layers * e, sizeof *s->expert_count, "expert counts", err));
    EXF_TRY(exf_mem_new(&s->empty_slots, (size_t)n_layers, sizeof *s->empty_slots, "expert counts", err));
    EXF_TRY(exf_mem_new(&s->norms, (size_t)n_layers * e, sizeof *s->norms, "expert norms", err));
out:
    return rc;
}

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

/* ---- geometry ------------------------------------------------------------------------------ */

typedef struct {
    double n, dot, source_sq, target_sq;
} pair_sums;

static pair_sums read_pair(const exf_layer_statistics *s, size_t source, size_t target)
{
    size_t e = (size_t)s->n_experts, at = source * e + target, mirror = target * e + source;
    return (pair_sums){(double)s->count[at], exf_exact_value(&s->dot0[at]), exf_exact_value(&s->sq0[at]),
                  exf_exact_value(&s->sq0[mirror])};
}

static double raw_distance(const pair_sums *p)
{
    double sq = p->source_sq - 2 * p->dot + p->target_sq;
    return sq > 0 ? sqrt(sq / p->n) : 0;
}

/* Returns the norm of what is left of a when one scalar times b explains it as well as can be. */
static double remaining_norm(double a_sq, double b_sq, double dot, double n)
{
    double sq = b_sq > 0 ? a_sq - dot * dot / b_sq : a_sq;
    return sq > 0 ? sqrt(sq / n) : 0;
}

static int is_observed(const exf_layer_statistics *s, const float *loss, size_t at)
{
    return s->count[at] > 0 && (!loss || loss[at] < EXF_LOSS_NEVER);
}

void exf_geometry(const exf_layer_statistics *s, const float *loss, float *raw, float *aligned)
{
    size_t e = (size_t)s->n_experts;
    double farthest = 0;
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < a; b++) {
            pair_sums p = read_pair(s, a, b);
            if (is_observed(s, loss, a * e + b) && raw_distance(&p) > farthest) farthest = raw_distance(&p);
        }
    for (size_t a = 0; a < e; a++) {
        raw[a * e + a] = aligned[a * e + a] = 1;
        for (size_t b = 0; b < a; b++) {
            pair_sums p = read_pair(s, a, b);
            int seen = is_observed(s, loss, a * e + b);
            double scale = farthest > 0 ? 1 / farthest : 0, distance = raw_distance(&p);
            double mean = (remaining_norm(p.source_sq, p.target_sq, p.dot, p.n) +
                           remaining_norm(p.target_sq, p.source_sq, p.dot, p.n)) / 2;
            if (!(mean < distance)) mean = distance; /* the minimum is never above, but for the last bit */
            raw[a * e + b] = raw[b * e + a] = seen ? (float)(1 - distance * scale) : NAN;
            aligned[a * e + b] = aligned[b * e + a] = seen ? (float)(1 - mean * scale) : NAN;
        }
    }
}

/* ---- capture ------------------------------------------------------------------------ */

/* Returns how many rows are read at once: about 16 MB of outputs. */
static int64_t count_rows_at_once(const exf_run_shape *s)
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
    for (int64_t row = 0, n = count_rows_at_once(&s->shape); row < s->shape.n_tokens; row += n) {
        if (n > s->shape.n_tokens - row) n = s->shape.n_tokens - row;
        exf_code rc = exf_stop_check(err);
        if (rc == EXF_OK) rc = exf_capture_get(f, f->layer_number[i], row, n, r->ids, r->weights, r->outputs, err);
        if (rc != EXF_OK) return rc;
        count_rows(s, (size_t)i, r, n);
    }
    for (size_t x = 0; x < e; x++)
        s->norms[base + x] = s->expert_count[base + x] ? (float)(r->norm_sum[x] / (double)s->expert_count[base + x]) : NO_VALUE;
    return EXF_OK;
}

static exf_code read_capture(exf_inspection *s, const char *path, exf_err *err)
{
    exf_capture_file f = {0};
    capture_rows r = {0};
    exf_code rc;
    EXF_TRY(exf_capture_open(&f, path, err));
    EXF_TRY(new_inspection(s, &exf_artifact_capture, &f.shape, f.layer_number, f.n_layers, err));
    size_t n = (size_t)count_rows_at_once(&f.shape) * (size_t)f.shape.top_k;
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

/* Reads a layer and its geometry, among the pairs that have a loss if there are losses. */
static exf_code read_statistics_layer(exf_inspection *s, exf_statistics_reader *r, int i, exf_layer_statistics *x, exf_err *err)
{
    size_t base = (size_t)i * (size_t)s->shape.n_experts * (size_t)s->shape.n_experts;
    exf_code rc = exf_stop_check(err);
    if (rc == EXF_OK) rc = exf_statistics_get(r, i, x, err);
    if (rc == EXF_OK) exf_geometry(x, s->loss ? s->loss + base : NULL, s->similarity + base, s->aligned + base);
    return rc;
}

static exf_code read_statistics(exf_inspection *s, const char *path, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics x = {0};
    exf_code rc;
    EXF_TRY(exf_statistics_open(&r, path, err));
    EXF_TRY(new_inspection(s, &exf_artifact_statistics, &r.shape, r.layer_number, r.n_layers, err));
    EXF_TRY(new_geometry(s, err));
    EXF_TRY(exf_layer_statistics_new(&x, (int)r.shape.n_experts, err));
    for (int i = 0; i < r.n_layers; i++) {
        EXF_TRY(read_statistics_layer(s, &r, i, &x, err));
        size_t e = (size_t)s->shape.n_experts, at = (size_t)i * e;
        memcpy(s->count + at * e, x.count, e * e * sizeof *s->count);
        memcpy(s->expert_count + at, x.norm_count, e * sizeof *s->expert_count);
        s->empty_slots[i] = *x.empty_slots;
        for (size_t k = 0; k < e; k++)
            s->norms[at + k] = x.norm_count[k] ? (float)(exf_exact_value(&x.norm_sum[k]) / (double)x.norm_count[k]) : NO_VALUE;
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

/* Takes the geometry of the statistics beside tables, which must be those from which they were solved. */
static exf_code add_statistics(exf_inspection *s, const char *path, const char *beside, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics x = {0};
    exf_code rc;
    size_t e = (size_t)s->shape.n_experts, cells = e * e;
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
        const uint64_t *count = s->count + (size_t)i * cells;
        EXF_TRY(read_statistics_layer(s, &r, i, &x, err));
        for (size_t k = 0; k < cells; k++) {
            if (count[k] == x.count[k]) continue;
            rc = exf_fail(err, EXF_MODEL,
                          "%s: layer %d, pair %zu -> %zu: %llu tokens, in %s %llu: the tables are of other statistics", path,
                          (int)s->layer_number[i], k / e, k % e, (unsigned long long)count[k], beside,
                          (unsigned long long)x.count[k]);
            goto out;
        }
    }
out:
    exf_layer_statistics_free(&x);
    exf_statistics_close(&r);
    return rc;
}

exf_code exf_inspection_read(exf_inspection *s, const char *path, const char *beside, exf_err *err)
{
    static const struct {
        const exf_artifact *kind;
        exf_code (*read)(exf_inspection *, const char *, exf_err *);
    } readers[] = {
        {&exf_artifact_capture, read_capture},
        {&exf_artifact_statistics, read_statistics},
        {&exf_artifact_tables, read_tables},
    };
    exf_h5 *h = NULL;
    const exf_artifact *kind;
    int64_t version;
    exf_code rc;
    memset(s, 0, sizeof *s);
    if (exf_st_is_one(path)) { /* tables that others made, which have scalars, losses and norms alone */
        if (beside) return exf_fail(err, EXF_USAGE, "%s: is of other statistics than %s, whichever they were", path, beside);
        rc = read_tables(s, path, err);
        s->version = exf_artifact_tables.version;
        return rc;
    }
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
