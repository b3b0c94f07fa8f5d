/* blas_threads.h - OpenBLAS computes every product on the thread that calls it, in buffers that it has from the start. */
#ifndef EXF_KERNELS_BLAS_THREADS_H
#define EXF_KERNELS_BLAS_THREADS_H
#include "base/err.h"

/* Every function that calls OpenBLAS or its LAPACK calls this first: a product's bits must
 * not depend on how many threads share it, and threads of OpenBLAS's own would compete
 * with the pool's.  Cheap after a thread's first call. */
void exf_blas_one_thread_cpu(void);

/* Fails with EXF_NOSPACE where OpenBLAS could not map the one buffer that it takes while it is loaded (since 0.3.28). */
exf_code exf_blas_check_load_cpu(exf_err *err) EXF_CHECKED;

/* Lets OpenBLAS map the buffers that n threads need at once, 128 MiB of addresses each.  Where a limit forbids that
 * later, it asks again for ever, deaf to signals.  EXF_NOSPACE with what was asked for; called before the first product.
 * EXF_USAGE if n > 1 and OpenBLAS was built without threads and without locks. */
exf_code exf_blas_reserve_cpu(int n, exf_err *err) EXF_CHECKED;
#endif
