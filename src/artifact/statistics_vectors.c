/* statistics_vectors.c - vector sums in files of kind `statistics`, since version 2, one
 * group per layer that has any (meaning: vector_sums.h):
 *   /layers/<l>/vectors/pair   I32 [P, 2]      source, target; ascending
 *   /layers/<l>/vectors/vu, vv U64 [P, H, 3]   exact
 *   /layers/<l>/vectors/basis  F64 [H, R]
 *   /layers/<l>/vectors/grid   I32 [P, 2]      exponents of the units of zu; of zv and zz
 *   /layers/<l>/vectors/zz     I64 [P, R, R]   value = integer times 2^grid
 *   /layers/<l>/vectors/zu, zv I64 [P, R, H] */
#include "artifact/statistics.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_LEN = 64 };

typedef struct {
    const char *name;
    exf_dtype dtype;
    int rank;
    int64_t shape[3];
    void *data;
} part;

enum { N_PARTS = 8 };

static void list_parts(const exf_vector_sums *v, part out[N_PARTS])
{
    int64_t p = v->n_pairs, h = v->d_model, r = v->rank;
    const part all[N_PARTS] = {
        {"pair", EXF_DT_I32, 2, {p, 2, 0}, v->pair},
        {"vu", EXF_DT_U64, 3, {p, h, 3}, v->vu},
        {"vv", EXF_DT_U64, 3, {p, h, 3}, v->vv},
        {"basis", EXF_DT_F64, 2, {h, r, 0}, v->basis},
        {"grid", EXF_DT_I32, 2, {p, EXF_N_GRIDS, 0}, v->grid},
        {"zz", EXF_DT_I64, 3, {p, r, r}, v->zz},
        {"zu", EXF_DT_I64, 3, {p, r, h}, v->zu},
        {"zv", EXF_DT_I64, 3, {p, r, h}, v->zv},
    };
    memcpy(out, all, sizeof all);
}

exf_code exf_statistics_put_vectors(exf_statistics_writer *w, int layer_number, const exf_vector_sums *v, exf_err *err)
{
    part parts[N_PARTS];
    exf_code rc = EXF_OK;
    if (v->n_pairs == 0) return EXF_OK;
    list_parts(v, parts);
    for (int i = 0; rc == EXF_OK && i < N_PARTS; i++) {
        const part *p = &parts[i];
        char path[PATH_LEN];
        snprintf(path, sizeof path, "/layers/%d/vectors/%s", layer_number, p->name);
        exf_tensor t = {
            .name = path, .dtype = p->dtype, .rank = p->rank, .shape = {p->shape[0], p->shape[1], p->shape[2]}, .data = p->data};
        if (p->data) rc = exf_h5_write(w->h, &t, err);
    }
    return rc;
}

/* ---- reading ---------------------------------------------------------------- */

typedef struct {
    int vectors, vu, zz;
} contents;

static exf_code look(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    (void)err;
#define X(field) c->field |= strcmp(name, #field) == 0;
    X(vectors) X(vu) X(zz)
#undef X
    return EXF_OK;
}

/* Looks at the datasets of the arrays, before memory is taken for them. */
static exf_code expect_parts(int64_t n_pairs, int rank, exf_statistics_reader *r, const char *group, const contents *c,
                             exf_err *err)
{
    static const char *const of_diagonal[] = {"vu", "vv"};
    char path[PATH_LEN + 16];
    part parts[N_PARTS];
    exf_vector_sums v = {.n_pairs = n_pairs, .d_model = (int)r->shape.d_model, .rank = rank};
    exf_code rc = EXF_OK;
    list_parts(&v, parts);
    for (int k = 1; rc == EXF_OK && k < N_PARTS; k++) {
        const part *p = &parts[k];
        int diagonal = strcmp(p->name, of_diagonal[0]) == 0 || strcmp(p->name, of_diagonal[1]) == 0;
        exf_tensor t = {.name = path, .dtype = p->dtype, .rank = p->rank, .shape = {p->shape[0], p->shape[1], p->shape[2]}};
        snprintf(path, sizeof path, "%s/%s", group, p->name);
        if (diagonal ? c->vu : c->zz) rc = exf_h5_expect(r->h, &t, err);
    }
    return rc;
}

/* Allocates the arrays that a layer's group has. */
static exf_code make_room(exf_vector_sums *v, exf_statistics_reader *r, const char *group, const contents *c, exf_err *err)
{
    char path[PATH_LEN];
    exf_tensor pair, basis = {.rank = 2, .shape = {0, 0}};
    int64_t e = r->shape.n_experts, h = r->shape.d_model;
    exf_code rc;
    snprintf(path, sizeof path, "%s/pair", group);
    EXF_TRY(exf_h5_describe(r->h, path, &pair, err));
    if (c->zz) {
        snprintf(path, sizeof path, "%s/basis", group);
        EXF_TRY(exf_h5_describe(r->h, path, &basis, err));
    }
    if (pair.rank != 2 || pair.shape[0] < 1 || pair.shape[0] > e * (e - 1) || h > INT32_MAX || basis.rank != 2 ||
        basis.shape[1] > h || (c->zz && basis.shape[1] < 1))
        rc = exf_fail(err, EXF_FORMAT, "%s: %s has %lld pairs and a basis of %lld columns, which %lld experts of width %lld forbid",
                      exf_h5_path(r->h), group, (long long)pair.shape[0], (long long)basis.shape[1], (long long)e, (long long)h);
    else if ((rc = expect_parts(pair.shape[0], (int)basis.shape[1], r, group, c, err)) == EXF_OK)
        rc = exf_vector_sums_new(v, pair.shape[0], (int)h, c->vu, (int)basis.shape[1], err);
out:
    return rc;
}

static exf_code check_vectors(const exf_vector_sums *v, const exf_statistics_reader *r, const char *group, exf_err *err)
{
    int64_t e = r->shape.n_experts, before = -1;
    for (int64_t i = 0; i < v->n_pairs; i++) {
        const int32_t *p = v->pair + 2 * i;
        int64_t key = p[0] * e + p[1];
        if (p[0] < 0 || p[0] >= e || p[1] < 0 || p[1] >= e || p[0] == p[1] || key <= before)
            return exf_fail(err, EXF_FORMAT, "%s: %s/pair[%lld] is (%d, %d), expected ascending (source, target)",
                            exf_h5_path(r->h), group, (long long)i, (int)p[0], (int)p[1]);
        before = key;
    }
    for (int64_t i = 0; v->basis && i < (int64_t)v->d_model * v->rank; i++)
        if (!(fabs(v->basis[i]) <= 1.0001))
            return exf_fail(err, EXF_FORMAT, "%s: %s/basis: element %lld is %g, expected a coordinate of a unit vector",
                            exf_h5_path(r->h), group, (long long)i, v->basis[i]);
    return exf_grids_check(v, exf_h5_path(r->h), group, err);
}

exf_code exf_statistics_get_vector_pairs(exf_statistics_reader *r, int i, int32_t **pair, int64_t *n, exf_err *err)
{
    char group[PATH_LEN], path[PATH_LEN + 16];
    contents listed = {0, 0, 0};
    exf_vector_sums v = {.n_pairs = 0};
    exf_code rc;
    snprintf(group, sizeof group, "/layers/%d", (int)r->layer_number[i]);
    *pair = NULL;
    *n = 0;
    EXF_TRY(exf_h5_members(r->h, group, look, &listed, err));
    if (!listed.vectors) return EXF_OK;
    snprintf(group, sizeof group, "/layers/%d/vectors", (int)r->layer_number[i]);
    listed = (contents){0, 0, 0};
    EXF_TRY(make_room(&v, r, group, &listed, err)); /* allocates pairs only */
    snprintf(path, sizeof path, "%s/pair", group);
    exf_tensor t = {.name = path, .dtype = EXF_DT_I32, .rank = 2, .shape = {v.n_pairs, 2}};
    EXF_TRY(exf_h5_read(r->h, &t, v.pair, err));
    EXF_TRY(check_vectors(&v, r, group, err));
    *n = v.n_pairs;
    *pair = v.pair;
    v.pair = NULL;
out:
    exf_vector_sums_free(&v);
    return rc;
}

exf_code exf_statistics_get_vectors(exf_statistics_reader *r, int i, exf_vector_sums *v, exf_err *err)
{
    char group[PATH_LEN], path[PATH_LEN + 16];
    contents listed = {0, 0, 0};
    part parts[N_PARTS];
    exf_code rc;
    memset(v, 0, sizeof *v);
    snprintf(group, sizeof group, "/layers/%d", (int)r->layer_number[i]);
    EXF_TRY(exf_h5_members(r->h, group, look, &listed, err));
    if (!listed.vectors) return EXF_OK;
    snprintf(group, sizeof group, "/layers/%d/vectors", (int)r->layer_number[i]);
    EXF_TRY(exf_h5_members(r->h, group, look, &listed, err));
    EXF_TRY(make_room(v, r, group, &listed, err));
    list_parts(v, parts);
    for (int k = 0; k < N_PARTS; k++) {
        const part *p = &parts[k];
        exf_tensor t = {.name = path, .dtype = p->dtype, .rank = p->rank, .shape = {p->shape[0], p->shape[1], p->shape[2]}};
        snprintf(path, sizeof path, "%s/%s", group, p->name);
        if (p->data) EXF_TRY(exf_h5_read(r->h, &t, p->data, err));
    }
    EXF_TRY(check_vectors(v, r, group, err));
out:
    if (rc != EXF_OK) exf_vector_sums_free(v);
    return rc;
}
