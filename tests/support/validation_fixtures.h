/* validation_fixtures.h - the results of a validation, made by hand. */
#ifndef EXF_TESTS_VALIDATION_FIXTURES_H
#define EXF_TESTS_VALIDATION_FIXTURES_H
#include "tests/support/fixtures.h"

#include "validate/validate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RESULTS_MOST = 64 };

typedef struct {
    exf_variant_result variant[RESULTS_MOST];
    exf_validation v;
    exf_batch_size batch;
} results;

/* Starts with the original: 4 experts a token, 16 a batch. */
static inline results *results_begin(void)
{
    static results r;
    memset(&r, 0, sizeof r);
    r.v.variant = r.variant;
    r.v.n_variants = 1;
    r.batch = (exf_batch_size){.size = 16, .width = 16, .experts = 16};
    r.v.batch_size = &r.batch;
    r.v.n_batch_sizes = 1;
    r.v.one_flops = 1;
    snprintf(r.variant[0].name, sizeof r.variant[0].name, "original");
    r.variant[0].all = (exf_quality){.tokens = 100, .ppl = 5, .top1 = 1};
    r.variant[0].experts_per_token = 4;
    r.variant[0].experts_per_batch = 16;
    return &r;
}

static inline exf_variant_result *results_add(results *r, const char *name, double kl, double per_token, double per_batch)
{
    exf_variant_result *v = &r->variant[r->v.n_variants++];
    snprintf(v->name, sizeof v->name, "%s", name);
    v->role = EXF_LANE_ASKED;
    v->all = (exf_quality){.tokens = 100, .ppl = 5 + kl, .kl_mean = kl, .top1 = 0.9};
    v->experts_per_token = per_token;
    v->experts_per_batch = per_batch;
    return v;
}
#endif
