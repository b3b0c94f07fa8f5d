/* sampler.c - see sampler.h. */
#include "accumulate/sampler.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

exf_code exf_sampler_new(exf_sampler *s, size_t samples, int d_model, exf_err *err)
{
    exf_code rc;
    size_t floats;
    memset(s, 0, sizeof *s);
    s->cap = samples;
    EXF_TRY(exf_mem_mul(&floats, samples, (size_t)d_model, "samples", err));
    EXF_TRY(exf_mem_new(&s->chosen, samples, sizeof *s->chosen, "samples", err));
    EXF_TRY(exf_mem_new(&s->by_row, samples, sizeof *s->by_row, "samples", err));
    EXF_TRY(exf_mem_new(&s->pair, samples, 2 * sizeof *s->pair, "samples", err));
    EXF_TRY(exf_mem_new(&s->source, floats, sizeof *s->source, "samples", err));
    EXF_TRY(exf_mem_new(&s->target, floats, sizeof *s->target, "samples", err));
out:
    if (rc != EXF_OK) exf_sampler_free(s);
    return rc;
}

void exf_sampler_free(exf_sampler *s)
{
    exf_mem_free(s->chosen);
    exf_mem_free(s->by_row);
    exf_mem_free(s->pair);
    exf_mem_free(s->source);
    exf_mem_free(s->target);
    memset(s, 0, sizeof *s);
}

/* ---- choosing ------------------------------------------------------------------ */

typedef struct {
    exf_candidate *all;
    size_t n, cap;
} candidates;

/* Lists all candidates of a layer with a key of at most `limit`. */
static exf_code list(candidates *c, const exf_sequence_list *q, int top_k, int layer, uint64_t seed, uint64_t limit, exf_err *err)
{
    size_t row = 0;
    exf_code rc = EXF_OK;
    c->n = 0;
    for (size_t i = 0; i < q->n; i++) {
        uint64_t own;
        memcpy(&own, q->sha256[i], sizeof own);
        own = exf_rng_u64(own, seed, (uint64_t)layer);
        for (int32_t t = 0; t < q->length[i]; t++, row++)
            for (int a = 0; a < top_k; a++) {
                uint64_t at = (uint64_t)t * (uint64_t)top_k + (uint64_t)a, key = exf_rng_u64(own, 0, at);
                if (key > limit) continue;
                if (c->n == c->cap) EXF_TRY(exf_mem_grow(&c->all, &c->cap, c->n + 1, sizeof *c->all, "samples", err));
                int other = (a + 1 + (int)exf_rng_below((uint64_t)(top_k - 1), own, 1, at)) % top_k;
                c->all[c->n++] = (exf_candidate){key, row, a, other};
            }
    }
out:
    return rc;
}

/* Orders by key.  Equal keys belong to equal sequences, whose outputs are equal, too. */
static int by_key(const void *a, const void *b)
{
    const exf_candidate *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

typedef struct {
    size_t row, index;
    int32_t slot;
} place;

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static exf_code index_rows(exf_sampler *s, exf_err *err)
{
    place *all = NULL;
    exf_code rc = exf_mem_new(&all, s->n, sizeof *all, "samples", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < s->n; i++) all[i] = (place){s->chosen[i].row, i, s->chosen[i].slot};
    qsort(all, s->n, sizeof *all, by_place);
    for (size_t i = 0; i < s->n; i++) s->by_row[i] = all[i].index;
    exf_mem_free(all);
    return EXF_OK;
}

/* Lists candidates below a key limit that about as many meet as are wanted; lists again with a
 * larger limit if they are too few. */
exf_code exf_sampler_choose(exf_sampler *s, const exf_sequence_list *sequences, int top_k, int layer, uint64_t seed, exf_err *err)
{
    double total = 0, share;
    candidates c = {NULL, 0, 0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < sequences->n; i++) total += (double)sequences->length[i] * top_k;
    s->n = 0;
    if (top_k < 2 || total == 0) return EXF_OK;
    share = ((double)s->cap + 4 * sqrt((double)s->cap) + 16) / total;
    for (;; share *= 2) {
        uint64_t limit = share >= 1 ? UINT64_MAX : (uint64_t)(share * 0x1p63) * 2;
        EXF_TRY(list(&c, sequences, top_k, layer, seed, limit, err));
        if (c.n >= s->cap || limit == UINT64_MAX) break;
    }
    qsort(c.all, c.n, sizeof *c.all, by_key);
    s->n = c.n < s->cap ? c.n : s->cap;
    memcpy(s->chosen, c.all, s->n * sizeof *s->chosen);
    rc = index_rows(s, err);
out:
    exf_mem_free(c.all);
    return rc;
}

/* ---- keeping --------------------------------------------------------------------- */

size_t exf_sampler_first(const exf_sampler *s, size_t row)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->chosen[s->by_row[mid]].row < row)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void exf_sampler_clear(const exf_sampler *s, int d_model)
{
    size_t floats = s->cap * (size_t)d_model;
    memset(s->source, 0, floats * sizeof *s->source);
    memset(s->target, 0, floats * sizeof *s->target);
    memset(s->pair, 0, s->cap * 2 * sizeof *s->pair);
}

void exf_sampler_keep(const exf_sampler *s, const exf_moe_block *b)
{
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k, first = s->first_row + b->row;
    for (size_t at = exf_sampler_first(s, first); at < s->n; at++) {
        size_t i = s->by_row[at];
        const exf_candidate *c = &s->chosen[i];
        if (c->row >= first + (size_t)b->n_tokens) break;
        size_t slot = (c->row - first) * k;
        memcpy(s->source + i * h, b->expert_outputs + (slot + (size_t)c->slot) * h, h * sizeof *s->source);
        memcpy(s->target + i * h, b->expert_outputs + (slot + (size_t)c->other) * h, h * sizeof *s->target);
        s->pair[2 * i] = b->topk_ids[slot + (size_t)c->slot];
        s->pair[2 * i + 1] = b->topk_ids[slot + (size_t)c->other];
    }
}
