/* route_sample.h - a route sample: some tokens' routes of one layer as the router made them, from which budgets per token are
 * solved (docs/method.md, section 9).
 *
 * A token has a key, a pure function of its sequence's digest, the layer and its position
 * (accumulate/smallest_keys.h), and the tokens of the smallest keys are the sample: so samples of
 * different data merge into the sample of all of it, in any order. */
#ifndef EXF_ACCUMULATE_ROUTE_SAMPLE_H
#define EXF_ACCUMULATE_ROUTE_SAMPLE_H
#include "accumulate/sum_arrays.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t cap, n;   /* tokens that fit, 0: there is no sample; tokens */
    int top_k;       /* K */
    int q;           /* directions of the norm head (norm_sums.h); 0: head is NULL */
    uint64_t *key;   /* [n] rising */
    int32_t *ids;    /* [n, K] distinct; -1: an empty slot, of weight 0; a token has one expert at least */
    float *weights;  /* [n, K] finite */
    float *head;     /* [n, q + 1 + K] V'x, log ||x|| and each slot's logit less their mean, as its sums take them; finite */
} exf_route_sample;

exf_code exf_route_sample_new(exf_route_sample *s, size_t cap, int top_k, exf_err *err) EXF_CHECKED;
/* Allocates head for q directions; 0: does nothing. */
exf_code exf_route_sample_add_head(exf_route_sample *s, int q, exf_err *err) EXF_CHECKED;
/* Returns the numbers of a token in head. */
static inline size_t exf_route_sample_head(const exf_route_sample *s)
{
    return s->q ? (size_t)(s->q + 1 + s->top_k) : 0;
}
/* Adds the tokens of `from`, which has the same K and q, and keeps those of the smallest keys. */
void exf_route_sample_merge(exf_route_sample *to, const exf_route_sample *from);
/* Checks a sample that was read: EXF_FORMAT naming `where` and the token. */
exf_code exf_route_sample_check(const exf_route_sample *s, int n_experts, const char *where, exf_err *err) EXF_CHECKED;
void exf_route_sample_free(exf_route_sample *s); /* accepts zeroed memory */

/* ---- in files of kind statistics ------------------------------------------ */

/* Lists the arrays of the first `tokens` tokens, and returns how many.  All ranks chose the same; each has the routes of its own,
 * and zeros for the others. */
size_t exf_route_sample_list(const exf_route_sample *s, size_t tokens, exf_sum_array out[EXF_MOST_SUM_ARRAYS]);

/* Reads a layer's sample, where the file has one; the sample is made as large as the file's.  EXF_FORMAT as
 * exf_route_sample_check(), and for a sample of no size that the run can have. */
exf_code exf_route_sample_read(exf_route_sample *s, exf_h5 *h, const exf_run_shape *shape, int layer, exf_err *err) EXF_CHECKED;
#endif
