/* each.c - see each.h. */
#include "moe/each.h"

#include "base/stop.h"

#ifdef _OPENMP
#include <omp.h>
#else /* the fuzz targets: one thread */
static int omp_get_thread_num(void)
{
    return 0;
}
#endif

typedef struct {
    exf_err err;
    size_t piece;
    volatile int failed;
} first_failure;

static void note_failure(first_failure *f, size_t piece, const exf_err *err)
{
#pragma omp critical(exf_first_failure)
    {
        if (!f->failed || piece < f->piece) {
            f->err = *err;
            f->piece = piece;
            f->failed = 1;
        }
    }
}

exf_code exf_each(size_t n, int n_workers, exf_each_fn fn, void *self, exf_err *err)
{
    (void)n_workers; /* without OpenMP there is one */
    first_failure failure = {.failed = 0};
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_workers)
    for (size_t i = 0; i < n; i++) {
        exf_err local = {.code = EXF_OK};
        if (failure.failed && i > failure.piece) continue;
        exf_code rc = exf_stop_check(&local);
        if (rc == EXF_OK) rc = fn(self, i, omp_get_thread_num(), &local);
        if (rc != EXF_OK) note_failure(&failure, i, &local);
    }
    if (!failure.failed) return EXF_OK;
    *err = failure.err;
    return err->code;
}
