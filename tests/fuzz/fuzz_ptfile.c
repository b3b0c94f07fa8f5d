/* fuzz_ptfile.c - libFuzzer target: any bytes are opened as a .pt file or refused.  Bytes that begin as a zip archive are the
 * whole file, others its pickle, so that no search has to find checksums.
 *   make fuzz FUZZ=ptfile SECONDS=60 */
#include "format/ptfile_read.h"
#include "tests/support/pt_fixtures.h"

#include "tests/fuzz/scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void walk(const exf_pt_file *f, const exf_pt *v, int depth)
{
    exf_err err;
    must(depth <= EXF_PT_MAX_DEPTH);
    if (v->kind == EXF_PT_TENSOR) {
        size_t n = exf_tensor_bytes(&v->tensor);
        char *data = malloc(n ? n : 1);
        must(data != NULL && n <= 1 << 26);
        exf_code rc = exf_pt_read(f, v, data, &err);
        must(rc == EXF_OK || rc == EXF_FORMAT);
        free(data);
    }
    for (size_t i = 0; i < v->n; i++) {
        must(v->kind == EXF_PT_LIST || (v->kind == EXF_PT_DICT && v->item[i].key));
        walk(f, &v->item[i], depth + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_err err;
    exf_pt_file *f;
    int whole = size >= 2 && bytes[0] == 'P' && bytes[1] == 'K';
    pt_bytes wrapped = {NULL, 0};
    if (!whole) wrapped = pt_wrap(bytes, size);
    const char *path = put_input("input.pt", whole ? bytes : wrapped.b, whole ? size : wrapped.n);
    exf_code rc = exf_pt_open(&f, path, &err);
    if (rc == EXF_OK)
        walk(f, exf_pt_root(f), 0);
    else
        must((rc == EXF_FORMAT || rc == EXF_NOSPACE) && !f && strncmp(err.msg, path, strlen(path)) == 0);
    exf_pt_close(f);
    free(wrapped.b);
    return 0;
}
