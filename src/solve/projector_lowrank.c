/* projector_lowrank.c - scalar plus low rank, M = S I + Q C (docs/method.md, section 2; paper, eq.
 * "low-rank solution"):
 *
 *   C = (Z'Z + lambda I)^-1 (Z'U - S Z'V)
 *
 * on the first R columns of the basis, for each R asked for, with the pair's own clipped
 * S, in double by Cholesky.  Unobserved pairs get C = 0.  Their loss is the scalar's: the
 * target is chosen as without the correction. */
#include "artifact/tables.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "kernels/linear/linear.h"
#include "solve/solve_internal.h"

#include <math.h>
#include <omp.h>
#include <string.h>

extern const exf_projector exf_projector_lowrank;

static exf_code add_arrays(exf_statistics_reader *r, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    int h = (int)t->shape.d_model, columns = exf_basis_rank(h), largest = 1;
    float *data;
    exf_code rc;
    EXF_TRY(exf_vector_support(r, &exf_projector_lowrank, t, err));
    for (size_t i = 0; i < o->n_ranks; i++) largest = o->ranks[i] > largest ? (int)o->ranks[i] : largest;
    if (largest > columns)
        return exf_fail(err, EXF_USAGE, "calibrate.ranks: %d, the basis of a model of width %d has %d columns", largest, h,
                        columns);
    const char *text = r ? exf_provenance_get(&r->provenance, EXF_RANK_FACT) : NULL;
    int64_t of_basis;
    if (text && exf_parse_i64(text, &of_basis) && of_basis < largest)
        return exf_fail(err, EXF_MODEL, "%s: calibrate.ranks: %d, its low-rank sums are of rank %lld: accumulate again with %d in "
                        "calibrate.ranks", exf_h5_path(r->h), largest, (long long)of_basis, largest);
    EXF_TRY(exf_vectors_add(t, "basis", largest, &data, err));
    for (size_t i = 0; i < o->n_ranks; i++) EXF_TRY(exf_vectors_add(t, "lowrank", (int)o->ranks[i], &data, err));
out:
    return rc;
}

typedef struct {
    double *zz;          /* [R, R] of all columns */
    double *right, *zv;  /* [R, H] Z'U - S Z'V; Z'V */
    double *a, *c;       /* [rank, rank], [rank, H] of one solution */
} workspace;

static exf_code solve_rank(float *out, const workspace *m, size_t r, size_t rank, size_t h, double ridge, exf_err *err)
{
    for (size_t i = 0; i < rank; i++)
        for (size_t k = 0; k < rank; k++) m->a[i * rank + k] = m->zz[i * r + k] + (i == k ? ridge : 0);
    memcpy(m->c, m->right, rank * h * sizeof *m->c);
    exf_code rc = exf_linalg_solve(m->a, m->c, (int)rank, (int)h, err);
    if (rc == EXF_NUMERIC)
        rc = exf_fail(err, rc, "the second moments of the first %zu columns of the basis are not positive definite with "
                      "calibrate.ridge %g; raise calibrate.ridge", rank, ridge);
    for (size_t i = 0; rc == EXF_OK && i < rank * h; i++) {
        out[i] = (float)m->c[i];
        if (!isfinite(out[i]))
            rc = exf_fail(err, EXF_NUMERIC, "element %zu of the correction of rank %zu is %g, no finite float32; raise "
                          "calibrate.ridge, which is %g", i, rank, m->c[i], ridge);
    }
    return rc;
}

typedef struct {
    const exf_layer_statistics *s;
    const exf_solve_options *o;
    const exf_tables *t;
    int l;
    workspace *of_thread; /* [team] */
} layer;

/* Solves C of pair p of the layer for each rank; an unobserved pair keeps 0. */
static exf_code solve_pair(const layer *x, workspace *m, int64_t p, exf_err *err)
{
    const exf_layer_statistics *s = x->s;
    const exf_solve_options *o = x->o;
    const exf_vectors *v = &x->t->vectors;
    const int32_t *pair = s->vectors->pair + 2 * p;
    size_t i = (size_t)pair[0] * (size_t)s->n_experts + (size_t)pair[1], h = (size_t)x->t->shape.d_model;
    const exf_vector_sums *sums = s->vectors;
    const int32_t *grid = sums->grid + EXF_N_GRIDS * p;
    size_t r = (size_t)sums->rank, at = (size_t)p * r;
    exf_code rc = EXF_OK;
    if (!exf_solve_observed(s, o, i)) return EXF_OK;
    double scalar = exf_pair_scalar(&o->rule, exf_exact_value(&s->dot[i]), exf_exact_value(&s->target_sq[i]));
    exf_grid_value(m->zz, sums->zz + at * r, r * r, grid[EXF_GRID_ZV]);
    exf_grid_value(m->right, sums->zu + at * h, r * h, grid[EXF_GRID_ZU]);
    exf_grid_value(m->zv, sums->zv + at * h, r * h, grid[EXF_GRID_ZV]);
    for (size_t k = 0; k < r * h; k++) m->right[k] -= scalar * m->zv[k];
    for (size_t k = 0; rc == EXF_OK && k < o->n_ranks; k++) {
        size_t rank = (size_t)o->ranks[k];
        float *c = exf_vectors_data(v, "lowrank", (int)rank);
        rc = solve_rank(c + (size_t)(v->first[x->l] + p) * rank * h, m, r, rank, h, o->rule.ridge, err);
    }
    if (rc == EXF_NUMERIC)
        exf_err_prefix(err, "layer %d, pair %d -> %d: ", (int)x->t->layer_number[x->l], (int)pair[0], (int)pair[1]);
    return rc;
}

/* Solves all pairs of the layer; a pair is solved by one thread, so that threads change no bit. */
static exf_code solve_pairs(const layer *x, int team, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
    size_t n = (size_t)x->s->vectors->n_pairs;
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (size_t p = 0; p < n; p++) {
        exf_err e;
        if (exf_loop_takes(&loop, p) && solve_pair(x, &x->of_thread[omp_get_thread_num()], (int64_t)p, &e) != EXF_OK)
            exf_loop_fail(&loop, p, &e);
    }
    return exf_loop_end(&loop, err);
}

static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    const exf_vector_array *basis = exf_vectors_find(&t->vectors, "basis", 0);
    const exf_vector_sums *v = s->vectors;
    size_t h = (size_t)t->shape.d_model, r = (size_t)basis->rank;
    int team = exf_team((size_t)v->n_pairs, exf_background_threads());
    workspace *m = NULL;
    exf_code rc = EXF_OK;
    if (v->n_pairs && v->rank < basis->rank)
        return exf_fail(err, EXF_FORMAT, "layer %d: the basis has %d columns, expected %zu", (int)t->layer_number[l], v->rank, r);
    float *copy = basis->data + (size_t)l * h * r; /* a layer without pairs has no basis and gets unit vectors instead */
    for (size_t row = 0; row < h; row++)
        for (size_t k = 0; k < r; k++)
            copy[row * r + k] = v->basis ? (float)v->basis[row * (size_t)v->rank + k] : row == k ? 1.0f : 0.0f;
    if (v->n_pairs) r = (size_t)v->rank;
    EXF_TRY(exf_mem_new(&m, (size_t)team, sizeof *m, "low-rank corrections", err));
    for (int i = 0; i < team; i++) {
        EXF_TRY(exf_mem_new(&m[i].zz, r * r, sizeof *m->zz, "low-rank corrections", err));
        EXF_TRY(exf_mem_new(&m[i].right, r * h, sizeof *m->right, "low-rank corrections", err));
        EXF_TRY(exf_mem_new(&m[i].zv, r * h, sizeof *m->zv, "low-rank corrections", err));
        EXF_TRY(exf_mem_new(&m[i].a, r * r, sizeof *m->a, "low-rank corrections", err));
        EXF_TRY(exf_mem_new(&m[i].c, r * h, sizeof *m->c, "low-rank corrections", err));
    }
    rc = solve_pairs(&(layer){s, o, t, l, m}, team, err);
out:
    for (int i = 0; m && i < team; i++) {
        exf_mem_free(m[i].zz);
        exf_mem_free(m[i].right);
        exf_mem_free(m[i].zv);
        exf_mem_free(m[i].a);
        exf_mem_free(m[i].c);
    }
    exf_mem_free(m);
    return rc;
}

static exf_code find_form(exf_projector_form *out, const exf_tables *t, int rank, exf_err *err)
{
    const exf_vector_array *basis = exf_vectors_find(&t->vectors, "basis", 0);
    out->c = exf_vectors_data(&t->vectors, "lowrank", rank);
    if (!out->c || !basis)
        return exf_fail(
            err, EXF_USAGE,
            "the tables hold no low-rank projector of rank %d; add lowrank to calibrate.projectors and %d to calibrate.ranks, and "
            "calibrate again",
            rank, rank);
    out->scalar = 1;
    out->rank = rank;
    out->basis = basis->data;
    out->columns = basis->rank;
    return EXF_OK;
}

const exf_projector exf_projector_lowrank = {.name = "lowrank", .words = "a low-rank map per pair",
                                             .place = 50, .apply = EXF_APPLY_VECTORS, .ranked = 1,
                                             .observes = EXF_OBSERVES_BASIS,
                                             .begin = add_arrays, .layer = solve_layer,
                                             .stored = exf_stored_lowrank, .form = find_form};
