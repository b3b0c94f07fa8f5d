/* chapter_routes.c - the sample of routes: some tokens' routes as the router made them, from which budgets per token are solved
 * (exf_route_sample of accumulate/statistics.h), with what the norm head predicts from.
 *
 * A candidate is a token; the keys depend on no seed (smallest_keys.h). */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"

#include <string.h>

enum { STREAM = 2 }; /* of random numbers: the sampler of residuals uses 0 and 1 */

exf_code exf_routes_begin_pass(exf_accumulator *a, exf_err *err)
{
    exf_route_sampler *s = &a->routes;
    size_t tokens = a->sequences.length ? exf_route_sampler_tokens(a->options.route_sample, a->shape.n_tokens) : 0;
    exf_code rc;
    s->first_row = a->ranks ? a->own.first : 0;
    s->shared = a->ranks != NULL;
    if (!tokens) return EXF_OK;
    EXF_TRY(exf_route_sample_new(&s->sample, tokens, (int)a->shape.top_k, err));
    EXF_TRY(exf_route_sample_add_head(&s->sample, exf_head_directions(&a->shape, &a->options), err));
    rc = exf_smallest_keys_new(&s->keys, tokens, err);
out:
    return rc;
}

void exf_routes_end_pass(exf_accumulator *a)
{
    exf_route_sampler *s = &a->routes;
    void *device_arrays[] = {s->slot, s->ids, s->weights, s->projected, s->norm, s->logits},
         *host_arrays[] = {s->slot_host, s->ids_host, s->weights_host, s->projected_host, s->norm_host, s->logits_host};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++) exf_mem_free(host_arrays[i]);
    exf_smallest_keys_free(&s->keys);
    exf_route_sample_free(&s->sample);
}

exf_code exf_routes_begin_layer(exf_accumulator *a, int layer, exf_err *err)
{
    exf_route_sampler *s = &a->routes;
    exf_key_rule rule = {.sequences = &a->sequences, .each = 1, .layer = layer, .seed = STREAM, .stream = STREAM};
    size_t slots = s->sample.cap * (size_t)s->sample.top_k;
    exf_code rc;
    if (!s->sample.cap) return EXF_OK;
    if (s->shared) {
        memset(s->sample.ids, 0, slots * sizeof *s->sample.ids);
        memset(s->sample.weights, 0, slots * sizeof *s->sample.weights);
        if (s->sample.q) memset(s->sample.head, 0, s->sample.cap * exf_route_sample_head(&s->sample) * sizeof *s->sample.head);
    }
    s->sample.n = 0;
    EXF_TRY(exf_smallest_keys_choose(&s->keys, &rule, a->next_layer, err));
    s->sample.n = s->keys.n;
    for (size_t i = 0; i < s->keys.n; i++) s->sample.key[i] = s->keys.chosen[i].key;
out:
    return rc;
}

/* ---- in GPU memory ---------------------------------------------------------------------------------- */

uint64_t exf_routes_device_bytes(const exf_run_shape *shape, const exf_accumulate_options *o)
{
    size_t tokens = exf_route_sampler_tokens(o->route_sample, shape->n_tokens), q = (size_t)exf_head_directions(shape, o);
    uint64_t k = (uint64_t)shape->top_k, head = q ? (uint64_t)(q + 1) * sizeof(double) + k * sizeof(float) : 0;
    return (uint64_t)tokens * (sizeof(int32_t) + k * (sizeof(int32_t) + sizeof(float)) + head);
}

exf_code exf_routes_open_device(exf_accumulator *a, const exf_backend *b, exf_err *err)
{
    exf_route_sampler *s = &a->routes;
    size_t n = s->sample.cap, slots = n * (size_t)s->sample.top_k, q = (size_t)s->sample.q;
    exf_code rc;
    if (!n) return EXF_OK;
    s->b = b;
    EXF_TRY(b->alloc(&s->slot, n, sizeof *s->slot, "route sample", err));
    EXF_TRY(b->alloc(&s->ids, slots, sizeof *s->ids, "route sample", err));
    EXF_TRY(b->alloc(&s->weights, slots, sizeof *s->weights, "route sample", err));
    EXF_TRY(exf_mem_new(&s->slot_host, n, sizeof *s->slot_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->ids_host, slots, sizeof *s->ids_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->weights_host, slots, sizeof *s->weights_host, "route sample", err));
    if (!q) return EXF_OK;
    EXF_TRY(b->alloc(&s->projected, n * q, sizeof *s->projected, "route sample", err));
    EXF_TRY(b->alloc(&s->norm, n, sizeof *s->norm, "route sample", err));
    EXF_TRY(b->alloc(&s->logits, slots, sizeof *s->logits, "route sample", err));
    EXF_TRY(exf_mem_new(&s->projected_host, n * q, sizeof *s->projected_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->norm_host, n, sizeof *s->norm_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->logits_host, slots, sizeof *s->logits_host, "route sample", err));
out:
    return rc;
}

/* Gathers the chosen tokens of a block on its queue; blocks come in order of rows.  projected [T, q], norm [T]: the features that
 * the norm head's sums took of the block's tokens; NULL without one.  gather_rows() copies bits, so ids pass as floats, and a
 * double as two of them.  Each token has a place of its own in slot_host, which copies still read when this returns. */
static void keep_on_device(exf_route_sampler *s, const exf_moe_block *b, const double *projected, const double *norm)
{
    const exf_backend *on = s->b;
    size_t row = s->first_row + b->row, k = (size_t)b->top_k, q = (size_t)s->sample.q;
    size_t first = exf_smallest_keys_first(&s->keys, row), end = exf_smallest_keys_first(&s->keys, row + (size_t)b->n_tokens);
    int n = (int)(end - first), numbers = 2 * s->sample.q;
    int32_t *slot = s->slot + first;
    if (n == 0) return;
    for (size_t at = first; at < end; at++) s->slot_host[at] = (int32_t)(s->keys.chosen[s->keys.by_row[at]].row - row);
    on->upload(b->q, slot, s->slot_host + first, (size_t)n * sizeof *slot);
    on->gather_rows(b->q, (void *)(s->ids + first * k), (const void *)b->router_ids, slot, n, b->top_k);
    on->gather_rows(b->q, s->weights + first * k, b->router_weights, slot, n, b->top_k);
    if (q) {
        on->gather_rows(b->q, (void *)(s->projected + first * q), (const void *)projected, slot, n, numbers);
        on->gather_rows(b->q, (void *)(s->norm + first), (const void *)norm, slot, n, 2);
        on->gather_rows(b->q, s->logits + first * k, b->slot_logits, slot, n, b->top_k);
    }
    if (!s->q || first < s->first) s->first = first;
    if (!s->q || end > s->end) s->end = end;
    s->q = b->q;
}

/* Fetches the tokens that were gathered of a layer, with the norm head's features of them; waits for the queue. */
static exf_code fetch(exf_route_sampler *s, exf_err *err)
{
    const exf_backend *b = s->b;
    exf_route_sample *to = &s->sample;
    size_t k = (size_t)to->top_k, q = (size_t)to->q, first = s->first, n = s->end - first;
    exf_code rc;
    EXF_TRY(b->download(s->q, s->ids_host + first * k, s->ids + first * k, n * k * sizeof *s->ids, err));
    EXF_TRY(b->download(s->q, s->weights_host + first * k, s->weights + first * k, n * k * sizeof *s->weights, err));
    if (q) {
        EXF_TRY(b->download(s->q, s->projected_host + first * q, s->projected + first * q, n * q * sizeof *s->projected, err));
        EXF_TRY(b->download(s->q, s->norm_host + first, s->norm + first, n * sizeof *s->norm, err));
        EXF_TRY(b->download(s->q, s->logits_host + first * k, s->logits + first * k, n * k * sizeof *s->logits, err));
    }
    for (size_t at = first; at < s->end; at++) {
        size_t i = s->keys.by_row[at];
        float *head = q ? to->head + i * exf_route_sample_head(to) : NULL;
        memcpy(to->ids + i * k, s->ids_host + at * k, k * sizeof *to->ids);
        memcpy(to->weights + i * k, s->weights_host + at * k, k * sizeof *to->weights);
        if (!q) continue;
        for (size_t c = 0; c < q; c++) head[c] = (float)s->projected_host[at * q + c];
        head[q] = (float)s->norm_host[at];
        memcpy(head + q + 1, s->logits_host + at * k, k * sizeof *head);
    }
out:
    s->q = NULL;
    return rc;
}

/* ---- the chapter ------------------------------------------------------------------------------------ */

/* Keeps the chosen tokens of a block; those in host memory may come from several threads. */
void exf_routes_add_block(exf_accumulator *a, const exf_moe_block *b)
{
    exf_route_sampler *s = &a->routes;
    exf_route_sample *to = &s->sample;
    size_t first = s->first_row + b->row, width = exf_route_sample_head(to), k = (size_t)b->top_k;
    if (!to->n) return;
    if (b->q) {
        keep_on_device(s, b, a->device_norms.sums.projected, a->device_norms.sums.norm);
        return;
    }
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < to->n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row, token = row - first;
        if (row >= first + (size_t)b->n_tokens) break;
        memcpy(to->ids + i * k, b->router_ids + token * k, k * sizeof *to->ids);
        memcpy(to->weights + i * k, b->router_weights + token * k, k * sizeof *to->weights);
        if (width) exf_norm_head_of_token(to->head + i * width, a->sums[0].norms.basis, to->q, b, token);
    }
}

exf_code exf_routes_end_sweep(exf_accumulator *a, exf_err *err)
{
    exf_code rc = a->routes.q ? fetch(&a->routes, err) : EXF_OK;
    if (rc == EXF_OK && a->routes.sample.n) exf_route_sample_merge(&a->sums[0].routes, &a->routes.sample);
    return rc;
}
