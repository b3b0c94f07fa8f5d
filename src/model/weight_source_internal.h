/* weight_source_internal.h - what the files of weight_source.h share. */
#ifndef EXF_MODEL_WEIGHT_SOURCE_INTERNAL_H
#define EXF_MODEL_WEIGHT_SOURCE_INTERNAL_H
#include "model/weight_source.h"

/* Stored rows from one row of the weight to the next. */
static inline size_t exf_rows_apart(const exf_weight_source *w)
{
    return w->how & EXF_INTERLEAVED ? 2 : 1;
}

/* Stored rows before the weight's first. */
static inline size_t exf_rows_before(const exf_weight_source *w)
{
    return w->how & EXF_ODD_ROWS ? 1 : 0;
}

/* exf_weight_source_decode() of a plain stack whose rows lie otherwise in the file (EXF_REARRANGED). */
exf_code exf_decode_rearranged(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                               float *dst, exf_err *err) EXF_CHECKED;
#endif
