/* workspace.c - see workspace.h. */
#include "moe/workspace.h"

#include "base/mem.h"
#include "kernels/moe/router.h"

#include <string.h>

size_t exf_workspace_bytes(const exf_architecture *a, size_t floats)
{
    return sizeof(float) * floats + sizeof(double) * (size_t)exf_router_scratch(a->n_experts);
}

exf_code exf_workspace_new(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, size_t floats,
                           size_t mirror, exf_err *err)
{
    exf_code rc;
    memset(w, 0, sizeof *w);
    w->b = b;
    w->compute = compute;
    w->capacity = floats;
    EXF_TRY(b->open(&w->q, compute, err));
    EXF_TRY(b->alloc(&w->floats, floats, sizeof(float), "workspace", err));
    EXF_TRY(b->alloc(&w->router, (size_t)exf_router_scratch(a->n_experts), sizeof(double), "router scores", err));
    if (mirror) EXF_TRY(exf_mem_raw(&w->mirror, mirror, sizeof(float), "observed block", err));
out:
    return rc;
}

exf_code exf_visible(exf_workspace *w, const float *x, size_t n, float **mirror, const float **out, exf_err *err)
{
    *out = x;
    if (!w->b->gpu) return EXF_OK;
    *out = *mirror;
    *mirror += n;
    return w->b->download(w->q, *mirror - n, x, n * sizeof *x, err);
}

void exf_workspace_free(exf_workspace *w)
{
    if (!w->b) return;
    w->b->free(w->floats);
    w->b->free(w->router);
    w->b->close(w->q);
    exf_mem_free(w->mirror);
    memset(w, 0, sizeof *w);
}
