/* workspace_sizes.c - how much memory a workspace needs: it is as large as the functions that carve arrays from it say. */
#include "pass/forward_internal.h"

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
    s->squares = exf_arena_take(arena, t);
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
