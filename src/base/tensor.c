/* tensor.c - see tensor.h. */
#include "base/tensor.h"

#include <inttypes.h>
#include <stdio.h>

int64_t exf_tensor_count(const exf_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

size_t exf_tensor_bytes(const exf_tensor *t)
{
    return (size_t)exf_tensor_count(t) * exf_dtype_bits(t->dtype) / 8;
}

const char *exf_shape_text(char *buf, size_t buf_len, const int64_t *shape, int rank)
{
    size_t at = (size_t)snprintf(buf, buf_len, "[");
    for (int i = 0; i < rank && at < buf_len; i++)
        at += (size_t)snprintf(buf + at, buf_len - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (at < buf_len) snprintf(buf + at, buf_len - at, "]");
    return buf;
}
