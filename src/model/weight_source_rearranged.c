/* weight_source_rearranged.c - decodes plain stacks of experts whose rows lie otherwise in the file than in the forward pass
 * (EXF_REARRANGED): two roles' rows in turn, and rows as columns; see weight_source.h.
 *
 * Where two roles' rows alternate, each role's read takes both, so that they cross the disk twice; the second time they come
 * from the system's cache, if that has room. */
#include "model/weight_source_internal.h"

#include "base/mem.h"

/* Every other row of those that are stored, or all. */
static void widen_rows(const exf_weight_source *w, const char *codes, size_t n_rows, size_t cols, float *dst)
{
    exf_dtype dtype = exf_weight_source_dtype(w);
    size_t apart = exf_rows_apart(w), width = cols * exf_dtype_bits(dtype) / 8;
    codes += exf_rows_before(w) * width;
    for (size_t r = 0; r < n_rows; r++) exf_dtype_to_f32(dst + r * cols, codes + r * apart * width, cols, dtype);
}

/* One expert's rows that are stored as columns; some of them at a time, so that dst is written in whole lines. */
static exf_code transpose_rows(const exf_weight_source *w, const char *codes, size_t cols, float *dst, exf_err *err)
{
    enum { LINE = 16 };
    exf_dtype dtype = exf_weight_source_dtype(w);
    size_t apart = exf_rows_apart(w), before = exf_rows_before(w), n = apart * w->each, width = exf_dtype_bits(dtype) / 8;
    float *some = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&some, LINE * n, sizeof *some, "weights", err));
    for (size_t c = 0; c < cols; c += LINE) {
        size_t have = cols - c < LINE ? cols - c : LINE;
        exf_dtype_to_f32(some, codes + c * n * width, have * n, dtype);
        for (size_t r = 0; r < w->each; r++)
            for (size_t i = 0; i < have; i++) dst[r * cols + c + i] = some[i * n + apart * r + before];
    }
out:
    exf_mem_free(some);
    return rc;
}

exf_code exf_decode_rearranged(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                               float *dst, exf_err *err)
{
    const exf_stored_tensor *s = w->of[EXF_STORED_CODES];
    const char *codes = raw->of[EXF_STORED_CODES];
    exf_code rc = EXF_OK;
    if (!w->each) widen_rows(w, codes, n_rows, cols, dst);
    for (size_t at = 0; rc == EXF_OK && w->each && at < n_rows; at += w->each)
        rc = transpose_rows(w, codes + exf_weight_source_stored_bytes(w, EXF_STORED_CODES, row, at, cols), cols, dst + at * cols,
                            err);
    size_t bad = rc == EXF_OK ? exf_first_not_finite(dst, n_rows * cols) : n_rows * cols;
    if (bad == n_rows * cols) return rc;
    return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element %zu of row %zu of its experts' rows is not finite",
                    exf_st_path(s->file), s->tensor->view.name, bad % cols, row + bad / cols);
}
