/* npy.c - writes arrays as NumPy files; see npy.h. */
#include "format/npy.h"

#include "base/file.h"
#include "base/text.h"

#include <inttypes.h>

enum { ALIGNMENT = 64, MAGIC = 10 };

/* The magic, the length of what follows, and a Python dict that ends in a newline
 * where the data is aligned. */
exf_code exf_npy_header(exf_text *out, const exf_tensor *t, const char *what, exf_err *err)
{
    static const char *const descrs[EXF_DT_COUNT] = {
        [EXF_DT_F32] = "<f4", [EXF_DT_F64] = "<f8", [EXF_DT_I32] = "<i4", [EXF_DT_I64] = "<i8", [EXF_DT_U64] = "<u8"};
    exf_text dict = {0};
    const char *descr = descrs[t->dtype];
    if (!descr) return exf_fail(err, EXF_INTERNAL, "%s: no numpy file of %s", what, exf_dtype_name(t->dtype));
    exf_text_appendf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < t->rank; i++)
        exf_text_appendf(&dict, "%s%" PRId64 "%s", i ? ", " : "", t->shape[i], t->rank == 1 ? "," : "");
    exf_text_appendf(&dict, "), }");
    exf_text_appendf(&dict, "%*s", (int)(ALIGNMENT - 1 - (MAGIC + dict.len) % ALIGNMENT), "");
    exf_text_append(&dict, "\n", 1);
    const char magic[MAGIC] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, (char)(dict.len & 255), (char)(dict.len >> 8)};
    exf_text_append(out, magic, MAGIC);
    exf_code rc = exf_text_end(&dict, err);
    if (rc == EXF_OK) exf_text_append(out, dict.s, dict.len);
    exf_text_free(&dict);
    return rc == EXF_OK ? exf_text_end(out, err) : rc;
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
