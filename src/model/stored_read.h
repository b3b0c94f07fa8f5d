/* stored_read.h - reads elements of a checkpoint's tensor as float32. */
#ifndef EXF_MODEL_STORED_READ_H
#define EXF_MODEL_STORED_READ_H
#include "model/weight_identity.h"

/* Elements [begin, begin + n) as float32 (F32, F16, BF16, and integers below 2^24).
 * EXF_NUMERIC naming file, tensor and position at the first that is not finite. */
exf_code exf_stored_read_f32(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_err *err) EXF_CHECKED;
/* The same; the bytes that are read go to a hash (weight_identity.h) too. */
exf_code exf_stored_read_hashed(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_piece_hash *hash,
                                exf_err *err) EXF_CHECKED;
#endif
