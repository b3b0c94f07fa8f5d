/* tables_vectors.c - the group /vectors of tables (artifact_tables.c): diagonals, bases
 * and low-rank corrections, read and written apart from the rest for they may be gigabytes. */
#include "artifact/tables_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_LEN = 48, RANKS_LIMIT = 8 };

static exf_code write_array(exf_h5 *h, const char *path, exf_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, const void *data,
                            exf_err *err)
{
    exf_tensor t = {.name = path, .dtype = dtype, .rank = rank, .shape = {a, b, c}, .data = data};
    return exf_h5_write(h, &t, EXF_H5_PLAIN, err);
}

exf_code exf_vectors_write(const exf_tables *t, exf_h5 *h, exf_err *err)
{
    const exf_vectors *v = &t->vectors;
    int64_t l = t->n_layers, e = t->shape.n_experts, d = t->shape.d_model, n = v->n_pairs;
    exf_code rc = EXF_OK;
    char path[PATH_LEN];
    if (n == 0) return EXF_OK;
    EXF_TRY(write_array(h, "/vectors/pair", EXF_DT_I32, 2, n, 3, 0, v->pair, err));
    if (v->diagonal) EXF_TRY(write_array(h, "/vectors/diagonal", EXF_DT_F32, 2, n, d, 0, v->diagonal, err));
    if (v->diagonal_loss) EXF_TRY(write_array(h, "/vectors/diagonal_loss", EXF_DT_F32, 3, l, e, e, v->diagonal_loss, err));
    if (v->basis) EXF_TRY(write_array(h, "/vectors/basis", EXF_DT_F32, 3, l, d, v->basis_rank, v->basis, err));
    for (int i = 0; i < v->n_lowrank; i++) {
        snprintf(path, sizeof path, "/vectors/lowrank/%d/c", v->lowrank[i].rank);
        EXF_TRY(write_array(h, path, EXF_DT_F32, 3, n, v->lowrank[i].rank, d, v->lowrank[i].c, err));
    }
out:
    return rc;
}

/* ---- reading ---------------------------------------------------------------- */

typedef struct {
    const char *path;
    int pair, diagonal, diagonal_loss, basis, lowrank;
    int present; /* the group itself */
    int rank[RANKS_LIMIT], n_ranks;
} contents;

static exf_code look_at_root(void *self, const char *name, exf_err *err)
{
    (void)err;
    ((contents *)self)->present |= strcmp(name, "vectors") == 0;
    return EXF_OK;
}

static exf_code look(void *self, const char *name, exf_err *err)
{
    contents *c = self;
#define X(field)                         \
    if (strcmp(name, #field) == 0) {     \
        c->field = 1;                    \
        return EXF_OK;                   \
    }
    X(pair) X(diagonal) X(diagonal_loss) X(basis) X(lowrank)
#undef X
    return exf_fail(err, EXF_FORMAT, "%s: /vectors/%s is nothing that version %d knows", c->path, name, exf_artifact_tables.version);
}

static exf_code note_rank(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    int64_t rank;
    if (!exf_parse_i64(name, &rank) || rank < 1 || rank > 4096 || c->n_ranks == RANKS_LIMIT)
        return exf_fail(err, EXF_FORMAT, "%s: /vectors/lowrank/%s is no rank that could be", c->path, name);
    c->rank[c->n_ranks++] = (int)rank;
    return EXF_OK;
}

static int rising(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static exf_code list_contents(contents *c, exf_h5 *h, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_h5_members(h, "/", look_at_root, c, err));
    if (c->present) EXF_TRY(exf_h5_members(h, "/vectors", look, c, err));
    if (c->lowrank) EXF_TRY(exf_h5_members(h, "/vectors/lowrank", note_rank, c, err));
    qsort(c->rank, (size_t)c->n_ranks, sizeof *c->rank, rising);
    if (c->present && (!c->pair || (c->lowrank && !c->basis)))
        rc = exf_fail(err, EXF_FORMAT, "%s: /vectors lacks %s", c->path, c->pair ? "the basis of its low-rank corrections" : "its list of pairs");
out:
    return rc;
}

/* Room for an array, and its contents. */
static exf_code read_array(void *out, exf_h5 *h, const char *path, exf_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, exf_err *err)
{
    exf_tensor t = {.name = path, .dtype = dtype, .rank = rank, .shape = {a, b, c}};
    void *data = NULL;
    size_t n = 1;
    exf_code rc;
    for (int i = 0; i < rank; i++) EXF_TRY(exf_mem_mul(&n, n, (size_t)t.shape[i], "vectors", err));
    EXF_TRY(exf_mem_new(&data, n, exf_dtype_bits(dtype) / 8, "vectors", err));
    EXF_TRY(exf_h5_read(h, &t, data, err));
out:
    if (rc != EXF_OK) {
        exf_mem_free(data);
        data = NULL;
    }
    memcpy(out, &data, sizeof data);
    return rc;
}

/* Pairs ascend and are no self-pairs; where each layer's start. */
static exf_code index_pairs(exf_vectors *v, const exf_tables *t, const char *path, exf_err *err)
{
    int64_t e = t->shape.n_experts, before = -1;
    exf_code rc = exf_mem_new(&v->first, (size_t)t->n_layers + 1, sizeof *v->first, "vectors", err);
    for (int64_t i = 0; rc == EXF_OK && i < v->n_pairs; i++) {
        const int32_t *p = v->pair + 3 * i;
        int64_t key = ((int64_t)p[0] * e + p[1]) * e + p[2];
        if (p[0] < 0 || p[0] >= t->n_layers || p[1] < 0 || p[1] >= e || p[2] < 0 || p[2] >= e || p[1] == p[2] || key <= before)
            rc = exf_fail(err, EXF_FORMAT, "%s: /vectors/pair[%lld] is (%d, %d, %d), expected ascending (layer index, source, target)", path,
                          (long long)i, (int)p[0], (int)p[1], (int)p[2]);
        else
            v->first[p[0] + 1] = i + 1;
        before = key;
    }
    for (int l = 0; rc == EXF_OK && l < t->n_layers; l++)
        if (v->first[l + 1] < v->first[l]) v->first[l + 1] = v->first[l];
    return rc;
}

static exf_code read_vectors(exf_vectors *v, const contents *c, const exf_tables *t, exf_h5 *h, exf_err *err)
{
    int64_t l = t->n_layers, e = t->shape.n_experts, d = t->shape.d_model;
    exf_code rc;
    exf_tensor shape;
    char path[PATH_LEN];
    EXF_TRY(exf_h5_describe(h, "/vectors/pair", &shape, err));
    v->n_pairs = shape.rank ? shape.shape[0] : 0;
    if (v->n_pairs < 1 || v->n_pairs > l * e * (e - 1)) {
        rc = exf_fail(err, EXF_FORMAT, "%s: /vectors/pair lists %lld pairs of the %lld that there are", c->path, (long long)v->n_pairs,
                      (long long)(l * e * (e - 1)));
        goto out;
    }
    EXF_TRY(read_array(&v->pair, h, "/vectors/pair", EXF_DT_I32, 2, v->n_pairs, 3, 0, err));
    EXF_TRY(index_pairs(v, t, c->path, err));
    if (c->diagonal) EXF_TRY(read_array(&v->diagonal, h, "/vectors/diagonal", EXF_DT_F32, 2, v->n_pairs, d, 0, err));
    if (c->diagonal_loss) EXF_TRY(read_array(&v->diagonal_loss, h, "/vectors/diagonal_loss", EXF_DT_F32, 3, l, e, e, err));
    if (c->basis) {
        EXF_TRY(exf_h5_describe(h, "/vectors/basis", &shape, err));
        v->basis_rank = shape.rank == 3 && shape.shape[2] > 0 && shape.shape[2] <= d ? (int)shape.shape[2] : 1;
        EXF_TRY(read_array(&v->basis, h, "/vectors/basis", EXF_DT_F32, 3, l, d, v->basis_rank, err));
    }
    EXF_TRY(exf_mem_new(&v->lowrank, (size_t)c->n_ranks, sizeof *v->lowrank, "vectors", err));
    for (int i = 0; i < c->n_ranks; i++) {
        snprintf(path, sizeof path, "/vectors/lowrank/%d/c", c->rank[i]);
        v->n_lowrank = i + 1;
        v->lowrank[i].rank = c->rank[i];
        EXF_TRY(read_array(&v->lowrank[i].c, h, path, EXF_DT_F32, 3, v->n_pairs, c->rank[i], d, err));
    }
out:
    return rc;
}

static exf_code check_finite(const float *x, int64_t n, const char *name, const char *path, exf_err *err)
{
    for (int64_t i = 0; x && i < n; i++)
        if (!isfinite(x[i])) return exf_fail(err, EXF_FORMAT, "%s: %s: element %lld is %g, expected a finite number", path, name, (long long)i, (double)x[i]);
    return EXF_OK;
}

/* <q_a, q_b> of one layer's basis is 1 or 0, as far as float32 goes. */
static exf_code check_basis(const exf_vectors *v, int layer, int64_t d, const char *path, exf_err *err)
{
    int r = v->basis_rank;
    const float *q = v->basis + (int64_t)layer * d * r;
    for (int a = 0; a < r; a++)
        for (int b = 0; b <= a; b++) {
            double dot = 0;
            for (int64_t i = 0; i < d; i++) dot += (double)q[i * r + a] * (double)q[i * r + b];
            if (!(fabs(dot - (a == b)) <= 1e-4))
                return exf_fail(err, EXF_FORMAT, "%s: /vectors/basis[%d]: columns %d and %d have the product %g, expected %d", path, layer, b, a, dot,
                                a == b);
        }
    return EXF_OK;
}

exf_code exf_vectors_check(const exf_tables *t, const char *path, exf_err *err)
{
    const exf_vectors *v = &t->vectors;
    int64_t d = t->shape.d_model;
    exf_code rc = EXF_OK;
    EXF_TRY(check_finite(v->diagonal, v->n_pairs * d, "/vectors/diagonal", path, err));
    if (v->diagonal_loss) EXF_TRY(exf_losses_check(t, v->diagonal_loss, "/vectors/diagonal_loss", path, err));
    for (int l = 0; v->basis && l < t->n_layers; l++) EXF_TRY(check_basis(v, l, d, path, err));
    for (int i = 0; i < v->n_lowrank; i++) {
        const exf_lowrank *w = &v->lowrank[i];
        if (w->rank > v->basis_rank) {
            rc = exf_fail(err, EXF_FORMAT, "%s: /vectors/lowrank/%d: the basis has %d columns", path, w->rank, v->basis_rank);
            goto out;
        }
        EXF_TRY(check_finite(w->c, v->n_pairs * w->rank * d, "/vectors/lowrank", path, err));
    }
out:
    return rc;
}

exf_code exf_tables_read_vectors(exf_tables *t, const char *path, exf_err *err)
{
    exf_h5 *h = NULL;
    contents listed = {.path = path};
    exf_code rc;
    exf_vectors_free(&t->vectors);
    EXF_TRY(exf_artifact_open(&h, path, &exf_artifact_tables, NULL, NULL, err));
    EXF_TRY(list_contents(&listed, h, err));
    if (!listed.present) goto out;
    EXF_TRY(read_vectors(&t->vectors, &listed, t, h, err));
    EXF_TRY(exf_vectors_check(t, path, err));
out:
    exf_h5_close(h);
    if (rc != EXF_OK) exf_vectors_free(&t->vectors);
    return rc;
}
