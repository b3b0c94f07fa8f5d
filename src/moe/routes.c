/* routes.c - see routes.h. */
#include "moe/routes.h"

#include "base/mem.h"

#include <string.h>

exf_code exf_route_set_new(exf_route_set *r, const exf_backend *b, size_t n_tokens, int top_k, exf_err *err)
{
    exf_code rc;
    memset(r, 0, sizeof *r);
    r->b = b;
    EXF_TRY(exf_mem_mul(&r->n, n_tokens, (size_t)top_k, "routes", err));
    EXF_TRY(exf_mem_new(&r->ids, r->n, sizeof *r->ids, "routes", err));
    EXF_TRY(exf_mem_new(&r->weights, r->n, sizeof *r->weights, "routes", err));
    r->ids_device = r->ids;
    r->weights_device = r->weights;
    if (!b->gpu) return EXF_OK;
    r->ids_device = NULL;
    r->weights_device = NULL;
    EXF_TRY(b->alloc(&r->ids_device, r->n, sizeof *r->ids, "routes", err));
    EXF_TRY(b->alloc(&r->weights_device, r->n, sizeof *r->weights, "routes", err));
out:
    return rc;
}

uint64_t exf_route_set_bytes(size_t n_tokens, int top_k)
{
    return (uint64_t)n_tokens * (uint64_t)top_k * (sizeof(int32_t) + sizeof(float));
}

void exf_route_set_free(exf_route_set *r)
{
    if (!r->b) return;
    if (r->b->gpu) {
        r->b->free(r->ids_device);
        r->b->free(r->weights_device);
    }
    exf_mem_free(r->ids);
    exf_mem_free(r->weights);
    memset(r, 0, sizeof *r);
}

exf_code exf_route_set_fetch(exf_route_set *r, size_t first, size_t n, exf_queue *q, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!r->b->gpu) return EXF_OK;
    EXF_TRY(r->b->download(q, r->ids + first, r->ids_device + first, n * sizeof *r->ids, err));
    EXF_TRY(r->b->download(q, r->weights + first, r->weights_device + first, n * sizeof *r->weights, err));
out:
    return rc;
}

void exf_route_set_send_part(exf_route_set *r, size_t first, size_t n, exf_queue *q)
{
    if (!r->b->gpu) return;
    r->b->upload(q, r->ids_device + first, r->ids + first, n * sizeof *r->ids);
    r->b->upload(q, r->weights_device + first, r->weights + first, n * sizeof *r->weights);
}

void exf_route_set_send(exf_route_set *r, exf_queue *q)
{
    exf_route_set_send_part(r, 0, r->n, q);
}

void exf_route_set_copy(exf_route_set *to, const exf_route_set *from)
{
    memcpy(to->ids, from->ids, from->n * sizeof *from->ids);
    memcpy(to->weights, from->weights, from->n * sizeof *from->weights);
}
