/* device_samples.c - see device_samples.h. */
#include "accumulate/device_samples.h"

#include "base/mem.h"

#include <string.h>

static const size_t room_bytes = (size_t)16 << 20; /* bytes of rows fetched at a time */

static size_t slots_at_once(int d_model)
{
    size_t most = room_bytes / ((size_t)d_model * sizeof(float)) / 2 * 2;
    return most < 2 ? 2 : most > 4096 ? 4096 : most;
}

uint64_t exf_device_samples_bytes(int d_model)
{
    return slots_at_once(d_model) * (2 * (uint64_t)d_model * sizeof(float) + 2 * sizeof(int32_t));
}

exf_code exf_device_samples_open(exf_device_samples *s, const exf_backend *b, int d_model, exf_err *err)
{
    size_t n = slots_at_once(d_model), h = (size_t)d_model;
    exf_code rc;
    *s = (exf_device_samples){.b = b, .d_model = d_model, .cap = (int)n};
    EXF_TRY(b->alloc(&s->slot, n, sizeof *s->slot, "samples", err));
    EXF_TRY(b->alloc(&s->ids, n, sizeof *s->ids, "samples", err));
    EXF_TRY(b->alloc(&s->raw, n * h, sizeof *s->raw, "samples", err));
    EXF_TRY(b->alloc(&s->rows, n * h, sizeof *s->rows, "samples", err));
    EXF_TRY(exf_mem_new(&s->slot_host, n, sizeof *s->slot_host, "samples", err));
    EXF_TRY(exf_mem_new(&s->ids_host, n, sizeof *s->ids_host, "samples", err));
    EXF_TRY(exf_mem_new(&s->rows_host, n * h, sizeof *s->rows_host, "samples", err));
    EXF_TRY(exf_mem_new(&s->sample, n / 2, sizeof *s->sample, "samples", err));
out:
    return rc;
}

void exf_device_samples_free(exf_device_samples *s)
{
    void *device_arrays[] = {s->slot, s->ids, s->raw, s->rows},
         *host_arrays[] = {s->slot_host, s->ids_host, s->rows_host, s->sample};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++) exf_mem_free(host_arrays[i]);
    memset(s, 0, sizeof *s);
}

/* Copies the n slots' rows and experts to the host. gather_rows() copies bits, so ids pass as floats. */
static exf_code fetch(const exf_device_samples *s, const exf_device_block *b, int n, exf_err *err)
{
    const exf_backend *k = s->b;
    size_t count = (size_t)n, h = (size_t)s->d_model;
    exf_code rc;
    k->upload(b->q, s->slot, s->slot_host, count * sizeof *s->slot);
    k->gather_rows(b->q, (float *)(void *)s->ids, (const float *)(const void *)b->topk_ids, s->slot, n, 1);
    if (b->rounded) { /* two bfloat16 per float; rounded outputs have even width (expert_products.h) */
        k->gather_rows(b->q, s->raw, b->expert_outputs, s->slot, n, s->d_model / 2);
        k->gpu->widen(b->q, s->rows, (const uint16_t *)(const void *)s->raw, count * h);
    } else {
        k->gather_rows(b->q, s->rows, b->expert_outputs, s->slot, n, s->d_model);
    }
    EXF_TRY(k->download(b->q, s->ids_host, s->ids, count * sizeof *s->ids, err));
    rc = k->download(b->q, s->rows_host, s->rows, count * h * sizeof *s->rows, err);
out:
    return rc;
}

static exf_code keep(const exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, int n, exf_err *err)
{
    size_t h = (size_t)s->d_model;
    exf_code rc = fetch(s, b, 2 * n, err);
    for (int k = 0; rc == EXF_OK && k < n; k++) {
        size_t i = s->sample[k];
        memcpy(to->source + i * h, s->rows_host + (size_t)(2 * k) * h, h * sizeof *to->source);
        memcpy(to->target + i * h, s->rows_host + (size_t)(2 * k + 1) * h, h * sizeof *to->target);
        memcpy(to->pair + 2 * i, s->ids_host + 2 * k, 2 * sizeof *to->pair);
    }
    return rc;
}

exf_code exf_device_samples_keep(exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, exf_err *err)
{
    int n = 0;
    size_t first = to->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&to->keys, first); at < to->n; at++) {
        size_t i = to->keys.by_row[at], row = to->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        int32_t slot = (int32_t)((row - first) * (size_t)b->top_k);
        s->sample[n] = i;
        s->slot_host[2 * n] = slot + to->slot[2 * i];
        s->slot_host[2 * n + 1] = slot + to->slot[2 * i + 1];
        if (2 * ++n < s->cap) continue;
        exf_code rc = keep(s, to, b, n, err);
        if (rc != EXF_OK) return rc;
        n = 0;
    }
    return n ? keep(s, to, b, n, err) : EXF_OK;
}
