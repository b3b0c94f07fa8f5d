/* hash.h - SHA-256 by libcrypto.  All checksums, fingerprints of models and digests of
 * payloads use it. */
#ifndef EXF_BASE_HASH_H
#define EXF_BASE_HASH_H
#include "base/err.h"
#include "base/file.h"

#include <stddef.h>
#include <stdint.h>

enum { EXF_SHA256_HEX = 65 }; /* 64 lower-case hex digits and a NUL */

typedef struct exf_hash exf_hash; /* one running hash; opaque, owned by the caller */

exf_code exf_hash_new(exf_hash **out, exf_err *err) EXF_CHECKED;
exf_code exf_hash_add(exf_hash *h, const void *bytes, size_t len, exf_err *err) EXF_CHECKED;
/* Length-prefixed, so that ("ab","c") and ("a","bc") differ. */
exf_code exf_hash_add_text(exf_hash *h, const char *s, exf_err *err) EXF_CHECKED;
exf_code exf_hash_add_u64(exf_hash *h, uint64_t v, exf_err *err) EXF_CHECKED; /* little endian */
/* Writes the digest and frees h, also on failure. */
exf_code exf_hash_end(exf_hash *h, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
void exf_hash_free(exf_hash *h); /* for a hash that was not ended; NULL is allowed */

exf_code exf_hash_bytes(const void *bytes, size_t len, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
exf_code exf_hash_open_file(const exf_file *f, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
exf_code exf_hash_file(const char *path, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;

/* A digest list is a text of names with a SHA-256 each: "embedding:ab12... 0.experts:cd34...",
 * 64 hexadecimal digits after each colon, one blank between two entries. */

enum { EXF_DIGEST_NAME = 32 }; /* room for a name and a NUL */

typedef struct {
    char name[EXF_DIGEST_NAME], hex[EXF_SHA256_HEX];
} exf_digest_entry;

/* Reads the entry at *text and moves *text after it; returns 0 at the end, or -1 where the text is no such list. */
int exf_digest_list_next(const char **text, exf_digest_entry *out);
/* Returns 1 and the digest of `name`, or 0 if the list does not have it. */
int exf_digest_list_find(const char *text, const char *name, char hex[EXF_SHA256_HEX]);
#endif
