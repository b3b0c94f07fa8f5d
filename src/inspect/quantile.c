/* quantile.c - see quantile.h. */
#include "inspect/quantile.h"

#include <math.h>
#include <stdlib.h>

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void exf_sort(double *x, size_t n)
{
    qsort(x, n, sizeof *x, rising);
}

double exf_quantile(const double *sorted, size_t n, double q)
{
    return n ? sorted[(size_t)(q * (double)(n - 1))] : (double)NAN;
}

double exf_mean(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return n ? sum / (double)n : (double)NAN;
}
