/* weight_decode.c - see weight_decode.h. */
#include "weights/weight_decode.h"

#include "base/mem.h"
#include "model/weight_dequantize.h"

static exf_code decode_coded(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                             float *dst, exf_err *err)
{
    exf_dtype dtype = w->scale->tensor->view.dtype;
    size_t n = exf_weight_source_scale_bytes(w, n_rows, cols) / (exf_dtype_bits(dtype) / 8);
    float *scales = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&scales, n, sizeof *scales, "scales", err));
    exf_dtype_to_f32(scales, raw->scales, n, dtype);
    exf_coded_rows c = {raw->codes, scales, n_rows, cols, row % (size_t)w->block_rows, (size_t)w->block_rows,
                        (size_t)w->block_cols};
    if (w->coding == EXF_CODED_FP8)
        exf_dequantize_fp8(dst, &c);
    else
        exf_dequantize_fp4(dst, &c);
out:
    exf_mem_free(scales);
    return rc;
}

exf_code exf_weight_decode(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols, float *dst,
                           exf_err *err)
{
    size_t n = n_rows * cols;
    exf_code rc = EXF_OK;
    if (w->coding == EXF_CODED_PLAIN)
        exf_dtype_to_f32(dst, raw->codes, n, w->stored->tensor->view.dtype);
    else
        EXF_TRY(decode_coded(w, raw, row, n_rows, cols, dst, err));
    if (exf_first_not_finite(dst, n) < n) {
        EXF_TRY(exf_weight_source_read(w, row, n_rows, cols, dst, err));
        rc = exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\" has a value that is not finite", exf_st_path(w->stored->file),
                      w->stored->tensor->view.name);
    }
    for (size_t i = 0; rc == EXF_OK && w->how & EXF_PLUS_ONE && i < n; i++) dst[i] += 1;
out:
    return rc;
}
