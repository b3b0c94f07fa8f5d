/* best_pools.c - see best_pools.h. */
#include "validate/best_pools.h"

#include <string.h>

/* Reads the variant of a result; returns 0 if it has no static pool. */
static int read_static(exf_variant *v, const exf_variant_result *r)
{
    exf_err ignored;
    return exf_variant_parse(v, r->name, &ignored) == EXF_OK && v->decode == EXF_DECODE_STATIC;
}

const char *exf_pool_criterion_of(const exf_variant_result *r)
{
    exf_variant v;
    return read_static(&v, r) ? exf_pool_criterion_name(v.pool_by) : "";
}

int exf_same_but_pool(const exf_variant_result *a, const exf_variant_result *b)
{
    exf_variant x, y;
    if (!read_static(&x, a) || !read_static(&y, b) || x.pool_by == y.pool_by) return 0;
    memset(x.name, 0, sizeof x.name);
    memset(y.name, 0, sizeof y.name);
    x.pool_by = y.pool_by = EXF_POOL_BY_NORM;
    return memcmp(&x, &y, sizeof x) == 0; /* a variant is read into zeroed memory */
}

size_t exf_best_pools(size_t *best, const exf_validation *v)
{
    size_t n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        int rivals = 0, beaten = 0;
        for (size_t j = 1; j < v->n_variants; j++) {
            double mine = v->variant[i].all.kl_mean, theirs = v->variant[j].all.kl_mean;
            if (!exf_same_but_pool(&v->variant[i], &v->variant[j])) continue;
            rivals++;
            beaten |= theirs < mine || (theirs == mine && j < i);
        }
        if (rivals && !beaten) best[n++] = i;
    }
    return n;
}
