/* exact.h - exf_exact adds doubles so that the sum does not depend on their order.
 *
 * An exf_exact is a 192-bit two's-complement integer in units of 2^-96.  A term
 * is rounded once, to that grid (round half to even), and from then on adding is
 * integer adding: associative, commutative, exact.  So any split of the terms
 * over threads, shards or runs gives the same bits.
 *
 * Range: |term| < 2^64 (exf_exact_fits says so); at least 2^30 such terms fit.
 * Resolution: 2^-96 = 1.3e-29 absolute; a term of 1e-15 keeps 46 bits.
 * Zero-initialised memory is the sum of nothing.  Usable from CUDA. */
#ifndef EXF_BASE_EXACT_H
#define EXF_BASE_EXACT_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define EXF_HD __host__ __device__
#else
#define EXF_HD
#endif

typedef struct {
    uint64_t limb[3]; /* least significant first */
} exf_exact;

/* 1 for a finite x that may be added. */
static inline EXF_HD int exf_exact_fits(double x)
{
    return x > -18446744073709551616.0 && x < 18446744073709551616.0;
}

/* a += b.  Returns 1 if the sum left the range and wrapped. */
static inline EXF_HD int exf_exact_merge(exf_exact *a, const exf_exact *b)
{
    uint64_t carry = 0, was = a->limb[2];
    for (int i = 0; i < 3; i++) {
        uint64_t s = a->limb[i] + b->limb[i], t = s + carry;
        carry = (uint64_t)(s < a->limb[i]) | (uint64_t)(t < s);
        a->limb[i] = t;
    }
    return (int)((~(was ^ b->limb[2]) & (was ^ a->limb[2])) >> 63); /* equal signs gave the other */
}

static inline EXF_HD void exf_exact_negate(exf_exact *a)
{
    uint64_t carry = 1;
    for (int i = 0; i < 3; i++) {
        a->limb[i] = ~a->limb[i] + carry;
        carry = carry && a->limb[i] == 0;
    }
}

/* mantissa * 2^shift in units of the grid; shift < 0 rounds half to even. */
static inline EXF_HD exf_exact exf_exact_place(uint64_t mantissa, int shift)
{
    exf_exact t = {{0, 0, 0}};
    if (shift < 0) {
        int drop = -shift;
        if (drop > 54) return t; /* below half a unit: a mantissa has 53 bits */
        uint64_t half = (uint64_t)1 << (drop - 1), rest = mantissa & ((half << 1) - 1);
        mantissa >>= drop;
        mantissa += rest > half || (rest == half && (mantissa & 1));
        shift = 0;
    }
    int word = shift >> 6, bit = shift & 63;
    t.limb[word] = mantissa << bit;
    if (bit && word < 2) t.limb[word + 1] = mantissa >> (64 - bit);
    return t;
}

/* The grid value nearest to x, which must fit. */
static inline EXF_HD exf_exact exf_exact_from(double x)
{
    union { double d; uint64_t u; } v;
    v.d = x;
    int biased = (int)(v.u >> 52 & 0x7ff);
    uint64_t fraction = v.u & 0xfffffffffffffu;
    /* subnormals are far below the grid: their mantissa without the hidden bit */
    exf_exact t = exf_exact_place(biased ? fraction | (uint64_t)1 << 52 : fraction, (biased ? biased : 1) - 1075 + 96);
    if (v.u >> 63) exf_exact_negate(&t);
    return t;
}

/* sum += x; x must fit. */
static inline EXF_HD void exf_exact_add(exf_exact *sum, double x)
{
    exf_exact t = exf_exact_from(x);
    exf_exact_merge(sum, &t);
}

/* Number of significant bits of a non-negative sum. */
static inline int exf_exact_bits(const exf_exact *a)
{
    for (int i = 2; i >= 0; i--)
        if (a->limb[i]) return 64 * i + 64 - __builtin_clzll(a->limb[i]);
    return 0;
}

/* Bits [from, from+64) of a, zero beyond the top. */
static inline uint64_t exf_exact_window(const exf_exact *a, int from)
{
    int word = from >> 6, bit = from & 63;
    uint64_t low = a->limb[word] >> bit;
    return bit && word < 2 ? low | a->limb[word + 1] << (64 - bit) : low;
}

static inline int exf_exact_any_below(const exf_exact *a, int bits)
{
    for (int i = 0; i < 3; i++) {
        int in_limb = bits - 64 * i;
        if (in_limb <= 0) return 0;
        uint64_t mask = in_limb >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << in_limb) - 1;
        if (a->limb[i] & mask) return 1;
    }
    return 0;
}

/* 2^e, -1022 <= e <= 1023; ldexp() takes ten times as long. */
static inline double exf_exact_power(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The double nearest to the sum (round half to even). */
static inline double exf_exact_value(const exf_exact *sum)
{
    exf_exact a = *sum;
    int negative = (int)(a.limb[2] >> 63);
    if (negative) exf_exact_negate(&a);
    int drop = exf_exact_bits(&a) - 53;
    double v;
    if (drop <= 0) {
        v = (double)a.limb[0] * exf_exact_power(-96);
    } else {
        uint64_t m = exf_exact_window(&a, drop) & (((uint64_t)1 << 53) - 1);
        int half = (int)(exf_exact_window(&a, drop - 1) & 1);
        if (half && (exf_exact_any_below(&a, drop - 1) || (m & 1))) m++;
        v = (double)m * exf_exact_power(drop - 96);
    }
    return negative ? -v : v;
}

#endif
