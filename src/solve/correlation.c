/* correlation.c - solves the matrix that joint weights, stand-ins and budgets go by: of the mean cosines of co-routed pairs a
 * correlation matrix, and norms whose ratios fit the pairs (docs/method.md, section 14).
 *
 * Each mean is over other tokens, those that route to both experts, so that the means of a layer need fit no set of vectors:
 * with 128 experts of which 8 run the least eigenvalue of a measured matrix is -4 to -1, and a small system of its entries may
 * have weights of tens for a solution.  One step of the nearest correlation matrix (Higham, IMA Journal of Numerical Analysis 22,
 * 2002, 329-343) makes every principal minor safe. */
#include "solve/solve_internal.h"

#include "base/mem.h"
#include "kernels/linear/symmetric.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_EIGENVALUE 0.02 /* of a matrix that is stored, before its diagonal is scaled to 1 */
enum { LEAST_SHARED = 8 };    /* tokens of a pair whose ratio of norms counts */

/* ---- the measured matrix ------------------------------------------------------------------------ */

/* Fills m [E, E].  Both directions of a pair add the same terms, so that it is symmetric; loss [E, E] says which are observed. */
static void measure(double *m, const exf_layer_statistics *s, const float *loss, int has_cosines)
{
    size_t e = (size_t)s->n_experts;
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) {
            size_t i = a * e + b, mirror = b * e + a;
            m[i] = a == b;
            if (a == b || loss[i] >= EXF_LOSS_NEVER) continue;
            double c;
            if (has_cosines) {
                c = exf_exact_value(&s->cosine_sum[i]) / (double)s->count[i];
            } else { /* of summed products, in which a token weighs by its outputs' norms */
                double norms = sqrt(exf_exact_value(&s->sq0[i])) * sqrt(exf_exact_value(&s->sq0[mirror]));
                c = norms > 0 ? exf_exact_value(&s->dot0[i]) / norms : 0;
            }
            m[i] = c < -1 ? -1 : c > 1 ? 1 : c;
        }
}

static int rising(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Fills what a reader is told of the measured matrix: how alike the experts are. */
static exf_code describe(const double *m, const exf_layer_statistics *s, const float *loss, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, n = 0;
    double near = 0, all = 0;
    float *sq = NULL;
    exf_code rc = exf_mem_new(&sq, e * e, sizeof *sq, "correlations", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e * e; i++) {
        if (i % e <= i / e || loss[i] >= EXF_LOSS_NEVER) continue;
        double tokens = (double)s->count[i];
        sq[n] = (float)(m[i] * m[i]);
        near += sq[n++] >= (float)EXF_NEAR_COPY ? tokens : 0;
        all += tokens;
    }
    qsort(sq, n, sizeof *sq, rising);
    t->median_cosine_sq[l] = n ? sq[(n - 1) / 2] : 0;
    t->near_copies[l] = all > 0 ? (float)(near / all) : 0;
    exf_mem_free(sq);
    return EXF_OK;
}

/* ---- relative norms ------------------------------------------------------------------------------- */

/* Fills the normal equations of the fit of z = log n: the Laplacian of the pairs' counts, tied to log rms by so little that only
 * what the pairs leave open follows it (a common factor, that of a group of experts that shares no token with the others). */
static void fill_equations(double *a, double *b, const double *log_rms, const exf_layer_statistics *s, const float *loss)
{
    const double tie_part = 1e-9;
    size_t e = (size_t)s->n_experts;
    double all = 0;
    memset(a, 0, e * e * sizeof *a);
    for (size_t i = 0; i < e; i++) {
        b[i] = 0;
        for (size_t j = 0; j < e; j++) {
            size_t at = i * e + j;
            if (i == j || loss[at] >= EXF_LOSS_NEVER || s->count[at] < LEAST_SHARED) continue;
            double mine = exf_exact_value(&s->sq0[at]), other = exf_exact_value(&s->sq0[j * e + i]), w = (double)s->count[at];
            if (!(mine > 0) || !(other > 0)) continue;
            a[i * e + i] += w;
            a[at] -= w;
            b[i] += w * (0.5 * (log(mine) - log(other))); /* half the log of how much more energy i has than j on their tokens */
            all += w;
        }
    }
    double tie = tie_part * (all > 1 ? all : 1) / (double)e;
    for (size_t i = 0; i < e; i++) {
        a[i * e + i] += tie;
        b[i] += tie * log_rms[i];
    }
}

/* a: [E, E] room */
static exf_code solve_relative_norms(double *a, const exf_layer_statistics *s, const float *loss, int l, exf_tables *t,
                                     exf_err *err)
{
    const double least_norm = 1e-30;
    size_t e = (size_t)s->n_experts;
    const float *rms = t->rms + (size_t)l * e;
    double *z = NULL, *log_rms = NULL, shift = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&z, e, sizeof *z, "relative norms", err));
    EXF_TRY(exf_mem_new(&log_rms, e, sizeof *log_rms, "relative norms", err));
    for (size_t i = 0; i < e; i++) log_rms[i] = log((double)rms[i] > least_norm ? (double)rms[i] : least_norm);
    fill_equations(a, z, log_rms, s, loss);
    EXF_TRY(exf_symmetric_solve(a, z, (int)e, err));
    for (size_t i = 0; i < e; i++) shift += log_rms[i] - z[i];
    shift /= (double)e;
    for (size_t i = 0; i < e; i++)
        t->relative_norms[(size_t)l * e + i] = rms[i] > 0 ? (float)exp(z[i] + shift) : 0.0f; /* outputs of 0 stay 0 */
out:
    exf_mem_free(z);
    exf_mem_free(log_rms);
    return rc;
}

exf_code exf_correlations_solve(const exf_layer_statistics *s, int l, int has_cosines, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, base = (size_t)l * e * e;
    const float *loss = t->loss + base;
    float *out = t->cosine + base;
    double *m = NULL, least;
    exf_code rc;
    EXF_TRY(exf_mem_new(&m, e * e, sizeof *m, "correlations", err));
    measure(m, s, loss, has_cosines);
    EXF_TRY(describe(m, s, loss, l, t, err));
    EXF_TRY(exf_symmetric_raise(m, (int)e, LEAST_EIGENVALUE, &least, err));
    t->least_eigenvalue[l] = (float)least;
    for (size_t a = 0; a < e; a++) /* scaled to a diagonal of 1; that of m is above 0 */
        for (size_t b = 0; b <= a; b++) {
            double c = m[a * e + b] / sqrt(m[a * e + a] * m[b * e + b]);
            out[a * e + b] = out[b * e + a] = a == b ? 1.0f : (float)(c < -1 ? -1 : c > 1 ? 1 : c);
        }
    rc = solve_relative_norms(m, s, loss, l, t, err);
out:
    exf_mem_free(m);
    return rc;
}
