/* stored_read.c - see stored_read.h. */
#include "model/stored_read.h"

#include "base/mem.h"

#include <math.h>

static exf_code check_finite(const exf_stored_tensor *s, size_t begin, const float *v, size_t n, exf_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element %zu is %s", exf_st_path(s->file),
                            s->tensor->view.name, begin + i, isnan(v[i]) ? "not a number" : "infinite");
    return EXF_OK;
}

exf_code exf_stored_read_hashed(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_piece_hash *hash, exf_err *err)
{
    enum { CHUNK = 1 << 20 }; /* elements decoded at a time: the raw bytes are never all in memory */
    exf_dtype dtype = s->tensor->view.dtype;
    size_t width = exf_dtype_bits(dtype) / 8;
    char *raw = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&raw, n < CHUNK ? n : CHUNK, width, "weight staging", err));
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = n - at < CHUNK ? n - at : CHUNK;
        EXF_TRY(exf_st_read(s->file, s->tensor, (begin + at) * width, raw, m * width, err));
        if (hash) EXF_TRY(exf_piece_hash_add(hash, raw, m * width, err));
        exf_dtype_to_f32(dst + at, raw, m, dtype);
    }
    EXF_TRY(check_finite(s, begin, dst, n, err));
out:
    exf_mem_free(raw);
    return rc;
}

exf_code exf_stored_read_f32(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_err *err)
{
    return exf_stored_read_hashed(s, begin, n, dst, NULL, err);
}
