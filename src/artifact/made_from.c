/* made_from.c - finds in a file the digest of the tables that it was made from; see made_from.h. */
#include "artifact/made_from.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { DIGITS = EXF_SHA256_HEX - 1, NEAR = 48, WHOLE = 64 << 20, END = 1 << 20 };

/* Finds exactly 64 hexadecimal digits that begin within NEAR bytes of at. */
static int find_digits(const char *at, const char *end, char hex[EXF_SHA256_HEX])
{
    size_t n;
    for (const char *p = at; p < end && p < at + NEAR; p += n ? n : 1) {
        for (n = 0; p + n < end && p[n] && strchr("0123456789abcdef", p[n]);) n++;
        if (n != DIGITS) continue;
        memcpy(hex, p, DIGITS);
        hex[DIGITS] = 0;
        return 1;
    }
    return 0;
}

static int find_word(const char *bytes, size_t n, char hex[EXF_SHA256_HEX])
{
    static const char word[] = EXF_MADE_FROM;
    const char *end = bytes + n;
    for (const char *at = bytes; (at = memchr(at, word[0], (size_t)(end - at))); at++) {
        if ((size_t)(end - at) < strlen(word)) return 0;
        if (memcmp(at, word, strlen(word)) == 0 && find_digits(at + strlen(word), end, hex)) return 1;
    }
    return 0;
}

exf_code exf_made_from(const char *path, char hex[EXF_SHA256_HEX], exf_err *err)
{
    struct stat st;
    exf_file *f = NULL;
    char *bytes = NULL;
    exf_code rc;
    hex[0] = 0;
    if (stat(path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? EXF_OK : exf_fail_errno(err, errno, "%s: cannot look up", path);
    if (!S_ISREG(st.st_mode)) return EXF_OK;
    EXF_TRY(exf_file_open(&f, path, err));
    uint64_t size = exf_file_size(f);
    size_t part = size <= WHOLE ? (size_t)size : END;
    if (!part) goto out;
    EXF_TRY(exf_mem_new(&bytes, part, 1, "file", err));
    EXF_TRY(exf_file_read(f, 0, bytes, part, err));
    if (find_word(bytes, part, hex) || part == size) goto out;
    EXF_TRY(exf_file_read(f, size - part, bytes, part, err));
    find_word(bytes, part, hex);
out:
    exf_mem_free(bytes);
    exf_file_close(f);
    return rc;
}

exf_code exf_made_from_comment(exf_text *out, const char *hex, exf_err *err)
{
    exf_text_appendf(out, "<!-- %s: %s -->\n", EXF_MADE_FROM, hex);
    return exf_text_end(out, err);
}
