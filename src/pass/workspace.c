/* workspace.c - a worker's queue, memory and clock, and how much memory it needs: a workspace is as large as the functions
 * that carve arrays from it say. */
#include "pass/forward_internal.h"

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

/* Reads the oldest stage; 0 if its end is not reached. */
static int read_one(exf_stage_clock *c)
{
    const stage *s = &c->stage[c->n_read % STAGES];
    volatile uint64_t *ns = &c->ns[2 * (c->n_read % STAGES)];
    if (c->n_read == c->n || ns[0] == 0 || ns[1] == 0) return 0;
    double seconds = ns[1] > ns[0] ? 1e-9 * (double)(ns[1] - ns[0]) : 0;
    ns[0] = ns[1] = 0;
    c->n_read++;
    *s->seconds += seconds;
    if (s->kind >= 0) exf_progress_credit(s->kind, s->units, seconds);
    return 1;
}

void exf_stage_clock_read(exf_stage_clock *c)
{
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    while (read_one(c)) continue;
    pthread_mutex_unlock(&c->lock);
}

/* ---- sizes -------------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

void exf_mixer_carve(exf_mixer_arrays *s, exf_arena *arena, const exf_architecture *a, int n_tokens)
{
    size_t t = (size_t)n_tokens, h = (size_t)a->d_model;
    s->u = exf_arena_take(arena, a->residual.streams > 1 ? t * h : 0);
    s->mixing = exf_arena_take(arena, t * (size_t)exf_residual_mixing(a));
    s->normed = exf_arena_take(arena, t * h);
    s->mixed = exf_arena_take(arena, t * h);
    s->logits = exf_arena_take(arena, t * (size_t)a->n_experts);
}

int exf_head_rows(const exf_backend *b)
{
    return b->gpu ? 256 : 128;
}

void exf_head_carve(exf_head_arrays *s, exf_arena *arena, const exf_backend *b, const exf_architecture *a)
{
    size_t rows = (size_t)exf_head_rows(b), h = (size_t)a->d_model;
    s->u = exf_arena_take(arena, a->residual.streams > 1 ? rows * h : 0);
    s->normed = exf_arena_take(arena, rows * h);
    s->logits = exf_arena_take(arena, rows * (size_t)a->vocab);
}

exf_moe_needs exf_moe_needs_of(const exf_backend *b, const exf_architecture *a, const exf_demand *d)
{
    int shown = !b->gpu || d->host_blocks;
    return (exf_moe_needs){.routed = shown || d->corrects || d->probes, .block = shown, .input = shown || a->d_shared,
                           .probes = d->probes > 0, .shown = shown && b->gpu};
}

int exf_host_block(int max_tokens)
{
    return max_tokens < EXF_MOE_BLOCK ? max_tokens : EXF_MOE_BLOCK;
}

/* Takes the arrays of every layer and returns the most floats that one needs. */
size_t exf_mixing_floats(const exf_backend *b, const exf_architecture *a, int max_tokens)
{
    size_t most = 0;
    for (int l = 0; l < a->n_layers; l++) {
        exf_arena arena = {NULL, 0};
        exf_mixer_arrays arrays;
        exf_mixer_call c = {.n_tokens = max_tokens, .layer = l, .a = a, .arena = &arena, .b = b};
        exf_mixer_carve(&arrays, &arena, a, max_tokens);
        exf_mixer_of(a->mixer[l])->run(&c);
        most = larger(most, arena.used);
    }
    return most;
}

size_t exf_workspace_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens, int block_tokens,
                            const exf_demand *d)
{
    exf_moe_needs needs = exf_moe_needs_of(b, a, d);
    exf_arena head = {NULL, 0};
    exf_head_arrays arrays;
    exf_head_carve(&arrays, &head, b, a);
    size_t block = exf_moe_arrays_floats(b, compute, a, block_tokens, &needs);
    size_t common = d->common_input ? exf_common_floats(b, compute, a) : 0;
    return larger(larger(exf_mixing_floats(b, a, max_tokens), larger(block, common)), d->head ? head.used : 0);
}

size_t exf_mirror_floats(const exf_backend *b, const exf_architecture *a, int block_tokens, const exf_demand *d)
{
    size_t rows = (size_t)exf_host_block(block_tokens), h = (size_t)a->d_model;
    if (!b->gpu) return 0;
    return larger(d->host_blocks ? rows * (h * (3 + (size_t)a->top_k) + exf_row_width(a)) : 0,
                  d->head && !d->scored ? (size_t)exf_head_rows(b) * (size_t)a->vocab : 0);
}
