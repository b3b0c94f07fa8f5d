/* linalg.h - dense linear algebra in double precision on the host, row-major: products by
 * OpenBLAS, factorisations by the LAPACK inside it.
 *
 * One thread (kernels/linear/blas_threads.h), so equal inputs give equal bits on one processor
 * with one OpenBLAS.  Arrays do not overlap unless said. */
#ifndef EXF_KERNELS_LINALG_H
#define EXF_KERNELS_LINALG_H
#include "base/err.h"

/* y [m, n] = alpha x [m, k] w [k, n] + beta y; leading dimensions of the rows.  _xtw: x is [k, m]. */
void exf_linalg_xw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                   double beta);
void exf_linalg_xtw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                    double beta);
/* y [n, n] = x x', x [n, k], both triangles, exactly symmetric. */
void exf_linalg_xxt(double *y, const double *x, int n, int k);

/* The columns of a [m, n], m >= n, become orthonormal, spanning what they spanned
 * (Householder QR; where the columns are dependent, whatever completes them). */
exf_code exf_linalg_orthonormalize(double *a, int m, int n, exf_err *err) EXF_CHECKED;
/* Eigenvalues w [n], falling, and their vectors in the columns of a, symmetric before. */
exf_code exf_linalg_eigen(double *a, double *w, int n, exf_err *err) EXF_CHECKED;
/* b [n, m] = a^-1 b for a symmetric and positive definite, which is overwritten; EXF_NUMERIC if it is not. */
exf_code exf_linalg_solve(double *a, double *b, int n, int m, exf_err *err) EXF_CHECKED;
#endif
