/* route_sampler.c - see route_sampler.h. */
#include "accumulate/route_sampler.h"

#include "base/mem.h"
#include "base/rng.h"

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

/* Lists the tokens with a key of at most `limit`. */
static exf_code list(candidates *c, const exf_sequence_list *q, int layer, uint64_t limit, exf_err *err)
{
    size_t row = 0;
    exf_code rc = EXF_OK;
    c->n = 0;
    for (size_t i = 0; i < q->n; i++) {
        uint64_t own;
        memcpy(&own, q->sha256[i], sizeof own);
        for (int32_t t = 0; t < q->length[i]; t++, row++) {
            uint64_t key = exf_rng_u64(exf_rng_u64(own, STREAM, (uint64_t)layer), STREAM, (uint64_t)t);
            if (key > limit) continue;
            if (c->n == c->cap) EXF_TRY(exf_mem_grow(&c->all, &c->cap, c->n + 1, sizeof *c->all, "route sample", err));
            c->all[c->n++] = (candidate){key, row, 0};
        }
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
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < q->n; i++) total += (double)q->length[i];
    for (share = ((double)wanted + 4 * sqrt((double)wanted) + 16) / total;; share *= 2) {
        uint64_t limit = share >= 1 ? UINT64_MAX : (uint64_t)(share * 0x1p63) * 2;
        EXF_TRY(list(c, q, layer, limit, err));
        if (c->n >= wanted || limit == UINT64_MAX) break;
    }
out:
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

/* Copies n rows of routes to the host. gather_rows() copies bits, so ids pass as floats. */
static exf_code fetch(const exf_route_sampler *s, const exf_device_block *b, int n, exf_err *err)
{
    const exf_backend *k = s->b;
    size_t slots = (size_t)n * (size_t)b->top_k;
    exf_code rc;
    k->upload(b->q, s->slot, s->slot_host, (size_t)n * sizeof *s->slot);
    k->gather_rows(b->q, (float *)(void *)s->ids, (const float *)(const void *)b->router_ids, s->slot, n, b->top_k);
    k->gather_rows(b->q, s->weights, b->router_weights, s->slot, n, b->top_k);
    EXF_TRY(k->download(b->q, s->ids_host, s->ids, slots * sizeof *s->ids, err));
    rc = k->download(b->q, s->weights_host, s->weights, slots * sizeof *s->weights, err);
out:
    return rc;
}

exf_code exf_route_sampler_keep_device(exf_route_sampler *s, const exf_device_block *b, exf_err *err)
{
    size_t row = s->first_row + b->row, k = (size_t)b->top_k;
    size_t first = first_of(s, row), end = first_of(s, row + (size_t)b->n_tokens);
    if (first == end) return EXF_OK;
    for (size_t at = first; at < end; at++) s->slot_host[at - first] = (int32_t)(s->row[s->by_row[at]] - row);
    exf_code rc = fetch(s, b, (int)(end - first), err);
    for (size_t at = first; rc == EXF_OK && at < end; at++)
        put(s, s->by_row[at], s->ids_host + (at - first) * k, s->weights_host + (at - first) * k);
    return rc;
}
