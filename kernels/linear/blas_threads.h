/* blas_threads.h - OpenBLAS computes every product on the thread that calls it. */
#ifndef EXF_KERNELS_BLAS_THREADS_H
#define EXF_KERNELS_BLAS_THREADS_H

/* Every function that calls OpenBLAS or its LAPACK calls this first: a product's bits must
 * not depend on how many threads share it, and threads of OpenBLAS's own would compete
 * with the pool's.  Cheap after a thread's first call. */
void exf_blas_one_thread_cpu(void);
#endif
