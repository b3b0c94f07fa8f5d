/* hash.c - see hash.h. */
#include "base/hash.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/worker.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* the widest vectors of this processor */
#else
#include <xxhash.h>
#endif

/* A worker hashes one of two buffers while the caller fills the other. */
enum { BESIDE_FROM = 16 << 20, BESIDE_BYTES = 1 << 20 };

typedef struct {
    exf_job job;
    EVP_MD_CTX *md;
    char *bytes;
    size_t n; /* bytes in it */
} piece;

typedef struct {
    exf_worker worker;
    piece piece[2];
    int mine; /* the caller's */
} beside;

struct exf_hash {
    EVP_MD_CTX *md;
    beside *b;      /* NULL: the caller hashes */
    uint64_t added;
    int use_hash_thread; /* 1: start one when enough bytes came; 0: not asked for, or already tried */
};

static exf_code failed(exf_err *err)
{
    return exf_fail(err, EXF_NOSPACE, "out of memory in libcrypto: no state for SHA-256"); /* it has no other reason to fail */
}

static const EVP_MD *sha256; /* fetched once: libcrypto 3 initialises itself and allocates for that */

static void find_sha256(void)
{
#if OPENSSL_VERSION_MAJOR >= 3
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
#endif
    if (!sha256) sha256 = EVP_sha256();
}

exf_code exf_hash_new(exf_hash **out, exf_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_int started;
    exf_code rc;
    *out = NULL;
    if (!atomic_load(&started)) EXF_TRY(exf_mem_reserve("libcrypto", err));
    pthread_once(&once, find_sha256);
    atomic_store(&started, 1);
    EXF_TRY(exf_mem_new(out, 1, sizeof **out, "hash state", err));
    (*out)->md = EVP_MD_CTX_new();
    if ((*out)->md && EVP_DigestInit_ex((*out)->md, sha256, NULL) == 1) return EXF_OK;
    exf_hash_free(*out);
    *out = NULL;
    rc = failed(err);
out:
    return rc;
}

/* ---- beside the caller --------------------------------------------------------------------------- */

void exf_hash_beside(exf_hash *h)
{
    h->use_hash_thread = 1;
}

static exf_code hash_piece(void *self, exf_err *err)
{
    piece *p = self;
    int ok = EVP_DigestUpdate(p->md, p->bytes, p->n) == 1;
    p->n = 0;
    return ok ? EXF_OK : failed(err);
}

static void free_beside(beside *b)
{
    if (!b) return;
    exf_worker_close(&b->worker);
    exf_mem_free(b->piece[0].bytes);
    exf_mem_free(b);
}

/* Starts hashing beside the caller; where there is no memory for it, the caller goes on. */
static void start_beside(exf_hash *h)
{
    exf_err left_alone;
    beside *b = NULL;
    h->use_hash_thread = 0;
    if (exf_mem_new(&b, 1, sizeof *b, "hash", &left_alone) != EXF_OK) return;
    exf_worker_open(&b->worker);
    if (exf_mem_raw(&b->piece[0].bytes, 2, BESIDE_BYTES, "hash", &left_alone) != EXF_OK) {
        free_beside(b);
        return;
    }
    b->piece[1].bytes = b->piece[0].bytes + BESIDE_BYTES;
    b->piece[0].md = b->piece[1].md = h->md;
    h->b = b;
}

/* Gives the worker what is in the caller's buffer, and takes the other one. */
static exf_code turn(beside *b, exf_err *err)
{
    piece *p = &b->piece[b->mine];
    b->mine ^= 1;
    exf_code rc = exf_worker_give(&b->worker, &p->job, hash_piece, p, err);
    return rc == EXF_OK ? exf_worker_wait(&b->worker, 1, err) : rc;
}

static exf_code add_beside(beside *b, const char *bytes, size_t len, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t some; rc == EXF_OK && len > 0; bytes += some, len -= some) {
        piece *p = &b->piece[b->mine];
        some = BESIDE_BYTES - p->n < len ? BESIDE_BYTES - p->n : len;
        memcpy(p->bytes + p->n, bytes, some);
        p->n += some;
        if (p->n == BESIDE_BYTES) rc = turn(b, err);
    }
    return rc;
}

/* ---- what is hashed ------------------------------------------------------------------------------- */

exf_code exf_hash_add(exf_hash *h, const void *bytes, size_t len, exf_err *err)
{
    if (len == 0) return EXF_OK;
    h->added += len;
    if (h->use_hash_thread && h->added >= BESIDE_FROM) start_beside(h);
    if (h->b) return add_beside(h->b, bytes, len, err);
    return EVP_DigestUpdate(h->md, bytes, len) == 1 ? EXF_OK : failed(err);
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

/* Writes n bytes as 2 n hexadecimal digits and a NUL. */
static void write_hex(char *hex, const unsigned char *raw, int n)
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < n; i++) {
        hex[2 * i] = digit[raw[i] >> 4];
        hex[2 * i + 1] = digit[raw[i] & 15];
    }
    hex[2 * n] = 0;
}

exf_code exf_hash_end(exf_hash *h, char hex[EXF_SHA256_HEX], exf_err *err)
{
    unsigned char raw[32];
    exf_code rc = EXF_OK;
    if (h->b && h->b->piece[h->b->mine].n) rc = turn(h->b, err);
    if (h->b && rc == EXF_OK) rc = exf_worker_wait(&h->b->worker, 0, err); /* now all that was added is hashed */
    if (rc == EXF_OK && EVP_DigestFinal_ex(h->md, raw, NULL) != 1) rc = failed(err);
    exf_hash_free(h);
    if (rc == EXF_OK) write_hex(hex, raw, sizeof raw);
    return rc;
}

void exf_hash_free(exf_hash *h)
{
    if (!h) return;
    free_beside(h->b);
    EVP_MD_CTX_free(h->md);
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

/* ---- XXH3 ---------------------------------------------------------------------------------------- */

struct exf_xxh3 {
    XXH3_state_t *state; /* libxxhash allocates it: it is aligned further than malloc() does */
};

exf_code exf_xxh3_new(exf_xxh3 **out, exf_err *err)
{
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "hash state", err);
    if (rc != EXF_OK) return rc;
    (*out)->state = XXH3_createState();
    if ((*out)->state && XXH3_128bits_reset((*out)->state) == XXH_OK) return EXF_OK;
    exf_xxh3_free(*out);
    *out = NULL;
    return exf_fail(err, EXF_NOSPACE, "out of memory in libxxhash: no state for XXH3");
}

void exf_xxh3_add(exf_xxh3 *h, const void *bytes, size_t len)
{
    (void)XXH3_128bits_update(h->state, bytes, len); /* fails on NULL alone */
}

static void write_xxh3(char hex[EXF_XXH3_HEX], XXH128_hash_t value)
{
    XXH128_canonical_t raw;
    XXH128_canonicalFromHash(&raw, value);
    write_hex(hex, raw.digest, sizeof raw.digest);
}

void exf_xxh3_end(exf_xxh3 *h, char hex[EXF_XXH3_HEX])
{
    write_xxh3(hex, XXH3_128bits_digest(h->state));
    exf_xxh3_free(h);
}

void exf_xxh3_free(exf_xxh3 *h)
{
    if (h) XXH3_freeState(h->state);
    exf_mem_free(h);
}

void exf_xxh3_bytes(const void *bytes, size_t len, char hex[EXF_XXH3_HEX])
{
    write_xxh3(hex, XXH3_128bits(bytes, len));
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

/* ---- keyed hashes ------------------------------------------------------------------------------ */

exf_hash_key exf_hash_key_new(void)
{
    return (exf_hash_key){{exf_random_u64(), exf_random_u64()}};
}

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

uint64_t exf_keyed_hash(const exf_hash_key *key, const void *bytes, size_t len)
{
    uint64_t v[4] = {key->k[0] ^ 0x736f6d6570736575u, key->k[1] ^ 0x646f72616e646f6du, key->k[0] ^ 0x6c7967656e657261u,
                     key->k[1] ^ 0x7465646279746573u};
    const unsigned char *p = bytes;
    uint64_t word, last = (uint64_t)len << 56;
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&word, p, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < len; i++) last |= (uint64_t)p[i] << (8 * i);
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- random numbers ---------------------------------------------------------------------------- */

__extension__ typedef unsigned __int128 u128; /* gcc and clang have it; C11 does not */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t exf_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio, odd */
    return mix(mix(mix(seed + golden) + stream * golden + golden) + counter * golden + golden);
}

uint64_t exf_rng_below(uint64_t n, uint64_t seed, uint64_t stream, uint64_t counter)
{
    return (uint64_t)(((u128)exf_rng_u64(seed, stream, counter) * n) >> 64);
}

void exf_rng_choose(size_t *pick, size_t k, size_t n, uint64_t seed, uint64_t stream)
{
    size_t taken = 0;
    for (size_t i = 0; i < n && taken < k; i++)
        if (exf_rng_below(n - i, seed, stream, i) < k - taken) pick[taken++] = i;
}
