/* solving.c - see solving.h. */
#include "solve/solving.h"

#include "base/mem.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i)
{
    return s->count[i] > 0 && s->count[i] >= o->min_pair_tokens;
}

double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq)
{
    double residual = source_sq - 2 * scalar * dot + scalar * scalar * target_sq;
    return source_sq > 0 && residual > 0 ? residual / source_sq : 0;
}

exf_code exf_solve_fill_cold(double *x, const exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts, n = 0;
    double *seen = NULL;
    exf_code rc = exf_mem_new(&seen, e, sizeof *seen, "expert norms", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e; i++)
        if (s->norm_count[i] && x[i] > 0) seen[n++] = x[i];
    qsort(seen, n, sizeof *seen, ascending);
    for (size_t i = 0; i < e; i++)
        if (!s->norm_count[i]) x[i] = n ? seen[(n - 1) / 2] : 1;
    exf_mem_free(seen);
    return EXF_OK;
}
