/* npy.c - see npy.h. */
#include "format/npy.h"

#include "base/file.h"
#include "base/text.h"

#include <inttypes.h>

enum { ALIGNMENT = 64, MAGIC = 10 };

static const char *descr_of(exf_dtype t)
{
    switch (t) {
    case EXF_DT_F32: return "<f4";
    case EXF_DT_F64: return "<f8";
    case EXF_DT_I32: return "<i4";
    case EXF_DT_I64: return "<i8";
    case EXF_DT_U64: return "<u8";
    default: return NULL;
    }
}

/* The magic, the length of what follows, and a Python dict that ends in a newline
 * where the data is aligned. */
exf_code exf_npy_header(exf_text *out, const exf_tensor *t, const char *what, exf_err *err)
{
    exf_code rc;
    exf_text dict = {0};
    const char *descr = descr_of(t->dtype);
    if (!descr) return exf_fail(err, EXF_INTERNAL, "%s: no numpy file of %s", what, exf_dtype_name(t->dtype));
    EXF_TRY(exf_text_addf(&dict, err, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr));
    for (int i = 0; i < t->rank; i++)
        EXF_TRY(exf_text_addf(&dict, err, "%s%" PRId64 "%s", i ? ", " : "", t->shape[i], t->rank == 1 ? "," : ""));
    EXF_TRY(exf_text_addf(&dict, err, "), }"));
    while ((MAGIC + dict.len + 1) % ALIGNMENT) EXF_TRY(exf_text_add(&dict, " ", 1, err));
    EXF_TRY(exf_text_add(&dict, "\n", 1, err));
    const char magic[MAGIC] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, (char)(dict.len & 255), (char)(dict.len >> 8)};
    EXF_TRY(exf_text_add(out, magic, MAGIC, err));
    EXF_TRY(exf_text_add(out, dict.s, dict.len, err));
out:
    exf_text_free(&dict);
    return rc;
}

exf_code exf_npy_write(const char *target, int force, const exf_tensor *t, exf_err *err)
{
    exf_output_file *f = NULL;
    exf_text header = {0};
    exf_code rc;
    EXF_TRY(exf_npy_header(&header, t, target, err));
    EXF_TRY(exf_output_file_begin(&f, target, force, err));
    EXF_TRY(exf_output_file_write(f, header.s, header.len, err));
    EXF_TRY(exf_output_file_write(f, t->data, exf_tensor_bytes(t), err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
out:
    exf_output_file_abort(f);
    exf_text_free(&header);
    return rc;
}
