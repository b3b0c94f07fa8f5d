/* blas_threads_cpu.c - see blas_threads.h.
 *
 * An OpenBLAS built on pthreads keeps one number of threads for the process; one built on
 * OpenMP has a number for each calling thread, and threads that OpenMP did not create
 * start with all processors.  So every thread sets it. */
#include "kernels/linear/blas_threads.h"

#include <cblas.h>
#include <pthread.h>

void exf_blas_one_thread_cpu(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* OpenBLAS frees buffers of threads that it gives up */
    static _Thread_local int is_set;
    if (is_set) return;
    pthread_mutex_lock(&lock);
    openblas_set_num_threads(1);
    pthread_mutex_unlock(&lock);
    is_set = 1;
}
