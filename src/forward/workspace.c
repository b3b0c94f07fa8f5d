/* workspace.c - see workspace.h. */
#include "forward/workspace.h"

#include "base/mem.h"
#include "mixers/mixer.h"
#include "mixers/residual.h"
#include "kernels/moe/router.h"

#include <string.h>

void exf_carve_mixer(exf_mixer_space *s, exf_arena *arena, const exf_architecture *a, int n_tokens)
{
    size_t t = (size_t)n_tokens, h = (size_t)a->d_model;
    int streams = a->residual.streams > 1;
    s->u = exf_arena_take(arena, streams ? t * h : 0);
    s->mixing = exf_arena_take(arena, t * (size_t)exf_residual_mixing(a));
    s->normed = exf_arena_take(arena, t * h);
    s->mixed = exf_arena_take(arena, t * h);
    s->logits = exf_arena_take(arena, t * (size_t)a->n_experts);
}

static size_t widest(const exf_architecture *a)
{
    size_t experts = (size_t)a->top_k * (size_t)a->d_expert, dense = (size_t)a->d_ffn, shared = (size_t)a->d_shared;
    size_t most = experts > dense ? experts : dense;
    return most > shared ? most : shared;
}

void exf_carve_experts(exf_experts_space *s, exf_arena *arena, const exf_architecture *a, int n_tokens, int probes)
{
    size_t b = (size_t)n_tokens, h = (size_t)a->d_model, k = (size_t)a->top_k;
    s->u = exf_arena_take(arena, a->residual.streams > 1 ? b * h : 0);
    s->mixing = exf_arena_take(arena, b * (size_t)exf_residual_mixing(a));
    s->input = exf_arena_take(arena, b * h);
    s->outputs = exf_arena_take(arena, b * k * h);
    s->routed = exf_arena_take(arena, b * h);
    s->block = a->d_shared ? exf_arena_take(arena, b * h) : s->routed;
    s->gathered = exf_arena_take(arena, b * k * h);
    s->gate = exf_arena_take(arena, b * widest(a));
    s->up = exf_arena_take(arena, b * widest(a));
    s->slots = (int32_t *)exf_arena_take(arena, b * k);
    s->rows = (int32_t *)exf_arena_take(arena, b * k);
    s->probe_outputs = probes ? exf_arena_take(arena, b * k * h) : NULL;
    s->probe_routed = probes ? exf_arena_take(arena, b * h) : NULL;
}

void exf_carve_common_input(exf_common_input_space *s, exf_arena *arena, const exf_architecture *a)
{
    size_t n = EXF_COMMON_INPUT_ROWS, h = (size_t)a->d_model, streams = (size_t)a->residual.streams;
    s->hidden = exf_arena_take(arena, n * h * streams);
    s->u = exf_arena_take(arena, streams > 1 ? n * h : 0);
    s->mixing = exf_arena_take(arena, n * (size_t)exf_residual_mixing(a));
    s->input = exf_arena_take(arena, n * h);
    s->outputs = exf_arena_take(arena, n * h * (size_t)a->n_experts);
    s->gate = exf_arena_take(arena, n * (size_t)a->d_expert);
    s->up = exf_arena_take(arena, n * (size_t)a->d_expert);
    s->rows = (int32_t *)exf_arena_take(arena, n);
}

void exf_carve_head(exf_head_space *s, exf_arena *arena, const exf_backend *b, const exf_architecture *a)
{
    size_t rows = (size_t)exf_head_rows(b), h = (size_t)a->d_model;
    s->u = exf_arena_take(arena, a->residual.streams > 1 ? rows * h : 0);
    s->normed = exf_arena_take(arena, rows * h);
    s->logits = exf_arena_take(arena, rows * (size_t)a->vocab);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int block_of(int max_tokens)
{
    return max_tokens < EXF_MOE_BLOCK ? max_tokens : EXF_MOE_BLOCK;
}

static size_t experts_floats(const exf_backend *b, const exf_architecture *a, int max_tokens, const exf_demand *d)
{
    exf_arena experts = {NULL, 0}, common_input = {NULL, 0}, head = {NULL, 0};
    exf_experts_space experts_space;
    exf_common_input_space common_input_space;
    exf_head_space head_space;
    exf_carve_experts(&experts_space, &experts, a, block_of(max_tokens), d->probes);
    exf_carve_common_input(&common_input_space, &common_input, a);
    exf_carve_head(&head_space, &head, b, a);
    return larger(experts.used, larger(d->common_input ? common_input.used : 0, d->head ? head.used : 0));
}

/* Floats of the first sweep of the largest layer. */
static size_t mixing_floats(const exf_backend *b, const exf_architecture *a, int max_tokens)
{
    size_t most = 0;
    for (int l = 0; l < a->n_layers; l++) {
        exf_arena mixer = {NULL, 0};
        exf_mixer_space space;
        exf_mixer_call c = {.n_tokens = max_tokens, .layer = l, .a = a, .arena = &mixer, .b = b};
        exf_carve_mixer(&space, &mixer, a, max_tokens);
        exf_mixer_of(a->mixer[l])->run(&c);
        most = larger(most, mixer.used);
    }
    return most;
}

static size_t arena_floats(const exf_backend *b, const exf_architecture *a, int max_tokens, const exf_demand *d)
{
    return larger(mixing_floats(b, a, max_tokens), experts_floats(b, a, max_tokens, d));
}

/* Floats of what observers see at once: a block's arrays, common rows, or logits. */
static size_t mirror_floats(const exf_backend *b, const exf_architecture *a, int max_tokens, const exf_demand *d)
{
    size_t rows = (size_t)block_of(max_tokens), h = (size_t)a->d_model;
    size_t block = rows * h * (3 + (size_t)a->top_k), head = d->head ? (size_t)exf_head_rows(b) * (size_t)a->vocab : 0;
    size_t common_input = d->common_input ? EXF_COMMON_INPUT_ROWS * h * (size_t)a->n_experts : 0;
    return larger(block, larger(head, common_input));
}

size_t exf_workspace_mixing_bytes(const exf_backend *b, const exf_architecture *a, int max_tokens)
{
    return sizeof(float) * mixing_floats(b, a, max_tokens) + sizeof(double) * (size_t)exf_router_scratch(a->n_experts);
}

size_t exf_workspace_bytes(const exf_backend *b, const exf_architecture *a, int max_tokens, const exf_demand *d)
{
    return sizeof(float) * arena_floats(b, a, max_tokens, d) + sizeof(double) * (size_t)exf_router_scratch(a->n_experts);
}

exf_code exf_workspace_sized(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, size_t floats,
                             int block, size_t mirror, exf_err *err)
{
    exf_code rc;
    size_t slots = larger((size_t)block, EXF_COMMON_INPUT_ROWS) * (size_t)a->top_k;
    memset(w, 0, sizeof *w);
    w->b = b;
    w->compute = compute;
    EXF_TRY(b->open(&w->q, compute, err));
    EXF_TRY(b->alloc(&w->floats, floats, sizeof(float), "workspace", err));
    EXF_TRY(b->alloc(&w->router, (size_t)exf_router_scratch(a->n_experts), sizeof(double), "router scores", err));
    EXF_TRY(exf_mem_new(&w->slots, slots, sizeof *w->slots, "expert buckets", err));
    EXF_TRY(exf_mem_new(&w->rows, slots, sizeof *w->rows, "expert buckets", err));
    EXF_TRY(exf_mem_new(&w->probe_ids, slots, sizeof *w->probe_ids, "probed slots", err));
    EXF_TRY(exf_mem_new(&w->common_input_ids, EXF_COMMON_INPUT_ROWS * (size_t)a->top_k, sizeof *w->common_input_ids, "common routes", err));
    EXF_TRY(exf_mem_new(&w->common_input_weights, EXF_COMMON_INPUT_ROWS * (size_t)a->top_k, sizeof *w->common_input_weights, "common routes", err));
    EXF_TRY(exf_mem_new(&w->first, (size_t)a->n_experts + 1, sizeof *w->first, "expert buckets", err));
    if (!b->host_memory) EXF_TRY(exf_mem_raw(&w->mirror, mirror, sizeof(float), "observed block", err));
out:
    return rc;
}

exf_code exf_workspace_new(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens,
                           const exf_demand *d, exf_err *err)
{
    return exf_workspace_sized(w, b, compute, a, arena_floats(b, a, max_tokens, d), block_of(max_tokens), mirror_floats(b, a, max_tokens, d), err);
}

exf_code exf_workspace_mixing(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens,
                              exf_err *err)
{
    return exf_workspace_sized(w, b, compute, a, mixing_floats(b, a, max_tokens), 0, 0, err);
}

exf_code exf_visible(exf_workspace *w, const float *x, size_t n, float **mirror, const float **out, exf_err *err)
{
    *out = x;
    if (w->b->host_memory) return EXF_OK;
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
    exf_mem_free(w->slots);
    exf_mem_free(w->rows);
    exf_mem_free(w->probe_ids);
    exf_mem_free(w->common_input_ids);
    exf_mem_free(w->common_input_weights);
    exf_mem_free(w->first);
    exf_mem_free(w->mirror);
    memset(w, 0, sizeof *w);
}
