/* keyed_hash.c - see keyed_hash.h. */
#define _DEFAULT_SOURCE /* getentropy */
#include "base/keyed_hash.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* Makes a key of addresses and the clock if the system gives no random bytes. */
exf_hash_key exf_hash_key_new(void)
{
    exf_hash_key key;
    struct timespec now;
    if (getentropy(&key, sizeof key) == 0) return key;
    clock_gettime(CLOCK_MONOTONIC, &now);
    key.k[0] = (uint64_t)(uintptr_t)&key ^ (uint64_t)now.tv_nsec << 32;
    key.k[1] = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid();
    return key;
}

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void mix(uint64_t v[4])
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
        mix(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < len; i++) last |= (uint64_t)p[i] << (8 * i);
    v[3] ^= last;
    mix(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
