/* cross_check_fixtures.h - runs that check a device's sums on the host (accumulate/cross_check.h), on any backend with a device's
 * operations. */
#ifndef EXF_TESTS_CROSS_CHECK_FIXTURES_H
#define EXF_TESTS_CROSS_CHECK_FIXTURES_H
#include "tests/support/layer_sums_fixtures.h"

#include "accumulate/chapter.h"

#include <string.h>

typedef struct {
    const exf_backend *b;
    exf_queue *q;
    exf_device_sums sums;
    exf_layer_statistics to;
    exf_sequence_list none;
    exf_span span;
    exf_batch batch;
    exf_moe_block block;
    void *outputs, *ids, *weights; /* in the device's memory */
} checked_run;

static inline void *checked_put(const checked_run *r, const void *host, size_t bytes)
{
    exf_err e;
    void *p;
    ck_ok(r->b->alloc(&p, bytes, 1, "test", &e), e);
    r->b->upload(r->q, p, host, bytes);
    ck_ok(r->b->finish(r->q, &e), e);
    return p;
}

/* One sequence of all tokens of `of`, in a layer. */
static inline void checked_open(checked_run *r, const exf_backend *b, exf_queue *q, const routed *of, int common_input,
                                exf_weighting weighting)
{
    exf_err e;
    size_t slots = (size_t)(of->n * of->top_k);
    *r = (checked_run){.b = b, .q = q, .span = {0, of->n}};
    r->batch = (exf_batch){NULL, &r->span, 1, (size_t)of->n, of->n};
    r->outputs = checked_put(r, of->outputs, slots * (size_t)of->d_model * sizeof(float));
    r->ids = checked_put(r, of->ids, slots * sizeof(int32_t));
    r->weights = checked_put(r, of->weights, slots * sizeof(float));
    r->block = (exf_moe_block){.batch = &r->batch, .n_tokens = of->n, .n_experts = of->n_experts, .top_k = of->top_k,
                                  .d_model = of->d_model, .q = q, .expert_outputs = r->outputs, .topk_ids = r->ids,
                                  .topk_weights = r->weights};
    ck_ok(exf_device_sums_open(&r->sums, b, of->n_experts, weighting, &r->none, 0, common_input, &e), e);
    ck_ok(exf_cross_check_open(&r->sums.check, b, of->n_experts, of->top_k, of->d_model, common_input, weighting, &e), e);
    ck_ok(exf_layer_statistics_new(&r->to, of->n_experts, &e), e);
}

static inline void checked_close(checked_run *r)
{
    exf_device_sums_free(&r->sums);
    exf_layer_statistics_free(&r->to);
    r->b->free(r->outputs);
    r->b->free(r->ids);
    r->b->free(r->weights);
}

/* Adds the block's terms in a layer; the copies of what is checked are then complete. */
static inline exf_checked_layer *checked_add(checked_run *r, int layer)
{
    exf_err e;
    exf_checked_layer *now = &r->sums.check.layer[r->sums.check.turn];
    r->block.layer = layer;
    exf_device_sums_add(&r->sums, &r->block);
    ck_ok(r->b->finish(r->q, &e), e);
    return now;
}

/* Takes the layer's sums, and gives what the check of all layers says. */
static inline exf_code checked_take(checked_run *r, int layer, exf_err *e)
{
    exf_code rc = exf_device_sums_take(&r->sums, &r->to, layer, e);
    return rc == EXF_OK ? exf_cross_check_finish(&r->sums.check, e) : rc;
}

/* Flips a bit of the largest of the first token's outputs among those that the host was given: the lowest of its exponent. */
static inline int flip_a_bit(exf_checked_part *p, int d_model)
{
    float *x = (float *)(uintptr_t)p->outputs.p;
    uint32_t u;
    int at = 0;
    for (int i = 0; i < p->width * d_model; i++)
        if (p->ids[i / d_model] >= 0 && fabsf(x[i]) > fabsf(x[at])) at = i;
    memcpy(&u, &x[at], sizeof u);
    u ^= 1u << 23;
    memcpy(&x[at], &u, sizeof u);
    return at / d_model;
}
#endif
