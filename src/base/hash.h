/* hash.h - SHA-256 by libcrypto, which all checksums and digests use; and XXH3-128 by libxxhash, for the bytes of weights. */
#ifndef EXF_BASE_HASH_H
#define EXF_BASE_HASH_H
#include "base/err.h"
#include "base/file.h"

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

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
/* Starts a thread once many bytes were added: it hashes them while the caller reads on. */
void exf_hash_beside(exf_hash *h);

exf_code exf_hash_bytes(const void *bytes, size_t len, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
exf_code exf_hash_open_file(const exf_file *f, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
exf_code exf_hash_file(const char *path, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;

/* XXH3-128, for bytes that are hashed as fast as they are read: it notices accidents, not forgers, who can make other bytes
 * of the same value. */

enum { EXF_XXH3_HEX = 33 }; /* 32 lower-case hex digits, as xxhsum -H2 prints them, and a NUL */

typedef struct exf_xxh3 exf_xxh3; /* one running hash; opaque, owned by the caller */

exf_code exf_xxh3_new(exf_xxh3 **out, exf_err *err) EXF_CHECKED;
void exf_xxh3_add(exf_xxh3 *h, const void *bytes, size_t len);
void exf_xxh3_end(exf_xxh3 *h, char hex[EXF_XXH3_HEX]); /* writes the value and frees h */
void exf_xxh3_free(exf_xxh3 *h); /* for a hash that was not ended; NULL is allowed */
void exf_xxh3_bytes(const void *bytes, size_t len, char hex[EXF_XXH3_HEX]);

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

/* Hashes for tables with keys from a file.  The hash's key is random, new for each table: nobody can make a file of words that meet
 * in one slot.  So values differ from run to run; nothing may depend on them but where an entry lies. */

typedef struct { uint64_t k[2]; } exf_hash_key;

exf_hash_key exf_hash_key_new(void);
/* SipHash-1-3 (Aumasson and Bernstein) of len bytes. */
uint64_t exf_keyed_hash(const exf_hash_key *key, const void *bytes, size_t len);
/* Hashes one integer: multiplies by the key before and after a shift.  Use the high bits. */
static inline uint64_t exf_keyed_hash_u64(const exf_hash_key *key, uint64_t x)
{
    x = (x ^ key->k[0]) * 0x9e3779b97f4a7c15u;
    return (x ^ x >> 32) * (key->k[1] | 1);
}

/* Counter-based random numbers: the value at (seed, stream, counter) is a pure function, so draws need no order and no state and
 * can be repeated anywhere.  SplitMix64 finaliser over the mixed triple.  Not cryptographic. */

uint64_t exf_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
/* Uniform in [0, n), n > 0, without modulo bias beyond 2^-64. */
uint64_t exf_rng_below(uint64_t n, uint64_t seed, uint64_t stream, uint64_t counter);
/* pick[0..k) = k of the numbers 0..n-1 without replacement, ascending; every
 * subset equally likely (selection sampling, one draw per candidate).  k <= n. */
void exf_rng_choose(size_t *pick, size_t k, size_t n, uint64_t seed, uint64_t stream);
#ifdef __cplusplus
}
#endif
#endif
