/* artifact_tables.c - the file format `tables`, version 1.
 *
 * Root attributes beside those of artifact.h:
 *   n_experts, top_k, d_model, n_sequences, n_tokens   i64
 * Datasets, L MoE layers, E = n_experts (meaning: tables.h):
 *   /layer_numbers        I32 [L]       the model's layer numbers, ascending
 *   /coeff                F32 [L, E, E] row = source, column = target
 *   /loss                 F32 [L, E, E] 1e30 where there is no evidence, and on the diagonal
 *   /expert_norms         F32 [L, E]
 *   /count                U64 [L, E, E]
 *   /expert_count         U64 [L, E]
 *   /pools/<D>/members       I32 [L, D]
 *   /pools/<D>/target_ids    I32 [L, E]
 *   /pools/<D>/target_scale  F32 [L, E] */
#include "artifact/tables.h"

#include "base/mem.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const exf_artifact exf_artifact_tables = {.kind = "tables", .version = 1, .min_reader = 1};

static exf_code new_pool(exf_pool *p, int64_t size, const exf_tables *t, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)t->n_layers, e = (size_t)t->shape.n_experts;
    if (size < 1 || size > t->shape.n_experts)
        return exf_fail(err, EXF_USAGE, "a decode pool of %lld experts: the model has %lld", (long long)size, (long long)t->shape.n_experts);
    p->size = (int)size;
    EXF_TRY(exf_mem_new(&p->members, l * (size_t)size, sizeof *p->members, "pools", err));
    EXF_TRY(exf_mem_new(&p->target_ids, l * e, sizeof *p->target_ids, "pools", err));
    EXF_TRY(exf_mem_new(&p->target_scale, l * e, sizeof *p->target_scale, "pools", err));
out:
    return rc;
}

exf_code exf_tables_new(exf_tables *t, const exf_run_shape *shape, const int32_t *layer_number, int n_layers, const int64_t *pool_sizes,
                        size_t n_pools, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)n_layers, e = (size_t)shape->n_experts;
    memset(t, 0, sizeof *t);
    t->shape = *shape;
    t->n_layers = n_layers;
    EXF_TRY(exf_mem_new(&t->layer_number, l, sizeof *t->layer_number, "tables", err));
    memcpy(t->layer_number, layer_number, l * sizeof *layer_number);
    EXF_TRY(exf_mem_new(&t->coeff, l * e * e, sizeof *t->coeff, "tables", err));
    EXF_TRY(exf_mem_new(&t->loss, l * e * e, sizeof *t->loss, "tables", err));
    EXF_TRY(exf_mem_new(&t->count, l * e * e, sizeof *t->count, "tables", err));
    EXF_TRY(exf_mem_new(&t->expert_norms, l * e, sizeof *t->expert_norms, "tables", err));
    EXF_TRY(exf_mem_new(&t->expert_count, l * e, sizeof *t->expert_count, "tables", err));
    EXF_TRY(exf_mem_new(&t->pool, n_pools, sizeof *t->pool, "pools", err));
    t->n_pools = (int)n_pools;
    for (size_t i = 0; i < n_pools; i++) EXF_TRY(new_pool(&t->pool[i], pool_sizes[i], t, err));
out:
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}

void exf_tables_free(exf_tables *t)
{
    for (int i = 0; t->pool && i < t->n_pools; i++) {
        exf_mem_free(t->pool[i].members);
        exf_mem_free(t->pool[i].target_ids);
        exf_mem_free(t->pool[i].target_scale);
    }
    exf_mem_free(t->pool);
    exf_mem_free(t->layer_number);
    exf_mem_free(t->coeff);
    exf_mem_free(t->loss);
    exf_mem_free(t->count);
    exf_mem_free(t->expert_norms);
    exf_mem_free(t->expert_count);
    exf_provenance_free(&t->provenance);
    memset(t, 0, sizeof *t);
}

/* ---- the list of datasets, for writing and for reading -------------------- */

enum { PATH_LEN = 64 };

typedef struct {
    char path[PATH_LEN];
    exf_dtype dtype;
    int rank;
    int64_t shape[3];
    void *data;
} dataset;

/* visit(dataset) for everything but /layer_numbers. */
static exf_code each_dataset(const exf_tables *t, exf_code (*visit)(const dataset *d, exf_h5 *h, exf_err *err), exf_h5 *h, exf_err *err)
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    const dataset fixed[] = {
        {"/coeff", EXF_DT_F32, 3, {l, e, e}, t->coeff},
        {"/loss", EXF_DT_F32, 3, {l, e, e}, t->loss},
        {"/expert_norms", EXF_DT_F32, 2, {l, e}, t->expert_norms},
        {"/count", EXF_DT_U64, 3, {l, e, e}, t->count},
        {"/expert_count", EXF_DT_U64, 2, {l, e}, t->expert_count},
    };
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < sizeof fixed / sizeof *fixed; i++) rc = visit(&fixed[i], h, err);
    for (int i = 0; rc == EXF_OK && i < t->n_pools; i++) {
        const exf_pool *p = &t->pool[i];
        dataset part[] = {
            {"members", EXF_DT_I32, 2, {l, p->size}, p->members},
            {"target_ids", EXF_DT_I32, 2, {l, e}, p->target_ids},
            {"target_scale", EXF_DT_F32, 2, {l, e}, p->target_scale},
        };
        for (size_t k = 0; rc == EXF_OK && k < sizeof part / sizeof *part; k++) {
            char name[PATH_LEN];
            memcpy(name, part[k].path, sizeof name);
            snprintf(part[k].path, PATH_LEN, "/pools/%d/%.20s", p->size, name);
            rc = visit(&part[k], h, err);
        }
    }
    return rc;
}

static exf_code write_one(const dataset *d, exf_h5 *h, exf_err *err)
{
    exf_tensor t = {.name = d->path, .dtype = d->dtype, .rank = d->rank, .shape = {d->shape[0], d->shape[1], d->shape[2]}, .data = d->data};
    return exf_h5_write(h, &t, EXF_H5_COMPRESS, err);
}

static exf_code read_one(const dataset *d, exf_h5 *h, exf_err *err)
{
    exf_tensor t = {.name = d->path, .dtype = d->dtype, .rank = d->rank, .shape = {d->shape[0], d->shape[1], d->shape[2]}};
    return exf_h5_read(h, &t, d->data, err);
}

exf_code exf_tables_write(const exf_tables *t, const char *target, int force, exf_err *err)
{
    exf_code rc;
    exf_h5 *h = NULL;
    EXF_TRY(exf_artifact_create(&h, target, force, &exf_artifact_tables, &t->provenance, err));
    EXF_TRY(exf_run_shape_write(&t->shape, h, err));
    EXF_TRY(exf_layer_numbers_write(t->layer_number, t->n_layers, h, err));
    EXF_TRY(each_dataset(t, write_one, h, err));
    rc = exf_h5_commit(h, err);
    h = NULL;
out:
    exf_h5_close(h);
    return rc;
}

/* ---- reading ---------------------------------------------------------------- */

static exf_code bad_cell(const char *path, const char *name, size_t layer, size_t s, size_t t, double value, const char *rule, exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: %s[%zu, %zu, %zu] is %g, %s", path, name, layer, s, t, value, rule);
}

static exf_code check_pair(const exf_tables *t, const char *path, size_t layer, size_t a, size_t b, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts, at = (layer * e + a) * e + b;
    float s = t->coeff[at], loss = t->loss[at];
    if (!isfinite(s)) return bad_cell(path, "/coeff", layer, a, b, (double)s, "expected a finite number", err);
    if (!isfinite(loss) || loss < 0) return bad_cell(path, "/loss", layer, a, b, (double)loss, "expected a finite number from 0", err);
    if (a == b && s != 1) return bad_cell(path, "/coeff", layer, a, b, (double)s, "expected 1 on the diagonal", err);
    if ((a == b || t->count[at] == 0) && loss < EXF_LOSS_NEVER)
        return bad_cell(path, "/loss", layer, a, b, (double)loss, "expected 1e30 on the diagonal and without evidence", err);
    return EXF_OK;
}

static exf_code check_values(const exf_tables *t, const char *path, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_code rc = EXF_OK;
    for (size_t l = 0; l < (size_t)t->n_layers; l++)
        for (size_t a = 0; a < e; a++) {
            float h = t->expert_norms[l * e + a];
            if (!isfinite(h) || !(h > 0))
                return exf_fail(err, EXF_FORMAT, "%s: /expert_norms[%zu, %zu] is %g, expected a number above 0", path, l, a, (double)h);
            for (size_t b = 0; rc == EXF_OK && b < e; b++) rc = check_pair(t, path, l, a, b, err);
            if (rc != EXF_OK) return rc;
        }
    for (int i = 0; i < t->n_pools; i++) {
        for (size_t k = 0; k < (size_t)t->n_layers * (size_t)t->pool[i].size; k++)
            if (t->pool[i].members[k] < 0 || t->pool[i].members[k] >= t->shape.n_experts)
                return exf_fail(err, EXF_FORMAT, "%s: /pools/%d: member %d, expected an expert in [0, %zu)", path, t->pool[i].size,
                                (int)t->pool[i].members[k], e);
        for (size_t k = 0; k < (size_t)t->n_layers * e; k++)
            if (t->pool[i].target_ids[k] < 0 || t->pool[i].target_ids[k] >= t->shape.n_experts || !isfinite(t->pool[i].target_scale[k]))
                return exf_fail(err, EXF_FORMAT, "%s: /pools/%d: expert %zu goes to %d times %g, expected an expert in [0, %zu) and a finite scale",
                                path, t->pool[i].size, k % e, (int)t->pool[i].target_ids[k], (double)t->pool[i].target_scale[k], e);
    }
    return rc;
}

typedef struct {
    int64_t size[64];
    size_t n;
    const char *path;
    int64_t n_experts;
    int there; /* the file has a group /pools */
} pool_list;

static exf_code look_for_pools(void *self, const char *name, exf_err *err)
{
    pool_list *list = self;
    (void)err;
    list->there |= strcmp(name, "pools") == 0;
    return EXF_OK;
}

static exf_code note_pool(void *self, const char *name, exf_err *err)
{
    pool_list *list = self;
    int64_t size;
    if (!exf_parse_i64(name, &size)) return exf_fail(err, EXF_FORMAT, "%s: /pools/%s is no pool size", list->path, name);
    if (size < 1 || size > list->n_experts)
        return exf_fail(err, EXF_FORMAT, "%s: a decode pool of %lld experts: the model has %lld", list->path, (long long)size,
                        (long long)list->n_experts);
    if (list->n == sizeof list->size / sizeof *list->size) return exf_fail(err, EXF_FORMAT, "%s: more than %zu pools", list->path, list->n);
    list->size[list->n++] = size;
    return EXF_OK;
}

static int falling(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

exf_code exf_tables_read(exf_tables *t, const char *path, exf_err *err)
{
    exf_code rc;
    exf_h5 *h = NULL;
    exf_provenance provenance = {0};
    exf_run_shape shape;
    int32_t *numbers = NULL;
    int n_layers = 0;
    pool_list pools = {.path = path};
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_artifact_open(&h, path, &exf_artifact_tables, NULL, &provenance, err));
    EXF_TRY(exf_run_shape_read(&shape, h, err));
    EXF_TRY(exf_layer_numbers_read(&numbers, &n_layers, h, err));
    pools.n_experts = shape.n_experts;
    EXF_TRY(exf_h5_members(h, "/", look_for_pools, &pools, err));
    if (pools.there) EXF_TRY(exf_h5_members(h, "/pools", note_pool, &pools, err));
    qsort(pools.size, pools.n, sizeof *pools.size, falling);
    EXF_TRY(exf_tables_new(t, &shape, numbers, n_layers, pools.size, pools.n, err));
    t->provenance = provenance;
    memset(&provenance, 0, sizeof provenance);
    EXF_TRY(each_dataset(t, read_one, h, err));
    EXF_TRY(check_values(t, path, err));
out:
    exf_h5_close(h);
    exf_mem_free(numbers);
    exf_provenance_free(&provenance);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}
