/* norm_products.h - the sums of a norm head on a device (accumulate/norm_sums.h; docs/method.md, section 13).
 *
 * A slot's z = [1, V'x (q), its logit less the mean of all, log max(w, 1e-6), log ||x||, log ||u||], n = q + 5 numbers, each
 * rounded to a multiple of 2^-12; of each expert the products z z' of all its slots, the lower triangle, row by row.
 *
 * V'x and the squares of x are products in double, in order of columns: the host's numbers but for the last bits, which the grid
 * takes away.  A product of two numbers below 2^9 is exact in double, and so is the sum of 2048 of them: sums are integers, and
 * depend on no order and no cut.  A slot with a larger number is added product by product, each rounded to double.
 */
#ifndef EXF_KERNELS_NORM_PRODUCTS_H
#define EXF_KERNELS_NORM_PRODUCTS_H
#include "base/err.h"
#include "kernels/operation.h"
#include "kernels/statistics/layer_sums.h"

#ifdef __CUDACC__
#define EXF_NORM_INLINE static __host__ __device__ inline
#else
#define EXF_NORM_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of a slot beside V'x and the 1. */
enum { EXF_NORM_AFTER = 4 };
/* Signed words of a sum: digits of 2^32 of it in units of 2^-24, of both signs and not carried. */
enum { EXF_NORM_WORDS = 3 };

/* Counters apart: each in a sector of the cache of its own, since a sector takes one atomic addition at a time. */
enum { EXF_NORM_APART = 8 };

/* V in device memory is of double, with rows and columns of 0 up to multiples of these.  Of 16 rows number 4 i + j is V's row 4 j
 * + i, for i and j from 0 to 3. */
enum { EXF_NORM_BASIS_ROWS = 32, EXF_NORM_BASIS_COLUMNS = 64 };

EXF_NORM_INLINE int exf_norm_basis_columns(int directions)
{
    return (directions + EXF_NORM_BASIS_COLUMNS - 1) / EXF_NORM_BASIS_COLUMNS * EXF_NORM_BASIS_COLUMNS;
}

/* Returns the row of a matrix of V in device memory that has V's row i. */
EXF_NORM_INLINE size_t exf_norm_basis_row(size_t i)
{
    return i / 16 * 16 + i % 4 * 4 + i % 16 / 4;
}

/* The sums of a layer; all arrays are in device memory. */
typedef struct {
    int n_experts, directions; /* E; q */
    int tokens;                /* that the scratch arrays hold; a call has at most so many */
    uint64_t *cells;           /* [E, n (n + 1) / 2, EXF_NORM_WORDS] */
    double *basis;             /* [H, q] V, laid out as above */
    double *projected;         /* [tokens, q] scratch: V'x on the grid */
    double *norm;              /* [tokens] scratch: log ||x|| on the grid */
    double *most;              /* [q / EXF_NORM_BASIS_COLUMNS rounded up, tokens] scratch: the largest magnitudes in `projected` */
    double *after;             /* [tokens, K, EXF_NORM_AFTER] scratch: the rest of z */
    int32_t *list;             /* [E, tokens] scratch: slots of each expert, in any order */
    int32_t *large;            /* [tokens, K] scratch: slots with a larger number */
    int32_t *found;            /* [E + 1, EXF_NORM_APART] scratch: how many each of them has, in the first of a row */
    exf_sums_fault *bad;       /* of the smallest row with a number outside 2^31: expert, place in z and the number */
} exf_norm_products_sums;

typedef struct {
    int top_k, d_model, n_tokens;
    exf_matrix x;         /* [T, H] what the experts read */
    const double *sq;     /* [T, K] ||u||^2 */
    const int32_t *ids;   /* [T, K] distinct within a token; -1: an empty slot */
    const float *weights; /* [T, K] */
    const float *logits;  /* [T, K] of slot_logits */
    int64_t row;          /* of the first token, for messages */
} exf_norm_products_call;

void exf_norm_products_add_cuda(exf_queue *q, const exf_norm_products_sums *to, const exf_norm_products_call *c);

/* out [T, K]: a slot's router logit less the mean of its token's, rounded to a multiple of 2^-12; logits [T, E]. */
void exf_slot_logits_cuda(exf_queue *q, float *out, const float *logits, const int32_t *ids, int n_tokens, int n_experts,
                          int top_k);

#ifdef __cplusplus
}
#endif
#endif
