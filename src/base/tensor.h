/* tensor.h - a view of a row-major n-dimensional array.  Owns nothing. */
#ifndef EXF_BASE_TENSOR_H
#define EXF_BASE_TENSOR_H
#include "base/dtype.h"

#include <stdint.h>

enum { EXF_MAX_RANK = 8 };

typedef struct {
    const char *name; /* for messages; owned by whoever made the view */
    exf_dtype dtype;
    int rank; /* 0: a scalar, one element */
    int64_t shape[EXF_MAX_RANK];
    const void *data; /* dense, row-major, little endian; NULL in a pure description */
} exf_tensor;

int64_t exf_tensor_count(const exf_tensor *t); /* product of the shape */
size_t exf_tensor_bytes(const exf_tensor *t);  /* count x bits / 8 */
/* "[128, 96]" into buf; returns buf. */
const char *exf_shape_text(char *buf, size_t buf_len, const int64_t *shape, int rank);
#endif
