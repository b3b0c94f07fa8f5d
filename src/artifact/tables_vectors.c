/* tables_vectors.c - the arrays of tables that act on an expert's output vector: diagonals, bases and low-rank corrections, in
 * memory; see tables.h, and tables_vectors_file.c for files. */
#include "artifact/tables.h"

#include "base/mem.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void exf_vector_array_name(char out[EXF_VECTOR_NAME], const exf_vector_array *a)
{
    if (a->stored->shape == EXF_STORED_RANKS)
        snprintf(out, EXF_VECTOR_NAME, "%.20s/%d/c", a->stored->name, a->rank);
    else
        snprintf(out, EXF_VECTOR_NAME, "%.32s", a->stored->name);
}

const exf_vector_array *exf_vectors_find(const exf_vectors *v, const char *name, int rank)
{
    for (int i = 0; i < v->n_arrays; i++)
        if (strcmp(v->array[i].stored->name, name) == 0 && (rank == 0 || v->array[i].rank == rank)) return &v->array[i];
    return NULL;
}

float *exf_vectors_data(const exf_vectors *v, const char *name, int rank)
{
    const exf_vector_array *a = exf_vectors_find(v, name, rank);
    return a ? a->data : NULL;
}

void exf_vectors_free(exf_vectors *v)
{
    for (int i = 0; i < v->n_arrays; i++) exf_mem_free(v->array[i].data);
    exf_mem_free(v->array);
    exf_mem_free(v->pair);
    exf_mem_free(v->first);
    memset(v, 0, sizeof *v);
}

const exf_stored_array exf_stored_diagonal[] = {
    {"diagonal", EXF_STORED_PAIRS}, {"diagonal_loss", EXF_STORED_LOSSES}, {NULL, EXF_STORED_PAIRS}};
const exf_stored_array exf_stored_lowrank[] = {
    {"basis", EXF_STORED_BASIS}, {"lowrank", EXF_STORED_RANKS}, {NULL, EXF_STORED_PAIRS}};

/* Returns the description of the array of that name; *place: its number among all. */
static const exf_stored_array *find_stored(const char *name, int *place)
{
    static const exf_stored_array *const all[] = {exf_stored_diagonal, exf_stored_lowrank};
    *place = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const exf_stored_array *s = all[i]; s->name; s++, ++*place)
            if (strcmp(s->name, name) == 0) return s;
    return NULL;
}

const exf_stored_array *exf_stored_array_find(const char *name)
{
    int place;
    return find_stored(name, &place);
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

exf_code exf_vectors_add(exf_tables *t, const char *name, int rank, float **out, exf_err *err)
{
    exf_vectors *v = &t->vectors;
    int at = 0, place, other;
    exf_vector_array a = {.stored = find_stored(name, &place), .rank = rank}, *now = NULL;
    size_t n = 1;
    exf_code rc = EXF_OK;
    *out = exf_vectors_data(v, name, rank);
    if (*out) return EXF_OK;
    if (!a.stored) return exf_fail(err, EXF_INTERNAL, "no projector stores an array \"%s\"", name);
    for (; at < v->n_arrays; at++) {
        (void)find_stored(v->array[at].stored->name, &other);
        if (other > place || (other == place && v->array[at].rank >= rank)) break;
    }
    exf_tensor x = exf_vector_array_tensor(t, &a);
    if (v->room && exf_stored_by_pair(a.stored->shape)) x.shape[0] = v->room;
    for (int i = 0; i < x.rank; i++) EXF_TRY(exf_mem_mul(&n, n, (size_t)x.shape[i], "vectors", err));
    EXF_TRY(exf_mem_new(&now, (size_t)v->n_arrays + 1, sizeof *now, "vectors", err));
    EXF_TRY(v->room && exf_stored_by_pair(a.stored->shape) ? exf_mem_raw(&a.data, n, sizeof *a.data, "vectors", err)
                                                           : exf_mem_new(&a.data, n, sizeof *a.data, "vectors", err));
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
