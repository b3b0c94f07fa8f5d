/* route_sample.h - a route sample: some tokens' routes of one layer as the router made them, from which
 * budgets per token are solved (docs/method.md, section 9).
 *
 * A token has a key, a pure function of its sequence's digest, the layer and its position
 * (accumulate/sampler.h), and the tokens of the smallest keys are the sample: so samples of
 * different data merge into the sample of all of it, in any order. */
#ifndef EXF_ARTIFACT_ROUTE_SAMPLE_H
#define EXF_ARTIFACT_ROUTE_SAMPLE_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t cap, n;   /* tokens that fit, 0: there is no sample; tokens */
    int top_k;       /* K */
    uint64_t *key;   /* [n] rising */
    int32_t *ids;    /* [n, K] distinct; -1: an empty slot, of weight 0; a token has one expert at least */
    float *weights;  /* [n, K] finite */
} exf_route_sample;

exf_code exf_route_sample_new(exf_route_sample *s, size_t cap, int top_k, exf_err *err) EXF_CHECKED;
/* Adds the tokens of `from`, which has the same K, and keeps those of the smallest keys. */
void exf_route_sample_merge(exf_route_sample *to, const exf_route_sample *from);
/* Checks a sample that was read: EXF_FORMAT naming `where` and the token. */
exf_code exf_route_sample_check(const exf_route_sample *s, int n_experts, const char *where, exf_err *err) EXF_CHECKED;
void exf_route_sample_free(exf_route_sample *s); /* accepts zeroed memory */
#endif
