/* weight_decode.h - decodes rows of a weight, as they are stored, to float32 in host memory. */
#ifndef EXF_WEIGHTS_WEIGHT_DECODE_H
#define EXF_WEIGHTS_WEIGHT_DECODE_H
#include "model/weight_source.h"

/* Decodes rows [row, row + n_rows) of w, a piece (exf_weight_piece_rows()) whose bytes `raw` has, to dst
 * [n_rows, cols]: the same values as exf_weight_source_read().  EXF_NUMERIC naming file, tensor and place of the
 * first that is not finite, for which the rows are read once more. */
exf_code exf_weight_decode(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols, float *dst,
                           exf_err *err) EXF_CHECKED;
#endif
