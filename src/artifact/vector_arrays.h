/* vector_arrays.h - makes room for the arrays that projectors store (artifact/projector.h) and
 * says their shapes. */
#ifndef EXF_ARTIFACT_VECTOR_ARRAYS_H
#define EXF_ARTIFACT_VECTOR_ARRAYS_H
#include "artifact/tables.h"

const exf_stored_array *exf_stored_array_find(const char *name); /* NULL: no projector stores it */
/* Room for the array of that name at its place in t->vectors, whose pairs are listed, or the one that is there;
 * rank: R, or 0 where the shape has none.  EXF_INTERNAL: no projector stores such a name. */
exf_code exf_vectors_add(exf_tables *t, const char *name, int rank, float **out, exf_err *err) EXF_CHECKED;
exf_tensor exf_vector_array_tensor(const exf_tables *t, const exf_vector_array *a); /* without a name */
#endif
