/* inspection.c - see inspection.h. */
#include <math.h>
#include "inspect/geometry.h"
#include "inspect/inspection.h"

#include "artifact/artifact_basis.h"
#include "artifact/artifact_capture.h"
#include "artifact/shards.h"
#include "artifact/statistics.h"
#include "base/mem.h"
#include "base/stop.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

#define EXF_NO_VALUE ((float)NAN) /* of a pair that was never observed */

/* Allocates layer numbers (copied), counts and norms. */
exf_code exf_inspection_new(exf_inspection *s, const exf_artifact *kind, const exf_run_shape *shape, int32_t *layer_number,
                            int n_layers, exf_err *err) EXF_CHECKED;

void exf_inspection_free(exf_inspection *s)
{
    void *all[] = {s->layer_number, s->count, s->expert_count, s->empty_slots, s->norms,  s->coeff,
                   s->loss,         s->std_error, s->similarity,   s->aligned, s->vectors};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
    for (int i = 0; i < s->n_pools; i++) {
        exf_mem_free(s->pool[i].members);
        exf_mem_free(s->pool[i].target_ids);
        exf_mem_free(s->pool[i].target_scale);
    }
    exf_mem_free(s->pool);
    for (int i = 0; i < s->n_budgets; i++) {
        exf_mem_free(s->budget[i].scale);
        exf_mem_free(s->budget[i].kept);
    }
    exf_mem_free(s->budget);
    exf_sequence_list_free(&s->sequences);
    exf_provenance_free(&s->provenance);
    exf_mem_free(s->part);
    memset(s, 0, sizeof *s);
}

int exf_inspection_observed(const exf_inspection *s, size_t at)
{
    size_t e = (size_t)s->shape.n_experts;
    if (at / e % e == at % e) return 0;
    return s->loss ? s->loss[at] < EXF_LOSS_NEVER : s->count[at] > 0;
}

exf_code exf_inspection_new(exf_inspection *s, const exf_artifact *kind, const exf_run_shape *shape, int32_t *layer_number,
                            int n_layers, exf_err *err)
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

void exf_inspection_take_tables(exf_inspection *s, exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts;
    s->kind = &exf_artifact_tables;
    s->version = s->kind->version;
    s->shape = t->shape;
    s->n_layers = t->n_layers;
#define TAKE(field, from) s->field = t->from, t->from = NULL
    TAKE(layer_number, layer_number);
    TAKE(count, count);
    TAKE(expert_count, expert_count);
    TAKE(empty_slots, empty_slots);
    TAKE(norms, expert_norms);
    TAKE(coeff, coeff);
    TAKE(loss, loss);
    TAKE(std_error, std_error);
    TAKE(similarity, similarity);
    TAKE(pool, pool);
    TAKE(budget, budget);
#undef TAKE
    s->n_pools = t->n_pools;
    t->n_pools = 0;
    s->n_budgets = t->n_budgets;
    t->n_budgets = 0;
    s->provenance = t->provenance;
    memset(&t->provenance, 0, sizeof t->provenance);
    for (size_t i = 0; s->similarity && i < (size_t)s->n_layers * e * e; i++)
        if (!exf_inspection_observed(s, i) && i / e % e != i % e) s->similarity[i] = EXF_NO_VALUE;
    exf_tables_free(t);
}

/* ---- choosing layers ---------------------------------------------------------------- */

/* A layer number at *p, at most 65535, and moves on; -1 for none. */
static long number_at(const char **p)
{
    char *end;
    if (**p < '0' || **p > '9') return -1;
    long n = strtol(*p, &end, 10);
    *p = end;
    return n > 65535 ? -1 : n;
}

static exf_code mark_range(const exf_inspection *s, long first, long last, char *keep, exf_err *err)
{
    for (long n = first; n <= last; n++) {
        int i = 0;
        while (i < s->n_layers && s->layer_number[i] != n) i++;
        if (i == s->n_layers) return exf_fail(err, EXF_USAGE, "--layers: the file holds no MoE layer %ld", n);
        keep[i] = 1;
    }
    return EXF_OK;
}

static exf_code mark_list(const exf_inspection *s, const char *layers, char *keep, exf_err *err)
{
    exf_code rc = EXF_OK;
    const char *p = layers;
    do {
        long first = number_at(&p), last = first;
        if (first >= 0 && *p == '-') p++, last = number_at(&p);
        if (first < 0 || last < first || (*p && *p != ','))
            return exf_fail(err, EXF_USAGE, "--layers: \"%s\" is no list of layers, such as 0,3,8-11", layers);
        rc = mark_range(s, first, last, keep, err);
    } while (rc == EXF_OK && *p++ == ',');
    return rc;
}

static void move_rows(void *array, size_t row_bytes, const char *keep, int n)
{
    char *to = array, *from = array;
    for (int i = 0; array && i < n; i++, from += row_bytes) {
        if (!keep[i]) continue;
        memmove(to, from, row_bytes);
        to += row_bytes;
    }
}

static void forget_pools(exf_inspection *s)
{
    exf_inspection pools = {.pool = s->pool, .n_pools = s->n_pools, .budget = s->budget, .n_budgets = s->n_budgets};
    s->pool = NULL;
    s->budget = NULL;
    s->n_pools = s->n_budgets = 0;
    exf_inspection_free(&pools);
}

exf_code exf_inspection_select(exf_inspection *s, const char *layers, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, kept = 0;
    char *keep = NULL;
    exf_code rc;
    if (strcmp(layers, "all") == 0) return EXF_OK;
    EXF_TRY(exf_mem_new(&keep, (size_t)s->n_layers, 1, "layers", err));
    EXF_TRY(mark_list(s, layers, keep, err));
    const struct {
        void *array;
        size_t row;
    } all[] = {
        {s->layer_number, sizeof *s->layer_number},     {s->count, e * e * sizeof *s->count},
        {s->expert_count, e * sizeof *s->expert_count}, {s->empty_slots, sizeof *s->empty_slots},
        {s->norms, e * sizeof *s->norms},
        {s->coeff, e * e * sizeof *s->coeff},           {s->loss, e * e * sizeof *s->loss},
        {s->std_error, e * e * sizeof *s->std_error},   {s->similarity, e * e * sizeof *s->similarity},
        {s->aligned, e * e * sizeof *s->aligned},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) move_rows(all[i].array, all[i].row, keep, s->n_layers);
    for (int i = 0; i < s->n_layers; i++) kept += (size_t)keep[i];
    s->n_layers = (int)kept;
    forget_pools(s);
out:
    exf_mem_free(keep);
    return rc;
}

/* ---- inspection read --------------------------------------------------------------------------- */

/* An inspection from files of each kind; see inspection.h. */

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
