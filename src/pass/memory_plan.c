/* memory_plan.c - see memory_plan.h. */
#include "pass/common_input.h"
#include "pass/hidden.h"
#include "pass/memory_plan.h"
#include "pass/mixer.h"
#include "pass/residual.h"
#include "pass/resume.h"
#include "pass/routes.h"
#include "pass/workspace.h"

enum { USUAL_QUEUES = 4 };

/* The plans that are tried, from the fastest to the smallest.  Each tries blocks of `most` tokens,
 * then half as many, down to `least`. Hidden states move to the host before blocks shrink so far
 * that products wait for weights to be read from GPU memory.  The second weight slot is given up
 * late, since reading and computing a layer then no longer overlap. */
static const struct {
    int n_slots, on_host, most, least;
} settings[] = {{2, 0, 16384, 4096}, {2, 1, 16384, 2048}, {1, 0, 16384, 4096}, {1, 1, 16384, 512}, {1, 0, 2048, 512}};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

/* Bytes of a CUDA stream that no size function counts: rounded operands and workspaces of the matrix library. */
static const uint64_t queue_bytes = (uint64_t)160 << 20;

/* Free memory that a plan leaves to the CUDA driver, which allocates when code and handles are first used. */
static const uint64_t reserve_bytes = (uint64_t)256 << 20;

/* The inputs from which plans are made. */
typedef struct {
    const exf_backend *b;
    exf_compute compute;
    const exf_model *m;
    const exf_batch *batch;
    const exf_demand *d;
    exf_weight_loader_options loader;
    int queues;     /* CUDA streams wanted for the mixers */
    uint64_t fixed; /* device bytes that are the same in every plan */
    uint64_t slot;  /* bytes of one slot that holds a whole layer */
    uint64_t fixed_host;
} plan_inputs;

static uint64_t route_bytes(const plan_inputs *w)
{
    return exf_route_set_bytes(w->batch->n_tokens, w->m->arch.top_k) * exf_demand_route_sets(w->d);
}

uint64_t exf_memory_queue_bytes(void)
{
    return queue_bytes;
}

/* Returns the bytes of routes, tokens, rope tables, and of memory that observers and rewriters hold. */
static uint64_t fixed_bytes(const plan_inputs *w)
{
    const exf_architecture *a = &w->m->arch;
    uint64_t rotary =
        (uint64_t)w->batch->max_tokens * 4 * (uint64_t)(a->rope[EXF_ROPE_MAIN].dim + a->rope[EXF_ROPE_COMPRESSED].dim);
    return route_bytes(w) + w->batch->n_tokens * 4 + rotary + queue_bytes + w->d->observers +
           (w->d->scored ? sizeof(float) * (uint64_t)exf_head_rows(w->b) * (uint64_t)a->vocab : 0);
}

/* Makes the plan for one setting.  A window has room for a block's tokens and for the longest sequence. */
static exf_memory_plan plan_of(const plan_inputs *w, const exf_weight_loader_options *loader, uint64_t weights, int on_host,
                               int tokens)
{
    const exf_architecture *a = &w->m->arch;
    size_t width = exf_row_width(a), lanes = w->d->lanes, longest = (size_t)w->batch->max_tokens;
    exf_memory_plan p = {.loader = *loader,
                         .n_queues = 1,
                         .reads = 1,
                         .window = on_host ? ((size_t)tokens > longest ? (size_t)tokens : longest) : 0};
    if (2 * p.window >= w->batch->n_tokens * lanes) p.window = 0; /* the two buffers would be as large as the hidden states */
    p.block_tokens = w->batch->n_tokens < (size_t)tokens ? (int)w->batch->n_tokens : tokens;
    size_t floats = exf_workspace_floats(w->b, w->compute, a, w->batch->max_tokens, p.block_tokens, w->d);
    p.bytes = w->fixed + weights + exf_hidden_bytes(w->batch, width, lanes, p.window) + exf_workspace_bytes(a, floats);
    p.host_bytes = w->fixed_host + exf_hidden_host_bytes(w->batch, width, lanes, p.window) +
                   sizeof(float) * exf_mirror_floats(w->b, a, p.block_tokens, w->d);
    return p;
}

/* Searches plans with whole layers: writes the first within `most` bytes to *found and returns 1;
 * else returns 0 and writes the smallest to *least. */
static int search_whole(const plan_inputs *w, uint64_t most, exf_memory_plan *found, exf_memory_plan *least)
{
    for (int i = 0; i < N_SETTINGS; i++)
        for (int tokens = settings[i].most; tokens >= settings[i].least; tokens /= 2) {
            exf_weight_loader_options loader = w->loader;
            loader.n_slots = settings[i].n_slots;
            *found = plan_of(w, &loader, (uint64_t)loader.n_slots * w->slot, settings[i].on_host, tokens);
            if (found->bytes <= most) return 1;
            if (found->bytes < least->bytes) *least = *found;
        }
    return 0;
}

/* Adds queues to *p, as many as fit. */
static void add_queues(const plan_inputs *w, uint64_t most, exf_memory_plan *p)
{
    uint64_t one = exf_workspace_bytes(&w->m->arch, exf_mixing_floats(w->b, &w->m->arch, w->batch->max_tokens)) + queue_bytes;
    while (p->n_queues < w->queues && p->bytes + one <= most) {
        p->n_queues++;
        p->bytes += one;
    }
}

/* Searches plans with a layer's experts in n_parts parts: writes the one of fewest reads, with the
 * largest blocks, to *best. */
static void search_parts(const plan_inputs *w, uint64_t most, int n_parts, int n_slots, exf_memory_plan *best,
                         exf_memory_plan *least)
{
    enum { MOST = 65536, LEAST = 512 };
    exf_weight_loader_options loader = w->loader;
    int sweeps = w->d->sweeps > 1 ? w->d->sweeps : 1;
    loader.n_slots = n_slots;
    loader.part_experts = (w->m->arch.n_experts + n_parts - 1) / n_parts;
    uint64_t weights = exf_weight_loader_base_bytes(w->m, w->compute, &loader) +
                       (uint64_t)n_slots * exf_weight_loader_slot_bytes(w->m, w->compute, &loader);
    for (int tokens = MOST; tokens >= LEAST; tokens /= 2)
        for (int on_host = 0; on_host < 2; on_host++) {
            exf_memory_plan p = plan_of(w, &loader, weights, on_host, tokens);
            p.reads = sweeps * (int)exf_hidden_token_blocks(w->batch, p.window, (size_t)p.block_tokens);
            p.loader.passes = p.reads;
            if (p.bytes < least->bytes) *least = p;
            if (p.bytes <= most && (best->reads == 0 || p.reads < best->reads)) *best = p;
        }
}

/* Returns 1 if the pass may load experts in parts.  Each block then runs the parts in one order, once per sweep. */
static int may_part(const plan_inputs *w)
{
    return w->d->lanes == 1 && !w->d->common_input && w->m->arch.n_experts > 1;
}

/* Writes the fastest plan within `most` bytes to *found and returns 1; else returns 0 and writes the
 * smallest.  Among plans of equally many reads, two slots win over one and few parts over many. */
static int search(const plan_inputs *w, uint64_t most, exf_memory_plan *found)
{
    enum { MOST_PARTS = 64 };
    exf_memory_plan least = {.bytes = ~(uint64_t)0}, best = {.reads = 0};
    if (search_whole(w, most, found, &least)) return 1;
    for (int n_slots = 2; may_part(w) && n_slots > 0; n_slots--)
        for (int parts = 2; parts <= MOST_PARTS && parts <= w->m->arch.n_experts; parts *= 2)
            search_parts(w, most, parts, n_slots, &best, &least);
    *found = best.reads ? best : least;
    return best.reads > 0;
}

static exf_code free_bytes(uint64_t *left, const exf_backend *b, exf_err *err)
{
    exf_code rc = b->gpu->memory_left(left, err);
    if (rc == EXF_OK) *left -= *left < reserve_bytes ? *left : reserve_bytes;
    return rc;
}

exf_code exf_memory_limit(uint64_t *bytes, const exf_forward_options *o, exf_err *err)
{
    exf_code rc = free_bytes(bytes, o->backend, err);
    if (rc == EXF_OK && o->max_device_memory && o->max_device_memory < *bytes) *bytes = o->max_device_memory;
    return rc;
}

exf_code exf_memory_too_little(const exf_forward_options *o, uint64_t least, exf_err *err)
{
    uint64_t left = 0, limit = o->max_device_memory;
    exf_code rc = free_bytes(&left, o->backend, err);
    if (rc != EXF_OK) return rc;
    if (limit && limit <= left)
        return exf_fail(err, EXF_NOSPACE,
                        "GPU memory: a limit of %llu bytes is too little for this pass, the smallest that works is %llu",
                        (unsigned long long)limit, (unsigned long long)least);
    return exf_fail(err, EXF_NOSPACE, "GPU memory: %llu bytes are free for this pass, the smallest that works takes %llu",
                    (unsigned long long)left, (unsigned long long)least);
}

exf_code exf_memory_plan_make(exf_memory_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                              const exf_demand *d, int n_layers, exf_err *err)
{
    exf_compute compute = (exf_compute)o->compute;
    uint64_t most = 0;
    size_t queues = o->mixer_queues > 0 ? (size_t)o->mixer_queues : USUAL_QUEUES;
    plan_inputs w = {.b = o->backend, .compute = compute, .m = m, .batch = batch, .d = d,
              .queues = (int)(queues < batch->n_sequences ? queues : batch->n_sequences),
              .loader = {.n_readers = o->readers, .first_layer = o->resume ? exf_resume_start(o->resume)->layers_done : 0,
                         .n_layers = n_layers, .head = d->head}};
    exf_code rc;
    EXF_TRY(exf_memory_limit(&most, o, err));
    w.fixed = fixed_bytes(&w) + exf_weight_loader_reader_bytes(m, compute, &w.loader);
    w.slot = exf_weight_loader_slot_bytes(m, compute, &w.loader);
    w.fixed_host = route_bytes(&w) +
                   exf_demand_logits_bytes(d, batch->n_tokens, m->arch.n_experts) + exf_weight_loader_host_bytes(&w.loader);
    if (search(&w, most, plan))
        add_queues(&w, most, plan);
    else
        rc = exf_memory_too_little(o, plan->bytes, err);
out:
    return rc;
}

/* ---- workspace size ---------------------------------------------------------------------------- */

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

/* Returns the floats that the first half of the largest layer needs. */
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

static size_t moe_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int block_tokens,
                         const exf_demand *d)
{
    exf_moe_needs needs = exf_moe_needs_of(b, a, d);
    size_t block = exf_moe_arrays_floats(b, compute, a, block_tokens, &needs);
    return larger(block, d->common_input ? exf_common_floats(b, compute, a) : 0);
}

size_t exf_workspace_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens, int block_tokens,
                            const exf_demand *d)
{
    exf_arena head = {NULL, 0};
    exf_head_arrays arrays;
    exf_head_carve(&arrays, &head, b, a);
    return larger(larger(exf_mixing_floats(b, a, max_tokens), moe_floats(b, compute, a, block_tokens, d)), d->head ? head.used : 0);
}

size_t exf_mirror_floats(const exf_backend *b, const exf_architecture *a, int block_tokens, const exf_demand *d)
{
    size_t rows = (size_t)exf_host_block(block_tokens), h = (size_t)a->d_model;
    if (!b->gpu) return 0;
    return larger(d->host_blocks ? rows * (h * (3 + (size_t)a->top_k) + exf_row_width(a)) : 0,
                  d->head && !d->scored ? (size_t)exf_head_rows(b) * (size_t)a->vocab : 0);
}
