/* device_vectors_samples.c - samples of the low-rank basis in device memory, and the moments of their residuals; see
 * device_vectors.h. */
#include "accumulate/device_vectors.h"

#include "base/mem.h"
#include "base/tensor.h"

#include <math.h>
#include <string.h>

uint64_t exf_device_samples_bytes(uint64_t samples, int d_model, int rank)
{
    return samples * (2 * (uint64_t)d_model * sizeof(float) + 5 * sizeof(int32_t) + sizeof(double)) +
           exf_device_basis_bytes(d_model, rank);
}

exf_code exf_device_samples_open(exf_device_samples *s, const exf_backend *b, size_t samples, int d_model, int rank, uint64_t seed,
                                 exf_err *err)
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
    rc = exf_device_basis_open(&s->search, b, d_model, rank, seed, err);
out:
    return rc;
}

void exf_device_samples_free(exf_device_samples *s)
{
    void *device_arrays[] = {s->source, s->target, s->slot, s->ids, s->place, s->scalar};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
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
static void gather(const exf_device_samples *s, const exf_device_block *b, void *rows, size_t at, size_t first, size_t n)
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
void exf_device_samples_keep(exf_device_samples *s, const exf_sampler *of, const exf_device_block *b)
{
    size_t row = of->first_row + b->row, first = exf_smallest_keys_first(&of->keys, row);
    size_t end = exf_smallest_keys_first(&of->keys, row + (size_t)b->n_tokens), n = end - first;
    s->last = b->q;
    if (n == 0) return;
    s->number = b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
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

/* Copies the gathered rows of one array to the sampler's, widened. */
static exf_code fetch_rows(const exf_device_samples *s, const exf_sampler *to, float *out, const void *rows, exf_err *err)
{
    size_t h = (size_t)s->d_model, n = s->end - s->first;
    char *raw = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_raw(&raw, n, row_bytes(s), "samples", err));
    EXF_TRY(s->b->download(s->q, raw, (const char *)rows + s->first * row_bytes(s), n * row_bytes(s), err));
    for (size_t k = 0; k < n; k++) {
        float *row = out + to->keys.by_row[s->first + k] * h;
        (void)exf_dtype_to_f32(row, raw + k * row_bytes(s), h, s->number == EXF_NUMBER_BF16 ? EXF_DT_BF16 : EXF_DT_F32);
    }
out:
    exf_mem_free(raw);
    return rc;
}

exf_code exf_device_samples_fetch(exf_device_samples *s, const exf_sampler *to, int with_rows, exf_err *err)
{
    size_t n = s->end - s->first;
    exf_code rc = EXF_OK;
    if (!s->q) return EXF_OK;
    for (size_t side = 0; side < 2; side++) {
        size_t at = side * s->cap + s->first;
        EXF_TRY(s->b->download(s->q, s->ids_host + at, s->ids + at, n * sizeof *s->ids, err));
        for (size_t k = 0; k < n; k++) to->pair[2 * to->keys.by_row[s->first + k] + side] = s->ids_host[at + k];
    }
    if (!with_rows) goto out;
    EXF_TRY(fetch_rows(s, to, to->source, s->source, err));
    EXF_TRY(fetch_rows(s, to, to->target, s->target, err));
out:
    return rc;
}

/* By rows of the run, as they would have been gathered. */
void exf_device_samples_put(exf_device_samples *s, const exf_sampler *from)
{
    exf_queue *q = s->last;
    size_t h = (size_t)s->d_model, bytes = h * sizeof(float);
    s->number = EXF_NUMBER_F32;
    for (size_t at = 0; at < from->n; at++) {
        size_t i = from->keys.by_row[at];
        s->b->upload(q, (char *)s->source + at * bytes, from->source + i * h, bytes);
        s->b->upload(q, (char *)s->target + at * bytes, from->target + i * h, bytes);
    }
    s->q = q;
    s->first = 0;
    s->end = from->n;
}

exf_code exf_device_samples_basis(exf_device_samples *s, double *basis, const exf_sampler *of, double *scalar, exf_err *err)
{
    const exf_backend *b = s->b;
    size_t n = s->q ? of->n : 0, left = 0;
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
