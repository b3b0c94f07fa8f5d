/* blas_threads_cpu.c - see blas_threads.h.
 *
 * An OpenBLAS built on pthreads keeps one number of threads for the process; one built on
 * OpenMP has a number for each calling thread, and threads that OpenMP did not create
 * start with all processors.  So every thread sets it. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "kernels/linear/blas_threads.h"

#include "base/mem.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* OpenBLAS asks this function of its own for OPENBLAS_NUM_THREADS while it is loaded, and then starts so many threads;
 * where the system has no more, it ends the program as if somebody had interrupted it.  This one stands in front. */
int openblas_num_threads_env(void);
int openblas_num_threads_env(void)
{
    return 1;
}

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

/* Not in its headers, and absent from builds that keep buffers per thread. */
void *blas_memory_alloc(int where) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

/* Buffers of OpenBLAS are kept when they are free.  It has at least 64. */
static void take_buffers(void **buffer, int n)
{
    if (n > 64) n = 64;
    for (int i = 0; i < n; i++) buffer[i] = blas_memory_alloc(0);
    for (int i = 0; i < n; i++) blas_memory_free(buffer[i]);
}

/* Fails if the process may not map n buffers more. */
static exf_code ask_for_room(int n, const char *what, const char *hint, exf_err *err)
{
    static const size_t one = (size_t)132 << 20; /* with what aligns it */
    size_t bytes = (size_t)n * one;
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return exf_fail(err, EXF_NOSPACE, "out of memory: %zu MiB of addresses for %s; use %s", bytes >> 20, what, hint);
    munmap(room, bytes);
    return EXF_OK;
}

exf_code exf_blas_check_load_cpu(exf_err *err)
{
    return ask_for_room(1, "the buffer that OpenBLAS maps when a program starts", "a larger limit (ulimit -v)", err);
}

/* One that was built without threads has no locks around its buffers either, unless they were asked for, and gives one to two
 * threads at a time: their products are wrong, without a word. */
static exf_code check_locks(int n, exf_err *err)
{
    if (n == 1 || openblas_get_parallel() != 0 || strstr(openblas_get_config(), "USE_LOCKING")) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "this OpenBLAS was built without threads and cannot be called by %d threads at a time; "
                    "use --threads 1, or a build with threads (Debian's libopenblas0-pthread)", n);
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
    EXF_TRY(check_locks(n, err));
    EXF_TRY(exf_mem_new(&buffer, (size_t)n, sizeof *buffer, "buffers of OpenBLAS", err));
    snprintf(what, sizeof what, "the buffers of OpenBLAS on %d threads", n);
    EXF_TRY(ask_for_room(n, what, "fewer with --threads, or a larger limit (ulimit -v)", err));
    if (blas_memory_alloc && blas_memory_free) take_buffers(buffer, n);
    reserved = n;
out:
    pthread_mutex_unlock(&lock);
    exf_mem_free(buffer);
    return rc;
}
