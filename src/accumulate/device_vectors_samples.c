/* device_vectors_samples.c - samples of the low-rank basis in device memory, and the moments of their residuals; see
 * device_vectors.h. */
#include "accumulate/device_vectors.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

uint64_t exf_device_samples_bytes(uint64_t samples, int d_model, int rank)
{
    return samples * (2 * (uint64_t)d_model * sizeof(float) + 5 * sizeof(int32_t) + sizeof(double)) +
           exf_device_basis_bytes(d_model, rank);
}

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

/* ---- the first sweep -------------------------------------------------------------------------------- */

static size_t row_bytes(const exf_device_samples *s)
{
    return (size_t)s->d_model * exf_number_bytes(s->number);
}

/* Gathers n rows of the slots from `first` on.  gather_rows() copies bits, so that ids pass as floats, and two bfloat16 as one:
 * rounded outputs have even width (moe.h). */
static void gather(const exf_device_samples *s, const exf_moe_block *b, void *rows, size_t at, size_t first, size_t n)
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
    gather(s, b, s->source, first, first, n);
    gather(s, b, s->target, s->cap + first, first, n);
    if (!s->q || first < s->first) s->first = first;
    if (!s->q || end > s->end) s->end = end;
    s->q = b->q;
}

/* ---- between the sweeps ------------------------------------------------------------------------------ */

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
