/* measures.c - see measures.h. */
#include "solve/measures.h"

#include "base/mem.h"

#include <math.h>

exf_code exf_measures_new(int by_sequence, exf_tables *t, exf_err *err)
{
    exf_code rc;
    size_t rows = (size_t)t->n_layers * (size_t)t->shape.n_experts, cells = rows * (size_t)t->shape.n_experts;
    EXF_TRY(exf_mem_new(&t->cosine, cells, sizeof *t->cosine, "cosines", err));
    EXF_TRY(exf_mem_new(&t->similarity, cells, sizeof *t->similarity, "similarities", err));
    EXF_TRY(exf_mem_new(&t->frobenius, cells, sizeof *t->frobenius, "Frobenius losses", err));
    if (by_sequence) EXF_TRY(exf_mem_new(&t->std_error, cells, sizeof *t->std_error, "standard errors", err));
    EXF_TRY(exf_mem_new(&t->rms, rows, sizeof *t->rms, "root mean squares", err));
    EXF_TRY(exf_mem_new(&t->contribution, rows, sizeof *t->contribution, "contributions", err));
out:
    return rc;
}

static int observed(const exf_tables *t, size_t at)
{
    return t->loss[at] < EXF_LOSS_NEVER;
}

/* Solves the cosines.  Both directions of a pair add the same products, so the matrix is symmetric. */
static void solve_cosines(const exf_layer_statistics *s, size_t base, exf_tables *t)
{
    size_t e = (size_t)s->n_experts;
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) {
            size_t i = a * e + b, mirror = b * e + a;
            float *out = &t->cosine[base + i];
            *out = a == b ? 1.0f : 0.0f;
            if (a == b || !observed(t, base + i)) continue;
            double norms = sqrt(exf_exact_value(&s->sq0[i])) * sqrt(exf_exact_value(&s->sq0[mirror]));
            double c = norms > 0 ? exf_exact_value(&s->dot0[i]) / norms : 0;
            *out = (float)(c < -1 ? -1 : c > 1 ? 1 : c);
        }
}

/* Returns the root mean square of ||E_s - E_t||; -1 if the pair is unobserved. */
static double distance(const exf_layer_statistics *s, const exf_tables *t, size_t base, size_t a, size_t b)
{
    size_t e = (size_t)s->n_experts, i = a * e + b, mirror = b * e + a;
    if (a == b || !observed(t, base + i)) return -1;
    double sq = exf_exact_value(&s->sq0[i]) + exf_exact_value(&s->sq0[mirror]) - 2 * exf_exact_value(&s->dot0[i]);
    return sq > 0 ? sqrt(sq / (double)s->count[i]) : 0;
}

static void solve_similarities(const exf_layer_statistics *s, size_t base, exf_tables *t)
{
    size_t e = (size_t)s->n_experts;
    double largest = 0;
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) largest = fmax(largest, distance(s, t, base, a, b));
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) {
            double d = distance(s, t, base, a, b);
            t->similarity[base + a * e + b] = a == b ? 1.0f : d < 0 ? 0.0f : largest > 0 ? (float)(1 - d / largest) : 1.0f;
        }
}

/* Solves the losses by Frobenius norm; those of exf_solve_loss with sums without weights, as a root. */
static exf_code solve_frobenius(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, base = (size_t)l * e * e;
    for (size_t i = 0; i < e * e; i++) {
        float *out = &t->frobenius[base + i];
        *out = EXF_LOSS_NEVER;
        if (!observed(t, base + i)) continue;
        *out = (float)sqrt(exf_solve_loss((double)t->coeff[base + i], exf_exact_value(&s->dot0[i]),
                                          exf_exact_value(&s->sq0[i % e * e + i / e]), exf_exact_value(&s->sq0[i])));
        if (!isfinite(*out))
            return exf_fail(err, EXF_NUMERIC, "layer %d, pair %zu -> %zu: Frobenius loss %g is no finite float32",
                            (int)t->layer_number[l], i / e, i % e, (double)*out);
    }
    return EXF_OK;
}

static void solve_contributions(const exf_layer_statistics *s, size_t row, exf_tables *t)
{
    for (size_t i = 0; i < (size_t)s->n_experts; i++)
        t->contribution[row + i] =
            s->norm_count[i] ? (float)(exf_exact_value(&s->contribution_sum[i]) / (double)s->norm_count[i]) : 0.0f;
}

static exf_code solve_rms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    double *rms = NULL;
    exf_code rc = exf_mem_new(&rms, e, sizeof *rms, "root mean squares", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e; i++)
        if (s->norm_count[i]) rms[i] = sqrt(exf_exact_value(&s->sq_sum[i]) / (double)s->norm_count[i]);
    EXF_TRY(exf_solve_fill_cold(rms, s, err));
    for (size_t i = 0; rc == EXF_OK && i < e; i++) {
        float *out = &t->rms[(size_t)l * e + i];
        *out = (float)rms[i];
        if (!isfinite(*out) || *out < 0)
            rc = exf_fail(err, EXF_NUMERIC,
                          "layer %d: expert %zu has root mean square norm %g over %llu tokens, expected a finite number from 0",
                          (int)t->layer_number[l], i, rms[i], (unsigned long long)s->norm_count[i]);
    }
out:
    exf_mem_free(rms);
    return rc;
}

exf_code exf_measures_solve(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    solve_cosines(s, (size_t)l * e * e, t);
    solve_similarities(s, (size_t)l * e * e, t);
    if (t->std_error) exf_std_errors_solve(s, o, l, t);
    solve_contributions(s, (size_t)l * e, t);
    exf_code rc = solve_frobenius(s, l, t, err);
    return rc == EXF_OK ? solve_rms(s, l, t, err) : rc;
}

/* ---- measures std error ------------------------------------------------------------------------ */

/* Estimates the standard error of a pair's scalar by a jackknife over
 * sequences (tokens of one text are correlated, so they cannot be the units).
 *
 * With a_i, b_i the dot and target_sq of sequence i, A = sum a_i, B = sum b_i and
 * S = A / (B + lambda), sequence i moves S by U_i = (a_i - S b_i) / (B + lambda) to first
 * order (the infinitesimal jackknife; Jaeckel 1972, Bell Laboratories memorandum MM
 * 72-1215-11; Efron, The Jackknife, the Bootstrap and Other Resampling Plans, SIAM 1982,
 * chapter 6).  A sequence weighs as much as its sums say: this is the delete-one jackknife
 * of a ratio with unequal units, and
 *
 *   SE^2 = n / (n - 1)  sum (U_i - mean U)^2
 *        = n / (n - 1)  [ sum a^2 - 2 S sum a b + S^2 sum b^2 - (A - S B)^2 / n ] / (B + lambda)^2
 *
 * which needs no sequence, only sums over them.  n counts the sequences that saw the pair. */

static double std_error(const exf_layer_statistics *s, const exf_solve_options *o, size_t i)
{
    const double unscale = 1 / EXF_SEQUENCE_SCALE;
    double n = (double)s->sequences[i], dot = exf_exact_value(&s->dot[i]), target_sq = exf_exact_value(&s->target_sq[i]);
    double divisor = target_sq + o->rule.ridge, ratio = divisor > 0 ? dot / divisor : 0;
    double aa = exf_exact_value(&s->seq_aa[i]), ab = exf_exact_value(&s->seq_ab[i]), bb = exf_exact_value(&s->seq_bb[i]);
    double squares = aa - 2 * ratio * ab + ratio * ratio * bb, rest = (dot - ratio * target_sq) * EXF_SEQUENCE_SCALE;
    double spread = squares - rest * rest / n;
    return spread > 0 && divisor > 0 ? sqrt(n / (n - 1) * spread) * unscale / divisor : 0;
}

void exf_std_errors_solve(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t)
{
    size_t e = (size_t)s->n_experts, base = (size_t)l * e * e;
    for (size_t i = 0; i < e * e; i++) {
        float *out = &t->std_error[base + i];
        *out = i % e == i / e ? 0 : EXF_ERROR_UNKNOWN;
        if (i % e == i / e || t->loss[base + i] >= EXF_LOSS_NEVER || s->sequences[i] < 2) continue;
        double x = std_error(s, o, i);
        *out = x < (double)EXF_ERROR_UNKNOWN ? (float)x : EXF_ERROR_UNKNOWN;
    }
}

/* ---- coverage ---------------------------------------------------------------------------------- */

exf_layer_coverage exf_coverage_of(const exf_tables *t, int l)
{
    size_t e = (size_t)t->shape.n_experts, base = (size_t)l * e * e;
    exf_layer_coverage c = {.pairs = e * (e - 1)};
    for (size_t i = 0; i < e * e; i++) {
        int observed = t->loss[base + i] < EXF_LOSS_NEVER;
        c.observed += (size_t)observed;
        c.thin += !observed && t->count[base + i] > 0;
    }
    for (size_t i = 0; i < e; i++) c.cold += t->expert_count[(size_t)l * e + i] == 0;
    return c;
}
