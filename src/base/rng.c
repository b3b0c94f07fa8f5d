/* rng.c - see rng.h. */
#include "base/rng.h"

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
