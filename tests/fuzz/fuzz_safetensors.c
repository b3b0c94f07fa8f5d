/* fuzz_safetensors.c - libFuzzer target: any bytes are opened or refused, and
 * what opens can be looked up and read.
 *   make fuzz FUZZ=safetensors SECONDS=60 */
#include "format/safetensors.h"
#include "tests/fuzz/scratch.h"

static void read_tensor(const exf_st_file *f, size_t i, size_t size)
{
    exf_err err;
    char buf[64];
    const exf_st_tensor *t = &f->tensor[i];
    size_t n = t->nbytes < sizeof buf ? (size_t)t->nbytes : sizeof buf;
    must(t->nbytes == exf_tensor_bytes(&t->view) && t->offset <= size && t->nbytes <= size - t->offset);
    must(exf_st_find(f, t->view.name) == t && strlen(t->view.name) <= EXF_ST_MAX_NAME);
    must(i == 0 || strcmp(f->tensor[i - 1].view.name, t->view.name) < 0);
    must(exf_st_read(f, t, 0, buf, n, &err) == EXF_OK);
    must(exf_st_read(f, t, t->nbytes - n, buf, n, &err) == EXF_OK);
    must(exf_st_read(f, t, t->nbytes, buf, 1, &err) == EXF_INTERNAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    exf_err err;
    exf_st_file *f;
    const char *path = put_input("a.safetensors", bytes, size);
    exf_code rc = exf_st_open(&f, path, &err);
    if (rc != EXF_OK) {
        must(rc == EXF_FORMAT && !f && strncmp(err.msg, path, strlen(path)) == 0);
        return 0;
    }
    for (size_t i = 0; i < f->n_tensors; i++) read_tensor(f, i, size);
    for (size_t i = 0; i < f->n_meta; i++) must(exf_st_metadata(f, f->meta[i].key) == f->meta[i].value);
    exf_st_close(f);
    return 0;
}
