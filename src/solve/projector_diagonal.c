/* projector_diagonal.c - one coefficient per hidden dimension (docs/method.md, section 2; paper, eq.
 * "diagonal projector"):
 *
 *   d = vu / (vv + lambda), element by element, not clipped
 *   loss = max(0, source_sq - 2 sum d vu + sum d^2 vv) / source_sq
 *
 * with d as it is stored, in float32.  A pair that carries no diagonal has the scalar's
 * loss; an unobserved one the sentinel. */
#include "artifact/tables.h"
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
            return exf_fail(err, EXF_NUMERIC, "coefficient %zu of the diagonal is %g, no finite float32", j,
                            divisor > 0 ? a / divisor : 0);
        *residual += (double)d[j] * ((double)d[j] * b - 2 * a);
    }
    return EXF_OK;
}

static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    const exf_vector_sums *v = s->vectors;
    float *diagonal = exf_vectors_data(&t->vectors, "diagonal", 0), *loss = exf_vectors_data(&t->vectors, "diagonal_loss", 0);
    size_t e = (size_t)s->n_experts, h = (size_t)t->shape.d_model, base = (size_t)l * e * e;
    exf_code rc = EXF_OK;
    memcpy(loss + base, t->loss + base, e * e * sizeof *t->loss);
    for (int64_t p = 0; p < v->n_pairs; p++) {
        size_t i = (size_t)v->pair[2 * p] * e + (size_t)v->pair[2 * p + 1];
        double source_sq = exf_exact_value(&s->source_sq[i]), residual = source_sq;
        rc = solve_pair(diagonal + (size_t)(t->vectors.first[l] + p) * h, &residual, v->vu + (size_t)p * h,
                        v->vv + (size_t)p * h, h, o->rule.ridge, err);
        if (rc != EXF_OK) {
            exf_err_prefix(err, "layer %d, pair %zu -> %zu: ", (int)t->layer_number[l], i / e, i % e);
            return rc;
        }
        if (exf_solve_observed(s, o, i)) loss[base + i] = source_sq > 0 && residual > 0 ? (float)(residual / source_sq) : 0;
    }
    return rc;
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

static const exf_stored_array stored[] = {
    {"diagonal", EXF_STORED_PAIRS}, {"diagonal_loss", EXF_STORED_LOSSES}, {NULL, EXF_STORED_PAIRS}};

const exf_projector exf_projector_diagonal = {.name = "diagonal", .words = "a diagonal per pair",
                                              .place = 40, .apply = EXF_APPLY_VECTORS,
                                              .observes = EXF_OBSERVES_ELEMENTS, .reads_file = 1,
                                              .begin = add_arrays, .layer = solve_layer, .stored = stored, .form = find_form};
