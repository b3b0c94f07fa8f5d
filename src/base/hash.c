/* hash.c - see hash.h. */
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/stop.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct exf_hash {
    EVP_MD_CTX *md;
};

static exf_code failed(exf_err *err)
{
    return exf_fail(err, EXF_NOSPACE, "out of memory in libcrypto: no state for SHA-256"); /* it has no other reason to fail */
}

static const EVP_MD *sha256; /* found once: libcrypto 3 takes memory for that, and starts with it */

static void find_sha256(void)
{
#if OPENSSL_VERSION_MAJOR >= 3
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
#endif
    if (!sha256) sha256 = EVP_sha256();
}

static exf_code start(exf_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_int started;
    exf_code rc = atomic_load(&started) ? EXF_OK : exf_mem_reserve("libcrypto", err);
    if (rc != EXF_OK) return rc;
    pthread_once(&once, find_sha256);
    atomic_store(&started, 1);
    return EXF_OK;
}

exf_code exf_hash_new(exf_hash **out, exf_err *err)
{
    exf_code rc;
    *out = NULL;
    EXF_TRY(start(err));
    EXF_TRY(exf_mem_new(out, 1, sizeof **out, "hash state", err));
    (*out)->md = EVP_MD_CTX_new();
    if ((*out)->md && EVP_DigestInit_ex((*out)->md, sha256, NULL) == 1) return EXF_OK;
    exf_hash_free(*out);
    *out = NULL;
    rc = failed(err);
out:
    return rc;
}

exf_code exf_hash_add(exf_hash *h, const void *bytes, size_t len, exf_err *err)
{
    return len == 0 || EVP_DigestUpdate(h->md, bytes, len) == 1 ? EXF_OK : failed(err);
}

exf_code exf_hash_add_u64(exf_hash *h, uint64_t v, exf_err *err)
{
    unsigned char le[8];
    for (int i = 0; i < 8; i++) le[i] = (unsigned char)(v >> (8 * i));
    return exf_hash_add(h, le, sizeof le, err);
}

exf_code exf_hash_add_text(exf_hash *h, const char *s, exf_err *err)
{
    size_t len = strlen(s);
    exf_code rc = exf_hash_add_u64(h, len, err);
    return rc == EXF_OK ? exf_hash_add(h, s, len, err) : rc;
}

exf_code exf_hash_end(exf_hash *h, char hex[EXF_SHA256_HEX], exf_err *err)
{
    static const char digit[] = "0123456789abcdef";
    unsigned char raw[32];
    int ok = EVP_DigestFinal_ex(h->md, raw, NULL) == 1;
    exf_hash_free(h);
    if (!ok) return failed(err);
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = digit[raw[i] >> 4];
        hex[2 * i + 1] = digit[raw[i] & 15];
    }
    hex[64] = 0;
    return EXF_OK;
}

void exf_hash_free(exf_hash *h)
{
    if (h) EVP_MD_CTX_free(h->md);
    exf_mem_free(h);
}

exf_code exf_hash_bytes(const void *bytes, size_t len, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_hash *h = NULL;
    exf_code rc = exf_hash_new(&h, err);
    if (rc != EXF_OK) return rc;
    rc = exf_hash_add(h, bytes, len, err);
    if (rc == EXF_OK) return exf_hash_end(h, hex, err);
    exf_hash_free(h);
    return rc;
}

exf_code exf_hash_open_file(const exf_file *f, char hex[EXF_SHA256_HEX], exf_err *err)
{
    enum { CHUNK = 1 << 20 };
    exf_code rc;
    exf_hash *h = NULL;
    char *buf = NULL;
    EXF_TRY(exf_mem_new(&buf, CHUNK, 1, "hash buffer", err));
    EXF_TRY(exf_hash_new(&h, err));
    uint64_t size = exf_file_size(f);
    for (uint64_t at = 0; at < size; at += CHUNK) {
        size_t n = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_file_read(f, at, buf, n, err));
        EXF_TRY(exf_hash_add(h, buf, n, err));
        exf_progress_add((double)n);
    }
    rc = exf_hash_end(h, hex, err);
    h = NULL;
out:
    exf_hash_free(h);
    exf_mem_free(buf);
    return rc;
}

exf_code exf_hash_file(const char *path, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_file *f;
    exf_code rc = exf_file_open(&f, path, err);
    if (rc != EXF_OK) return rc;
    rc = exf_hash_open_file(f, hex, err);
    exf_file_close(f);
    return rc;
}

/* ---- digest list ------------------------------------------------------------------------------- */

int exf_digest_list_next(const char **text, exf_digest_entry *out)
{
    const char *s = *text;
    size_t name = strcspn(s, ": "), hex = EXF_SHA256_HEX - 1;
    if (!*s) return 0;
    if (s[name] != ':' || name == 0 || name >= EXF_DIGEST_NAME) return -1;
    const char *digits = s + name + 1;
    if (strspn(digits, "0123456789abcdef") != hex) return -1;
    if (digits[hex] != 0 && digits[hex] != ' ') return -1;
    memcpy(out->name, s, name);
    out->name[name] = 0;
    memcpy(out->hex, digits, hex);
    out->hex[hex] = 0;
    *text = digits + hex + (digits[hex] == ' ');
    return 1;
}

int exf_digest_list_find(const char *text, const char *name, char hex[EXF_SHA256_HEX])
{
    exf_digest_entry e;
    while (exf_digest_list_next(&text, &e) == 1)
        if (strcmp(e.name, name) == 0) {
            memcpy(hex, e.hex, sizeof e.hex);
            return 1;
        }
    return 0;
}
