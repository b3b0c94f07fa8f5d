/* sampler.c - choosing and keeping tokens of a layer; see sampler.h. */
#include "accumulate/accumulate_internal.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

/* ---- samples of several ranks --------------------------------------------------------------------------- */

/* By rising row each rank's are one piece. */
exf_code exf_gather_samples(exf_ranks *r, const exf_smallest_keys *keys, exf_run_rows own, void *values, size_t bytes, exf_err *err)
{
    size_t first = exf_smallest_keys_first(keys, own.first), end = exf_smallest_keys_first(keys, own.first + own.n);
    size_t from = exf_ranks_first(r) ? 0 : first, n = exf_ranks_first(r) ? keys->n : end - first;
    char *by_row = NULL, *value = values;
    exf_code rc;
    if (!r) return EXF_OK;
    EXF_TRY(exf_mem_raw(&by_row, n, bytes, "samples", err));
    for (size_t at = first; at < end; at++) memcpy(by_row + (at - from) * bytes, value + keys->by_row[at] * bytes, bytes);
    EXF_TRY(exf_ranks_gather_parts(r, by_row + (first - from) * bytes, (end - first) * bytes, first * bytes, by_row, err));
    for (size_t at = 0; exf_ranks_first(r) && at < n; at++) memcpy(value + keys->by_row[at] * bytes, by_row + at * bytes, bytes);
    exf_mem_free(by_row);
out:
    return rc; /* after a failure by_row stays (ranks.h) */
}

enum { STAGING = 1 << 25 };

exf_code exf_device_gatherer_open(exf_device_gatherer *g, exf_ranks *ranks, const exf_backend *b, exf_err *err)
{
    *g = (exf_device_gatherer){.ranks = ranks, .b = b};
    return ranks ? b->gpu->alloc_staging((void *)&g->staging, STAGING, "samples of ranks", err) : EXF_OK;
}

void exf_device_gatherer_free(exf_device_gatherer *g)
{
    if (g->staging) g->b->gpu->free_staging(g->staging);
    *g = (exf_device_gatherer){.ranks = NULL};
}

/* By way of staging memory, a piece at a time. */
exf_code exf_device_gather(exf_device_gatherer *g, exf_queue *q, size_t first, size_t end, size_t n, void *values,
                           size_t bytes, exf_err *err)
{
    size_t most = STAGING / bytes;
    exf_code rc = EXF_OK;
    for (size_t at = 0; g->ranks && at < n; at += most) {
        size_t stop = n - at < most ? n : at + most, from = first < at ? at : first, to = end < stop ? end : stop;
        size_t own = from < to ? (to - from) * bytes : 0, offset = own ? (from - at) * bytes : 0;
        char *there = g->staging + offset, *piece = (char *)values + at * bytes;
        if (own) EXF_TRY(g->b->download(q, there, piece + offset, own, err));
        rc = exf_ranks_gather_parts(g->ranks, there, own, offset, g->staging, err);
        if (rc != EXF_OK) g->staging = NULL; /* stays (ranks.h) */
        if (rc != EXF_OK) goto out;
        if (!exf_ranks_first(g->ranks)) continue;
        g->b->copy(q, piece, g->staging, (stop - at) * bytes);
        EXF_TRY(g->b->finish(q, err));
    }
out:
    return rc;
}

/* ---- samples of the low-rank basis ------------------------------------------------------------------- */

exf_code exf_sampler_make_room(exf_sampler *s, int d_model, exf_err *err)
{
    size_t floats;
    exf_code rc;
    EXF_TRY(exf_mem_mul(&floats, s->keys.cap, (size_t)d_model, "samples", err));
    EXF_TRY(exf_mem_new(&s->source, floats, sizeof *s->source, "samples", err));
    EXF_TRY(exf_mem_new(&s->target, floats, sizeof *s->target, "samples", err));
out:
    return rc;
}

exf_code exf_sampler_new(exf_sampler *s, size_t samples, int d_model, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_smallest_keys_new(&s->keys, samples, err));
    EXF_TRY(exf_mem_new(&s->slot, samples, 2 * sizeof *s->slot, "samples", err));
    EXF_TRY(exf_mem_new(&s->pair, samples, 2 * sizeof *s->pair, "samples", err));
    if (d_model) EXF_TRY(exf_sampler_make_room(s, d_model, err));
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

exf_code exf_sampler_choose(exf_sampler *s, const exf_sequence_list *sequences, int top_k, int layer, int next, uint64_t seed,
                            exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = top_k, .layer = layer, .seed = seed, .stream = 0};
    exf_code rc;
    s->keys.n = s->n = 0;
    if (top_k < 2) return EXF_OK;
    EXF_TRY(exf_smallest_keys_choose(&s->keys, &rule, next, err));
    s->n = s->keys.n;
    for (size_t i = 0; i < s->n; i++) {
        const exf_keyed_candidate *c = &s->keys.chosen[i];
        int32_t source = (int32_t)(c->place % (uint64_t)top_k);
        s->slot[2 * i] = source;
        s->slot[2 * i + 1] = (source + 1 + (int32_t)exf_rng_below((uint64_t)(top_k - 1), c->own, 1, c->place)) % top_k;
    }
out:
    return rc;
}

void exf_sampler_keep(const exf_sampler *s, const exf_moe_block *b)
{
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k, first = s->own.first + b->row;
    const float *outputs = b->expert_outputs;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        size_t source = (row - first) * k + (size_t)s->slot[2 * i], target = (row - first) * k + (size_t)s->slot[2 * i + 1];
        memcpy(s->source + i * h, outputs + source * h, h * sizeof *s->source);
        memcpy(s->target + i * h, outputs + target * h, h * sizeof *s->target);
        s->pair[2 * i] = b->topk_ids[source];
        s->pair[2 * i + 1] = b->topk_ids[target];
    }
}

exf_code exf_sampler_gather(const exf_sampler *s, exf_ranks *ranks, int d_model, exf_err *err)
{
    size_t bytes = (size_t)d_model * sizeof *s->source;
    exf_code rc;
    EXF_TRY(exf_gather_samples(ranks, &s->keys, s->own, s->pair, 2 * sizeof *s->pair, err));
    EXF_TRY(exf_gather_samples(ranks, &s->keys, s->own, s->source, bytes, err));
    rc = exf_gather_samples(ranks, &s->keys, s->own, s->target, bytes, err);
out:
    return rc;
}

/* ---- routes -------------------------------------------------------------------------------------- */

enum { STREAM = 2 }; /* of random numbers: the sampler of residuals uses 0 and 1 */

size_t exf_route_sampler_tokens(int64_t wanted, int64_t n_tokens)
{
    return (size_t)(wanted < n_tokens ? wanted : n_tokens);
}

exf_code exf_route_sampler_new(exf_route_sampler *s, size_t tokens, int top_k, int q, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_route_sample_new(&s->sample, tokens, top_k, err));
    EXF_TRY(exf_route_sample_add_head(&s->sample, q, err));
    EXF_TRY(exf_smallest_keys_new(&s->keys, tokens, err));
out:
    if (rc != EXF_OK) exf_route_sampler_free(s);
    return rc;
}

void exf_route_sampler_free(exf_route_sampler *s)
{
    void *device_arrays[] = {s->slot, s->ids, s->weights, s->projected, s->norm, s->logits},
         *host_arrays[] = {s->slot_host, s->ids_host, s->weights_host, s->projected_host, s->norm_host, s->logits_host};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++) exf_mem_free(host_arrays[i]);
    exf_smallest_keys_free(&s->keys);
    exf_route_sample_free(&s->sample);
    memset(s, 0, sizeof *s);
}

void exf_route_sampler_share(exf_route_sampler *s, size_t first_row)
{
    s->shared = 1;
    s->first_row = first_row;
}

exf_code exf_route_sampler_choose(exf_route_sampler *s, const exf_sequence_list *sequences, int layer, int next, exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = 1, .layer = layer, .seed = STREAM, .stream = STREAM};
    size_t slots = s->sample.cap * (size_t)s->sample.top_k;
    exf_code rc;
    if (s->shared) {
        memset(s->sample.ids, 0, slots * sizeof *s->sample.ids);
        memset(s->sample.weights, 0, slots * sizeof *s->sample.weights);
        if (s->sample.q) memset(s->sample.head, 0, s->sample.cap * exf_route_sample_head(&s->sample) * sizeof *s->sample.head);
    }
    s->sample.n = 0;
    EXF_TRY(exf_smallest_keys_choose(&s->keys, &rule, next, err));
    s->sample.n = s->keys.n;
    for (size_t i = 0; i < s->keys.n; i++) s->sample.key[i] = s->keys.chosen[i].key;
out:
    return rc;
}

static void keep_routes(exf_route_sampler *s, size_t i, const int32_t *ids, const float *weights)
{
    size_t k = (size_t)s->sample.top_k;
    memcpy(s->sample.ids + i * k, ids, k * sizeof *ids);
    memcpy(s->sample.weights + i * k, weights, k * sizeof *weights);
}

void exf_route_sampler_keep(exf_route_sampler *s, const exf_moe_block *b, const double *basis)
{
    size_t first = s->first_row + b->row, width = exf_route_sample_head(&s->sample);
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->sample.n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        size_t slot = (row - first) * (size_t)b->top_k;
        keep_routes(s, i, b->router_ids + slot, b->router_weights + slot);
        if (width) exf_norm_head_of_token(s->sample.head + i * width, basis, s->sample.q, b, row - first);
    }
}

uint64_t exf_route_sampler_device_bytes(size_t tokens, int top_k, int q)
{
    uint64_t k = (uint64_t)top_k, head = q ? (uint64_t)(q + 1) * sizeof(double) + k * sizeof(float) : 0;
    return (uint64_t)tokens * (sizeof(int32_t) + k * (sizeof(int32_t) + sizeof(float)) + head);
}

/* Allocates what the norm head's features need. */
static exf_code open_head(exf_route_sampler *s, exf_err *err)
{
    size_t n = s->sample.cap, k = (size_t)s->sample.top_k, q = (size_t)s->sample.q;
    exf_code rc = EXF_OK;
    if (!q) return EXF_OK;
    EXF_TRY(s->b->alloc(&s->projected, n * q, sizeof *s->projected, "route sample", err));
    EXF_TRY(s->b->alloc(&s->norm, n, sizeof *s->norm, "route sample", err));
    EXF_TRY(s->b->alloc(&s->logits, n * k, sizeof *s->logits, "route sample", err));
    EXF_TRY(exf_mem_new(&s->projected_host, n * q, sizeof *s->projected_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->norm_host, n, sizeof *s->norm_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->logits_host, n * k, sizeof *s->logits_host, "route sample", err));
out:
    return rc;
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
    EXF_TRY(open_head(s, err));
out:
    return rc;
}

static void gather_head(const exf_route_sampler *s, const exf_moe_block *b, const double *projected, const double *norm,
                        size_t first, int n)
{
    int q = s->sample.q, k = b->top_k;
    const int32_t *slot = s->slot + first;
    float *to = (float *)(void *)(s->projected + first * (size_t)q), *to_norm = (float *)(void *)(s->norm + first);
    s->b->gather_rows(b->q, to, (const float *)(const void *)projected, slot, n, 2 * q);
    s->b->gather_rows(b->q, to_norm, (const float *)(const void *)norm, slot, n, 2);
    s->b->gather_rows(b->q, s->logits + first * (size_t)k, b->slot_logits, slot, n, k);
}

/* gather_rows() copies bits, so ids pass as floats, and a double as two of them.  Each token has a place of its own in slot_host,
 * which copies still read when this returns. */
void exf_route_sampler_keep_device(exf_route_sampler *s, const exf_moe_block *b, const double *projected, const double *norm)
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
    if (s->sample.q) gather_head(s, b, projected, norm, first, (int)n);
    if (!s->q || first < s->first) s->first = first;
    if (!s->q || end > s->end) s->end = end;
    s->q = b->q;
}

/* Fetches the norm head's features of the gathered tokens. */
static exf_code take_head(exf_route_sampler *s, exf_err *err)
{
    size_t k = (size_t)s->sample.top_k, q = (size_t)s->sample.q, first = s->first, n = s->end - first;
    exf_code rc = EXF_OK;
    if (!q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, s->projected_host + first * q, s->projected + first * q, n * q * sizeof *s->projected, err));
    EXF_TRY(s->b->download(s->q, s->norm_host + first, s->norm + first, n * sizeof *s->norm, err));
    EXF_TRY(s->b->download(s->q, s->logits_host + first * k, s->logits + first * k, n * k * sizeof *s->logits, err));
    for (size_t at = first; at < s->end; at++) {
        float *to = s->sample.head + s->keys.by_row[at] * exf_route_sample_head(&s->sample);
        for (size_t i = 0; i < q; i++) to[i] = (float)s->projected_host[at * q + i];
        to[q] = (float)s->norm_host[at];
        memcpy(to + q + 1, s->logits_host + at * k, k * sizeof *to);
    }
out:
    return rc;
}

exf_code exf_route_sampler_take_device(exf_route_sampler *s, exf_err *err)
{
    size_t k = (size_t)s->sample.top_k, from = s->first * k, slots = (s->end - s->first) * k;
    exf_code rc = EXF_OK;
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, s->ids_host + from, s->ids + from, slots * sizeof *s->ids, err));
    EXF_TRY(s->b->download(s->q, s->weights_host + from, s->weights + from, slots * sizeof *s->weights, err));
    EXF_TRY(take_head(s, err));
    for (size_t at = s->first; at < s->end; at++)
        keep_routes(s, s->keys.by_row[at], s->ids_host + at * k, s->weights_host + at * k);
out:
    s->q = NULL;
    return rc;
}
