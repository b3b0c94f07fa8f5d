/* rng.h - counter-based random numbers: the value at (seed, stream, counter) is
 * a pure function, so draws need no order and no state and can be repeated
 * anywhere.  SplitMix64 finaliser over the mixed triple.  Not cryptographic. */
#ifndef EXF_BASE_RNG_H
#define EXF_BASE_RNG_H
#include <stddef.h>
#include <stdint.h>

uint64_t exf_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
/* Uniform in [0, n), n > 0, without modulo bias beyond 2^-64. */
uint64_t exf_rng_below(uint64_t n, uint64_t seed, uint64_t stream, uint64_t counter);
/* pick[0..k) = k of the numbers 0..n-1 without replacement, ascending; every
 * subset equally likely (selection sampling, one draw per candidate).  k <= n. */
void exf_rng_choose(size_t *pick, size_t k, size_t n, uint64_t seed, uint64_t stream);
#endif
