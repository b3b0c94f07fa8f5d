/* vectors_samples.c - the samples of a layer from which its low-rank basis is made: of chosen tokens the outputs of two experts
 * each; smallest_keys.h says which are chosen. */
#include "accumulate/vectors.h"

#include "base/hash.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- in host memory --------------------------------------------------------------------------------- */

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

/* ---- in GPU memory, with the moments of their residuals ---------------------------------------------- */

exf_code exf_device_samples_open(exf_device_samples *s, exf_ranks *ranks, const exf_backend *b, size_t samples, int d_model,
                                 int rank, uint64_t seed, exf_err *err)
{
    size_t n = samples, h = (size_t)d_model;
    exf_code rc;
    *s = (exf_device_samples){.b = b, .d_model = d_model, .cap = samples};
    EXF_TRY(b->alloc(&s->source, n * h, sizeof(float), "samples", err));
    EXF_TRY(b->alloc(&s->target, n * h, sizeof(float), "samples", err));
    EXF_TRY(b->alloc(&s->slot, n, 2 * sizeof *s->slot, "samples", err));
    EXF_TRY(b->alloc(&s->ids, n, 2 * sizeof *s->ids, "samples", err));
    EXF_TRY(b->alloc(&s->place, n, sizeof *s->place, "samples", err));
    EXF_TRY(b->alloc(&s->scalar, n, sizeof *s->scalar, "samples", err));
    EXF_TRY(exf_mem_new(&s->slot_host, n, 2 * sizeof *s->slot_host, "samples", err));
    EXF_TRY(exf_mem_new(&s->ids_host, n, 2 * sizeof *s->ids_host, "samples", err));
    EXF_TRY(exf_device_gatherer_open(&s->gatherer, ranks, b, err));
    rc = exf_device_basis_open(&s->search, b, d_model, rank, seed, err);
out:
    return rc;
}

void exf_device_samples_free(exf_device_samples *s)
{
    void *device_arrays[] = {s->source, s->target, s->slot, s->ids, s->place, s->scalar};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    exf_device_gatherer_free(&s->gatherer);
    exf_device_basis_free(&s->search);
    exf_mem_free(s->slot_host);
    exf_mem_free(s->ids_host);
    memset(s, 0, sizeof *s);
}

static size_t row_bytes(const exf_device_samples *s)
{
    return (size_t)s->d_model * exf_number_bytes(s->number);
}

/* Gathers n rows of the slots from `first` on.  gather_rows() copies bits, so that ids pass as floats, and two bfloat16 as one:
 * rounded outputs have even width (moe.h). */
static void gather_slots(const exf_device_samples *s, const exf_moe_block *b, void *rows, size_t at, size_t first, size_t n)
{
    int32_t *slot = s->slot + at;
    s->b->upload(b->q, slot, s->slot_host + at, n * sizeof *slot);
    s->b->gather_rows(b->q, (float *)(void *)(s->ids + at), (const float *)(const void *)b->topk_ids, slot, (int)n, 1);
    s->b->gather_rows(b->q, (float *)(void *)((char *)rows + first * row_bytes(s)), b->expert_outputs, slot, (int)n,
                      (int)(row_bytes(s) / sizeof(float)));
}

void exf_device_samples_begin(exf_device_samples *s)
{
    s->q = NULL;
}

/* Each sample has a place of its own in slot_host, which copies still read when this returns. */
void exf_device_samples_keep(exf_device_samples *s, const exf_sampler *of, const exf_moe_block *b)
{
    size_t row = of->own.first + b->row, first = exf_smallest_keys_first(&of->keys, row);
    size_t end = exf_smallest_keys_first(&of->keys, row + (size_t)b->n_tokens), n = end - first;
    s->last = b->q;
    s->number = b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
    if (n == 0) return;
    for (size_t at = first; at < end; at++) {
        size_t i = of->keys.by_row[at];
        int32_t slot = (int32_t)((of->keys.chosen[i].row - row) * (size_t)b->top_k);
        s->slot_host[at] = slot + of->slot[2 * i];
        s->slot_host[s->cap + at] = slot + of->slot[2 * i + 1];
    }
    gather_slots(s, b, s->source, first, first, n);
    gather_slots(s, b, s->target, s->cap + first, first, n);
    if (!s->q || first < s->first) s->first = first;
    if (!s->q || end > s->end) s->end = end;
    s->q = b->q;
}

exf_code exf_device_samples_gather(exf_device_samples *s, const exf_sampler *to, exf_err *err)
{
    size_t first = s->q ? s->first : 0, n = s->q ? s->end - first : 0, bytes = row_bytes(s);
    exf_code rc;
    for (size_t side = 0; side < 2; side++) {
        int32_t *ids = s->ids_host + side * s->cap + first;
        if (n) EXF_TRY(s->b->download(s->q, ids, s->ids + side * s->cap + first, n * sizeof *ids, err));
        for (size_t k = 0; k < n; k++) to->pair[2 * to->keys.by_row[first + k] + side] = ids[k];
    }
    EXF_TRY(exf_gather_samples(s->gatherer.ranks, &to->keys, to->own, to->pair, 2 * sizeof *to->pair, err));
    EXF_TRY(exf_device_gather(&s->gatherer, s->last, first, first + n, to->n, s->source, bytes, err));
    EXF_TRY(exf_device_gather(&s->gatherer, s->last, first, first + n, to->n, s->target, bytes, err));
    s->q = s->last; /* rank 0 has those of others, if none of its own */
out:
    return rc;
}

exf_code exf_device_samples_basis(exf_device_samples *s, double *basis, const exf_sampler *of, double *scalar, exf_err *err)
{
    const exf_backend *b = s->b;
    size_t n = of->n, left = 0;
    exf_residual_call c = {.source = {s->source, s->number}, .target = {s->target, s->number}, .place = s->place,
                           .scalar = s->scalar, .n = (int)n};
    int32_t *place = s->slot_host; /* whose copies are done */
    exf_code rc;
    for (size_t at = 0; at < n; at++) place[of->keys.by_row[at]] = (int32_t)at;
    for (size_t i = 0; i < n; i++) {
        left += !isnan(scalar[i]);
        if (!isnan(scalar[i])) continue;
        place[i] = -1;
        scalar[i] = 0;
    }
    b->upload(s->last, s->place, place, n * sizeof *place);
    b->upload(s->last, s->scalar, scalar, n * sizeof *scalar);
    rc = exf_device_basis_find(&s->search, basis, s->last, c, left, 1, err);
    s->q = NULL;
    return rc;
}
