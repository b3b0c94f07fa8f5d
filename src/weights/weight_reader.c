/* weight_reader.c - see weight_reader.h. */
#include "weights/weight_reader.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/stop.h"
#include "weights/shared_chunks.h"

#include <string.h>

enum { ALIGN = 256 };

exf_code exf_weight_reader_open(exf_weight_reader *r, const exf_model *m, const exf_backend *b, exf_compute compute, size_t device,
                                exf_err *err)
{
    exf_code rc;
    *r = (exf_weight_reader){.model = m, .b = b};
    EXF_TRY(b->open(&r->q, compute, err));
    EXF_TRY(b->alloc(&r->device, device, 1, "weight chunks", err));
    EXF_TRY(b->alloc(&r->bad, 1, sizeof *r->bad, "weight chunks", err));
out:
    return rc;
}

void exf_weight_reader_close(exf_weight_reader *r)
{
    if (!r->b) return;
    r->b->close(r->q);
    r->b->free(r->device);
    r->b->free(r->bad);
    memset(r, 0, sizeof *r);
}

exf_code exf_weight_reader_pin(exf_weight_reader *r, size_t bytes, exf_err *err)
{
    return r->b->gpu->alloc_staging((void *)&r->host, bytes, "weight chunks", err);
}

void exf_weight_reader_unpin(exf_weight_reader *r)
{
    r->b->gpu->free_staging(r->host);
    r->host = NULL;
}

/* ---- one chunk ----------------------------------------------------------------- */

static exf_device_coded_rows packed_of(const exf_weight_chunk *p, const char *codes, const char *scales)
{
    const exf_weight_source *w = &p->at.w;
    static const exf_device_coding coding[] = {[EXF_CODED_PLAIN] = EXF_DEVICE_CODED_PLAIN, [EXF_CODED_FP8] = EXF_DEVICE_CODED_FP8,
                                               [EXF_CODED_FP4] = EXF_DEVICE_CODED_FP4};
    return (exf_device_coded_rows){.coding = coding[w->coding], .dtype = w->stored->tensor->view.dtype,
                             .scale_dtype = w->scale ? w->scale->tensor->view.dtype : EXF_DT_F32, .codes = codes, .scales = scales,
                             .rows = p->n_rows, .cols = p->at.cols, .block_rows = (size_t)w->block_rows,
                             .block_cols = (size_t)w->block_cols};
}

#define BEYOND "is beyond bfloat16"

/* Makes the message by dequantizing on the host, since the device only reports that a value is bad. */
static exf_code blame(const exf_weight_reader *r, const exf_weight_chunk *p, int layer, exf_err *err)
{
    float *values = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&values, p->at.rows * p->at.cols, sizeof *values, "weights", err));
    EXF_TRY(exf_model_read(r->model, p->role, layer < 0 ? -1 : layer, p->expert, values, err));
    rc = exf_fail(err, EXF_NUMERIC, "layer %d: a weight of \"%s\" " BEYOND, layer, p->at.w.stored->tensor->view.name);
out:
    exf_mem_free(values);
    return rc;
}

/* Copies a chunk as stored: BF16 directly to its place if BF16 is wanted, all else by way of the reader's device memory. */
static exf_code copy_raw(exf_weight_reader *r, const exf_weight_chunk *p, const exf_raw_rows *raw, char *to, int layer,
                         exf_err *err)
{
    const exf_backend *b = r->b;
    const exf_weight_source *w = &p->at.w;
    size_t codes = exf_chunk_code_bytes(p), scales = exf_chunk_scale_bytes(p);
    size_t behind = (codes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    int bad = 0;
    exf_code rc = EXF_OK;
    if (w->coding == EXF_CODED_PLAIN && w->stored->tensor->view.dtype == EXF_DT_BF16 && p->number == EXF_NUMBER_BF16) {
        b->upload(r->q, to, raw->codes, codes); /* checked later, with the whole part */
        EXF_TRY(b->finish(r->q, err));
    } else {
        exf_device_coded_rows rows = packed_of(p, r->device, r->device + behind);
        b->upload(r->q, r->device, raw->codes, codes);
        if (scales) b->upload(r->q, r->device + behind, raw->scales, scales);
        b->gpu->dequantize(r->q, to, p->number, &rows, r->bad);
        EXF_TRY(b->download(r->q, &bad, r->bad, sizeof bad, err));
    }
    if (bad) rc = blame(r, p, layer, err);
out:
    return rc;
}

/* Copies a chunk that the host makes float32 of, after the bytes in this reader's pinned memory. */
static exf_code copy_decoded(exf_weight_reader *r, const exf_weight_chunk *p, const exf_raw_rows *raw, char *to, exf_err *err)
{
    float *values = (float *)(void *)(r->host + exf_floats_offset(exf_chunk_code_bytes(p), exf_chunk_scale_bytes(p)));
    exf_code rc;
    EXF_TRY(exf_chunk_decode(p, raw, values, err));
    r->b->upload(r->q, to, values, p->n_rows * p->at.cols * sizeof *values);
    rc = r->b->finish(r->q, err);
out:
    return rc;
}

/* c: the chunk as ranks share it; NULL, or without bytes: this reader reads it. */
static exf_code send(exf_weight_reader *r, const exf_weight_chunk *p, exf_shared_chunk *c, char *to, int layer, exf_err *err)
{
    double start = exf_clock(), read;
    exf_raw_rows own, *rows = c && c->rows.codes ? &c->rows : &own;
    exf_code rc = EXF_OK;
    if (rows == &own) EXF_TRY(exf_chunk_read(p, r->host, &own, &r->times.bytes, err));
    read = exf_clock();
    EXF_TRY(p->raw ? copy_raw(r, p, rows, to, layer, err) : copy_decoded(r, p, rows, to, err));
    r->times.reading += read - start;
    r->times.sending += exf_clock() - read;
out:
    return rc;
}

exf_code exf_weight_reader_send(exf_weight_reader *r, const exf_weight_plan *plan, size_t i, uint64_t number, char *slot,
                                exf_err *err)
{
    const exf_weight_chunk *p = &plan->chunk[i];
    double start = exf_clock();
    exf_shared_chunk c;
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    if (r->shared) EXF_TRY(exf_shared_chunk_take(r->shared, number, &c, err));
    if (r->shared) EXF_TRY(exf_chunk_share(r->shared, p, &c, &r->times.bytes, err));
    r->times.reading += exf_clock() - start;
    EXF_TRY(send(r, p, r->shared ? &c : NULL, slot + p->to, plan->of.layer, err));
    if (r->shared) exf_shared_chunk_done(r->shared, &c);
out:
    return rc;
}

/* ---- a whole part --------------------------------------------------------------- */

/* Checks all values of a part that were copied as stored. */
static exf_code check_all(exf_weight_reader *r, const exf_weight_plan *p, const char *slot, exf_err *err)
{
    int bad = 0;
    exf_code rc = EXF_OK;
    for (int role = 0; role < EXF_W_COUNT; role++) {
        size_t n =
            p->present[role] && p->number[role] == EXF_NUMBER_BF16 ? exf_weight_plan_elements(r->model, (exf_role)role, &p->of) : 0;
        r->b->gpu->check_bf16(r->q, (const uint16_t *)(const void *)(slot + p->first[role]), n, r->bad);
    }
    EXF_TRY(r->b->download(r->q, &bad, r->bad, sizeof bad, err));
    for (size_t i = 0; bad && i < p->n; i++)
        if (p->chunk[i].raw) {
            rc = blame(r, &p->chunk[i], p->of.layer, err);
            if (rc != EXF_NUMERIC || !strstr(err->msg, BEYOND) || i + 1 == p->n) break;
        }
out:
    return rc;
}

/* Writes the router's matrix twice side by side, [E, 2 H]. */
static exf_code split_router(exf_weight_reader *r, const exf_weight_plan *p, char *slot, exf_err *err)
{
    const exf_architecture *a = &r->model->arch;
    uint16_t *split = (uint16_t *)(void *)(slot + p->split);
    const float *router = (const float *)(const void *)(slot + p->first[EXF_W_ROUTER]);
    if (!p->split) return EXF_OK;
    for (int half = 0; half < 2; half++)
        r->b->gpu->round_rows(r->q, split + half * a->d_model, 2 * a->d_model, router, a->d_model, a->n_experts, a->d_model);
    return r->b->finish(r->q, err);
}

exf_code exf_weight_reader_end(exf_weight_reader *r, const exf_weight_plan *p, char *slot, exf_err *err)
{
    exf_code rc = check_all(r, p, slot, err);
    return rc == EXF_OK ? split_router(r, p, slot, err) : rc;
}
