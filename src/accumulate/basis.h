/* basis.h - computes the low-rank basis of a layer: the leading right singular vectors of the sampled residuals. */
#ifndef EXF_ACCUMULATE_BASIS_H
#define EXF_ACCUMULATE_BASIS_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Computes q [d, r], r <= d: orthonormal columns, by falling singular value, of the rows x [n, d]
 * less their mean; each column's largest element (the first of equals) is positive.
 * Columns beyond the rank of x complete the others.  Computes in double over fixed parts of
 * the rows in order: equal x gives equal bits for any number of helping threads (at least 1). */
exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, uint64_t seed, uint64_t stream, int helpers,
                        exf_err *err) EXF_CHECKED;
/* Returns the bytes of working memory. */
uint64_t exf_basis_bytes(int r, int d, int helpers);
#endif
