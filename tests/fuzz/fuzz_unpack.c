/* fuzz_unpack.c - libFuzzer target: any bytes are read as a text that may be compressed, to their end or to an error that names
 * the file.  Steps of two sizes give the same bytes and the same end.
 *   make fuzz FUZZ=unpack SECONDS=60 */
#include "base/hash.h"
#include "format/unpack.h"
#include "tests/fuzz/scratch.h"

/* Reads all of the file in steps; returns how it ends, and the number and digest of the bytes. */
static exf_code read_all(const char *path, size_t step, uint64_t *n, char hex[EXF_SHA256_HEX])
{
    static char buf[70000];
    exf_err err = {EXF_OK, ""};
    exf_file *f = NULL;
    exf_unpacker *u = NULL;
    exf_hash *h = NULL;
    size_t got = step;
    *n = 0;
    exf_code rc = exf_file_open(&f, path, &err);
    if (rc == EXF_OK) rc = exf_hash_new(&h, &err);
    if (rc == EXF_OK) rc = exf_unpack_open(&u, f, &err);
    while (rc == EXF_OK && got == step) {
        rc = exf_unpack_read(u, buf, step, &got, &err);
        must(got <= step);
        if (rc == EXF_OK) rc = exf_hash_add(h, buf, got, &err);
        if (rc == EXF_OK) *n += got;
    }
    must(rc == EXF_OK || ((rc == EXF_FORMAT || rc == EXF_MODEL) && strncmp(err.msg, path, strlen(path)) == 0));
    must(rc == EXF_OK || (u && exf_unpack_kind(u) != EXF_PLAIN));
    if (h) must(exf_hash_end(h, hex, &err) == EXF_OK);
    exf_unpack_close(u);
    exf_file_close(f);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const char *path = put_input("text", bytes, size);
    char a[EXF_SHA256_HEX], b[EXF_SHA256_HEX];
    uint64_t n, m;
    if (size >= 7 && memcmp(bytes, "version", 7) == 0) return 0; /* may be a git-lfs pointer, which exf_file_open() refuses */
    exf_code rc = read_all(path, 65536, &n, a);
    must(read_all(path, 977, &m, b) == rc);
    must(rc != EXF_OK || (n == m && strcmp(a, b) == 0));
    return 0;
}
