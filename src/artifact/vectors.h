/* vectors.h - exf_vectors holds the arrays of tables that act on an expert's output vector. */
#ifndef EXF_ARTIFACT_VECTORS_H
#define EXF_ARTIFACT_VECTORS_H
#include <stdint.h>

/* The shape of an array that acts on vectors; N pairs as in exf_vectors. */
typedef enum {
    EXF_STORED_PAIRS,  /* [N, H] of each pair */
    EXF_STORED_LOSSES, /* [L, E, E] the projector's own losses; the scalar's for a pair without vectors */
    EXF_STORED_BASIS,  /* [L, H, R] orthonormal columns */
    EXF_STORED_RANKS   /* [N, R, H] of each pair, on the first R columns of the basis: an array for each R */
} exf_stored_shape;

/* An array that a projector stores (artifact/projector.h), at /vectors/<name>, or at /vectors/<name>/<R>/c. */
typedef struct {
    const char *name;
    exf_stored_shape shape;
} exf_stored_array;

typedef struct {
    const exf_stored_array *stored;
    int rank; /* R, if the shape has one */
    float *data;
} exf_vector_array;

/* The arrays of the pairs that have vectors: at most a given number per layer, those of largest
 * source_sq.  All other pairs keep their scalar. */
typedef struct {
    int64_t n_pairs; /* N, all layers together; 0: no pair has vectors and all below is NULL */
    int32_t *pair;   /* [N, 3] layer index, source, target; ascending */
    int64_t *first;  /* [L + 1] a layer's first pair; not in the file */
    exf_vector_array *array; /* in order of projectors, then of what each stores, then of R */
    int n_arrays;
} exf_vectors;

/* Returns the array of that name and rank, or NULL; rank 0: of any R. */
const exf_vector_array *exf_vectors_find(const exf_vectors *v, const char *name, int rank);
float *exf_vectors_data(const exf_vectors *v, const char *name, int rank);
const exf_vector_array *exf_vectors_basis(const exf_vectors *v); /* NULL: none */
/* Writes the array's name: "diagonal", or "lowrank/8/c" with this separator. */
enum { EXF_VECTOR_NAME = 40 };
void exf_vector_array_name(char out[EXF_VECTOR_NAME], const exf_vector_array *a, char separator);
void exf_vectors_free(exf_vectors *v);
#endif
