/* manifest_shares.c - how many sequences each source of a manifest gives; see corpus.h. */
#include "capture/manifest.h"

#include "base/mem.h"

#include <stdlib.h>

typedef struct {
    int64_t remainder;
    size_t source;
} claim;

static int larger_then_earlier(const void *a, const void *b)
{
    const claim *x = a, *y = b;
    if (x->remainder != y->remainder) return x->remainder < y->remainder ? 1 : -1;
    return x->source < y->source ? -1 : 1;
}

/* Largest remainder.  EXF_MAX_SEQUENCES keeps the products inside an int64. */
static exf_code share_in_proportion(const exf_manifest *m, int64_t total, int64_t sum, int64_t *want, exf_err *err)
{
    claim *claims = NULL;
    size_t n = 0;
    int64_t left = total;
    exf_code rc = exf_mem_new(&claims, m->n, sizeof *claims, "shares of the sources", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < m->n; i++) {
        if (!m->source[i].sequences) continue;
        int64_t product = total * m->source[i].sequences;
        want[i] = product / sum;
        left -= want[i];
        claims[n++] = (claim){product % sum, i};
    }
    qsort(claims, n, sizeof *claims, larger_then_earlier);
    for (size_t k = 0; left > 0; k++, left--) want[claims[k].source]++; /* left < n: each remainder is below 1 */
    exf_mem_free(claims);
    return EXF_OK;
}

static void share_evenly(const exf_manifest *m, int64_t rest, int64_t n, int64_t *want)
{
    int64_t more = rest % n;
    for (size_t i = 0; i < m->n; i++)
        if (!m->source[i].sequences) want[i] = rest / n + (more-- > 0);
}

exf_code exf_manifest_shares(const exf_manifest *m, int64_t total, int64_t *want, exf_err *err)
{
    int64_t sum = 0, silent = 0;
    for (size_t i = 0; i < m->n; i++) {
        want[i] = m->source[i].sequences ? m->source[i].sequences : -1;
        sum += m->source[i].sequences;
        silent += m->source[i].sequences == 0;
    }
    if (total == 0) return EXF_OK;
    if (silent) share_evenly(m, total > sum ? total - sum : 0, silent, want);
    if (total < sum || (total > sum && !silent)) return share_in_proportion(m, total, sum, want, err);
    return EXF_OK;
}
