/* output_errors.h - how far one set of output rows is from another, summed exactly:
 *
 *   error_sq += sum over rows of ||b - a||^2        norm_sq += sum over rows of ||a||^2
 *
 * A row's squares are added up in double; each row's total is rounded to the grid of
 * exf_exact and added as an integer, so the sums do not depend on the order of rows. */
#ifndef EXF_KERNELS_OUTPUT_ERRORS_H
#define EXF_KERNELS_OUTPUT_ERRORS_H
#include "base/exact.h"

#include <stddef.h>

/* In GPU memory; all zero means no row was added. */
typedef struct {
    unsigned long long digit[2][6]; /* error_sq, norm_sq: digits of 2^32, not carried */
    unsigned long long out_of_range; /* rows whose squares no exf_exact can hold, not finite ones included */
} exf_output_errors;

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif
/* Adds rows a and b [n_rows, n] to *sums.  At most 2^31 rows between two readings. */
void exf_output_errors_cuda(struct exf_queue *q, exf_output_errors *sums, const float *a, const float *b, int n_rows, int n);
#ifdef __cplusplus
}
#endif
/* The sums of a copy in host memory, added to *error_sq and *norm_sq. */
void exf_output_errors_read(const exf_output_errors *sums, exf_exact *error_sq, exf_exact *norm_sq);
#endif
