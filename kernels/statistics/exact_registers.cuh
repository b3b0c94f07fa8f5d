/* exact_registers.cuh - exf_exact_registers is an exf_exact (base/exact.h) in a thread's
 * registers: adding a term takes a few integer instructions and no memory access. */
#ifndef EXF_KERNELS_EXACT_REGISTERS_CUH
#define EXF_KERNELS_EXACT_REGISTERS_CUH
#include "base/exact.h"

typedef struct {
    unsigned long long low, middle, high; /* two's complement, in units of 2^-96 */
} exf_exact_registers;

/* Adds x to *sum, rounded to the grid; x must fit: its mantissa then ends below bit 160. */
static __device__ inline void exf_exact_registers_add(exf_exact_registers *sum, double x)
{
    unsigned long long u = (unsigned long long)__double_as_longlong(x), m = u & 0xfffffffffffffull, negative = u >> 63,
                       flip = 0 - negative;
    int biased = (int)(u >> 52 & 0x7ff), shift = (biased ? biased : 1) - 1075 + 96;
    if (biased) m |= 1ull << 52;
    if (shift < 0) { /* half to even, like exf_exact_place() */
        int drop = -shift < 55 ? -shift : 55; /* below half a unit: a mantissa has 53 bits */
        unsigned long long half = 1ull << (drop - 1), rest = m & ((half << 1) - 1);
        m >>= drop;
        m += rest > half || (rest == half && (m & 1));
        shift = 0;
    }
    int bit = shift & 63;
    unsigned long long a = m << bit, b = m >> 1 >> (63 - bit);
    unsigned long long x0 = (shift < 64 ? a : 0) ^ flip, x1 = (shift < 64 ? b : a) ^ flip, x2 = (shift < 64 ? 0 : b) ^ flip;
    asm("{\n\t.reg .u64 none;\n\t"
        "add.cc.u64 none, %6, 0xffffffffffffffff;\n\t" /* carries if x is to be negated */
        "addc.cc.u64 %0, %0, %3;\n\t"
        "addc.cc.u64 %1, %1, %4;\n\t"
        "addc.u64 %2, %2, %5;\n\t}"
        : "+l"(sum->low), "+l"(sum->middle), "+l"(sum->high)
        : "l"(x0), "l"(x1), "l"(x2), "l"(negative));
}

/* Splits a sum into six digits of 2^32, all of the sum's sign (layer_sums_cells.cuh). */
static __device__ inline void exf_exact_registers_digits(unsigned long long (&digit)[6], exf_exact_registers sum)
{
    bool negative = sum.high >> 63;
    unsigned long long flip = negative ? ~0ull : 0, limb[3] = {sum.low ^ flip, sum.middle ^ flip, sum.high ^ flip};
    if (negative && ++limb[0] == 0 && ++limb[1] == 0) ++limb[2];
#pragma unroll
    for (int i = 0; i < 6; i++) digit[i] = ((limb[i / 2] >> 32 * (i & 1) & 0xffffffffu) ^ flip) - flip;
}
#endif
