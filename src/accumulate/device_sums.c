/* device_sums.c - see device_sums.h. */
#include "accumulate/device_sums.h"

#include "base/mem.h"

#include <string.h>

exf_code exf_device_sums_open(exf_device_sums *s, const exf_backend *b, int n_experts, exf_weighting weighting, exf_err *err)
{
    exf_code rc;
    *s = (exf_device_sums){.b = b, .n_experts = n_experts, .weighting = weighting};
    EXF_TRY(b->alloc(&s->sums, b->moments_bytes(n_experts), 1, "statistics", err));
    EXF_TRY(exf_mem_new(&s->host, exf_moments_host_bytes(n_experts), 1, "statistics", err));
out:
    return rc;
}

void exf_device_sums_add(exf_device_sums *s, const exf_device_block *b)
{
    exf_moments_call c = {.n_experts = b->n_experts, .top_k = b->top_k, .d_model = b->d_model, .n_tokens = b->n_tokens,
                          .outputs = {b->expert_outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .ids = b->topk_ids,
                          .weights = b->topk_weights, .weighting = s->weighting, .row = (int64_t)b->row};
    s->b->moments_add(b->q, s->sums, &c);
    s->q = b->q;
}

exf_code exf_device_sums_take(exf_device_sums *s, const exf_moments *to, exf_err *err)
{
    exf_code rc = s->q ? s->b->moments_take(s->q, s->sums, to, s->n_experts, s->host, err) : EXF_OK;
    s->q = NULL;
    return rc;
}

void exf_device_sums_free(exf_device_sums *s)
{
    if (s->b) s->b->free(s->sums);
    exf_mem_free(s->host);
    memset(s, 0, sizeof *s);
}
