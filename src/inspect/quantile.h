/* quantile.h - quantiles of numbers. */
#ifndef EXF_INSPECT_QUANTILE_H
#define EXF_INSPECT_QUANTILE_H
#include <stddef.h>

/* Sorts in place, rising; none may be NaN. */
void exf_sort(double *x, size_t n);
/* Of n sorted numbers the one at the fraction q of the way, the lower of two between;
 * NaN where there are none.  q = 0.5 is the lower median. */
double exf_quantile(const double *sorted, size_t n, double q);
/* Mean in the order given; NaN where there are none. */
double exf_mean(const double *x, size_t n);
#endif
