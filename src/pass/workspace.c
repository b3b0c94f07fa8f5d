/* workspace.c - a worker's queue and memory, and the clock of its stages; see workspace.h. */
#include "pass/workspace.h"

#include "base/mem.h"
#include "kernels/moe/moe.h"

#include <pthread.h>
#include <string.h>

/* ---- a worker ---------------------------------------------------------------------------------- */

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

/* ---- the GPU's clock --------------------------------------------------------------------------- */

/* More stages than a GPU has kernels queued; a stage that finds no free entry is not measured. */
enum { STAGES = 4096 };

typedef struct {
    double *seconds;
    double units;
    int kind;
} stage;

struct exf_stage_clock {
    const exf_backend *b;
    volatile uint64_t *ns; /* [2 STAGES] begin and end of each stage in pinned memory; 0: not written yet */
    stage stage[STAGES];   /* stage n is at n mod STAGES */
    size_t n, n_read;      /* stages that ended; those that were read */
    int open;              /* 1: a stage was begun */
    pthread_mutex_t lock;
};

exf_code exf_stage_clock_new(exf_stage_clock **out, const exf_backend *b, exf_err *err)
{
    exf_stage_clock *c = NULL;
    void *ns = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&c, 1, sizeof *c, "stage clock", err));
    c->b = b;
    pthread_mutex_init(&c->lock, NULL);
    EXF_TRY(b->gpu->alloc_staging(&ns, 2 * STAGES * sizeof *c->ns, "stage clock", err));
    memset(ns, 0, 2 * STAGES * sizeof *c->ns);
    c->ns = ns;
out:
    if (rc != EXF_OK) exf_stage_clock_free(c);
    *out = rc == EXF_OK ? c : NULL;
    return rc;
}

void exf_stage_clock_free(exf_stage_clock *c)
{
    if (!c) return;
    if (c->ns) c->b->gpu->free_staging((void *)(uintptr_t)c->ns);
    pthread_mutex_destroy(&c->lock);
    exf_mem_free(c);
}

static uint64_t *stamp_of(exf_stage_clock *c, size_t number, int end)
{
    return (uint64_t *)(uintptr_t)&c->ns[2 * (number % STAGES) + (size_t)end];
}

void exf_stage_begin(exf_stage_clock *c, exf_queue *q)
{
    if (!c) return;
    exf_stage_clock_read(c);
    c->open = c->n - c->n_read < STAGES;
    if (c->open) c->b->gpu->stamp(q, stamp_of(c, c->n, 0));
}

void exf_stage_end(exf_stage_clock *c, exf_queue *q, double *seconds, int kind, double units)
{
    if (!c || !c->open) return;
    c->b->gpu->stamp(q, stamp_of(c, c->n, 1));
    pthread_mutex_lock(&c->lock);
    c->stage[c->n % STAGES] = (stage){seconds, units, kind};
    c->n++;
    c->open = 0;
    pthread_mutex_unlock(&c->lock);
}

void exf_stage_clock_read(exf_stage_clock *c)
{
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    for (; c->n_read < c->n; c->n_read++) { /* the oldest first, to one whose end is not reached */
        const stage *s = &c->stage[c->n_read % STAGES];
        volatile uint64_t *ns = &c->ns[2 * (c->n_read % STAGES)];
        if (ns[0] == 0 || ns[1] == 0) break;
        double seconds = ns[1] > ns[0] ? 1e-9 * (double)(ns[1] - ns[0]) : 0;
        ns[0] = ns[1] = 0;
        *s->seconds += seconds;
        if (s->kind >= 0) exf_progress_credit(s->kind, s->units, seconds);
    }
    pthread_mutex_unlock(&c->lock);
}
