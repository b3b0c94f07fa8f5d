/* vector_support.c - see vector_support.h. */
#include "solve/vector_support.h"

#include "base/mem.h"

#include <string.h>

/* Returns 1 if `name` is in the comma-separated list `names`. */
static int among(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; at; at = strchr(at, ','), at += at != NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == ',')) return 1;
    return 0;
}

static exf_code append(exf_vectors *v, size_t *cap, int l, const int32_t *pair, int64_t n, exf_err *err)
{
    exf_code rc = exf_mem_grow(&v->pair, cap, 3 * (size_t)(v->n_pairs + n), sizeof *v->pair, "pairs with vectors", err);
    for (int64_t i = 0; rc == EXF_OK && i < n; i++) {
        int32_t *out = v->pair + 3 * (v->n_pairs + i);
        out[0] = l;
        out[1] = pair[2 * i];
        out[2] = pair[2 * i + 1];
    }
    if (rc == EXF_OK) v->n_pairs += n;
    return rc;
}

/* Returns 1 if the list `names` has all sums that the projector observes. */
static int observed(const char *names, const exf_projector *p)
{
    for (unsigned i = 0; i < EXF_N_OBSERVED; i++)
        if ((p->observes >> i & 1) && !among(names, exf_observed_name[i])) return 0;
    return 1;
}

exf_code exf_vector_support(exf_statistics_reader *r, const exf_projector *p, exf_tables *t, exf_err *err)
{
    exf_vectors *v = &t->vectors;
    exf_code rc;
    size_t cap = 0;
    int32_t *pair = NULL;
    int64_t n;
    const char *have = exf_provenance_get(&r->provenance, "accumulate.vectors");
    if (!have || !observed(have, p))
        return exf_fail(err, EXF_MODEL,
                        "%s: has no sums for projector %s (it has those for %s): accumulate again with %s in calibrate.projectors",
                        exf_h5_path(r->h), p->name, have ? have : "scalars only", p->name);
    if (v->first) return EXF_OK;
    EXF_TRY(exf_mem_new(&v->first, (size_t)r->n_layers + 1, sizeof *v->first, "pairs with vectors", err));
    for (int l = 0; l < r->n_layers; l++) {
        EXF_TRY(exf_statistics_get_vector_pairs(r, l, &pair, &n, err));
        rc = append(v, &cap, l, pair, n, err);
        exf_mem_free(pair);
        pair = NULL;
        if (rc != EXF_OK) goto out;
        v->first[l + 1] = v->n_pairs;
    }
out:
    exf_mem_free(pair);
    return rc;
}
