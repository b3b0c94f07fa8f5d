/* cluster_mean.h - a mean by token with the standard error that clusters of dependent tokens give it (docs/method.md, section 12).
 *
 * The tokens of a document are alike, so that a document, not a token, is what could have been drawn differently.  A mean of
 * sums s_c over clusters c of n_c tokens is m = sum s_c / N with N = sum n_c, a quotient of two sums over G clusters; linearised,
 * its standard error is
 *
 *   se = sqrt(G / (G - 1) * sum (s_c - m n_c)^2) / N
 *
 * and its 95 % interval is m +- t se, with t of Student's distribution for G - 1 degrees of freedom.  Clusters without scored
 * tokens do not count.  Of fewer than two clusters nothing is known: se and half_width are NaN. */
#ifndef EXF_VALIDATE_CLUSTER_MEAN_H
#define EXF_VALIDATE_CLUSTER_MEAN_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    double mean, se;
    double half_width; /* of the 95 % interval */
} exf_difference;

/* What a mean is over. */
typedef struct {
    const double *sum, *less; /* [n] sums over each cluster's scored tokens, and what is subtracted of them; less NULL: nothing */
    const uint64_t *tokens;   /* [n] */
    const int32_t *group;     /* [n] only clusters with group[c] == which count; NULL: all */
    int which;
    size_t n;
} exf_cluster_sums;

/* Returns the mean by token; without tokens it is NaN too. */
exf_difference exf_cluster_mean(const exf_cluster_sums *c);
/* Returns the 97.5 % quantile of Student's distribution, to 1e-9 of its value; df >= 1. */
double exf_student_quantile(uint64_t df);
#endif
