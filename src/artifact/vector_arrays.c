/* vector_arrays.c - see vector_arrays.h. */
#include "artifact/vector_arrays.h"

#include "artifact/projector.h"
#include "base/mem.h"

#include <string.h>

/* Returns the description of the array that some projector stores under a name; *place: its number
 * among all, in order of projectors. */
static const exf_stored_array *stored_named(const char *name, int *place)
{
    const exf_projector *p;
    *place = 0;
    for (size_t i = 0; (p = exf_projector_at(i)); i++)
        for (const exf_stored_array *s = p->stored; s && s->name; s++, ++*place)
            if (strcmp(s->name, name) == 0) return s;
    return NULL;
}

const exf_stored_array *exf_stored_array_find(const char *name)
{
    int place;
    return stored_named(name, &place);
}

static int stands_before(const exf_vector_array *a, const char *name, int rank)
{
    int mine, other;
    stored_named(a->stored->name, &mine);
    stored_named(name, &other);
    return mine < other || (mine == other && a->rank < rank);
}

exf_tensor exf_vector_array_tensor(const exf_tables *t, const exf_vector_array *a)
{
    int64_t n = t->vectors.n_pairs, l = t->n_layers, e = t->shape.n_experts, h = t->shape.d_model;
    exf_tensor x = {.dtype = EXF_DT_F32, .rank = 3, .data = a->data};
    switch (a->stored->shape) {
    case EXF_STORED_PAIRS: x.rank = 2, x.shape[0] = n, x.shape[1] = h; break;
    case EXF_STORED_LOSSES: x.shape[0] = l, x.shape[1] = x.shape[2] = e; break;
    case EXF_STORED_BASIS: x.shape[0] = l, x.shape[1] = h, x.shape[2] = a->rank; break;
    case EXF_STORED_RANKS: x.shape[0] = n, x.shape[1] = a->rank, x.shape[2] = h; break;
    }
    return x;
}

/* Counts the numbers of the array; EXF_NOSPACE if no size_t holds their bytes. */
static exf_code count_numbers(size_t *n, const exf_tables *t, const exf_vector_array *a, exf_err *err)
{
    exf_tensor x = exf_vector_array_tensor(t, a);
    exf_code rc = EXF_OK;
    *n = 1;
    for (int i = 0; rc == EXF_OK && i < x.rank; i++) rc = exf_mem_mul(n, *n, (size_t)x.shape[i], "vectors", err);
    return rc;
}

exf_code exf_vectors_add(exf_tables *t, const char *name, int rank, float **out, exf_err *err)
{
    exf_vectors *v = &t->vectors;
    exf_vector_array a = {.stored = exf_stored_array_find(name), .rank = rank}, *now = NULL;
    size_t n;
    int at = 0;
    exf_code rc;
    *out = exf_vectors_data(v, name, rank);
    if (*out) return EXF_OK;
    if (!a.stored) return exf_fail(err, EXF_INTERNAL, "no projector stores an array \"%s\"", name);
    while (at < v->n_arrays && stands_before(&v->array[at], name, rank)) at++;
    EXF_TRY(count_numbers(&n, t, &a, err));
    EXF_TRY(exf_mem_new(&now, (size_t)v->n_arrays + 1, sizeof *now, "vectors", err));
    EXF_TRY(exf_mem_new(&a.data, n, sizeof *a.data, "vectors", err));
    for (int i = 0; i <= v->n_arrays; i++) now[i] = i < at ? v->array[i] : i == at ? a : v->array[i - 1];
    exf_mem_free(v->array);
    v->array = now;
    v->n_arrays++;
    *out = a.data;
    return EXF_OK;
out:
    exf_mem_free(now);
    return rc;
}
