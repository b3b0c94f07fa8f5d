/* vectors.c - see vectors.h. */
#include "artifact/vectors.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void exf_vector_array_name(char out[EXF_VECTOR_NAME], const exf_vector_array *a, char separator)
{
    if (a->stored->shape == EXF_STORED_RANKS)
        snprintf(out, EXF_VECTOR_NAME, "%.20s%c%d%cc", a->stored->name, separator, a->rank, separator);
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

const exf_vector_array *exf_vectors_basis(const exf_vectors *v)
{
    for (int i = 0; i < v->n_arrays; i++)
        if (v->array[i].stored->shape == EXF_STORED_BASIS) return &v->array[i];
    return NULL;
}

void exf_vectors_free(exf_vectors *v)
{
    for (int i = 0; i < v->n_arrays; i++) exf_mem_free(v->array[i].data);
    exf_mem_free(v->array);
    exf_mem_free(v->pair);
    exf_mem_free(v->first);
    memset(v, 0, sizeof *v);
}
