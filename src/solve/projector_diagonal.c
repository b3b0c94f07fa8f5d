/* projector_diagonal.c - one coefficient per hidden dimension (docs/method.md, section 2; paper, eq.
 * "diagonal projector"):
 *
 *   d = vu / (vv + lambda), element by element, not clipped
 *   loss = max(0, source_sq - 2 sum d vu + sum d^2 vv) / source_sq
 *
 * with d as it is stored, in float32.  A pair that carries no diagonal has the scalar's
 * loss; an unobserved one the sentinel. */
#include "artifact/tables.h"
#include "base/parallel.h"
#include "solve/solve_internal.h"

#include <math.h>
#include <string.h>

extern const exf_projector exf_projector_diagonal;

static exf_code add_arrays(exf_statistics_reader *r, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    float *d, *loss;
    exf_code rc;
    (void)o;
    EXF_TRY(exf_vector_support(r, &exf_projector_diagonal, t, err));
    EXF_TRY(exf_vectors_add(t, "diagonal", 0, &d, err));
    EXF_TRY(exf_vectors_add(t, "diagonal_loss", 0, &loss, err));
out:
    return rc;
}

/* Solves d of one pair, and subtracts from *residual, source_sq, what d explains. */
static exf_code solve_pair(float *d, double *residual, const exf_exact *vu, const exf_exact *vv, size_t h, double ridge,
                          exf_err *err)
{
    for (size_t j = 0; j < h; j++) {
        double a = exf_exact_value(&vu[j]), b = exf_exact_value(&vv[j]), divisor = b + ridge;
        d[j] = (float)(divisor > 0 ? a / divisor : 0);
        if (!isfinite(d[j]))
            return exf_fail(err, EXF_NUMERIC, "coefficient %zu of the diagonal is %g, no finite float32; raise calibrate.ridge, "
                            "which is %g", j, divisor > 0 ? a / divisor : 0, ridge);
        *residual += (double)d[j] * ((double)d[j] * b - 2 * a);
    }
    return EXF_OK;
}

typedef struct {
    const exf_layer_statistics *s;
    const exf_solve_options *o;
    int layer_number;
    float *diagonal; /* [P, H] of the layer */
    float *loss;     /* [E, E] of the layer */
} layer;

/* Solves pair p of the layer, and its loss if the pair is observed. */
static exf_code solve_numbered(const layer *x, size_t p, exf_err *err)
{
    const exf_vector_sums *v = x->s->vectors;
    size_t e = (size_t)x->s->n_experts, h = (size_t)v->d_model, i = (size_t)v->pair[2 * p] * e + (size_t)v->pair[2 * p + 1];
    double source_sq = exf_exact_value(&x->s->source_sq[i]), residual = source_sq;
    exf_code rc = solve_pair(x->diagonal + p * h, &residual, v->vu + p * h, v->vv + p * h, h, x->o->rule.ridge, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "layer %d, pair %zu -> %zu: ", x->layer_number, i / e, i % e);
        return rc;
    }
    if (exf_solve_observed(x->s, x->o, i)) x->loss[i] = source_sq > 0 && residual > 0 ? (float)(residual / source_sq) : 0;
    return EXF_OK;
}

/* A pair is solved by one thread, so that threads change no bit. */
static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    size_t e2 = (size_t)s->n_experts * (size_t)s->n_experts, n = (size_t)s->vectors->n_pairs, h = (size_t)t->shape.d_model;
    layer x = {s, o, t->layer_number[l], exf_vectors_data(&t->vectors, "diagonal", 0) + (size_t)t->vectors.first[l] * h,
               exf_vectors_data(&t->vectors, "diagonal_loss", 0) + (size_t)l * e2};
    exf_loop loop = EXF_LOOP;
    memcpy(x.loss, t->loss + (size_t)l * e2, e2 * sizeof *x.loss);
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, exf_background_threads()))
    for (size_t p = 0; p < n; p++) {
        exf_err e;
        if (exf_loop_takes(&loop, p) && solve_numbered(&x, p, &e) != EXF_OK) exf_loop_fail(&loop, p, &e);
    }
    return exf_loop_end(&loop, err);
}

static exf_code find_form(exf_projector_form *out, const exf_tables *t, int rank, exf_err *err)
{
    (void)rank;
    out->diagonal = exf_vectors_data(&t->vectors, "diagonal", 0);
    out->loss = exf_vectors_data(&t->vectors, "diagonal_loss", 0);
    if (!out->diagonal || !out->loss)
        return exf_fail(err, EXF_USAGE, "the tables hold no diagonal; add diagonal to calibrate.projectors and calibrate again");
    return EXF_OK;
}

const exf_projector exf_projector_diagonal = {.name = "diagonal", .words = "a diagonal per pair",
                                              .place = 40, .apply = EXF_APPLY_VECTORS,
                                              .observes = EXF_OBSERVES_ELEMENTS,
                                              .begin = add_arrays, .layer = solve_layer,
                                              .stored = exf_stored_diagonal, .form = find_form};
