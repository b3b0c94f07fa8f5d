/* linalg_cpu.c - see linalg.h.  LAPACK's symbols are declared in this file only: OpenBLAS exports
 * them, but its C header does not declare them.  LAPACK stores matrices by columns, so an
 * [m, n] matrix of C is its transpose to LAPACK. */
#include "kernels/statistics/linalg.h"

#include "base/mem.h"
#include "kernels/linear/blas_threads.h"

#include <cblas.h>
#include <stddef.h>
#include <string.h>

/* The last arguments are the lengths of the character arguments, as Fortran compilers pass them. */
void dgeqrf_(const int *m, const int *n, double *a, const int *lda, double *tau, double *work, const int *lwork, int *info);
void dorgqr_(const int *m, const int *n, const int *k, double *a, const int *lda, const double *tau, double *work, const int *lwork,
             int *info);
void dsyev_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w, double *work, const int *lwork,
            int *info, size_t, size_t);
void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t);
void dpotrs_(const char *uplo, const int *n, const int *nrhs, const double *a, const int *lda, double *b, const int *ldb, int *info,
             size_t);

void exf_linalg_xw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                   double beta)
{
    if (m == 0 || n == 0) return;
    exf_blas_one_thread_cpu();
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, alpha, x, ldx, w, ldw, beta, y, ldy);
}

void exf_linalg_xtw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                    double beta)
{
    if (m == 0 || n == 0) return;
    exf_blas_one_thread_cpu();
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, k, alpha, x, ldx, w, ldw, beta, y, ldy);
}

void exf_linalg_xxt(double *y, const double *x, int n, int k)
{
    exf_blas_one_thread_cpu();
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, k, 1, x, k, 0, y, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) y[(size_t)j * (size_t)n + (size_t)i] = y[(size_t)i * (size_t)n + (size_t)j];
}

static exf_code status(int info, const char *routine, exf_err *err)
{
    return info == 0 ? EXF_OK : exf_fail(err, EXF_NUMERIC, "LAPACK's %s gives up with status %d", routine, info);
}

static void transpose(double *to, const double *from, int m, int n)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) to[(size_t)j * (size_t)m + (size_t)i] = from[(size_t)i * (size_t)n + (size_t)j];
}

exf_code exf_linalg_orthonormalize(double *a, int m, int n, exf_err *err)
{
    enum { BLOCK = 64 };
    int info, work_n = BLOCK * (n > 0 ? n : 1);
    double *columns = NULL, *tau = NULL, *work = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&columns, (size_t)m * (size_t)n, sizeof *columns, "QR factorisation", err));
    EXF_TRY(exf_mem_new(&tau, (size_t)n, sizeof *tau, "QR factorisation", err));
    EXF_TRY(exf_mem_new(&work, (size_t)work_n, sizeof *work, "QR factorisation", err));
    transpose(columns, a, m, n);
    exf_blas_one_thread_cpu();
    dgeqrf_(&m, &n, columns, &m, tau, work, &work_n, &info);
    EXF_TRY(status(info, "dgeqrf", err));
    dorgqr_(&m, &n, &n, columns, &m, tau, work, &work_n, &info);
    EXF_TRY(status(info, "dorgqr", err));
    transpose(a, columns, n, m);
out:
    exf_mem_free(columns);
    exf_mem_free(tau);
    exf_mem_free(work);
    return rc;
}

exf_code exf_linalg_eigen(double *a, double *w, int n, exf_err *err)
{
    int info, work_n = 34 * (n > 0 ? n : 1);
    double *vectors = NULL, *work = NULL, *rising = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&vectors, (size_t)n * (size_t)n, sizeof *vectors, "eigenvectors", err));
    EXF_TRY(exf_mem_new(&rising, (size_t)n, sizeof *rising, "eigenvalues", err));
    EXF_TRY(exf_mem_new(&work, (size_t)work_n, sizeof *work, "eigenvectors", err));
    memcpy(vectors, a, (size_t)n * (size_t)n * sizeof *a);
    exf_blas_one_thread_cpu();
    dsyev_("V", "L", &n, vectors, &n, rising, work, &work_n, &info, 1, 1);
    EXF_TRY(status(info, "dsyev", err));
    for (int k = 0; k < n; k++) { /* LAPACK's k-th column is row k; eigenvalues rise */
        w[k] = rising[n - 1 - k];
        for (int i = 0; i < n; i++) a[(size_t)i * (size_t)n + (size_t)k] = vectors[(size_t)(n - 1 - k) * (size_t)n + (size_t)i];
    }
out:
    exf_mem_free(vectors);
    exf_mem_free(rising);
    exf_mem_free(work);
    return rc;
}

exf_code exf_linalg_solve(double *a, double *b, int n, int m, exf_err *err)
{
    int info;
    double *columns = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&columns, (size_t)n * (size_t)m, sizeof *columns, "right-hand sides", err));
    transpose(columns, b, n, m);
    exf_blas_one_thread_cpu();
    dpotrf_("L", &n, a, &n, &info, 1);
    if (info > 0) {
        rc = exf_fail(err, EXF_NUMERIC, "a matrix of order %d is not positive definite: its leading minor of order %d is not", n,
                      info);
        goto out;
    }
    EXF_TRY(status(info, "dpotrf", err));
    dpotrs_("L", &n, &m, a, &n, columns, &n, &info, 1);
    EXF_TRY(status(info, "dpotrs", err));
    transpose(b, columns, m, n);
out:
    exf_mem_free(columns);
    return rc;
}
