/* route_sampler.c - see route_sampler.h. */
#include "accumulate/route_sampler.h"

#include "base/mem.h"

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
    EXF_TRY(exf_smallest_keys_new(&s->keys, tokens, err));
out:
    if (rc != EXF_OK) exf_route_sampler_free(s);
    return rc;
}

void exf_route_sampler_free(exf_route_sampler *s)
{
    void *device_arrays[] = {s->slot, s->ids, s->weights},
         *host_arrays[] = {s->slot_host, s->ids_host, s->weights_host};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++) exf_mem_free(host_arrays[i]);
    exf_smallest_keys_free(&s->keys);
    exf_route_sample_free(&s->sample);
    memset(s, 0, sizeof *s);
}

/* ---- choosing --------------------------------------------------------------------- */

void exf_route_sampler_share(exf_route_sampler *s, size_t first_row)
{
    s->shared = 1;
    s->first_row = first_row;
}

exf_code exf_route_sampler_choose(exf_route_sampler *s, const exf_sequence_list *sequences, int layer, exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = 1, .layer = layer, .seed = STREAM, .stream = STREAM};
    size_t slots = s->sample.cap * (size_t)s->sample.top_k;
    exf_code rc;
    if (s->shared) {
        memset(s->sample.ids, 0, slots * sizeof *s->sample.ids);
        memset(s->sample.weights, 0, slots * sizeof *s->sample.weights);
    }
    s->sample.n = 0;
    EXF_TRY(exf_smallest_keys_choose(&s->keys, &rule, err));
    s->sample.n = s->keys.n;
    for (size_t i = 0; i < s->keys.n; i++) s->sample.key[i] = s->keys.chosen[i].key;
out:
    return rc;
}

/* ---- keeping ---------------------------------------------------------------------- */

static void put(exf_route_sampler *s, size_t i, const int32_t *ids, const float *weights)
{
    size_t k = (size_t)s->sample.top_k;
    memcpy(s->sample.ids + i * k, ids, k * sizeof *ids);
    memcpy(s->sample.weights + i * k, weights, k * sizeof *weights);
}

void exf_route_sampler_keep(exf_route_sampler *s, const exf_moe_block *b)
{
    size_t first = s->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->sample.n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        size_t slot = (row - first) * (size_t)b->top_k;
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
    size_t first = exf_smallest_keys_first(&s->keys, row);
    size_t end = exf_smallest_keys_first(&s->keys, row + (size_t)b->n_tokens), n = end - first;
    if (n == 0) return;
    for (size_t at = first; at < end; at++) s->slot_host[at] = (int32_t)(s->keys.chosen[s->keys.by_row[at]].row - row);
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
    for (size_t at = s->first; at < s->end; at++) put(s, s->keys.by_row[at], s->ids_host + at * k, s->weights_host + at * k);
out:
    s->q = NULL;
    return rc;
}
