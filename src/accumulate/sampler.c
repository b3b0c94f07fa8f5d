/* sampler.c - see sampler.h. */
#include "accumulate/sampler.h"

#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

exf_code exf_sampler_new(exf_sampler *s, size_t samples, int d_model, exf_err *err)
{
    exf_code rc;
    size_t floats;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_mem_mul(&floats, samples, (size_t)d_model, "samples", err));
    EXF_TRY(exf_smallest_keys_new(&s->keys, samples, err));
    EXF_TRY(exf_mem_new(&s->slot, samples, 2 * sizeof *s->slot, "samples", err));
    EXF_TRY(exf_mem_new(&s->pair, samples, 2 * sizeof *s->pair, "samples", err));
    EXF_TRY(exf_mem_new(&s->source, floats, sizeof *s->source, "samples", err));
    EXF_TRY(exf_mem_new(&s->target, floats, sizeof *s->target, "samples", err));
out:
    if (rc != EXF_OK) exf_sampler_free(s);
    return rc;
}

void exf_sampler_free(exf_sampler *s)
{
    exf_smallest_keys_free(&s->keys);
    exf_mem_free(s->slot);
    exf_mem_free(s->pair);
    exf_mem_free(s->source);
    exf_mem_free(s->target);
    memset(s, 0, sizeof *s);
}

/* ---- choosing ------------------------------------------------------------------ */

/* Returns the slot of the target: another of the token's than the source's. */
static int32_t other_slot(const exf_keyed_candidate *c, int32_t slot, int top_k)
{
    return (slot + 1 + (int32_t)exf_rng_below((uint64_t)(top_k - 1), c->own, 1, c->place)) % top_k;
}

exf_code exf_sampler_choose(exf_sampler *s, const exf_sequence_list *sequences, int top_k, int layer, uint64_t seed, exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = top_k, .layer = layer, .seed = seed, .stream = 0};
    exf_code rc;
    s->keys.n = s->n = 0;
    if (top_k < 2) return EXF_OK;
    EXF_TRY(exf_smallest_keys_choose(&s->keys, &rule, err));
    s->n = s->keys.n;
    for (size_t i = 0; i < s->n; i++) {
        const exf_keyed_candidate *c = &s->keys.chosen[i];
        s->slot[2 * i] = (int32_t)(c->place % (uint64_t)top_k);
        s->slot[2 * i + 1] = other_slot(c, s->slot[2 * i], top_k);
    }
out:
    return rc;
}

/* ---- keeping --------------------------------------------------------------------- */

void exf_sampler_clear(const exf_sampler *s, int d_model)
{
    size_t floats = s->keys.cap * (size_t)d_model;
    memset(s->source, 0, floats * sizeof *s->source);
    memset(s->target, 0, floats * sizeof *s->target);
    memset(s->pair, 0, s->keys.cap * 2 * sizeof *s->pair);
}

void exf_sampler_keep(const exf_sampler *s, const exf_moe_block *b)
{
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k, first = s->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        size_t source = (row - first) * k + (size_t)s->slot[2 * i], target = (row - first) * k + (size_t)s->slot[2 * i + 1];
        memcpy(s->source + i * h, b->expert_outputs + source * h, h * sizeof *s->source);
        memcpy(s->target + i * h, b->expert_outputs + target * h, h * sizeof *s->target);
        s->pair[2 * i] = b->topk_ids[source];
        s->pair[2 * i + 1] = b->topk_ids[target];
    }
}
