/* exact.c - see exact.h. */
#include "base/exact.h"

#include <math.h>

/* Number of significant bits of a non-negative sum. */
static int bit_length(const exf_exact *a)
{
    for (int i = 2; i >= 0; i--)
        if (a->limb[i]) return 64 * i + 64 - __builtin_clzll(a->limb[i]);
    return 0;
}

/* Bits [from, from+64) of a, zero beyond the top. */
static uint64_t window(const exf_exact *a, int from)
{
    int word = from >> 6, bit = from & 63;
    uint64_t low = a->limb[word] >> bit;
    return bit && word < 2 ? low | a->limb[word + 1] << (64 - bit) : low;
}

static int any_below(const exf_exact *a, int bits)
{
    for (int i = 0; i < 3; i++) {
        int in_limb = bits - 64 * i;
        if (in_limb <= 0) return 0;
        uint64_t mask = in_limb >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << in_limb) - 1;
        if (a->limb[i] & mask) return 1;
    }
    return 0;
}

double exf_exact_value(const exf_exact *sum)
{
    exf_exact a = *sum;
    int negative = (int)(a.limb[2] >> 63);
    if (negative) exf_exact_negate(&a);
    int drop = bit_length(&a) - 53;
    double v;
    if (drop <= 0) {
        v = ldexp((double)a.limb[0], -96);
    } else {
        uint64_t m = window(&a, drop) & (((uint64_t)1 << 53) - 1);
        int half = (int)(window(&a, drop - 1) & 1);
        if (half && (any_below(&a, drop - 1) || (m & 1))) m++;
        v = ldexp((double)m, drop - 96);
    }
    return negative ? -v : v;
}
