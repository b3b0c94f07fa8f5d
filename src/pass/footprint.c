/* footprint.c - plans what a pass keeps in memory: the fastest plan that fits a GPU; the sum on the CPU. */
#include "pass/forward_internal.h"

/* ---- a workspace: as large as the functions that carve arrays from it say --------------------------- */

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
    exf_arena head = {NULL, 0}, block = {NULL, 0};
    exf_head_arrays of_head;
    exf_moe_arrays of_block;
    exf_head_carve(&of_head, &head, b, a);
    exf_moe_carve(&of_block, &block, b, compute, a, block_tokens, &needs);
    size_t common = d->common_input ? exf_common_floats(b, compute, a) : 0;
    return larger(larger(exf_mixing_floats(b, a, max_tokens), larger(block.used, common)), d->head ? head.used : 0);
}

size_t exf_mirror_floats(const exf_backend *b, const exf_architecture *a, int block_tokens, const exf_demand *d)
{
    size_t rows = (size_t)exf_host_block(block_tokens), h = (size_t)a->d_model;
    if (!b->gpu) return 0;
    return larger(d->host_blocks ? rows * (h * (3 + (size_t)a->top_k) + exf_row_width(a)) : 0,
                  d->head && !d->scored ? (size_t)exf_head_rows(b) * (size_t)a->vocab : 0);
}

enum { USUAL_QUEUES = 4 };

/* A setting: weight slots, hidden states on the host, and the blocks that are tried, from `most` tokens halved down to
 * `least`. */
typedef struct {
    int n_slots, on_host, most, least;
} setting;

/* The settings of a pass, from the fastest to the smallest.  Hidden states move to the host before blocks shrink so far
 * that products wait for weights to be read from GPU memory.  The second weight slot is given up late, since reading and
 * computing a layer then no longer overlap. */
static const setting settings[] = {{2, 0, 16384, 4096}, {2, 1, 16384, 2048}, {1, 0, 16384, 4096}, {1, 1, 16384, 512},
                                   {1, 0, 2048, 512}};

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
    exf_moe_needs needs;
    exf_weight_loader_options loader;
    int queues;     /* CUDA streams wanted for the mixers */
    uint64_t fixed; /* device bytes that are the same in every plan */
    uint64_t slot;  /* bytes of one slot that holds a whole layer */
    uint64_t fixed_host;
} plan_inputs;

/* Sets the bytes that are the same in every plan: routes, tokens, RoPE tables, mixing coefficients, readers, what observers and
 * rewriters hold. */
static void count_fixed(plan_inputs *w)
{
    const exf_architecture *a = &w->m->arch;
    size_t n_tokens = w->batch->n_tokens;
    uint64_t routes = exf_route_set_bytes(n_tokens, a->top_k) * exf_demand_route_sets(w->d), tokens = n_tokens * sizeof(int32_t);
    uint64_t rotary = sizeof(float) * (uint64_t)w->batch->max_tokens *
                      (uint64_t)(a->rope[EXF_ROPE_MAIN].dim + a->rope[EXF_ROPE_COMPRESSED].dim + a->rope[EXF_ROPE_WIDE].dim);
    if (a->mla.query_beta > 0 && w->batch->max_tokens > a->mla.query_length)
        rotary += sizeof(float) * (uint64_t)w->batch->max_tokens;
    uint64_t slot_logits = w->d->slot_logits ? (uint64_t)a->top_k : 0;
    uint64_t all_logits = (uint64_t)w->d->device_logits * (uint64_t)a->n_experts;
    uint64_t logits = sizeof(float) * n_tokens * (slot_logits + all_logits);
    uint64_t mixing = sizeof(float) * n_tokens * (uint64_t)exf_residual_mixing(a);
    uint64_t scores = w->d->scored ? sizeof(float) * (uint64_t)exf_head_rows(w->b) * (uint64_t)a->vocab : 0;
    w->fixed = routes + tokens + rotary + mixing + scores + logits + queue_bytes + w->d->observers +
               exf_weight_loader_device_bytes(w->m);
    w->fixed_host = routes + exf_demand_logits_bytes(w->d, n_tokens, a->n_experts) +
                    exf_weight_loader_host_bytes(w->m, &w->loader);
    w->slot = exf_weight_loader_slot_bytes(w->m, w->compute, &w->loader);
}

/* Makes the plan for one setting.  A window holds the tokens of a block, and the longest sequence. */
static exf_pass_plan plan_of(const plan_inputs *w, const exf_weight_loader_options *loader, uint64_t weights, int on_host,
                             int tokens)
{
    const exf_architecture *a = &w->m->arch;
    const exf_batch *batch = w->batch;
    size_t width = exf_row_width(a), lanes = w->d->lanes, longest = (size_t)batch->max_tokens;
    exf_pass_plan p = {.loader = *loader, .needs = w->needs, .n_queues = 1, .reads = 1,
                       .window = on_host ? ((size_t)tokens > longest ? (size_t)tokens : longest) : 0};
    if (2 * p.window >= batch->n_tokens * lanes) p.window = 0; /* the two buffers would be as large as the hidden states */
    p.block_tokens = batch->n_tokens < (size_t)tokens ? (int)batch->n_tokens : tokens;
    p.floats = exf_workspace_floats(w->b, w->compute, a, batch->max_tokens, p.block_tokens, w->d);
    p.mirror = exf_mirror_floats(w->b, a, p.block_tokens, w->d);
    uint64_t host, hidden = exf_hidden_bytes(batch, width, lanes, p.window, &host);
    p.bytes = w->fixed + weights + hidden + exf_workspace_bytes(a, p.floats);
    p.host_bytes = w->fixed_host + host + sizeof(float) * p.mirror;
    return p;
}

/* Searches plans with whole layers: writes the first within `most` bytes to *found and returns 1;
 * else returns 0 and writes the smallest to *least. */
static int search_whole(const plan_inputs *w, uint64_t most, exf_pass_plan *found, exf_pass_plan *least)
{
    for (const setting *s = settings; s < settings + sizeof settings / sizeof *settings; s++)
        for (int tokens = s->most; tokens >= s->least; tokens /= 2) {
            exf_weight_loader_options loader = w->loader;
            loader.n_slots = s->n_slots;
            *found = plan_of(w, &loader, (uint64_t)loader.n_slots * w->slot, s->on_host, tokens);
            if (found->bytes <= most) return 1;
            if (found->bytes < least->bytes) *least = *found;
        }
    return 0;
}

/* Searches plans with a layer's experts in n_parts parts: writes the one of fewest reads, with the
 * largest blocks, to *best. */
static void search_parts(const plan_inputs *w, uint64_t most, int n_parts, int n_slots, exf_pass_plan *best,
                         exf_pass_plan *least)
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
            exf_pass_plan p = plan_of(w, &loader, weights, on_host, tokens);
            p.reads = sweeps * (int)exf_hidden_token_blocks(w->batch, p.window, (size_t)p.block_tokens);
            p.loader.passes = p.reads;
            if (p.bytes < least->bytes) *least = p;
            if (p.bytes <= most && (best->reads == 0 || p.reads < best->reads)) *best = p;
        }
}

/* Writes the fastest plan within `most` bytes to *found and returns 1; else returns 0 and writes the
 * smallest.  Among plans of equally many reads, two slots win over one and few parts over many. */
static int search_plans(const plan_inputs *w, uint64_t most, exf_pass_plan *found)
{
    enum { MOST_PARTS = 64 };
    exf_pass_plan least = {.bytes = ~(uint64_t)0}, best = {.reads = 0};
    int may_part = w->d->lanes == 1 && !w->d->common_input; /* each block runs the parts in one order, once per sweep */
    if (search_whole(w, most, found, &least)) return 1;
    for (int n_slots = 2; may_part && n_slots > 0; n_slots--)
        for (int parts = 2; parts <= MOST_PARTS && parts <= w->m->arch.n_experts; parts *= 2)
            search_parts(w, most, parts, n_slots, &best, &least);
    *found = best.reads ? best : least;
    return best.reads > 0;
}

/* Makes the plan of a pass on a GPU, or fails and names the least memory that suffices. */
static exf_code plan_gpu(exf_pass_plan *plan, const plan_inputs *w, const exf_forward_options *o, exf_err *err)
{
    uint64_t left = 0, limit = o->max_device_memory;
    exf_code rc = w->b->gpu->memory_left(&left, err);
    if (rc != EXF_OK) return rc;
    left -= left < reserve_bytes ? left : reserve_bytes;
    uint64_t most = limit && limit < left ? limit : left;
    if (search_plans(w, most, plan)) { /* and as many queues as fit */
        uint64_t one = exf_workspace_bytes(&w->m->arch, exf_mixing_floats(w->b, &w->m->arch, w->batch->max_tokens)) + queue_bytes;
        while (plan->n_queues < w->queues && plan->bytes + one <= most) {
            plan->n_queues++;
            plan->bytes += one;
        }
        return EXF_OK;
    }
    if (limit && limit <= left)
        return exf_fail(err, EXF_NOSPACE,
                        "GPU memory: a limit of %llu bytes is too little for this pass, the smallest that works is %llu",
                        (unsigned long long)limit, (unsigned long long)plan->bytes);
    return exf_fail(err, EXF_NOSPACE, "GPU memory: %llu bytes are free for this pass, the smallest that works takes %llu",
                    (unsigned long long)left, (unsigned long long)plan->bytes);
}

/* On the CPU everything stays in memory: one layer's weights, all hidden states and routes, a workspace for each worker. */
static void plan_cpu(exf_pass_plan *plan, const plan_inputs *w, int n_workers)
{
    const exf_architecture *a = &w->m->arch;
    const exf_batch *batch = w->batch;
    const exf_demand *d = w->d;
    size_t table = exf_model_count(w->m, EXF_W_EMBED, -1), layer = exf_layer_weights_size(w->m);
    size_t weights = d->head ? layer + table : layer > table ? layer : table;
    int tokens = exf_host_block(batch->max_tokens);
    *plan = (exf_pass_plan){.loader = w->loader, .needs = w->needs, .n_queues = n_workers, .block_tokens = tokens, .reads = 1};
    plan->floats = exf_workspace_floats(w->b, w->compute, a, batch->max_tokens, tokens, d);
    uint64_t pinned;
    plan->host_bytes = exf_hidden_bytes(batch, exf_row_width(a), d->lanes, 0, &pinned) + sizeof(float) * (uint64_t)weights +
                        exf_route_set_bytes(batch->n_tokens, a->top_k) * exf_demand_route_sets(d) +
                        exf_demand_logits_bytes(d, batch->n_tokens, a->n_experts) +
                        (uint64_t)n_workers * exf_workspace_bytes(a, plan->floats);
}

exf_code exf_pass_plan_make(exf_pass_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                            const exf_demand *d, int n_layers, exf_err *err)
{
    const exf_backend *b = exf_backend_of(o);
    size_t queues = o->mixer_queues > 0 ? (size_t)o->mixer_queues : USUAL_QUEUES;
    plan_inputs w = {.b = b, .compute = (exf_compute)o->compute, .m = m, .batch = batch, .d = d,
                     .needs = exf_moe_needs_of(b, &m->arch, d),
                     .queues = (int)(queues < batch->n_sequences ? queues : batch->n_sequences),
                     .loader = {.n_readers = o->readers, .first_layer = exf_pass_layers_done(o), .n_layers = n_layers,
                                .head = d->head}};
    const exf_mla_spec *mla = &m->arch.mla;
    if (mla->index_shared && batch->max_tokens > mla->index_topk) /* choices do not outlast their layer */
        return exf_fail(err, EXF_MODEL,
                        "%s: layers share the choice of an earlier indexer, which is computed for sequences of at most "
                        "\"index_topk\", %d tokens, where all are chosen; one has %d: set max_tokens to %d", m->config_path,
                        mla->index_topk, batch->max_tokens, mla->index_topk);
    if (!b->gpu) {
        plan_cpu(plan, &w, exf_forward_workers(b, batch, o->threads));
        return EXF_OK;
    }
    count_fixed(&w);
    return plan_gpu(plan, &w, o, err);
}

/* ---- what callers ask for ---------------------------------------------------------------------- */

exf_code exf_forward_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m,
                            const exf_batch *batch, const exf_demand *d, exf_err *err)
{
    exf_pass_plan plan;
    exf_code rc;
    *f = (exf_forward_footprint){.reads = 1};
    EXF_TRY(exf_pass_plan_make(&plan, options, m, batch, d, m->arch.n_layers, err));
    *f = (exf_forward_footprint){.device = plan.bytes, .host = plan.host_bytes, .window = plan.window, .reads = plan.reads};
out:
    return rc;
}
