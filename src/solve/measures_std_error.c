/* measures_std_error.c - estimates the standard error of a pair's scalar by a jackknife over
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
#include "solve/measures.h"

#include <math.h>

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
