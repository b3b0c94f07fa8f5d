/* cluster_mean.c - means by token and their standard errors by clusters; see cluster_mean.h. */
#include "validate/cluster_mean.h"

#include <math.h>

/* ---- Student's distribution --------------------------------------------------------------- */

static const double PI = 3.14159265358979323846;
static const double NORMAL_QUANTILE = 1.95996398454005423552; /* 97.5 % */
enum { SERIES_FROM = 100, NEWTON_STEPS = 60 };

/* Returns P(|T| < t) for an integer number of degrees of freedom, by the finite sum over powers of cos(theta) with tan(theta) =
 * t / sqrt(df) (Abramowitz and Stegun, 26.7.3 and 26.7.4). */
static double find_probability(double t, int df)
{
    double theta = atan(t / sqrt(df)), c = cos(theta), s = sin(theta);
    double term = df % 2 ? c : 1, sum = df > 1 ? term : 0;
    for (int k = df % 2 ? 3 : 2; k <= df - 2; k += 2) {
        term *= c * c * (k - 1) / k;
        sum += term;
    }
    return df % 2 ? 2 / PI * (theta + s * sum) : s * sum;
}

double exf_student_quantile(uint64_t df)
{
    double x = NORMAL_QUANTILE, n = (double)df;
    if (df >= SERIES_FROM) { /* the expansion in 1 / df about the normal quantile (Abramowitz and Stegun, 26.7.5) */
        double x2 = x * x;
        double g1 = x * (x2 + 1) / 4, g2 = x * ((5 * x2 + 16) * x2 + 3) / 96, g3 = x * (((3 * x2 + 19) * x2 + 17) * x2 - 15) / 384,
               g4 = x * ((((79 * x2 + 776) * x2 + 1482) * x2 - 1920) * x2 - 945) / 92160;
        return x + (g1 + (g2 + (g3 + g4 / n) / n) / n) / n;
    }
    double factor = exp(lgamma((n + 1) / 2.0) - lgamma(n / 2.0)) / sqrt(n * PI); /* of the density of T */
    double t = x; /* below the quantile, where the probability is concave: Newton's steps rise to it */
    for (int i = 0; i < NEWTON_STEPS; i++) {
        double step = (0.95 - find_probability(t, (int)df)) / (2 * (factor * pow(1 + t * t / n, -(n + 1) / 2.0)));
        t += step;
        if (fabs(step) <= 1e-14 * t) break;
    }
    return t;
}

/* ---- clusters ------------------------------------------------------------------------------- */

static int counts(const exf_cluster_sums *c, size_t i)
{
    return c->tokens[i] && (!c->group || c->group[i] == c->which);
}

static double sum_of(const exf_cluster_sums *c, size_t i)
{
    return c->sum[i] - (c->less ? c->less[i] : 0);
}

exf_difference exf_cluster_mean(const exf_cluster_sums *c)
{
    double sum = 0, tokens = 0, squares = 0;
    uint64_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (!counts(c, i)) continue;
        sum += sum_of(c, i);
        tokens += (double)c->tokens[i];
        n++;
    }
    exf_difference d = {n ? sum / tokens : NAN, NAN, NAN};
    if (n < 2) return d;
    for (size_t i = 0; i < c->n; i++) {
        double rest = counts(c, i) ? sum_of(c, i) - d.mean * (double)c->tokens[i] : 0;
        squares += rest * rest;
    }
    d.se = sqrt((double)n / (double)(n - 1) * squares) / tokens;
    d.half_width = exf_student_quantile(n - 1) * d.se;
    return d;
}
