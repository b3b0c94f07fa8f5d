/* layer_sums_internal.cuh - the cells of device memory to which the CUDA files of layer_sums.h add, and the fault of a term
 * that no sum can hold. */
#ifndef EXF_KERNELS_LAYER_SUMS_INTERNAL_CUH
#define EXF_KERNELS_LAYER_SUMS_INTERNAL_CUH
#include "kernels/statistics/layer_sums.h"

/* ---- cells: the layout of the sums while terms are added --------------------------------------
 * Every ordered pair and every expert has a cell of 32 words.  Each sum has six signed words in it, digits of 2^32 of its
 * fixed-point value (base/exact.h), of both signs and not carried; word 30 counts.  2^31 terms fit before a digit
 * overflows; carries are taken when a value is needed.  A second cell per pair has dot, target_sq and count as they were at
 * the end of the last sequence, and the sums over sequences.  A third one has the sums and the count of one half, at the words that
 * the pair's cell has them.  The header counts the slots without an expert. */

enum { WORDS = 32, DIGITS = 6, COUNT = 30, PAIR_SUMS = 5, EXPERT_SUMS = 5, SEQUENCE_SUMS = 3, HALF_SUMS = 3 };
/* The second expert of a fault in an output of common input, which has no router weight. */
enum { ALL_EXPERTS = 1 };
/* Words of a sequence cell. */
enum { OLD_DOT = 0, OLD_TARGET = 6, OLD_COUNT = 12, SUM_AA = 13, SUM_AB = 19, SUM_BB = 25, SEQUENCES = 31 };

typedef struct {
    exf_sums_fault output;   /* of the smallest row that could not be added */
    exf_sums_fault sequence; /* of the smallest sequence whose sums are out of range */
    unsigned long long empty_slots;
    unsigned char unused[WORDS * 8 - 2 * sizeof(exf_sums_fault) - sizeof(unsigned long long)];
} header;

/* Memory after the header: pairs' cells, experts' cells, sequence cells, cells of the half, a buffer for the copy to the host. */
static inline size_t n_cells(int n_experts)
{
    return 3 * (size_t)n_experts * (size_t)n_experts + (size_t)n_experts;
}

/* Adds x to a sum, rounded to the grid; x has at most three digits of 32 bits that are not 0. */
static __device__ inline void add_term(unsigned long long *sum, double x)
{
    unsigned long long u = (unsigned long long)__double_as_longlong(x), m = u & 0xfffffffffffffull;
    int biased = (int)(u >> 52 & 0x7ff), shift = (biased ? biased : 1) - 1075 + 96;
    if (biased) m |= 1ull << 52;
    if (shift < 0) { /* to the grid, half to even, as exf_exact_place() */
        int drop = -shift;
        if (drop > 54) return;
        unsigned long long half = 1ull << (drop - 1), rest = m & ((half << 1) - 1);
        m >>= drop;
        m += rest > half || (rest == half && (m & 1));
        shift = 0;
    }
    int bit = shift & 31;
    long long low = (long long)(m << bit & 0xffffffffu), middle = (long long)(m >> (32 - bit)), sign = (long long)u >> 63;
    long long high = middle >> 32;
    middle &= 0xffffffff;
    sum += shift >> 5;
    if (low) atomicAdd(sum, (unsigned long long)((low ^ sign) - sign));
    if (middle) atomicAdd(sum + 1, (unsigned long long)((middle ^ sign) - sign));
    if (high) atomicAdd(sum + 2, (unsigned long long)((high ^ sign) - sign));
}

/* Carries six digits, less those of `old` if it is not NULL, into a 192-bit integer. */
static __device__ inline exf_exact carried(const unsigned long long *digit, const unsigned long long *old)
{
    exf_exact out = {{0, 0, 0}};
    long long carry = 0;
#pragma unroll
    for (int d = 0; d < DIGITS; d++) {
        long long v = (long long)(digit[d] - (old ? old[d] : 0)) + carry;
        out.limb[d / 2] |= ((unsigned long long)v & 0xffffffffu) << 32 * (d & 1);
        carry = v >> 32;
    }
    return out;
}

/* ---- faults: see exf_sums_fault ---------------------------------------------------------- */

/* Returns true if the noted fault is of an earlier place, or of the same and of no later a and b. */
static __device__ inline bool fault_is_before(const volatile exf_sums_fault *f, unsigned long long place, int a, int b)
{
    unsigned long long noted = f->place;
    __threadfence();
    return noted > place || (noted == place && (f->a < a || (f->a == a && f->b <= b)));
}

/* Notes the fault unless an earlier one is noted: the same one whatever the order of threads.  The writers hold a spin
 * lock, one thread at a time; a thread of a warp leaves the loop when it has held it. */
static __device__ __noinline__ void note_fault(exf_sums_fault *f, unsigned long long at, int a, int b, double x, double y)
{
    volatile exf_sums_fault *noted = f;
    for (bool done = fault_is_before(f, ~at, a, b); !done;) {
        if (atomicCAS(&f->lock, 0, 1) != 0) continue;
        __threadfence();
        if (!fault_is_before(f, ~at, a, b)) {
            noted->a = a;
            noted->b = b;
            noted->x = x;
            noted->y = y;
            __threadfence();
            noted->place = ~at;
        }
        __threadfence();
        atomicExch(&f->lock, 0);
        done = true;
    }
}

#endif
