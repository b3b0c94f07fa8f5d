/* route_sampler.c - see route_sampler.h. */
#include "accumulate/route_sampler.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/thread_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM = 2 }; /* of random numbers: the sampler of residuals uses 0 and 1 */

size_t exf_route_sampler_tokens(int64_t wanted, int64_t n_tokens)
{
    return (size_t)(wanted < n_tokens ? wanted : n_tokens);
}

exf_code exf_route_sampler_new(exf_route_sampler *s, size_t tokens, int top_k, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_route_sample_new(&s->sample, tokens, top_k, err));
    EXF_TRY(exf_mem_new(&s->row, tokens, sizeof *s->row, "route sample", err));
    EXF_TRY(exf_mem_new(&s->by_row, tokens, sizeof *s->by_row, "route sample", err));
out:
    if (rc != EXF_OK) exf_route_sampler_free(s);
    return rc;
}

void exf_route_sampler_free(exf_route_sampler *s)
{
    void *device_arrays[] = {s->slot, s->ids, s->weights},
         *host_arrays[] = {s->row, s->by_row, s->slot_host, s->ids_host, s->weights_host};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++) exf_mem_free(host_arrays[i]);
    exf_route_sample_free(&s->sample);
    memset(s, 0, sizeof *s);
}

/* ---- choosing --------------------------------------------------------------------- */

typedef struct {
    uint64_t key;
    size_t row, index; /* index: place in order of keys, once that is known */
} candidate;

typedef struct {
    candidate *all;
    size_t n, cap;
} candidates;

enum { PARTS = 64 }; /* of the sequences, listed side by side */

typedef struct {
    const exf_sequence_list *q;
    int layer;
    uint64_t limit;         /* keys of at most that are listed */
    size_t first[PARTS + 1]; /* sequences [first[i], first[i + 1]) are part i */
    size_t row[PARTS];      /* row of a part's first token */
    candidates part[PARTS];
} listing;

/* Cuts the sequences into parts of about equally many. */
static void cut(listing *l)
{
    size_t row = 0;
    for (size_t p = 0; p < PARTS; p++) {
        l->first[p] = l->q->n * p / PARTS;
        l->first[p + 1] = l->q->n * (p + 1) / PARTS;
        l->row[p] = row;
        for (size_t i = l->first[p]; i < l->first[p + 1]; i++) row += (size_t)l->q->length[i];
    }
}

static exf_code list_part(void *self, size_t p, int worker, exf_err *err)
{
    listing *l = self;
    candidates *c = &l->part[p];
    size_t row = l->row[p];
    exf_code rc = EXF_OK;
    (void)worker;
    c->n = 0;
    for (size_t i = l->first[p]; i < l->first[p + 1]; i++) {
        uint64_t own;
        memcpy(&own, l->q->sha256[i], sizeof own);
        own = exf_rng_u64(own, STREAM, (uint64_t)l->layer);
        for (int32_t t = 0; t < l->q->length[i]; t++, row++) {
            uint64_t key = exf_rng_u64(own, STREAM, (uint64_t)t);
            if (key > l->limit) continue;
            if (c->n == c->cap) EXF_TRY(exf_mem_grow(&c->all, &c->cap, c->n + 1, sizeof *c->all, "route sample", err));
            c->all[c->n++] = (candidate){key, row, 0};
        }
    }
out:
    return rc;
}

/* Lists the tokens with a key of at most the limit, in order of rows. */
static exf_code list(candidates *c, listing *l, exf_err *err)
{
    exf_code rc;
    c->n = 0;
    EXF_TRY(exf_parallel_for(PARTS, exf_background_threads(), list_part, l, err));
    for (size_t p = 0; p < PARTS; p++) {
        size_t n = l->part[p].n;
        if (n == 0) continue;
        if (c->n + n > c->cap) EXF_TRY(exf_mem_grow(&c->all, &c->cap, c->n + n, sizeof *c->all, "route sample", err));
        memcpy(c->all + c->n, l->part[p].all, n * sizeof *c->all);
        c->n += n;
    }
out:
    return rc;
}

static int by_key(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static int by_row(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return (x->row > y->row) - (x->row < y->row);
}

/* Lists candidates below a limit that about as many meet as are wanted, with a larger limit if they are too few. */
static exf_code list_enough(candidates *c, const exf_sequence_list *q, size_t wanted, int layer, exf_err *err)
{
    double total = 0, share;
    listing *l = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&l, 1, sizeof *l, "route sample", err));
    l->q = q;
    l->layer = layer;
    cut(l);
    for (size_t i = 0; i < q->n; i++) total += (double)q->length[i];
    for (share = ((double)wanted + 4 * sqrt((double)wanted) + 16) / total;; share *= 2) {
        l->limit = share >= 1 ? UINT64_MAX : (uint64_t)(share * 0x1p63) * 2;
        EXF_TRY(list(c, l, err));
        if (c->n >= wanted || l->limit == UINT64_MAX) break;
    }
out:
    for (size_t p = 0; l && p < PARTS; p++) exf_mem_free(l->part[p].all);
    exf_mem_free(l);
    return rc;
}

void exf_route_sampler_share(exf_route_sampler *s, size_t first_row)
{
    s->shared = 1;
    s->first_row = first_row;
}

exf_code exf_route_sampler_choose(exf_route_sampler *s, const exf_sequence_list *sequences, int layer, exf_err *err)
{
    candidates c = {NULL, 0, 0};
    size_t slots = s->sample.cap * (size_t)s->sample.top_k;
    exf_code rc;
    if (s->shared) {
        memset(s->sample.ids, 0, slots * sizeof *s->sample.ids);
        memset(s->sample.weights, 0, slots * sizeof *s->sample.weights);
    }
    s->sample.n = 0;
    EXF_TRY(list_enough(&c, sequences, s->sample.cap, layer, err));
    if (c.n) qsort(c.all, c.n, sizeof *c.all, by_key);
    size_t n = s->sample.n = c.n < s->sample.cap ? c.n : s->sample.cap;
    for (size_t i = 0; i < n; i++) {
        c.all[i].index = i;
        s->sample.key[i] = c.all[i].key;
        s->row[i] = c.all[i].row;
    }
    if (n) qsort(c.all, n, sizeof *c.all, by_row);
    for (size_t i = 0; i < n; i++) s->by_row[i] = c.all[i].index;
out:
    exf_mem_free(c.all);
    return rc;
}

/* ---- keeping ---------------------------------------------------------------------- */

/* Returns the index in by_row of the first chosen token at or behind `row`. */
static size_t first_of(const exf_route_sampler *s, size_t row)
{
    size_t low = 0, high = s->sample.n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->row[s->by_row[middle]] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void put(exf_route_sampler *s, size_t i, const int32_t *ids, const float *weights)
{
    size_t k = (size_t)s->sample.top_k;
    memcpy(s->sample.ids + i * k, ids, k * sizeof *ids);
    memcpy(s->sample.weights + i * k, weights, k * sizeof *weights);
}

void exf_route_sampler_keep(exf_route_sampler *s, const exf_moe_block *b)
{
    size_t first = s->first_row + b->row;
    for (size_t at = first_of(s, first); at < s->sample.n; at++) {
        size_t i = s->by_row[at], slot;
        if (s->row[i] >= first + (size_t)b->n_tokens) break;
        slot = (s->row[i] - first) * (size_t)b->top_k;
        put(s, i, b->router_ids + slot, b->router_weights + slot);
    }
}

/* ---- on a device ------------------------------------------------------------------ */

uint64_t exf_route_sampler_device_bytes(size_t tokens, int top_k)
{
    return (uint64_t)tokens * (sizeof(int32_t) + (uint64_t)top_k * (sizeof(int32_t) + sizeof(float)));
}

exf_code exf_route_sampler_open_device(exf_route_sampler *s, const exf_backend *b, exf_err *err)
{
    size_t n = s->sample.cap, slots = n * (size_t)s->sample.top_k;
    exf_code rc;
    s->b = b;
    EXF_TRY(b->alloc(&s->slot, n, sizeof *s->slot, "route sample", err));
    EXF_TRY(b->alloc(&s->ids, slots, sizeof *s->ids, "route sample", err));
    EXF_TRY(b->alloc(&s->weights, slots, sizeof *s->weights, "route sample", err));
    EXF_TRY(exf_mem_new(&s->slot_host, n, sizeof *s->slot_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->ids_host, slots, sizeof *s->ids_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->weights_host, slots, sizeof *s->weights_host, "route sample", err));
out:
    return rc;
}

/* gather_rows() copies bits, so ids pass as floats.  Each token has a place of its own in slot_host, which copies still
 * read when this returns. */
void exf_route_sampler_keep_device(exf_route_sampler *s, const exf_device_block *b)
{
    size_t row = s->first_row + b->row, k = (size_t)b->top_k;
    size_t first = first_of(s, row), end = first_of(s, row + (size_t)b->n_tokens), n = end - first;
    if (n == 0) return;
    for (size_t at = first; at < end; at++) s->slot_host[at] = (int32_t)(s->row[s->by_row[at]] - row);
    s->b->upload(b->q, s->slot + first, s->slot_host + first, n * sizeof *s->slot);
    s->b->gather_rows(b->q, (float *)(void *)(s->ids + first * k), (const float *)(const void *)b->router_ids, s->slot + first,
                      (int)n, b->top_k);
    s->b->gather_rows(b->q, s->weights + first * k, b->router_weights, s->slot + first, (int)n, b->top_k);
    if (!s->q || first < s->first) s->first = first;
    if (!s->q || end > s->end) s->end = end;
    s->q = b->q;
}

exf_code exf_route_sampler_take_device(exf_route_sampler *s, exf_err *err)
{
    size_t k = (size_t)s->sample.top_k, from = s->first * k, slots = (s->end - s->first) * k;
    exf_code rc = EXF_OK;
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, s->ids_host + from, s->ids + from, slots * sizeof *s->ids, err));
    EXF_TRY(s->b->download(s->q, s->weights_host + from, s->weights + from, slots * sizeof *s->weights, err));
    for (size_t at = s->first; at < s->end; at++) put(s, s->by_row[at], s->ids_host + at * k, s->weights_host + at * k);
out:
    s->q = NULL;
    return rc;
}
