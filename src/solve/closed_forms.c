/* closed_forms.c - what the closed forms of projectors share: which pairs are observed, the loss under a scalar, the pairs with
 * vectors, scalars that many pairs share; see solve_internal.h. */
#include "solve/solve_internal.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- pairs and losses -------------------------------------------------------------------------- */

int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i)
{
    return s->count[i] > 0 && s->count[i] >= o->min_pair_tokens;
}

double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq)
{
    double residual = source_sq - 2 * scalar * dot + scalar * scalar * target_sq;
    return source_sq > 0 && residual > 0 ? residual / source_sq : 0;
}

/* ---- pairs with vectors ------------------------------------------------------------------------ */

/* Returns 1 if `name` is in the comma-separated list `names`. */
static int has_name(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; at; at = strchr(at, ','), at += at != NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == ',')) return 1;
    return 0;
}

static exf_code add_pairs(exf_vectors *v, size_t *cap, int l, const int32_t *pair, int64_t n, exf_err *err)
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

exf_code exf_vector_support(exf_statistics_reader *r, const exf_projector *p, exf_tables *t, exf_err *err)
{
    exf_vectors *v = &t->vectors;
    exf_code rc;
    size_t cap = 0;
    int32_t *pair = NULL;
    int64_t n;
    if (!r) return EXF_OK; /* exf_vector_support_reserve() made room; the pairs come with their layers */
    const char *have = exf_provenance_get(&r->provenance, "accumulate.vectors");
    int has_sums = have != NULL; /* all that the projector observes */
    for (unsigned i = 0; have && i < EXF_N_OBSERVED; i++)
        has_sums &= !(p->observes >> i & 1) || has_name(have, exf_observed_name[i]);
    if (!has_sums)
        return exf_fail(err, EXF_MODEL,
                        "%s: has no sums for projector %s (it has those for %s): accumulate again with %s in calibrate.projectors",
                        exf_h5_path(r->h), p->name, have ? have : "scalars only", p->name);
    if (v->first) return EXF_OK;
    EXF_TRY(exf_mem_new(&v->first, (size_t)r->n_layers + 1, sizeof *v->first, "pairs with vectors", err));
    for (int l = 0; l < r->n_layers; l++) {
        EXF_TRY(exf_statistics_get_vector_pairs(r, l, &pair, &n, err));
        rc = add_pairs(v, &cap, l, pair, n, err);
        exf_mem_free(pair);
        pair = NULL;
        if (rc != EXF_OK) goto out;
        v->first[l + 1] = v->n_pairs;
    }
out:
    exf_mem_free(pair);
    return rc;
}

exf_code exf_vector_support_reserve(exf_tables *t, int64_t most, exf_err *err)
{
    exf_vectors *v = &t->vectors;
    size_t layers = (size_t)t->n_layers, n;
    exf_code rc;
    EXF_TRY(exf_mem_mul(&n, layers, (size_t)most, "pairs with vectors", err));
    EXF_TRY(exf_mem_new(&v->first, layers + 1, sizeof *v->first, "pairs with vectors", err));
    EXF_TRY(exf_mem_raw(&v->pair, n, 3 * sizeof *v->pair, "pairs with vectors", err));
    v->room = (int64_t)n;
out:
    return rc;
}

exf_code exf_vector_support_add(exf_tables *t, int l, const exf_vector_sums *s, exf_err *err)
{
    exf_vectors *v = &t->vectors;
    size_t cap = 3 * (size_t)v->room;
    exf_code rc;
    if (s->n_pairs > v->room - v->n_pairs || v->first[l] != v->n_pairs)
        return exf_fail(err, EXF_INTERNAL, "layer %d: %lld pairs with vectors after %lld, of %lld at most", (int)t->layer_number[l],
                        (long long)s->n_pairs, (long long)v->n_pairs, (long long)v->room);
    for (int i = 0; i < v->n_arrays; i++) {
        const exf_vector_array *a = &v->array[i];
        size_t each = (size_t)t->shape.d_model * (a->stored->shape == EXF_STORED_RANKS ? (size_t)a->rank : 1);
        if (exf_stored_by_pair(a->stored->shape))
            memset(a->data + (size_t)v->n_pairs * each, 0, (size_t)s->n_pairs * each * sizeof *a->data);
    }
    rc = add_pairs(v, &cap, l, s->pair, s->n_pairs, err);
    for (int k = l + 1; k <= t->n_layers; k++) v->first[k] = v->n_pairs;
    return rc;
}

/* ---- shared scalars ---------------------------------------------------------------------------- */

void exf_shared_add(exf_shared_sums *sums, const exf_layer_statistics *s, const exf_solve_options *o)
{
    size_t e = (size_t)s->n_experts;
    for (size_t i = 0; i < e * e; i++)
        if (exf_solve_observed(s, o, i)) {
            exf_exact_merge(&sums->dot, &s->dot[i]);
            exf_exact_merge(&sums->target_sq, &s->target_sq[i]);
        }
}

double exf_shared_value(const exf_shared_sums *sums, const exf_solve_options *o)
{
    exf_scalar_rule unclipped = {.ridge = o->rule.ridge};
    return exf_pair_scalar(&unclipped, exf_exact_value(&sums->dot), exf_exact_value(&sums->target_sq));
}

exf_shared_scalar *exf_shared_find(const exf_tables *t, const char *name)
{
    for (int i = 0; i < t->n_shared; i++)
        if (strcmp(t->shared[i].name, name) == 0) return &t->shared[i];
    return NULL;
}

exf_code exf_shared_fill(const char *name, double scalar, const exf_layer_statistics *s, const exf_solve_options *o, int l,
                         exf_tables *t, exf_err *err)
{
    const exf_shared_scalar *out = exf_shared_find(t, name);
    size_t e = (size_t)s->n_experts;
    if (!out) return exf_fail(err, EXF_INTERNAL, "there is no room for the scalars shared by %s", name);
    out->scalar[l] = (float)scalar;
    if (!isfinite(out->scalar[l]))
        return exf_fail(err, EXF_NUMERIC, "layer %d: the scalar shared by %s is %g, no finite float32", (int)t->layer_number[l],
                        name, scalar);
    for (size_t i = 0; i < e * e; i++) {
        float *loss = &out->loss[(size_t)l * e * e + i];
        *loss = EXF_LOSS_NEVER;
        if (!exf_solve_observed(s, o, i)) continue;
        *loss = (float)exf_solve_loss(scalar, exf_exact_value(&s->dot[i]), exf_exact_value(&s->target_sq[i]),
                                      exf_exact_value(&s->source_sq[i]));
        if (!isfinite(*loss))
            return exf_fail(err, EXF_NUMERIC, "layer %d, pair %zu -> %zu: the loss under the scalar shared by %s is %g",
                            (int)t->layer_number[l], i / e, i % e, name, (double)*loss);
    }
    return EXF_OK;
}
