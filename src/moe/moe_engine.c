/* moe_engine.c - see moe_engine.h. */
#include "moe/moe_engine.h"

const exf_moe_engine *exf_moe_engine_of(const exf_backend *b)
{
    return b->gpu ? &exf_moe_gpu : &exf_moe_host;
}

exf_code exf_moe_not_finite_new(uint64_t **not_finite, const exf_backend *b, exf_queue *q, exf_err *err)
{
    uint64_t none = ~(uint64_t)0;
    exf_code rc = b->alloc(not_finite, 1, sizeof none, "finite check", err);
    if (rc != EXF_OK) return rc;
    b->upload(q, *not_finite, &none, sizeof none);
    return b->finish(q, err);
}
