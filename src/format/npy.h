/* npy.h - writes an array as NumPy's file format, version 1.0; atomic (base/file.h). */
#ifndef EXF_FORMAT_NPY_H
#define EXF_FORMAT_NPY_H
#include "base/tensor.h"
#include "base/text.h"

/* Appends what stands before the data: magic, version, and the dict of dtype and shape, padded to a multiple of 64 bytes.
 * EXF_INTERNAL naming `what` for a dtype that NumPy has no file of. */
exf_code exf_npy_header(exf_text *out, const exf_tensor *t, const char *what, exf_err *err) EXF_CHECKED;
/* t->data as a C-ordered little-endian array; F32, F64, I32, I64 or U64, any other
 * dtype is EXF_INTERNAL.  t->name is not written. */
exf_code exf_npy_write(const char *target, int force, const exf_tensor *t, exf_err *err) EXF_CHECKED;
#endif
