/* tables_vectors_file.c - the arrays of tables_vectors.c in the group /vectors of a file (artifact_tables.c), apart from the other
 * datasets since they may be gigabytes: writes, reads and checks them. */
#include "artifact/tables.h"

#include "base/mem.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_LEN = EXF_VECTOR_NAME + 10, MOST_RANKS = 8, MOST_ARRAYS = 32, LARGEST_RANK = 4096 };

static void path_of(char path[PATH_LEN], const exf_vector_array *a)
{
    char name[EXF_VECTOR_NAME];
    exf_vector_array_name(name, a);
    snprintf(path, PATH_LEN, "/vectors/%s", name);
}

static exf_tensor list_of_pairs(const exf_vectors *v)
{
    return (exf_tensor){.name = "/vectors/pair", .dtype = EXF_DT_I32, .rank = 2, .shape = {v->n_pairs, 3}, .data = v->pair};
}

exf_code exf_vectors_write(const exf_tables *t, exf_h5 *h, exf_err *err)
{
    const exf_vectors *v = &t->vectors;
    exf_tensor pairs = list_of_pairs(v);
    exf_code rc = EXF_OK;
    char path[PATH_LEN];
    if (v->n_pairs == 0) return EXF_OK;
    EXF_TRY(exf_h5_write(h, &pairs, err));
    for (int i = 0; i < v->n_arrays; i++) {
        exf_tensor x = exf_vector_array_tensor(t, &v->array[i]);
        path_of(path, &v->array[i]);
        x.name = path;
        EXF_TRY(exf_h5_write(h, &x, err));
    }
out:
    return rc;
}

typedef struct {
    const char *path;
    int listed, pair; /* 1: the file has the group, its list of pairs */
    const exf_stored_array *array[MOST_ARRAYS];
    int rank[MOST_ARRAYS], n_arrays;
    const exf_stored_array *group; /* array whose ranks are being listed */
    int n_ranks;             /* ranks of that array */
} contents;

static exf_code note_array(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    const exf_stored_array *s = exf_stored_array_find(name);
    if (strcmp(name, "pair") == 0) {
        c->pair = 1;
        return EXF_OK;
    }
    if (!s || c->n_arrays == MOST_ARRAYS)
        return exf_fail(err, EXF_FORMAT, "%s: /vectors/%s is nothing that version %d knows", c->path, name,
                        exf_artifact_tables.version);
    c->array[c->n_arrays++] = s;
    return EXF_OK;
}

static exf_code note_rank(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    int64_t rank;
    if (!exf_parse_i64(name, &rank) || rank < 1 || rank > LARGEST_RANK || c->n_ranks == MOST_RANKS || c->n_arrays == MOST_ARRAYS)
        return exf_fail(err, EXF_FORMAT, "%s: /vectors/%s/%s is no rank that could be", c->path, c->group->name, name);
    c->array[c->n_arrays] = c->group;
    c->rank[c->n_arrays++] = (int)rank;
    c->n_ranks++;
    return EXF_OK;
}

/* Adds an array for every rank in the group of a ranked array. */
static exf_code list_ranks(contents *c, exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    char path[PATH_LEN];
    for (int i = 0, n = c->n_arrays; rc == EXF_OK && i < n; i++) {
        if (c->array[i]->shape != EXF_STORED_RANKS) continue;
        c->group = c->array[i];
        c->array[i] = NULL;
        c->n_ranks = 0;
        snprintf(path, sizeof path, "/vectors/%.20s", c->group->name);
        rc = exf_h5_members(h, path, note_rank, c, err);
    }
    return rc;
}

static int has_shape(const contents *c, exf_stored_shape shape)
{
    int any = 0;
    for (int i = 0; i < c->n_arrays; i++) any |= c->array[i] && c->array[i]->shape == shape;
    return any;
}

static exf_code list_contents(contents *c, exf_h5 *h, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_h5_exists(h, "/vectors", &c->listed, err));
    if (c->listed) EXF_TRY(exf_h5_members(h, "/vectors", note_array, c, err));
    int ranked = has_shape(c, EXF_STORED_RANKS);
    EXF_TRY(list_ranks(c, h, err));
    if (c->listed && (!c->pair || (ranked && !has_shape(c, EXF_STORED_BASIS))))
        rc = exf_fail(err, EXF_FORMAT, "%s: /vectors lacks %s", c->path,
                      c->pair ? "the basis of its low-rank corrections" : "its list of pairs");
out:
    return rc;
}

/* ---- reading ---------------------------------------------------------------- */

/* Checks that pairs ascend and have distinct experts; finds each layer's first pair. */
static exf_code index_pairs(exf_vectors *v, const exf_tables *t, const char *path, exf_err *err)
{
    int64_t e = t->shape.n_experts, before = -1;
    exf_code rc = exf_mem_new(&v->first, (size_t)t->n_layers + 1, sizeof *v->first, "vectors", err);
    for (int64_t i = 0; rc == EXF_OK && i < v->n_pairs; i++) {
        const int32_t *p = v->pair + 3 * i;
        int64_t key = ((int64_t)p[0] * e + p[1]) * e + p[2];
        if (p[0] < 0 || p[0] >= t->n_layers || p[1] < 0 || p[1] >= e || p[2] < 0 || p[2] >= e || p[1] == p[2] || key <= before)
            rc = exf_fail(err, EXF_FORMAT,
                          "%s: /vectors/pair[%lld] is (%d, %d, %d), expected ascending (layer index, source, target)", path,
                          (long long)i, (int)p[0], (int)p[1], (int)p[2]);
        else
            v->first[p[0] + 1] = i + 1;
        before = key;
    }
    for (int l = 0; rc == EXF_OK && l < t->n_layers; l++)
        if (v->first[l + 1] < v->first[l]) v->first[l + 1] = v->first[l];
    return rc;
}

static exf_code read_pairs(exf_tables *t, const char *path, exf_h5 *h, exf_err *err)
{
    exf_vectors *v = &t->vectors;
    int64_t all = t->n_layers * t->shape.n_experts * (t->shape.n_experts - 1);
    exf_tensor shape;
    exf_code rc;
    EXF_TRY(exf_h5_describe(h, "/vectors/pair", &shape, err));
    v->n_pairs = shape.rank ? shape.shape[0] : 0;
    if (v->n_pairs < 1 || v->n_pairs > all)
        return exf_fail(err, EXF_FORMAT, "%s: /vectors/pair lists %lld pairs of the %lld that there are", path,
                        (long long)v->n_pairs, (long long)all);
    EXF_TRY(exf_mem_new(&v->pair, (size_t)v->n_pairs, 3 * sizeof *v->pair, "vectors", err));
    exf_tensor pairs = list_of_pairs(v);
    EXF_TRY(exf_h5_read(h, &pairs, v->pair, err));
    rc = index_pairs(v, t, path, err);
out:
    return rc;
}

static exf_code read_one(exf_tables *t, const exf_stored_array *s, int rank, exf_h5 *h, exf_err *err)
{
    exf_code rc;
    char path[PATH_LEN];
    float *data;
    exf_tensor shape;
    if (s->shape == EXF_STORED_BASIS) { /* its columns; an impossible shape is refused when it is read */
        path_of(path, &(exf_vector_array){.stored = s});
        EXF_TRY(exf_h5_describe(h, path, &shape, err));
        rank = shape.rank == 3 && shape.shape[2] > 0 && shape.shape[2] <= t->shape.d_model ? (int)shape.shape[2] : 1;
    }
    const exf_vector_array a = {.stored = s, .rank = rank};
    exf_tensor x = exf_vector_array_tensor(t, &a);
    path_of(path, &a);
    x.name = path;
    EXF_TRY(exf_h5_expect(h, &x, err));
    EXF_TRY(exf_vectors_add(t, s->name, rank, &data, err));
    EXF_TRY(exf_h5_read(h, &x, data, err));
out:
    return rc;
}

static exf_code check_finite(const float *x, int64_t n, const char *name, const char *path, exf_err *err)
{
    for (int64_t i = 0; x && i < n; i++)
        if (!isfinite(x[i]))
            return exf_fail(err, EXF_FORMAT, "%s: %s: element %lld is %g, expected a finite number", path, name, (long long)i,
                            (double)x[i]);
    return EXF_OK;
}

/* Checks that a layer's basis is orthonormal: <q_a, q_b> is 1 or 0 within float32 precision. */
static exf_code check_basis(const exf_vector_array *basis, int layer, int64_t d, const char *path, exf_err *err)
{
    int r = basis->rank;
    const float *q = basis->data + (int64_t)layer * d * r;
    for (int a = 0; a < r; a++)
        for (int b = 0; b <= a; b++) {
            double dot = 0;
            for (int64_t i = 0; i < d; i++) dot += (double)q[i * r + a] * (double)q[i * r + b];
            if (!(fabs(dot - (a == b)) <= 1e-4))
                return exf_fail(err, EXF_FORMAT, "%s: /vectors/%s[%d]: columns %d and %d have the product %g, expected %d", path,
                                basis->stored->name, layer, b, a, dot, a == b);
        }
    return EXF_OK;
}

static exf_code check_array(const exf_tables *t, const exf_vector_array *a, const char *path, exf_err *err)
{
    const exf_vector_array *basis = exf_vectors_find(&t->vectors, "basis", 0);
    int64_t d = t->shape.d_model, n = t->vectors.n_pairs;
    char name[PATH_LEN];
    exf_code rc = EXF_OK;
    snprintf(name, sizeof name, "/vectors/%.32s", a->stored->name);
    switch (a->stored->shape) {
    case EXF_STORED_PAIRS: return check_finite(a->data, n * d, name, path, err);
    case EXF_STORED_LOSSES: return exf_losses_check(t, a->data, name, path, err);
    case EXF_STORED_BASIS:
        for (int l = 0; rc == EXF_OK && l < t->n_layers; l++) rc = check_basis(a, l, d, path, err);
        return rc;
    case EXF_STORED_RANKS:
        if (!basis || a->rank > basis->rank)
            return exf_fail(err, EXF_FORMAT, "%s: %s/%d: the basis has %d columns", path, name, a->rank, basis ? basis->rank : 0);
        return check_finite(a->data, n * a->rank * d, name, path, err);
    }
    return rc;
}

exf_code exf_vectors_check(const exf_tables *t, const char *path, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < t->vectors.n_arrays; i++) rc = check_array(t, &t->vectors.array[i], path, err);
    return rc;
}

exf_code exf_tables_read_vectors(exf_tables *t, const char *path, exf_err *err)
{
    exf_h5 *h = NULL;
    contents listed = {.path = path};
    exf_code rc;
    exf_vectors_free(&t->vectors);
    if (exf_st_is_one(path)) return EXF_OK; /* tables that others made have none */
    EXF_TRY(exf_artifact_open(&h, path, &exf_artifact_tables, NULL, NULL, err));
    EXF_TRY(list_contents(&listed, h, err));
    if (!listed.listed) goto out;
    EXF_TRY(read_pairs(t, path, h, err));
    for (int i = 0; i < listed.n_arrays; i++)
        if (listed.array[i]) EXF_TRY(read_one(t, listed.array[i], listed.rank[i], h, err));
    EXF_TRY(exf_vectors_check(t, path, err));
out:
    exf_h5_close(h);
    if (rc != EXF_OK) exf_vectors_free(&t->vectors);
    return rc;
}
