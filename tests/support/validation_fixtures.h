/* validation_fixtures.h - the results of a validation, made by hand. */
#ifndef EXF_TESTS_VALIDATION_FIXTURES_H
#define EXF_TESTS_VALIDATION_FIXTURES_H
#include "tests/support/fixtures.h"

#include "validate/frontier.h"
#include "validate/validate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RESULTS_MOST = 64, RESULTS_CLUSTERS = 4, RESULTS_SIZES = 2 };

/* Four clusters of 25 tokens, one layer, batches of 16 and of 4 sequences. */
typedef struct {
    exf_variant_result variant[RESULTS_MOST];
    exf_layer_result layer[RESULTS_MOST];
    double nll[RESULTS_MOST][RESULTS_CLUSTERS], kl[RESULTS_MOST][RESULTS_CLUSTERS];
    uint64_t tokens[RESULTS_CLUSTERS];
    exf_batch_size size[RESULTS_SIZES];
    exf_validation v;
} results;

/* Fills what a row has of each cluster: all the same, so that nothing is noise. */
static inline void results_fill(results *r, size_t i)
{
    exf_variant_result *v = &r->variant[i];
    v->layer = &r->layer[i];
    v->nll = r->nll[i];
    v->kl = r->kl[i];
    r->layer[i] = (exf_layer_result){.experts_per_token = v->experts_per_token, .experts_per_batch = v->experts_per_batch};
    for (int c = 0; c < RESULTS_CLUSTERS; c++) {
        v->kl[c] = 25 * v->all.kl_mean;
        v->nll[c] = 25 * log(v->all.ppl);
    }
}

/* Gives a row noise of its own, with a standard error of the mean KL of `se`. */
static inline void results_noise(exf_variant_result *v, double se)
{
    double away = 25 * se * sqrt(RESULTS_CLUSTERS - 1);
    for (int c = 0; c < RESULTS_CLUSTERS; c++) v->kl[c] += c % 2 ? away : -away;
}

/* Starts with the original: 4 experts a token, 16 a batch. */
static inline results *results_begin(void)
{
    static results r;
    memset(&r, 0, sizeof r);
    r.v.variant = r.variant;
    r.v.n_variants = 1;
    r.v.one_flops = 1;
    snprintf(r.variant[0].name, sizeof r.variant[0].name, "original");
    r.variant[0].all = (exf_quality){.tokens = 100, .ppl = 5, .top1 = 1};
    r.variant[0].experts_per_token = 4;
    r.variant[0].experts_per_batch = 16;
    for (int c = 0; c < RESULTS_CLUSTERS; c++) r.tokens[c] = 25;
    r.size[0] = (exf_batch_size){.size = 16, .width = 16, .experts = 16};
    r.size[1] = (exf_batch_size){.size = 4, .width = 4, .experts = 10};
    r.v.batch_size = r.size;
    r.v.n_batch_sizes = 1;
    r.v.n_layers = 1;
    r.v.n_clusters = RESULTS_CLUSTERS;
    r.v.cluster_tokens = r.tokens;
    results_fill(&r, 0);
    return &r;
}

static inline exf_variant_result *results_add(results *r, const char *name, double kl, double per_token, double per_batch)
{
    exf_variant_result *v = &r->variant[r->v.n_variants++];
    snprintf(v->name, sizeof v->name, "%s", name);
    v->all = (exf_quality){.tokens = 100, .ppl = 5 + kl, .kl_mean = kl, .top1 = 0.9};
    v->experts_per_token = per_token;
    v->experts_per_batch = per_batch;
    v->role = EXF_LANE_ASKED;
    results_fill(r, r->v.n_variants - 1);
    return v;
}

/* Returns what rows are judged by: one operation, and one byte, for each expert. */
static inline exf_judged results_judged(const results *r)
{
    static exf_cost_model cost;
    static const exf_architecture a = {.n_layers = 1, .n_experts = 16, .top_k = 4};
    cost = (exf_cost_model){.n_layers = 1, .expert_flops = 1, .expert_bytes = {1}, .other_bytes = 10};
    return (exf_judged){.v = &r->v, .cost = &cost, .a = &a, .family = "qwen3_moe", .prefill_share = 1, .flops_per_token = 10};
}
#endif
