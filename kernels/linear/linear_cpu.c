/* linear_cpu.c - products and factorisations through OpenBLAS, one thread each; see linear.h. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "kernels/linear/linear.h"

#include "base/mem.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ---- threads and buffers of OpenBLAS ---------------------------------------------------
 * An OpenBLAS built on pthreads keeps one number of threads for the process; one built on OpenMP has a number for each
 * calling thread, and threads that OpenMP did not create start with all processors.  So every thread sets it. */

/* Replaces a function of OpenBLAS, which it calls while it is loaded for the number of threads to start.  If the system has
 * no more threads, it ends the program as an interrupt would; so it is told to start none.  openblas_set_num_threads() comes too
 * late for that, and the environment, where OPENBLAS_NUM_THREADS would say the same, is read before main. */
int openblas_num_threads_env(void);
int openblas_num_threads_env(void)
{
    return 1;
}

/* Every function that calls OpenBLAS or its LAPACK calls this first: a product's bits must not depend on how many threads
 * share it, and threads of OpenBLAS's own would compete with ours.  Cheap after a thread's first call. */
static void use_one_thread(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* OpenBLAS frees buffers of threads that it gives up */
    static _Thread_local int is_set;
    if (is_set) return;
    pthread_mutex_lock(&lock);
    openblas_set_num_threads(1);
    pthread_mutex_unlock(&lock);
    is_set = 1;
}

/* Not in its headers, and absent from builds that keep buffers per thread.  No public call takes a
 * buffer for a thread, and a product that cannot map one returns no error.  So they are checked and taken before. */
void *blas_memory_alloc(int where) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

/* Fails if the process may not map n buffers more. */
static exf_code check_addresses(int n, const char *what, const char *hint, exf_err *err)
{
    static const size_t one = (size_t)132 << 20; /* with what aligns it */
    size_t bytes = (size_t)n * one;
    void *addresses = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED)
        return exf_fail(err, EXF_NOSPACE, "out of memory: %zu MiB of addresses for %s; use %s", bytes >> 20, what, hint);
    munmap(addresses, bytes);
    return EXF_OK;
}

exf_code exf_blas_check_load_cpu(exf_err *err)
{
    return check_addresses(1, "the buffer that OpenBLAS maps when a program starts", "a larger limit (ulimit -v)", err);
}

exf_code exf_blas_reserve_cpu(int n, exf_err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int reserved;
    char what[64];
    void **buffer = NULL;
    exf_code rc = EXF_OK;
    pthread_mutex_lock(&lock);
    if (n <= reserved) goto out;
    /* Built without threads and without locks around its buffers, it would give one buffer to two threads at a time, whose products
     * would silently be wrong. */
    if (n > 1 && openblas_get_parallel() == 0 && !strstr(openblas_get_config(), "USE_LOCKING")) {
        rc = exf_fail(err, EXF_USAGE, "this OpenBLAS was built without threads and cannot be called by %d threads at a time; "
                      "use --threads 1, or a build with threads (Debian's libopenblas0-pthread)", n);
        goto out;
    }
    EXF_TRY(exf_mem_new(&buffer, (size_t)n, sizeof *buffer, "buffers of OpenBLAS", err));
    snprintf(what, sizeof what, "the buffers of OpenBLAS on %d threads", n);
    EXF_TRY(check_addresses(n, what, "fewer with --threads, or a larger limit (ulimit -v)", err));
    if (blas_memory_alloc && blas_memory_free) { /* buffers that are free are kept; it has at least 64 */
        int most = n < 64 ? n : 64;
        for (int i = 0; i < most; i++) buffer[i] = blas_memory_alloc(0);
        for (int i = 0; i < most; i++) blas_memory_free(buffer[i]);
    }
    reserved = n;
out:
    pthread_mutex_unlock(&lock);
    exf_mem_free(buffer);
    return rc;
}

/* ---- float32 products -------------------------------------------------------------------- */

const char *exf_gemm_library_cpu(void)
{
    static char name[128];
    char release[64] = "";
    sscanf(openblas_get_config(), "%63s %63s", name, release);
    snprintf(name, sizeof name, "OpenBLAS %s %s", release, openblas_get_corename());
    return name;
}

const char *exf_gemm_better_kernels_cpu(void)
{
#if defined(__x86_64__)
    if (strcmp(openblas_get_corename(), "Prescott") != 0) return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
    return NULL;
}

void exf_gemm_xwt_cpu(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k,
                      float alpha, float beta)
{
    (void)q;
    if (m == 0 || n == 0) return;
    use_one_thread();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, alpha, x.p, ldx, w.p, ldw, beta, y, ldy);
}

void exf_gemm_xw_cpu(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k,
                     float alpha, float beta)
{
    (void)q;
    if (m == 0 || n == 0) return;
    use_one_thread();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, alpha, x, ldx, w, ldw, beta, y, ldy);
}

void exf_gemm_xwt_many_cpu(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw,
                           const exf_product_steps *s, int m, int n, int k)
{
    for (int i = 0; i < s->count; i++)
        exf_gemm_xwt_cpu(q, y + (size_t)i * (size_t)s->y, ldy, exf_matrix_at(x, (size_t)i * (size_t)s->x), ldx,
                         exf_matrix_at(w, (size_t)i * s->w), ldw, m, n, k, 1, 0);
}

/* ---- double precision ---------------------------------------------------------------------
 * LAPACK's symbols are declared in this file only: OpenBLAS exports them, but its C header does not declare them.  LAPACK
 * stores matrices by columns, so an [m, n] matrix of C is its transpose to LAPACK.  The last arguments are the lengths of
 * the character arguments, as Fortran compilers pass them. */

void dgeqrf_(const int *m, const int *n, double *a, const int *lda, double *tau, double *work, const int *lwork, int *info);
void dorgqr_(const int *m, const int *n, const int *k, double *a, const int *lda, const double *tau, double *work, const int *lwork,
             int *info);
void dsyevd_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w, double *work, const int *lwork,
             int *places, const int *lplaces, int *info, size_t, size_t);
void dpotrf_(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t);
void dpotrs_(const char *uplo, const int *n, const int *nrhs, const double *a, const int *lda, double *b, const int *ldb, int *info,
             size_t);

void exf_linalg_xw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                   double beta)
{
    if (m == 0 || n == 0) return;
    use_one_thread();
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, alpha, x, ldx, w, ldw, beta, y, ldy);
}

void exf_linalg_xtw(double *y, int ldy, const double *x, int ldx, const double *w, int ldw, int m, int n, int k, double alpha,
                    double beta)
{
    if (m == 0 || n == 0) return;
    use_one_thread();
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, k, alpha, x, ldx, w, ldw, beta, y, ldy);
}

void exf_linalg_xxt(double *y, const double *x, int n, int k)
{
    use_one_thread();
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, k, 1, x, k, 0, y, n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) y[(size_t)j * (size_t)n + (size_t)i] = y[(size_t)i * (size_t)n + (size_t)j];
}

static exf_code check_status(int info, const char *routine, exf_err *err)
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
    use_one_thread();
    dgeqrf_(&m, &n, columns, &m, tau, work, &work_n, &info);
    EXF_TRY(check_status(info, "dgeqrf", err));
    dorgqr_(&m, &n, &n, columns, &m, tau, work, &work_n, &info);
    EXF_TRY(check_status(info, "dorgqr", err));
    transpose(a, columns, n, m);
out:
    exf_mem_free(columns);
    exf_mem_free(tau);
    exf_mem_free(work);
    return rc;
}

exf_code exf_linalg_eigen(double *a, double *w, int n, exf_err *err)
{
    int info, size = n > 0 ? n : 1, work_n = 1 + 6 * size + 2 * size * size, places_n = 3 + 5 * size; /* as LAPACK asks for */
    double *vectors = NULL, *work = NULL, *rising = NULL;
    int *places = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&vectors, (size_t)n * (size_t)n, sizeof *vectors, "eigenvectors", err));
    EXF_TRY(exf_mem_new(&rising, (size_t)n, sizeof *rising, "eigenvalues", err));
    EXF_TRY(exf_mem_new(&work, (size_t)work_n, sizeof *work, "eigenvectors", err));
    EXF_TRY(exf_mem_new(&places, (size_t)places_n, sizeof *places, "eigenvectors", err));
    memcpy(vectors, a, (size_t)n * (size_t)n * sizeof *a);
    use_one_thread();
    dsyevd_("V", "L", &n, vectors, &n, rising, work, &work_n, places, &places_n, &info, 1, 1);
    EXF_TRY(check_status(info, "dsyevd", err));
    for (int k = 0; k < n; k++) { /* LAPACK's k-th column is row k; eigenvalues rise */
        w[k] = rising[n - 1 - k];
        for (int i = 0; i < n; i++) a[(size_t)i * (size_t)n + (size_t)k] = vectors[(size_t)(n - 1 - k) * (size_t)n + (size_t)i];
    }
out:
    exf_mem_free(vectors);
    exf_mem_free(places);
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
    use_one_thread();
    dpotrf_("L", &n, a, &n, &info, 1);
    if (info > 0) {
        rc = exf_fail(err, EXF_NUMERIC, "a matrix of order %d is not positive definite: its leading minor of order %d is not", n,
                      info);
        goto out;
    }
    EXF_TRY(check_status(info, "dpotrf", err));
    dpotrs_("L", &n, &m, a, &n, columns, &n, &info, 1);
    EXF_TRY(check_status(info, "dpotrs", err));
    transpose(b, columns, m, n);
out:
    exf_mem_free(columns);
    return rc;
}
