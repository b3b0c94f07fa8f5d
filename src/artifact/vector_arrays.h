/* vector_arrays.h - allocates the arrays that projectors store (artifact/projector.h) and describes
 * their shapes. */
#ifndef EXF_ARTIFACT_VECTOR_ARRAYS_H
#define EXF_ARTIFACT_VECTOR_ARRAYS_H
#include "artifact/tables.h"

const exf_stored_array *exf_stored_array_find(const char *name); /* NULL: no projector stores it */
/* Adds the array of that name at its place in t->vectors, whose pairs are listed, or returns the one
 * that exists; rank: R, or 0 if the shape has none.  EXF_INTERNAL: no projector stores such a name. */
exf_code exf_vectors_add(exf_tables *t, const char *name, int rank, float **out, exf_err *err) EXF_CHECKED;
exf_tensor exf_vector_array_tensor(const exf_tables *t, const exf_vector_array *a); /* without a name */
#endif
