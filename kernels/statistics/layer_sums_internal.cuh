/* layer_sums_internal.cuh - the cells of device memory to which the CUDA files of layer_sums.h add, and the fault of a term
 * that no sum can hold. */
#ifndef EXF_KERNELS_LAYER_SUMS_INTERNAL_CUH
#define EXF_KERNELS_LAYER_SUMS_INTERNAL_CUH
#include "kernels/statistics/layer_sums.h"

/* ---- cells: the layout of the sums while terms are added --------------------------------------
 * Every ordered pair and every expert has a cell of 32 words: five sums, each of six signed digits of 2^32 of its fixed-point
 * value (base/exact.h), of both signs and not carried, and a count.  2^31 terms fit before a digit overflows; carries are taken
 * when a value is needed.
 *
 * A cell has two lines of 128 bytes.  Word 0 of the near line counts; of the other 15 words each line has five for each of three
 * places, one word a sum.  The near line has digits 1, 2, 3 in places 0, 1, 2, and the far one 4, 5, 0.  So any three digits in
 * a row are in different places: 16 lanes, one for the count and one for each sum and place, add any terms to a cell by one
 * instruction.  Terms from 2^-12 to below 2^32 touch the near line alone.
 *
 * Of a pair's two cells the one whose source has the lower number has dot0 as its sum 3, the other one cosine_sum: both are the
 * same for source and target exchanged (exf_cell_has_cosine), so that two cells of five sums hold eleven of a pair.
 *
 * A second cell per pair has, as its sums 0 and 1 and its count, dot, target_sq and count as they were at the end of the last
 * sequence, as its other sums those over sequences, and their number as word 0 of the far line, which other cells do not use.
 * A third one has the sums and the count of one half.  The header counts the slots without an expert. */

enum { WORDS = 32, LINE = 16, DIGITS = 6, CELL_SUMS = 5, PAIR_SUMS = 5, EXPERT_SUMS = 5, SEQUENCE_SUMS = 3, HALF_SUMS = 3 };
enum { COUNT = 0, SEQUENCES = LINE };
/* The sum of a pair's cell that is dot0 or cosine_sum. */
enum { SUM_DOT0_OR_COSINE = 3 };
/* Sums of a sequence cell, after dot and target_sq, which are as in the pair's cell. */
enum { SUM_AA = 2, SUM_AB = 3, SUM_BB = 4 };
/* The second expert of a fault in an output of common input, which has no router weight. */
enum { ALL_EXPERTS = 1 };

static __device__ constexpr bool digit_is_near(int digit)
{
    return digit >= 1 && digit <= 3;
}

/* The word of a cell that has a digit of a sum. */
static __device__ constexpr int word_of(int sum, int digit)
{
    return 1 + (digit + 2) % 3 * CELL_SUMS + sum + (digit_is_near(digit) ? 0 : LINE);
}

/* Which digits a word of either line has: those of `sum` in `place`.  The count is a sum of terms 1, whose digit 3 is 1. */
typedef struct {
    int sum, place;
} line_word;

static __device__ inline line_word line_word_of(int word)
{
    line_word w = {(word - 1) % CELL_SUMS, (word - 1) / CELL_SUMS};
    if (word == COUNT) w = {CELL_SUMS, 2};
    return w;
}

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

/* Returns the signed digit in `place` of x, rounded to the grid; *near tells which line has it.  x has at most three digits
 * that are not 0, in a row: one in each place. */
static __device__ inline long long digit_in_place(double x, int place, bool *near)
{
    unsigned long long u = (unsigned long long)__double_as_longlong(x);
    unsigned long long m = (u & 0xfffffffffffffull) | 1ull << 52; /* also where there is no such bit: that is far below the grid */
    int shift = (int)(u >> 52 & 0x7ff) - 1075 + 96;
    if (shift < 0) { /* to the grid, half to even, as exf_exact_place() */
        int drop = -shift < 55 ? -shift : 55; /* below half a unit: a mantissa has 53 bits */
        unsigned long long half = 1ull << (drop - 1), rest = m & ((half << 1) - 1);
        m >>= drop;
        m += rest > half || (rest == half && (m & 1));
        shift = 0;
    }
    int up = place + 1 - (shift >> 5); /* from the lowest of the three to the near line's digit; the far one is three off */
    *near = up >= 0 && up < 3;
    up = up < 0 ? up + 3 : up; /* 3 is the lowest one, on the far line */
    unsigned low = (unsigned)m, high = (unsigned)(m >> 32);
    unsigned below = up == 1 ? low : up == 2 ? high : 0, at = up == 1 ? high : up == 2 ? 0 : low;
    long long digit = (long long)__funnelshift_l(below, at, (unsigned)shift); /* by the lower five bits of shift */
    long long sign = (long long)u >> 63;
    return (digit ^ sign) - sign;
}

/* ---- faults: see exf_sums_fault ---------------------------------------------------------- */

/* Returns true if the noted fault is of an earlier place, or of the same and of no later a and b.  The caller has the lock. */
static __device__ inline bool fault_is_before(const volatile exf_sums_fault *f, unsigned long long place, int a, int b)
{
    unsigned long long noted = f->place;
    return noted > place || (noted == place && (f->a < a || (f->a == a && f->b <= b)));
}

/* Notes the fault unless an earlier one is noted: the same one whatever the order of threads.  The writers hold a spin
 * lock, one thread at a time; a thread of a warp leaves the loop when it has held it.  Without the lock a thread reads only
 * the place, which never falls: a and b may be halfway to those of another fault. */
static __device__ __noinline__ void note_fault(exf_sums_fault *f, unsigned long long at, int a, int b, double x, double y)
{
    volatile exf_sums_fault *noted = f;
    for (bool done = noted->place > ~at; !done;) {
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
