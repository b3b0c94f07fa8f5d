/* symmetric.h - eigenvalues of symmetric matrices and a solve, in double, with equal bits on every machine.
 *
 * Only + - * / and sqrt, each rounded once, sums in lanes of fixed order, one thread: the same matrix gives the same bits
 * whatever the processor, the threads and the ranks, which LAPACK's blocked kernels (linear.h) do not promise.  Householder
 * tridiagonalisation and the implicit QL iteration (Golub and Van Loan, Matrix Computations, sections 8.3.1 and 8.3.3): about
 * 4 n^3 operations without vectors, 10 n^3 with them.  Matrices are [n, n], row-major, both triangles filled; the error of an
 * eigenvalue is a few n ulp of the largest. */
#ifndef EXF_KERNELS_SYMMETRIC_H
#define EXF_KERNELS_SYMMETRIC_H
#include "base/err.h"

/* Stores the least eigenvalue of a, n >= 1, which is not changed.  EXF_NUMERIC where a has a number that is not finite. */
exf_code exf_symmetric_least(double *value, const double *a, int n, exf_err *err) EXF_CHECKED;
/* Raises the eigenvalues of a that are below `least` to it and keeps the eigenvectors; *before: the least eigenvalue that a had.
 * Where that is no smaller, a keeps its bits.  EXF_NUMERIC as above. */
exf_code exf_symmetric_raise(double *a, int n, double least, double *before, exf_err *err) EXF_CHECKED;
/* b [n] := a^-1 b for a positive definite a, whose lower triangle is overwritten; EXF_NUMERIC where it is not. */
exf_code exf_symmetric_solve(double *a, double *b, int n, exf_err *err) EXF_CHECKED;
#endif
